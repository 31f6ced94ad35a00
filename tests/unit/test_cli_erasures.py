"""`lifecycle erase` and `lifecycle receipt` as people meet them; the key is on standard input and nowhere else."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import copy_topic
from message_lifecycle.ledger import tables
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey
from tests.worlds import NOW, Lake, Told, make_lake

KEY = "customer-17"
WORD = ("--by", "ada", "--why", "a letter of 3 May")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts bytes on standard input."""

    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


def append(lake: Lake, topic: TopicName, *keys: bytes) -> None:
    new = [NewMessage(append_time=NOW, key=key, value=b"v") for key in keys]
    lake.world.writer.append(topic, new, policy_of(lake.services, topic))


def keys(lake: Lake, topic: TopicName) -> list[bytes | None]:
    return [message.key for message in lake.services.reader.messages(topic)]


def ledger_text(lake: Lake) -> str:
    """Everything that the ledger keeps."""
    database = lake.services.ledger._database  # type: ignore[attr-defined]  # where this test looks for the key
    with database.reading() as connection:
        return repr([connection.execute(text(f"select * from {table.name}")).all() for table in tables.metadata.sorted_tables])


def spelled(key: str) -> tuple[str, ...]:
    return key, key.encode().hex(), base64.b64encode(key.encode()).decode()


def test_a_key_is_erased_everywhere_and_told_nowhere(lake: Lake, give: Any, caplog: pytest.LogCaptureFixture) -> None:
    one, two = lake.topic("one"), lake.topic("two")
    append(lake, one, b"a", KEY.encode())
    append(lake, two, KEY.encode(), KEY.encode() + b"8")
    give(KEY.encode() + b"\n")
    told = lake.say("erase", *WORD, "--forbid", "--output", "json")
    assert told.status == 0, told.err
    assert keys(lake, one) == [b"a"]
    assert keys(lake, two) == [KEY.encode() + b"8"]
    request = told.document
    assert (request["state"], request["forbids"], request["topics"], request["errors"]) == ("erased", True, [], [])
    assert {outcome["topic"]: outcome["removed"] for outcome in request["outcomes"]} == {
        "default/one": {"erased": 1},
        "default/two": {"erased": 1},
    }
    said = [told.out, told.err, caplog.text, ledger_text(lake)]
    for arguments in (("erase", "list"), ("erase", "show", request["request_id"]), ("receipt", "show", request["request_id"])):
        for output in ("text", "json"):
            shown = lake.say(*arguments, "--output", output)
            assert shown.status == 0, shown.err
            said += [shown.out, shown.err]
    plan_id = request["outcomes"][0]["plan_id"]
    for arguments in (("ledger", "show", plan_id), ("explain", plan_id)):
        for output in ("text", "json"):
            shown = lake.say(*arguments, "--output", output)
            assert shown.status == 0, shown.err
            said += [shown.out, shown.err]
    assert not any(one in text for one in spelled(KEY) for text in said)
    assert lake.say("receipt", "verify", request["request_id"][:8]).status == 0


def test_a_key_on_the_command_line_is_refused_with_the_way_that_there_is_and_not_told_again(lake: Lake) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    for output in ("text", "json"):
        told = lake.say("erase", *WORD, KEY, "-o", output)
        assert (told.status, KEY in told.out + told.err) == (2, False)
        said = " ".join((told.out + told.err).replace("│", " ").split())
        assert "a key is never an argument" in said and "< FILE" in said
    assert keys(lake, topic) == [KEY.encode()]


