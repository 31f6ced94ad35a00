"""`lifecycle document`, and what other commands show of a topic of documents."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from tests.worlds import HOUR, NOW, SECOND, Lake, Told, make_lake

DAY = 24 * HOUR
LETTERS = "shop/letters"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def letters(lake: Lake) -> TopicName:
    return lake.topic(LETTERS, fold="text_splice", snapshot_interval=10, snapshot_threshold=5, snapshot_with_purging_changes=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "changes.jsonl"


def line(seq: int, *, document: str = "letter", **fields: Any) -> str:
    return json.dumps(
        {"document": document, "server_seq": seq, "client": "ada", "at": NOW - HOUR + seq, "payload": [[seq - 1, 0, "x"]], **fields}
    )


def add(lake: Lake, file: Path, first: int, last: int, **fields: Any) -> Told:
    file.write_text("\n".join(line(seq, **fields) for seq in range(first, last + 1)))
    return lake.say("document", "add", LETTERS, str(file), "-o", "json")


def run(lake: Lake, *arguments: str) -> Told:
    return lake.say("run", LETTERS, *arguments, "-o", "json")


def purged(lake: Lake, file: Path) -> None:
    """30 changes; A has 18 of them, B all, C 25: 1 to 17 go (SNP-4)."""
    assert add(lake, file, 1, 30).status == 0
    for client, seq in (("a", 18), ("b", 30), ("c", 25)):
        assert lake.say("document", "sync", LETTERS, "letter", client, str(seq)).status == 0
    assert run(lake).lines[0]["removed"] == {"purged_synced": 17}


def test_changes_come_from_a_file_or_from_standard_input(
    lake: Lake, letters: TopicName, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = add(lake, file, 1, 3)
    assert (added.status, added.document) == (0, {"topic": LETTERS, "changes": 3, "erased": 0, "newest": {"letter": 3}})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line(4, document=" Letter ").encode())))
    assert lake.say("document", "add", LETTERS, "-o", "json").document["newest"] == {"letter": 4}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line(5).encode())))
    said = lake.say("document", "add", LETTERS)
    assert "added 1 change" in said.out


@pytest.mark.parametrize(
    ("second", "kind", "told"),
    [
        (line(3), "InvalidServerSeq", "server_seq 3. Allowed: 2"),
        (line(1), "InvalidServerSeq", "server_seq 1. Allowed: 2"),
        ('{"document": "letter"}', "InvalidChangeLine", "changes.jsonl:2: server_seq: found null. Allowed: it must be there"),
        ("not json", "InvalidChangeLine", "changes.jsonl:2: line: found not json. Allowed: a JSON object"),
    ],
)
def test_of_a_file_with_a_wrong_line_nothing_is_stored(
    lake: Lake, letters: TopicName, file: Path, second: str, kind: str, told: str
) -> None:
    file.write_text(f"{line(1)}\n{second}\n")
    refused = lake.say("document", "add", LETTERS, str(file))
    assert (refused.status, refused.err.split(":")[0]) == (2, kind)
    assert told in " ".join(refused.err.split())
    assert lake.say("document", "describe", LETTERS, "-o", "json").document["documents"] == []


def test_a_file_that_is_not_there_is_named(lake: Lake, letters: TopicName) -> None:
    refused = lake.say("document", "add", LETTERS, "/no/such/file")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnreadableFile")
    assert "/no/such/file" in refused.err


def test_a_client_that_lags_little_gets_changes_and_one_that_lags_much_the_snapshot(lake: Lake, letters: TopicName, file: Path) -> None:
    purged(lake, file)
    few = lake.say("document", "pull", LETTERS, "letter", "--from", "28", "-o", "json").document
    assert (few["seq"], few["epoch"], few["snapshot"]) == (30, 1, None)
    assert [change["server_seq"] for change in few["changes"]] == [29, 30]
    assert few["changes"][0]["payload"] == [[28, 0, "x"]]
    many = lake.say("document", "pull", LETTERS, "letter", "--from", "18", "--client", "a", "-o", "json").document
    assert (many["snapshot"], many["changes"]) == ({"server_seq": 30, "state": "x" * 30}, [])
    said = lake.say("document", "pull", LETTERS, "letter", "--from", "28")
    assert "letter: at change 30, epoch 1" in said.out
    assert '[[29, 0, "x"]]' in said.out
    assert f'snapshot at 30: "{"x" * 30}"' in lake.say("document", "pull", LETTERS, "letter").out
    assert "nothing is new" in lake.say("document", "pull", LETTERS, "letter", "--from", "30").out


def test_who_stands_on_what_is_gone_is_told_and_attaches_again(lake: Lake, letters: TopicName, file: Path) -> None:
    """SNP-7."""
    purged(lake, file)
    refused = lake.say("document", "pull", LETTERS, "letter", "--client", "d", "--from", "27", "--epoch", "0")
    assert (refused.status, refused.err.split(":")[0]) == (3, "EpochMismatch")
    assert "lifecycle document attach" in refused.err
    got = lake.say("document", "attach", LETTERS, "letter", "d", "-o", "json").document
    assert (got["epoch"], got["snapshot"]["server_seq"]) == (1, 30)
    assert lake.say("document", "sync", LETTERS, "letter", "d", "30", "--epoch", "1").status == 0
    assert "is kept" not in lake.say("document", "attach", LETTERS, "letter", "d").out


def test_a_client_cannot_be_past_the_document(lake: Lake, letters: TopicName, file: Path) -> None:
    add(lake, file, 1, 3)
    for arguments in (("pull", LETTERS, "letter", "--from", "4"), ("sync", LETTERS, "letter", "a", "4")):
        refused = lake.say("document", *arguments)
        assert (refused.status, refused.err.split(":")[0]) == (2, "InvalidServerSeq")
    assert lake.services.ledger.synced(letters) == []


def test_synchronising_keeps_changes_until_the_client_is_taken_off(lake: Lake, letters: TopicName, file: Path) -> None:
    purged(lake, file)
    off = lake.say("document", "detach", LETTERS, " Letter ", "A", "-o", "json")
    assert off.document == {"topic": LETTERS, "document": "letter", "client": "a", "was_there": True}
    assert "letter: a was not attached" in lake.say("document", "detach", LETTERS, "letter", "a").out
    lake.world.set_now(Instant(NOW + SECOND))
    assert run(lake).lines[0]["removed"] == {"purged_synced": 7}
    described = lake.say("document", "describe", LETTERS, "letter", "-o", "json").document
    assert (described["first"], described["lowest_synced"], described["epoch"]) == (25, 25, 2)


def test_a_client_keeps_changes_up_to_the_instant_that_is_told(lake: Lake, letters: TopicName, file: Path) -> None:
    add(lake, file, 1, 3)
    lake.say("document", "sync", LETTERS, "letter", "a", "2", "--at", "2026-11-20T12:00:00Z")

    def client() -> tuple[str, bool]:
        (found,) = lake.say("document", "describe", LETTERS, "letter", "-o", "json").document["clients"]
        return found["falls_silent_at"], found["keeps"]

    last = "2026-11-21T12:00:00Z"
    assert client() == (last, True)
    lake.world.set_now(Instant(NOW + 1))
    assert client() == (last, False)


def test_sync_says_what_is_kept(lake: Lake, letters: TopicName, file: Path) -> None:
    add(lake, file, 1, 3)
    assert (
        "letter: a has all changes up to 2 of epoch 0. The topic keeps changes from 2 on"
        in lake.say("document", "sync", LETTERS, "letter", "a", "2").out
    )
    assert "keeps none for it" in lake.say("document", "sync", LETTERS, "letter", "a", "0").out
    lake.say("document", "sync", LETTERS, "letter", "b", "1", "--at", "2026-11-20T00:00:00Z")
    (row,) = lake.services.ledger.synced(letters)
    assert (row.client, row.at) == ("b", NOW - 36 * HOUR)


def test_the_history_is_what_is_there(lake: Lake, letters: TopicName, file: Path) -> None:
    """SNP-8."""
    purged(lake, file)
    whole = lake.say("document", "history", LETTERS, "letter", "-o", "json").document
    hidden = {"from": 18, "to": 29, "first_shown": 30}
    assert whole == {"document": "letter", "not_shown": hidden, "history": [{"server_seq": 30, "state": "x" * 30}], "goes_on_from": None}
    why = "Changes 18 to 29 are stored and cannot be shown: what came before them was purged"
    assert why in lake.say("document", "history", LETTERS, "letter").out
    assert "cannot be shown" not in lake.say("document", "history", LETTERS, "letter", "--from", "30").out
    add(lake, file, 31, 33)
    some = lake.say("document", "history", LETTERS, "letter", "--from", "31", "--limit", "2", "-o", "json").document
    assert ([entry["server_seq"] for entry in some["history"]], some["goes_on_from"]) == ([31, 32], 33)
    assert "More: --from 33" in lake.say("document", "history", LETTERS, "letter", "--from", "31", "--limit", "2").out
    assert lake.say("document", "history", LETTERS, "letter", "--from", "34", "-o", "json").document["history"] == []
    assert "no change is there" in lake.say("document", "history", LETTERS, "letter", "--from", "34").out


def test_a_document_that_nobody_wrote_is_unknown(lake: Lake, letters: TopicName) -> None:
    for command in ("pull", "history", "describe"):
        refused = lake.say("document", command, LETTERS, "poem")
        assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownDocument")


@pytest.mark.parametrize("command", ["pull", "history", "attach", "detach", "sync", "describe", "add", "alter"])
def test_a_topic_of_messages_has_no_documents(lake: Lake, command: str, file: Path) -> None:
    lake.topic("shop/orders")
    file.write_text(line(1))
    more = {
        "attach": ("letter", "a"),
        "detach": ("letter", "a"),
        "sync": ("letter", "a", "1"),
        "add": (str(file),),
        "describe": (),
        "alter": ("--document", "letter", "snapshots_keep=1"),
    }.get(command, ("letter",))
    refused = lake.say("document", command, "shop/orders", *more)
    assert (refused.status, refused.err.split(":")[0]) == (2, "NotADocumentTopic")


def test_settings_of_a_user_and_of_a_document(lake: Lake, letters: TopicName, file: Path) -> None:
    """SNP-9: the narrowest wins."""
    add(lake, file, 1, 3)
    of_user = lake.say("document", "alter", LETTERS, "--user", "Ada", "changes_keep_last=100", "changes_max_age=1 month", "-o", "json")
    assert of_user.document["settings"] == {"changes_keep_last": 100, "changes_max_age": "1 month"}
    owned = lake.say("document", "alter", LETTERS, "--document", "letter", "changes_keep_last=7", "--owner", "ada", "-o", "json").document
    assert (owned["owner"], owned["settings"]) == ("ada", {"changes_keep_last": 7})
    acts = lake.say("document", "describe", LETTERS, "letter", "-o", "json").document
    assert (acts["owner"], acts["settings"]["changes_keep_last"], acts["settings"]["changes_max_age"]) == ("ada", 7, "1 month")
    lake.say("document", "alter", LETTERS, "--document", "letter", "--unset", "changes_keep_last")
    assert lake.say("document", "describe", LETTERS, "letter", "-o", "json").document["settings"]["changes_keep_last"] == 100
    lake.say("document", "alter", LETTERS, "--document", "letter", "--no-owner")
    assert lake.say("document", "describe", LETTERS, "letter", "-o", "json").document["settings"]["changes_keep_last"] is None
    assert "changes_keep_last" in lake.say("document", "alter", LETTERS, "--user", "ada", "snapshots_keep=2").out
    assert "user ada" in lake.say("document", "describe", LETTERS).out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("snapshots_keep=1",),
        ("--user", "ada"),
        ("--user", "ada", "--document", "letter", "snapshots_keep=1"),
        ("--user", "ada", "--owner", "bob"),
        ("--document", "letter", "--owner", "bob", "--no-owner"),
        ("--document", "letter", "snapshots_keep=1", "--unset", "snapshots_keep"),
        ("--document", "letter", "snapshots_keep"),
        ("--document", "letter", "fold=yjs"),
        ("--document", "letter", "message_expiry=5"),
        ("--document", "letter", "snapshots_interval=5"),
        ("--document", "letter", "changes_max_age=a while"),
        ("--document", "letter", "snapshot_interval=4"),
        ("--user", "ada", "snapshots_keep=1", "snapshot_threshold=11"),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_of_it_kept(lake: Lake, letters: TopicName, arguments: tuple[str, ...]) -> None:
    """The last two: with purge on, snapshot_interval >= snapshot_threshold at every level (SNP-5)."""
    before = lake.services.ledger.settings_below_topic(letters)
    assert lake.say("document", "alter", LETTERS, *arguments).status == 2
    assert lake.services.ledger.settings_below_topic(letters) == before


def test_the_topics_settings_are_held_to_those_below_them(lake: Lake, letters: TopicName) -> None:
    lake.say("document", "alter", LETTERS, "--document", "letter", "snapshot_interval=6")
    refused = lake.say("topic", "alter", LETTERS, "--set", "snapshot_threshold=7")
    assert (refused.status, refused.err.split(":")[0]) == (2, "InvalidSetting")
    assert "document letter" in refused.err
    assert lake.say("topic", "alter", LETTERS, "--set", "snapshot_threshold=6").status == 0


def test_a_topic_of_documents_is_described_as_one(lake: Lake, file: Path) -> None:
    made = lake.say("topic", "create", LETTERS, "--set", "fold=text_splice", "-o", "json")
    assert (made.status, made.document["documents"]["documents"]) == (0, [])
    assert "0 documents, folded as text_splice" in lake.say("topic", "describe", LETTERS).out
    add(lake, file, 1, 30)
    run(lake)
    (document,) = lake.say("topic", "describe", LETTERS, "-o", "json").document["documents"]["documents"]
    assert (document["changes"], document["snapshots"], document["lowest_synced"]) == (30, [], None)
    said = lake.say("document", "describe", LETTERS, "letter")
    assert "nobody: nothing is purged" in said.out


def test_a_plan_shows_each_document_and_its_bounds(lake: Lake, letters: TopicName, file: Path) -> None:
    add(lake, file, 1, 30)
    lake.say("document", "sync", LETTERS, "letter", "a", "18")
    shown = lake.say("plan", LETTERS, "--dry-run", "-o", "json").document
    (action,) = shown["actions"]
    assert (shown["operation"], action["snapshot"], action["from"], action["to"]) == ("snapshot_with_purge", 30, 1, 17)
    assert {bound["bound"]: bound["stops_at"] for bound in action["bounds"]} == {"synced": 18, "snapshot": 31}
    assert (shown["removes"]["messages"], shown["removes"]["by_reason"]) == (17, {"purged_synced": 17})
    assert shown["documents"]["blocked"] is None, "not known before it is staged"
    said = lake.say("plan", LETTERS, "--dry-run").out
    for told in ("17 of 30 changes", "1..17", "synced 18, snapshot 31", "1 snapshot made, 0 dropped"):
        assert told in said
    assert lake.services.ledger.plans(letters) == []


def test_a_document_that_cannot_be_folded_keeps_everything_and_is_named(lake: Lake, letters: TopicName, file: Path) -> None:
    """SNP-10."""
    add(lake, file, 1, 30)
    add(lake, file, 1, 30, document="poem", payload=[[99, 1, ""]])
    for document in ("letter", "poem"):
        lake.say("document", "sync", LETTERS, document, "a", "30")
    (outcome,) = run(lake).lines
    assert (outcome["outcome"], outcome["removed"]) == ("published", {"purged_synced": 29})
    assert any("poem" in warning for warning in outcome["warnings"])
    told = lake.say("status", LETTERS, "-o", "json")
    assert told.status == 1
    assert told.document[0]["problems"][0].startswith("Document poem is blocked, and keeps every change")
    page = lake.say("explain", outcome["plan_id"], "-o", "json").document
    assert [entry["document"] for entry in page["documents"]["blocked"]] == ["poem"]
    assert page["removes"]["by_reason"] == {"purged_synced": 29}
    assert "poem: server_seq 1" in lake.say("explain", outcome["plan_id"]).out
    stored = {d["document"]: d["first"] for d in lake.say("document", "describe", LETTERS, "-o", "json").document["documents"]}
    assert stored == {"letter": 30, "poem": 1}


def test_status_and_due_know_topics_of_documents(lake: Lake, letters: TopicName, file: Path) -> None:
    lake.topic("shop/orders")
    assert [entry["topic"] for entry in lake.say("due", "-o", "json").document["topics"]] == [LETTERS, "shop/orders"]
    assert lake.say("status").status == 0
    add(lake, file, 1, 30)
    lake.say("document", "sync", LETTERS, "letter", "a", "18")
    (answer,) = lake.say("due", LETTERS, "-o", "json").document["topics"]
    assert (answer["due"], answer["reason"]) == (True, "1 snapshots are due and 17 changes can go, in 1 documents")
    told = lake.say("status", LETTERS, "-o", "json").document[0]
    assert (told["ok"], told["messages"], told["due"]["messages"], told["documents"]) == (True, 30, 17, {"due": 1, "snapshots_due": 1})
    assert "17 changes due. The next run purges them" in lake.say("status", LETTERS).out
    assert run(lake).status == 0
    assert not lake.say("due", LETTERS, "-o", "json").document["topics"][0]["due"]
    assert lake.say("status", LETTERS, "-o", "json").document[0]["last_removal"]["messages"] == 17


def test_a_purge_that_was_turned_on_is_asked_about(lake: Lake, file: Path) -> None:
    """DEL-3."""
    lake.topic(LETTERS, fold="text_splice", snapshot_interval=10, snapshot_threshold=5)
    add(lake, file, 1, 30)
    lake.say("document", "sync", LETTERS, "letter", "a", "18")
    assert run(lake).lines[0]["removed"] == {}
    lake.say("topic", "alter", LETTERS, "--set", "snapshot_with_purging_changes=true")
    lake.world.set_now(Instant(NOW + SECOND))
    asked = lake.say("run", LETTERS)
    assert asked.status == 5
    (waiting,) = lake.services.ledger.waiting()
    assert f"lifecycle run {LETTERS}" in asked.out
    lake.say("approve", waiting.plan_id, "--by", "ada", "--why", "history is not needed")
    assert run(lake).lines[0]["removed"] == {"purged_synced": 17}


def test_a_purge_is_taken_back(lake: Lake, letters: TopicName, file: Path) -> None:
    purged(lake, file)
    (purge,) = [plan.plan_id for plan in lake.services.ledger.plans(letters)]
    told = lake.say("undo", purge[:10], "--by", "ada", "--why", "a slip")
    assert told.status == 0, told.err
    assert "brought back 17 changes and 0 snapshots" in " ".join(told.out.split())
    assert "brought back 17 changes" in told.out
    again = lake.say("undo", purge, "--by", "ada", "--why", "a slip", "-o", "json")
    assert (again.status, again.document["outcome"]) == (0, "no_op")
    shown = lake.say("explain", again.document["first_plan_id"], "-o", "json").document
    (action,) = shown["actions"]
    assert (shown["takes_back"], action["action"], action["document"], action["from"], action["to"]) == (
        purge,
        "restore_document",
        "letter",
        1,
        17,
    )
    page = " ".join(lake.say("explain", again.document["first_plan_id"]).out.split())
    assert "nothing of 13 changes" in page and "brought back 17 changes" in page and "messages" not in page
    assert f"plan {purge[:12]} brings back 17 changes" in page and "letter" in page and "1..17" in page
    held = run(lake).document["held"]
    assert [(entry["holder"], entry["messages"]) for entry in held] == [("undone_plan", 17)]
    assert lake.say("undo", purge, "--release", "--by", "ada", "--why", "it may go").status == 0
    assert run(lake).document["removed"] == {"purged_synced": 17}


def test_a_topic_of_documents_goes_and_comes_back_by_changes(lake: Lake, letters: TopicName, file: Path) -> None:
    assert add(lake, file, 1, 30).status == 0
    told = lake.say("topic", "delete", LETTERS, "--by", "ada", "--why", "not needed")
    assert "deleted, with 30 changes" in told.out
    (deleted,) = lake.say("topic", "list", "--deleted", "-o", "json").document
    page = " ".join(lake.say("explain", deleted["plan_id"]).out.split())
    assert "its log of 30 changes" in page and "30 of 30 changes" in page and "messages" not in page
    assert "brought back 30 changes" in lake.say("undo", deleted["plan_id"], "--by", "ada", "--why", "still read").out
