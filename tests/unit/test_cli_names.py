"""Names as people give them, in any spelling of Unicode (NAME-1)."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from message_lifecycle.app import ingest, tasks
from message_lifecycle.app.config import Config
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.worlds import HOUR, NOW, Lake, Told, make_lake

ONE, APART = "caf\u00e9", "cafe\u0301"
"""One name, with its accent as part of the letter (NFC) and apart from it, as macOS has it in the names of files."""
JOINED = "\u200dx"
LETTERS: Mapping[str, Value] = {"fold": "text_splice", "snapshot_interval": 10, "snapshot_threshold": 5}


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def told(said: Told) -> str:
    assert said.status == 0, said.err
    return str(said.document["topic"])


def refused(said: Told) -> tuple[int, str]:
    return said.status, said.err.split(":")[0] if said.err else said.document["error"]


def test_a_topic_is_found_by_every_spelling_of_its_name_and_kept_under_one(lake: Lake) -> None:
    assert told(lake.say("topic", "create", APART, "-o", "json")) == f"default/{ONE}"
    for spelled in (ONE, APART, f"DEFAULT/{APART.upper()}"):
        assert told(lake.say("topic", "describe", spelled, "-o", "json")) == f"default/{ONE}"
    assert told(lake.say("topic", "alter", APART, "--set", "message_expiry=60", "-o", "json")) == f"default/{ONE}"
    assert lake.say("status", APART).status == 0
    assert lake.say("topic", "list", "-o", "json").document == [f"default/{ONE}"]


@pytest.mark.parametrize(("there", "given"), [(ONE, ONE), (ONE, APART), (APART, APART), (APART, ONE)])
def test_no_second_topic_of_the_same_name_is_made(lake: Lake, there: str, given: str) -> None:
    lake.topic(there)
    assert refused(lake.say("topic", "create", given)) == (3, "TopicExists")
    assert lake.say("topic", "list", "-o", "json").document == [f"default/{ONE}"]


def test_a_new_topic_comes_to_the_stream_that_is_there(lake: Lake) -> None:
    lake.topic(f"{APART}/a")
    assert told(lake.say("topic", "create", f"{ONE}/b", "-o", "json")) == f"{ONE}/b"
    assert lake.say("topic", "list", "--stream", APART, "-o", "json").document == [f"{ONE}/a", f"{ONE}/b"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("-x", "begins with '-'"), ("s/-x", "begins with '-'"), ("-s/x", "begins with '-'"), ("- x", "begins with '-'"), (JOINED, r"\u200d"),
     ("x\u200c", r"\u200c"), ("\u200d", r"\u200d"), ("a\u200d\u200db", r"\u200d"), ("a.\u200db", r"\u200d"), ("a1\u200cb", r"\u200c")],
)  # fmt: skip
def test_a_name_that_nobody_could_type_or_see_is_given_to_nothing_new(lake: Lake, name: str, why: str) -> None:
    said = lake.say("topic", "create", "--", name)
    assert refused(said) == (2, "InvalidName")
    assert why in said.err
    assert "no '-' first, and zero-width joiners only between letters" in said.err
    assert lake.say("topic", "list", "-o", "json").document == []


@pytest.mark.parametrize("name", ["-x", JOINED, "x\u200c"])
def test_a_new_consumer_has_a_name_of_today(lake: Lake, name: str) -> None:
    lake.append(lake.topic("orders"), 1)
    assert refused(lake.say("consumer", "commit", "--", "orders", name, "0:0")) == (2, "InvalidName")
    assert lake.say("consumer", "list", "orders", "-o", "json").document == []


@pytest.mark.parametrize("name", ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0915\u094d\u200d\u0937", "a-b", "\u0301x"])
def test_where_a_script_joins_letters_names_do(lake: Lake, name: str) -> None:
    """Persian's word for `I want` parts two letters, and a Hindi conjunct joins two."""
    assert told(lake.say("topic", "create", name, "-o", "json")) == f"default/{name}"


def test_a_name_counts_by_its_bytes_in_the_form_it_is_kept_in(lake: Lake) -> None:
    """Apart, each Korean syllable is three letters of three bytes."""
    syllables = "\uac01" * 85
    assert told(lake.say("topic", "create", "\u1100\u1161\u11a8" * 85, "-o", "json")) == f"default/{syllables}"
    assert told(lake.say("topic", "describe", "\u1100\u1161\u11a8" * 85, "-o", "json")) == f"default/{syllables}"
    assert refused(lake.say("topic", "create", "\u1100\u1161\u11a8" * 86)) == (2, "InvalidName")


def test_a_copy_follows_its_origin_however_that_is_spelled(lake: Lake) -> None:
    origin = lake.topic(ONE)
    lake.append(origin, 1)
    assert told(lake.say("topic", "create", "copy", "--set", "role=mirror", "--set", f"origin={APART}", "-o", "json")) == "default/copy"
    assert lake.say("topic", "copy", "copy", "-o", "json").document["messages"] == 1
    assert [entry["consumer"] for entry in lake.say("consumer", "list", APART, "-o", "json").document] == ["default/copy"]


def test_a_topic_that_is_gone_is_known_by_every_spelling(lake: Lake) -> None:
    lake.topic(ONE)
    assert lake.say("topic", "delete", APART, "--by", "ann", "--why", "why").status == 0
    assert [run["topic"] for run in lake.say("ledger", "list", APART, "-o", "json").document] == [f"default/{ONE}"]
    assert refused(lake.say("topic", "describe", APART)) == (2, "UnknownTopic")