def test_what_stands_against_it_is_told_once_and_what_checks_it_when_it_is_done(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    hold = lake.say("hold", "add", "one", "--by", "ada", "--why", "case 7", "-o", "json").document["hold_id"]
    give(KEY.encode())
    told = lake.say("erase", *WORD)
    assert (told.status, told.out.count("HeldByLegalHold"), "receipt" in told.out) == (3, 1, False)
    assert lake.say("hold", "release", hold, "--by", "ada", "--why", "case closed").status == 0
    (request,) = lake.services.ledger.erasures()
    done = lake.say("erase", "run", request.request_id, *WORD)
    assert (done.status, f"lifecycle receipt verify {request.request_id[:12]}" in done.out) == (0, True)


def test_what_is_copied_while_its_origin_waits_is_found_in_the_copy(lake: Lake) -> None:
    origin = lake.topic("shop/orders")
    replica = lake.topic("archive/orders", role="source", origin="shop/orders")
    append(lake, origin, KEY.encode(), b"other")
    request = ask(lake.services, [KEY.encode()], topics=(), forbid=False, by="ada", why="a letter")

    def copying(_plan: object, _report: object) -> tuple[bool, str, str]:
        copy_topic(lake.services, replica)
        return True, "ada", "a letter"

    found = carry_out(lake.services, request.request_id, approver=copying)
    assert [one.topic for one in found] == [origin, replica]
    assert lake.services.ledger.erasure(request.request_id).state == "erased"
    assert keys(lake, origin) == keys(lake, replica) == [b"other"]


def test_it_is_recorded_now_and_carried_out_later(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    give(KEY.encode())
    told = lake.say("erase", "--later", "--topic", "one", *WORD)
    assert told.status == 0, told.err
    assert keys(lake, topic) == [KEY.encode()]
    (request,) = lake.services.ledger.erasures()
    assert f"lifecycle erase run {request.request_id[:12]}" in told.out
    assert f'"request_id": "{request.request_id}"' in told.out
    assert (request.topics, request.forbid, request.requested_by, request.why) == ((topic,), False, "ada", "a letter of 3 May")
    assert lake.say("erase", "run", request.request_id[:6], "--by", "bob", "--why", "yes").status == 0
    assert keys(lake, topic) == []


def test_a_plan_that_is_verified_by_hand_ends_its_request(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    give(KEY.encode())
    lake.say("erase", "--later", "--topic", "one", *WORD)
    (request,) = lake.services.ledger.erasures()
    plan_id = str(steps.run(lake.services, topic, as_of=lake.services.ledger.now(), work=EraseKey(request_id=request.request_id)).plan_id)
    assert lake.say("approve", plan_id, *WORD).status == 0
    assert lake.say("publish", plan_id).status == 0
    assert lake.services.ledger.erasure(request.request_id).state == "requested"
    assert lake.say("verify", plan_id).status == 0
    assert lake.services.ledger.erasure(request.request_id).state == "erased"


def test_a_receipt_that_does_not_hold_any_more_says_so(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    give(KEY.encode())
    request_id = lake.say("erase", *WORD, "--output", "json").document["request_id"]
    append(lake, topic, KEY.encode())
    told = lake.say("receipt", "verify", request_id, "--output", "json")
    assert (told.status, told.document["holds"]) == (1, False)


def test_what_is_forbidden_may_be_allowed_again(lake: Lake, give: Any) -> None:
    lake.topic("one")
    give(KEY.encode())
    request_id = lake.say("erase", *WORD, "--forbid", "--output", "json").document["request_id"]
    told = lake.say("erase", "allow", request_id, "--by", "bob", "--why", "a new contract", "--output", "json")
    assert (told.document["forbids"], told.document["lifted"]["by"]) == (False, "bob")
    again = lake.say("erase", "allow", request_id, "--by", "bob", "--why", "again", "--output", "json")
    assert (again.status, again.document["error"]) == (3, "NothingForbidden")


def refused(told: Told) -> str:
    assert told.status == 2
    return str(told.document["error"])


@pytest.mark.parametrize(
    ("content", "arguments", "error"),
    [
        (b"", (), "UnusableKey"),
        (b"\n", (), "UnusableKey"),
        (b"one\n\ntwo\n", (), "UnusableKey"),
        (b"one\ntwo\n\n", (), "UnusableKey"),
        (b"one\ntwo\r\n", (), "UnusableKey"),
        (b"".join(b"%d\n" % number for number in range(1_001)), (), "TooManyKeys"),
        (b"not base64!", ("--base64",), "UnusableKey"),
        (b"x" * ((1 << 20) + 1), (), "UnusableKey"),
        (b"customer-17", ("--topic", "nowhere"), "UnknownTopic"),
    ],
)
def test_bad_input_is_named_without_the_key(lake: Lake, give: Any, content: bytes, arguments: tuple[str, ...], error: str) -> None:
    lake.topic("one")
    give(content)
    told = lake.say("erase", *WORD, *arguments, "--output", "json")
    assert refused(told) == error
    assert not content.strip() or content.decode() not in told.out
    assert not lake.services.ledger.erasures()


@pytest.mark.parametrize("spelling", spelled(KEY))
def test_a_reason_that_tells_the_key_is_refused_before_it_is_kept(lake: Lake, give: Any, spelling: str) -> None:
    lake.topic("one")
    give(KEY.encode())
    told = lake.say(
        "erase", "--by", "ada", "--why", f"because {spelling.upper() if spelling == KEY else spelling} asked", "--output", "json"
    )
    assert refused(told) == "UnusableKey"
    assert KEY not in told.out
    assert KEY not in ledger_text(lake)


@pytest.mark.parametrize("arguments", [(), ("--by", "ada"), ("--by", " ", "--why", "x"), (KEY, *WORD)])
def test_there_is_a_name_a_reason_and_no_argument_for_the_key(lake: Lake, give: Any, arguments: tuple[str, ...]) -> None:
    lake.topic("one")
    give(KEY.encode())
    assert lake.say("erase", *arguments).status == 2
    assert not lake.services.ledger.erasures()


@pytest.mark.parametrize(
    ("content", "options", "key"),
    [
        (b" spaces \n", (), b" spaces "),
        (base64.b64encode(b"line\r") + b"\n", ("--base64",), b"line\r"),
        (b"\xff\xfe", (), b"\xff\xfe"),
        (base64.b64encode(b"a\nb\x00") + b"\n", ("--base64",), b"a\nb\x00"),
        (b"\n", ("--empty-key",), b""),
    ],
)
def test_the_bytes_are_those_of_the_line(lake: Lake, give: Any, content: bytes, options: tuple[str, ...], key: bytes) -> None:
    topic = lake.topic("one")
    append(lake, topic, key, b"other")
    give(content)
    assert lake.say("erase", *WORD, *options).status == 0
    assert keys(lake, topic) == [b"other"]


def test_a_line_with_a_carriage_return_at_its_end_is_refused_and_not_looked_for(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    give(KEY.encode() + b"\r\n")
    told = lake.say("erase", *WORD, "--output", "json")
    assert refused(told) == "UnusableKey"
    assert KEY not in told.out + told.err
    assert not lake.services.ledger.erasures()


def test_each_line_is_a_key_of_one_request_and_counts_once(lake: Lake, give: Any, caplog: pytest.LogCaptureFixture) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode(), b"a", b"b\n", b"", b"c")
    lines = [base64.b64encode(key) for key in (KEY.encode(), b"b\n", b"", KEY.encode())]
    give(b"\n".join(lines))
    told = lake.say("erase", *WORD, "--base64", "--empty-key", "--forbid", "-o", "json")
    assert told.status == 0, told.err
    assert keys(lake, topic) == [b"a", b"c"]
    assert (told.document["state"], len(told.document["digests"])) == ("erased", 3)
    request_id = told.document["request_id"]
    shown = [" ".join(line.split()) for line in lake.say("erase", "show", request_id).out.splitlines()]
    assert "keys 3, forbidden: new messages with them are rejected" in shown
    assert any(" 3 forbidden " in f"{' '.join(line.split())} " for line in lake.say("erase", "list").out.splitlines())
    receipt = lake.say("receipt", "show", request_id).out
    assert all(f"key digest {number}" in receipt for number in (1, 2, 3))
    said = [told.out, told.err, receipt, caplog.text, ledger_text(lake)]
    assert not any(one in text for one in spelled(KEY) for text in said)


def test_a_line_that_is_no_key_is_named_by_its_number(lake: Lake, give: Any) -> None:
    give(KEY.encode() + b"\n\nother\n")
    told = lake.say("erase", *WORD)
    assert "line 2 is empty" in told.err
    assert KEY not in told.err


def test_a_receipt_proves_each_key_of_its_request_alone(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode(), b"other")
    give(KEY.encode() + b"\nother\nnowhere\n")
    request_id = lake.say("erase", *WORD, "--output", "json").document["request_id"]
    append(lake, topic, b"other")

    def verified(*arguments: str, key: bytes = b"") -> bool:
        give(key)
        told = lake.say("receipt", "verify", request_id, *arguments, "--output", "json")
        assert told.status == (0 if told.document["holds"] else 1), told.err
        return bool(told.document["holds"])

    assert not verified(), "a message of one key came again"
    assert verified("--key-stdin", key=KEY.encode() + b"\n")
    assert verified("--key-stdin", "--base64", key=base64.b64encode(KEY.encode()))
    assert verified("--key-stdin", key=b"nowhere")
    assert not verified("--key-stdin", key=b"other")
    assert not verified("--key-stdin", key=b"another"), "the request did not name it"
    give(b"other\nnowhere\n")
    assert refused(lake.say("receipt", "verify", request_id, "--key-stdin", "--output", "json")) == "UnusableKey"


def test_on_a_terminal_it_is_asked_for_without_echo(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    asked: list[str] = []
    monkeypatch.setattr("getpass.getpass", lambda prompt: asked.append(prompt) or KEY)
    told = lake.say("erase", *WORD)
    assert told.status == 0
    assert asked == ["Key (not shown): "]
    assert KEY not in told.out + told.err
    assert keys(lake, topic) == []


def test_a_receipt_reads_as_a_person_reads_it_and_its_json_is_what_is_kept(lake: Lake, give: Any) -> None:
    topic = lake.topic("shop/orders")
    append(lake, topic, b"a", KEY.encode())
    give(KEY.encode())
    request = lake.say("erase", *WORD, "--output", "json").document
    kept = lake.services.ledger.receipt(request["request_id"])
    shown = lake.say("receipt", "show", request["request_id"][:8])
    words = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert (shown.status, "\\n" in shown.out, str(NOW) in shown.out) == (0, False, False)
    assert words[:2] == [f"Receipt of erasure request {request['request_id']}", f"key digest {request['digests'][0]}"]
    for line in ("shop/orders", "messages erased 1", *(f"{what} 2026-11-21T12:00:00Z" for what in ("hidden", "rewritten", "unreachable"))):
        assert line in words
    told = lake.say("receipt", "show", request["request_id"], "--output", "json")
    assert told.document == json.loads(kept)
    assert lake.services.ledger.receipt(request["request_id"]) == kept


def test_receipts_are_listed_with_what_went(lake: Lake, give: Any) -> None:
    assert lake.say("receipt", "list").out.strip() == "no receipts: nothing was erased"
    append(lake, lake.topic("shop/orders"), b"a", KEY.encode())
    append(lake, lake.topic("shop/prices"), KEY.encode(), KEY.encode())
    give(KEY.encode())
    request_id = lake.say("erase", *WORD, "--output", "json").document["request_id"]
    (told,) = lake.say("receipt", "list", "--output", "json").document
    assert (told["request_id"], told["topics"], told["messages"]) == (request_id, ["shop/orders", "shop/prices"], 3)
    assert told["at"] == "2026-11-21T12:00:00Z"
    row = lake.say("receipt", "list").out.splitlines()[1].split()
    assert (row[0], row[-2]) == (request_id[:12], "3")


def test_the_reason_of_a_request_and_what_stands_against_it_are_told_apart(lake: Lake, give: Any) -> None:
    topic = lake.topic("one")
    append(lake, topic, KEY.encode())
    assert lake.say("hold", "add", "one", "--by", "ada", "--why", "case 7").status == 0
    give(KEY.encode())
    request_id = lake.say("erase", *WORD, "--output", "json").document["request_id"]
    head, row = lake.say("erase", "list").out.splitlines()
    why, against = head.index("why"), head.index("not done because")
    assert row[why:against].strip() == "a letter of 3 May"
    assert row[against:].startswith("default/one: HeldByLegalHold: ")
    shown = [" ".join(line.split()) for line in lake.say("erase", "show", request_id).out.splitlines()]
    assert "requested by ada: a letter of 3 May" in shown
    assert any(line.startswith("not done because default/one: HeldByLegalHold: ") for line in shown)


def test_lists_say_what_there_is(lake: Lake, give: Any) -> None:
    assert "no erasure requests" in lake.say("erase", "list").out
    assert json.loads(lake.say("erase", "list", "--output", "json").out) == []
    assert lake.say("receipt", "show", "0123").status == 2


def test_a_key_that_is_nowhere_is_warned_about_first(lake: Lake, give: Any) -> None:
    lake.append(lake.topic("one"), 1)
    give(b"nobody\n")
    told = lake.say("erase", "--by", "ada", "--why", "a letter")
    assert (told.status, told.out.split(":")[0]) == (0, "Warning")
    assert ": not_found" in told.out


def test_a_key_inside_values_is_named_and_recorded_without_the_key(lake: Lake, give: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = lake.topic("one")
    new = [
        NewMessage(append_time=NOW, key=key, value=value)
        for key, value in ((KEY.encode(), b"x"), (b"a", b"to " + KEY.encode()), (b"b", b"y"))
    ]
    lake.world.writer.append(one, new, policy_of(lake.services, one))
    give(KEY.encode() + b"\n")
    told = lake.say("erase", *WORD, "--in-values", "--output", "json")
    assert told.status == 0, told.err
    (topic,) = told.document["in_values"]["topics"]
    (place,) = topic["places"]
    assert (place["table"], place["partition"], place["offsets"], place["rows"], place["live"]) == ("log", 0, "1", 1, 1)
    assert keys(lake, one) == [b"a", b"b"]
    request_id = told.document["request_id"]
    for words in (("erase", "show", request_id), ("receipt", "show", request_id)):
        assert lake.say(*words, "-o", "json").document["in_values"] == told.document["in_values"]
        said = " ".join(lake.say(*words).out.split())
        assert "Keys inside other messages" in said
        assert "default/one log 0 1 1 1" in said
    assert not any(form in text for form in spelled(KEY) for text in (told.out, told.err, caplog.text, ledger_text(lake)))
    give(KEY.encode() + b"\n")
    again = lake.say("erase", *WORD, "--in-values", "--later")
    assert "lifecycle message delete" in again.out
    give(b"\n")
    assert "every value" in lake.say("erase", *WORD, "--in-values", "--empty-key").err


def test_names_of_documents_are_shown_and_never_kept(lake: Lake, give: Any, tmp_path: Path) -> None:
    lake.topic("letters", fold="text_splice", snapshot_interval=10, snapshot_threshold=5)
    changes = [("secret name", 1, f"to {KEY}"), ("other", 1, "x"), (KEY, 1, KEY)]
    lines = [
        json.dumps({"document": document, "server_seq": seq, "client": "ada", "at": NOW, "payload": [[0, 0, text]]})
        for document, seq, text in changes
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    assert lake.say("document", "add", "letters", str(tmp_path / "c.jsonl")).status == 0
    give(KEY.encode() + b"\n")
    told = lake.say("erase", *WORD, "--in-values", "-o", "json").document
    (place,) = told["in_values"]["topics"][0]["places"]
    assert (place["rows"], place["live"], place["names"]) == (1, 1, ["secret.name:1"])
    shown = lake.say("erase", "show", told["request_id"], "-o", "json").document
    assert shown["in_values"]["topics"][0]["places"][0]["names"] == []
    erasures = [row for row in ledger_text(lake).split("[") if told["request_id"] in row]
    assert erasures and not any("secret.name" in row for row in erasures)


def test_a_purge_names_values_too(lake: Lake) -> None:
    one = lake.topic("one")
    new = [NewMessage(append_time=NOW, key=key, value=b"to " + KEY.encode()) for key in (KEY.encode(), b"a", b"b")]
    lake.world.writer.append(one, new, policy_of(lake.services, one))
    told = lake.say("key", "purge", "one", KEY, *WORD, "--in-values", "-o", "json")
    (place,) = told.document["in_values"]["topics"][0]["places"]
    assert (place["offsets"], place["rows"]) == ("1-2", 2)
    assert "in no value" not in lake.say("key", "purge", "one", KEY, *WORD, "--in-values").out
