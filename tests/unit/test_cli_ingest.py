"""`lifecycle ingest`: what is said reaches the ingest, and what it took is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import ingest as module
from message_lifecycle.app import remap as remaps
from message_lifecycle.app import steps
from message_lifecycle.app.cli.screen import render_text
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.remap import RemapRequest, RemapResult
from message_lifecycle.app.replay import Replay
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.sources.file_times import GoingBack
from message_lifecycle.sources.selection import PassedOver
from tests.worlds import NOW, Lake, make_lake

TAKEN = IngestResult(
    topic=TopicName(stream="shop", topic="orders"),
    batch_ids=("b1",),
    files=("a.jsonl", "b.jsonl"),
    files_before=3,
    rows=1_234,
    quarantined={"10165": 2},
    end_offsets={1: 600, 0: 634},
    segments=4,
    unknown_times=5,
    shift_days=3,
    absent={"tags": 7},
)
NOTHING = IngestResult(
    topic=TAKEN.topic, batch_ids=(), files=(), files_before=5, rows=0, quarantined={}, end_offsets={0: 634}, segments=0, unknown_times=0, shift_days=0,
)  # fmt: skip


def described(result: IngestResult) -> str:
    """As the Spark application prints it."""
    return render_text(result.screen_blocks())


class Asked:
    """Keeps what it was asked for and answers with one result."""

    def __init__(self, result: IngestResult) -> None:
        self.result = result
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> IngestResult:
        self.arguments, self.options = arguments, options
        return self.result


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def test_every_option_reaches_the_ingest(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(TAKEN)
    monkeypatch.setattr(module, "ingest", asked)
    said = lake.say(
        "ingest", "shop/orders", "./landing", "--key-field", "customer", "--value-field", "body", "--time-field", "created_at",
        "--time-unit", "ms", "--event-time-field", "seen_at", "--event-time-unit", "s", "--headers-field", "tags",
        "--partition-field", "shard", "--delimiter", ";", "--encoding", "latin-1", "--shift-to", "2026-11-21", "--allow-implausible-times",
        "--skip-changed", "--include", "*.jsonl", "--include", "b/*", "--exclude", "old*", "--time-format", "%d.%m.%Y",
        "--event-time-format", "%Y", "--time-zone", "Europe/Berlin", "-o", "json",
    )  # fmt: skip
    assert said.status == 0
    assert asked.arguments == ("shop/orders", "./landing")
    assert asked.options == {
        "key": "customer",
        "value": "body",
        "append_time": "created_at",
        "append_time_unit": "ms",
        "event_time": "seen_at",
        "event_time_unit": "s",
        "append_time_format": "%d.%m.%Y",
        "event_time_format": "%Y",
        "time_zone": "Europe/Berlin",
        "headers": "tags",
        "partition": "shard",
        "delimiter": ";",
        "encoding": "latin-1",
        "shift_to": "2026-11-21",
        "allow_implausible_times": True,
        "skip_changed": True,
        "include": ["*.jsonl", "b/*"],
        "exclude": ["old*"],
    }
    assert (said.document["messages"], said.document["end_offsets"]) == (1234, {"0": 634, "1": 600})


def test_what_was_taken_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ingest", Asked(TAKEN))
    said = lake.say("ingest", "shop/orders", "./landing").out
    assert "segment_max_seconds" not in said
    assert "shop/orders: ingested 1,234 messages from 2 files" in said
    assert "0:634, 1:600" in said
    assert "2 by 10165" in said
    assert "5 messages, which never expire" in said
    assert "tags: 7 records" in said


def test_a_span_that_was_doubled_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = replace(TAKEN, span_seconds=7_200)
    monkeypatch.setattr(module, "ingest", Asked(doubled))
    words = "segments span up to 2h here: by the topic's segment_max_seconds this batch alone would have opened more than 10,000"
    assert words in " ".join(lake.say("ingest", "shop/orders", "./landing").out.split())
    assert lake.say("ingest", "shop/orders", "./landing", "-o", "json").document["span_seconds"] == 7_200
    assert words in described(doubled)


def test_files_whose_times_go_back_are_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    back = GoingBack(file="b.jsonl", newest=Instant(10**6), after="a.jsonl", oldest=Instant(2 * 10**6), messages=7)
    result = replace(TAKEN, going_back=(back,))
    monkeypatch.setattr(module, "ingest", Asked(result))
    line = "times go back between files: b.jsonl (newest 1970-01-01T00:00:01Z) comes after a.jsonl"
    said = lake.say("ingest", "shop/orders", ".")
    assert said.status == 0
    assert line in " ".join(said.out.split()) and line in described(result)
    assert lake.say("ingest", "shop/orders", ".", "-o", "json").document["going_back"] == [
        {"file": "b.jsonl", "newest": "1970-01-01T00:00:01Z", "after": "a.jsonl", "oldest": "1970-01-01T00:00:02Z", "messages": 7}
    ]


def test_nothing_new_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ingest", Asked(NOTHING))
    said = lake.say("ingest", "shop/orders", "./landing")
    assert (said.status, said.out) == (0, "shop/orders: no new files (5 already ingested)\n")


def test_an_invalid_name_is_refused_before_anything_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(TAKEN)
    monkeypatch.setattr(module, "ingest", asked)
    assert lake.say("ingest", "..", "./landing").status == 2
    assert asked.arguments == ()


def test_files_that_were_passed_over_are_named_with_the_reason(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = (PassedOver(file="_x.csv", why="hidden"), *(PassedOver(file=f"{n}.csv", why="taken before") for n in range(12)))
    for result in (TAKEN, NOTHING):
        monkeypatch.setattr(module, "ingest", Asked(replace(result, passed_over=passed)))
        said = " ".join(lake.say("ingest", "shop/orders", ".").out.split())
        assert "skipped, hidden: _x.csv" in said
        assert "skipped, taken before: 0.csv, 1.csv, 2.csv, 3.csv, 4.csv, 5.csv, 6.csv, 7.csv, 8.csv, 9.csv and 2 more" in said
        assert "skipped, hidden: _x.csv" in described(replace(result, passed_over=passed))
        told = lake.say("ingest", "shop/orders", ".", "-o", "json").document["passed_over"]
        assert (len(told), told[0]) == (13, {"file": "_x.csv", "why": "hidden"})


def test_a_batch_of_which_nothing_was_taken_is_told_and_ends_with_5(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    result = replace(TAKEN, rows=0, quarantined={"unreadable_line": 8}, refused_whole=("a.jsonl",), refused_batches=("b1",))
    monkeypatch.setattr(module, "ingest", Asked(result))
    said = lake.say("ingest", "shop/orders", ".")
    told = " ".join(said.out.split())
    assert said.status == 5
    assert "refused files a.jsonl" in told and "lifecycle quarantine show shop/orders" in told
    assert "refused files a.jsonl" in " ".join(described(result).split())
    as_json = lake.say("ingest", "shop/orders", ".", "-o", "json")
    assert (as_json.status, as_json.document["refused_whole"], as_json.document["refused_batches"]) == (5, ["a.jsonl"], ["b1"])


def test_files_that_have_changed_are_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for result in (TAKEN, NOTHING):
        monkeypatch.setattr(module, "ingest", Asked(replace(result, changed=("old.jsonl",))))
        assert "skipped, changed since its ingest: old.jsonl" in lake.say("ingest", "shop/orders", ".", "--skip-changed").out


def test_a_replay_reads_as_an_ingest_does_and_says_how_the_rows_left(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic("shop/orders")
    asked = Asked(TAKEN)
    monkeypatch.setattr(module, "ingest", asked)
    outcome = Outcome(topic=topic, operation="quarantine", as_of=NOW, name="published", removed=(("quarantine_replayed", 2),), rows_in=2)
    ran: list[Any] = []
    monkeypatch.setattr(steps, "run", lambda _s, name, **options: (ran.append((name, options["work"], options["approver"])), outcome)[1])
    words = ("quarantine", "replay", "shop/orders", "b1", "--by", "ann", "--why", "the unit was wrong")
    said = lake.say(*words, "--time-field", "at", "--time-unit", "ms", "--header", "k,at", "-o", "json")
    assert said.status == 0
    assert asked.arguments == ("shop/orders", "")
    assert asked.options["replay"] == Replay(batch_id="b1", by="ann", why="the unit was wrong", header="k,at")
    assert (asked.options["append_time"], asked.options["append_time_unit"], "include" in asked.options) == ("at", "ms", False)
    assert (said.document["messages"], said.document["removal"]["removed"]) == (1_234, {"quarantine_replayed": 2})
    assert ran == [(topic, "quarantine", None)]
    assert "Replayed rows leave the quarantine" in lake.say(*words).out
    assert lake.say(*words[:-1], " ").status == 2
    assert lake.say(*words[:4]).status == 2


@pytest.mark.parametrize("removal", ["published", "needs_approval"])
def test_a_remap_says_what_was_taken_again_or_that_its_removal_waits(lake: Lake, monkeypatch: pytest.MonkeyPatch, removal: str) -> None:
    topic = lake.topic("shop/orders")
    ended = Outcome(
        topic=topic, operation="message_request", as_of=NOW, name=removal, plan_id="ab" * 16, removed=(("removed", 9),), rows_in=9
    )  # type: ignore[arg-type]
    found = RemapResult(batches=("b0",), removal=ended, result=TAKEN if removal == "published" else None, refused=0)
    asked: list[Any] = []
    monkeypatch.setattr(remaps, "remap", lambda *arguments: (asked.append(arguments[-1]), found)[1])
    monkeypatch.setattr(module, "ingest", lambda topic, path, remap, **_: remap(None, topic, path, None))
    words = ("ingest", "shop/orders", ".", "--remap", "--by", "ann", "--why", "another key")
    said, told = lake.say(*words), lake.say(*words, "-o", "json")
    assert asked[0] == RemapRequest(by="ann", why="another key")
    if removal == "published":
        assert (said.status, told.status) == (0, 0)
        assert "ingested again with this mapping: batch b0 - plan abababababab removed 9 earlier messages" in " ".join(said.out.split())
        assert (told.document["remapped"]["batches"], told.document["remapped"]["removal"]["outcome"]) == (["b0"], "published")
    else:
        assert (said.status, told.status) == (5, 5)
        assert "Run the same command again after the removal is published" in " ".join(said.out.split())
        assert (told.document["outcome"], told.document["batches"]) == ("needs_approval", ["b0"])


def test_a_remap_has_a_name_and_a_reason(lake: Lake) -> None:
    lake.topic("shop/orders")
    assert lake.say("ingest", "shop/orders", ".", "--remap").status == 2
    assert lake.say("ingest", "shop/orders", ".", "--by", "ann").status == 2