def test_a_consumer_is_one_in_every_spelling(lake: Lake) -> None:
    topic = lake.topic("orders")
    lake.append(topic, 3, 2, 1)
    for offset, spelled in enumerate((APART, ONE, APART.upper())):
        (entry,) = lake.say("consumer", "commit", "orders", spelled, f"0:{offset}", "-o", "json").document
        assert (entry["consumer"], entry["partitions"][0]["offset"]) == (ONE, offset)
    assert lake.say("read", "orders", "--consumer", APART, "-o", "json").status == 0
    assert lake.say("consumer", "remove", "orders", APART, "-o", "json").document["removed"] == ONE
    assert lake.say("consumer", "list", "orders", "-o", "json").document == []


# Documents, with their clients and owners.


def changes(lake: Lake, document: str, *seqs: int, client: str = "ada") -> Told:
    lines = [
        json.dumps({"document": document, "server_seq": seq, "client": client, "at": NOW - HOUR + seq, "payload": [[seq - 1, 0, "x"]]})
        for seq in seqs
    ]
    with pytest.MonkeyPatch.context() as typed:
        typed.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        return lake.say("document", "add", "letters", "-o", "json")


def test_a_document_is_one_in_every_spelling(lake: Lake) -> None:
    lake.topic("letters", **LETTERS)
    assert changes(lake, APART, 1).document["newest"] == {ONE: 1}
    said = changes(lake, ONE, 2, client=APART).document
    assert (said["newest"], said["changes"], said["erased"]) == ({ONE: 2}, 1, 0)
    assert changes(lake, APART, 3).document["newest"] == {ONE: 3}
    synced = lake.say("document", "sync", "letters", APART, APART, "2", "-o", "json").document
    assert (synced["document"], synced["client"]) == (ONE, ONE)
    assert lake.say("document", "pull", "letters", APART, "--client", ONE, "-o", "json").document["document"] == ONE
    assert lake.say("document", "history", "letters", APART, "-o", "json").document["document"] == ONE
    assert lake.say("document", "describe", "letters", APART, "-o", "json").document["document"] == ONE
    altered = lake.say("document", "alter", "letters", "--document", APART, "--owner", APART, "snapshot_interval=20", "-o", "json").document
    assert (altered["name"], altered["owner"]) == (ONE, ONE)
    assert lake.say("document", "alter", "letters", "--user", APART, "snapshot_interval=30", "-o", "json").document["name"] == ONE
    held = lake.say("hold", "add", "letters", "--key", APART, "--by", "ann", "--why", "a claim", "-o", "json")
    assert held.status == 0
    (shown,) = lake.say("hold", "list", "letters", "--keys", "-o", "json").document
    assert shown["key"] == ONE
    gone = lake.say("document", "detach", "letters", APART, APART, "-o", "json").document
    assert (gone["document"], gone["client"], gone["was_there"]) == (ONE, ONE, True)


def test_a_new_document_and_a_new_owner_have_a_name_of_today(lake: Lake) -> None:
    lake.topic("letters", **LETTERS)
    assert refused(changes(lake, "-x", 1)) == (2, "InvalidChangeLine")
    assert refused(lake.say("document", "alter", "letters", "--user", "-x", "snapshot_interval=20")) == (2, "InvalidName")
    assert refused(lake.say("document", "alter", "letters", "--document", "x", "--owner", JOINED)) == (2, "InvalidName")
    assert lake.say("document", "describe", "letters", "-o", "json").document["documents"] == []


def test_a_forbidden_document_comes_in_by_no_spelling(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIFECYCLE_ERASURE_SECRET_FILE", str(tmp_path / "secret"))
    lake.topic("letters", **LETTERS)
    assert changes(lake, APART, 1).status == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(APART.encode())))
    assert lake.say("erase", "--forbid", "--by", "ann", "--why", "asked").status == 0
    for spelled in (APART, ONE):
        said = changes(lake, spelled, 1).document
        assert (said["newest"], said["erased"]) == ({}, 1)


# Who else gives names.


def test_a_page_and_a_task_find_a_topic_by_every_spelling(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(ONE, message_expiry=60)
    lake.append(topic, 2)
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    assert str(tasks.topic_page(f"default/{APART}").topic) == f"default/{ONE}"
    assert tasks.due(run="a/b", as_of="2026-11-21T12:00:00Z", topics=[APART]) == [f"default/{ONE}"]


def test_an_ingest_finds_its_topic_by_every_spelling(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.topic(ONE)
    taken: list[TopicName] = []
    monkeypatch.setattr(ingest, "load_config", lambda: Config(ledger_url="sqlite://", server={}))
    monkeypatch.setattr(ingest, "lake_intake", lambda *_: lake.services)
    monkeypatch.setattr(ingest, "take_files", lambda _intake, name, *_: taken.append(name))
    ingest.ingest(APART, "./landing")
    assert taken == [TopicName(stream="default", topic=ONE)]


def test_what_an_error_repeats_steers_no_terminal(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_more: object) -> None:
        from message_lifecycle.model.errors import invalid_append

        raise invalid_append("a\u202egpj.exe\x1b[2K")

    monkeypatch.setattr("message_lifecycle.app.topics.create_topic", refuse)
    said = lake.say("topic", "create", "x")
    assert r"a\u202egpj.exe\x1b[2K" in said.err
