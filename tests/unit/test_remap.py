"""A batch is taken again under a corrected mapping: removed by a plan, then brought; whatever dies between, the same command goes on (C9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app import remap as module
from message_lifecycle.app import steps
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, Intake
from message_lifecycle.app.places import files_at
from message_lifecycle.app.remap import RemapRequest, RemapResult, remap
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.errors import HeldByLegalHold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import SourceFile
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.engine import ThreadEngine
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

WRONG, RIGHT = FieldMapping(key="v", append_time="at"), FieldMapping(key="k", append_time="at")
WORD = RemapRequest(by="ann", why="the key was another field")
AT = "2026-11-21T10:00:00Z"


class NoWitnesses:
    def read_commits(self, *_: object, **__: object) -> Sequence[Any]:
        return ()

    def side_table_uuids(self, _: object) -> Mapping[str, str | None]:
        return {}


@dataclass
class Sources:
    """A topic in memory with a folder of files, and what an ingest does with them, without tables."""

    lake: Lake
    folder: Path
    name: TopicName

    @property
    def intake(self) -> Intake:
        s = self.lake.services

        def no_java(_: object) -> Any:
            raise AssertionError("reading needs no Java")

        return Intake(
            topics=s.topics,
            ledger=s.ledger,
            server=s.server,
            engine=lambda: ThreadEngine({}, no_java),
            end_offsets=s.reader.end_offsets,
            witnesses=NoWitnesses(),  # type: ignore[arg-type]  # tables have them, and here are none
        )

    def put(self, name: str, *keys: str) -> None:
        (self.folder / name).write_text("".join(f'{{"k":"{key}","v":"of {key}","at":"{AT}"}}\n' for key in keys))

    def bring(self, intake: Intake, name: TopicName, path: str, options: IngestOptions) -> IngestResult:
        """As `take_files`: begin, append, finish."""
        found = files_at(path, options.patterns)
        known = [SourceFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256()) for file in found]
        count = int(intake.ledger.ingest_settings(name).get("batches", 0)) + 1
        intake.ledger.set_ingest_setting(name, "batches", count)
        batch_id = f"batch{count}"
        fresh = intake.ledger.begin_batch(name, batch_id, known, mapping=options.mapping_text, instead_of=options.instead_of)
        lines = [line for file in fresh for line in (self.folder / file.path).read_text().splitlines()]
        field = options.mapping.key
        start = self.lake.services.reader.end_offsets(name).get(0, 0)
        if lines:
            values = [json.loads(line)[field].encode() for line in lines]
            new = [NewMessage(append_time=NOW, key=key, value=line.encode()) for key, line in zip(values, lines, strict=True)]
            self.lake.world.writer.append(name, new, policy_of(self.lake.services, name))
            intake.ledger.finish_batch(batch_id, snapshot_id=1, rows=len(new), quarantined=0, ranges=[(0, start, start + len(new) - 1)])
        files = tuple(file.path for file in fresh)
        return IngestResult(
            topic=name, batch_ids=(batch_id,), files=files, files_before=len(known) - len(fresh), rows=len(lines), quarantined={},
            end_offsets={}, segments=1, unknown_times=0, shift_days=0,
        )  # fmt: skip

    def take(self, mapping: FieldMapping) -> IngestResult:
        return self.bring(self.intake, self.name, str(self.folder), IngestOptions(mapping=mapping))

    def remap(self, mapping: FieldMapping = RIGHT, word: RemapRequest = WORD) -> RemapResult:
        return remap(self.lake.services, self.intake, self.name, str(self.folder), IngestOptions(mapping=mapping), word, bring=self.bring)

    def stored(self) -> list[tuple[int, bytes | None]]:
        return [(message.offset, message.key) for message in self.lake.services.reader.messages(self.name)]


@pytest.fixture
def sources(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Sources:
    lake = make_lake(capsys)
    made = Sources(lake, tmp_path, lake.topic("shop/orders"))
    made.put("a.jsonl", "x", "y")
    made.put("b.jsonl", "z")
    return made


DONE = [(3, b"x"), (4, b"y"), (5, b"z")]


def test_the_messages_go_and_come_again_under_the_new_mapping(sources: Sources) -> None:
    sources.take(WRONG)
    assert sources.stored() == [(0, b"of x"), (1, b"of y"), (2, b"of z")]
    found = sources.remap()
    assert found.removal is not None and found.result is not None
    assert (found.batches, found.removal.name, found.removal.removed, found.result.rows) == (("batch1",), "published", (("removed", 3),), 3)
    assert sources.stored() == DONE, "offsets are never given twice"
    again = sources.remap()
    assert (again.batches, again.removal, sources.stored()) == ((), None, DONE), "taken by this mapping already"


def test_files_of_several_batches_go_by_one_plan_and_new_files_come_too(sources: Sources) -> None:
    sources.take(WRONG)
    sources.put("c.jsonl", "w")
    sources.take(WRONG)
    sources.put("d.jsonl", "new")
    found = sources.remap()
    assert (found.batches, [key for _, key in sources.stored()]) == (("batch1", "batch2"), [b"x", b"y", b"z", b"w", b"new"])


def dies_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    real, done = getattr(owner, name), []

    def cut(*arguments: Any, **options: Any) -> Any:
        if done:
            return real(*arguments, **options)
        done.append(1)
        if after:
            real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, cut)


POINTS: list[tuple[str, Callable[[Sources], Any], str]] = [
    ("stage", lambda _: steps, "stage"),
    ("gate", lambda _: steps, "gate"),
    ("publish", lambda _: steps, "publish"),
    ("verify", lambda _: steps, "verify"),
    ("remember", lambda sources: sources.lake.services.ledger, "record_remap"),
    ("begin", lambda sources: sources.lake.services.ledger, "begin_batch"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), [point[1:] for point in POINTS], ids=[point[0] for point in POINTS])
def test_a_remap_that_dies_goes_on_with_the_same_command(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, owner: Callable[[Sources], Any], name: str, *, after: bool
) -> None:
    sources.take(WRONG)
    dies_once(monkeypatch, owner(sources), name, after=after)
    with pytest.raises(KeyboardInterrupt):
        sources.remap()
    if name == "begin_batch" and after:
        # The batch is open, and nothing of it is in the table: the ingest itself looks there (tests/spark/test_ingest_once.py).
        (begun,) = sources.lake.services.ledger.open_batches(sources.name)
        sources.lake.services.ledger.abandon_batch(begun.batch_id)
    found = sources.remap()
    assert found.result is not None
    assert [key for _, key in sources.stored()] == [b"x", b"y", b"z"]
    assert sources.remap().batches == ()


def test_a_hold_stops_the_remap_whole(sources: Sources) -> None:
    sources.take(WRONG)
    before = sources.stored()
    assert sources.lake.say("hold", "add", "shop/orders", "--from", "1", "--to", "1", "--by", "ada", "--why", "a trial").status == 0
    with pytest.raises(HeldByLegalHold):
        sources.remap()
    assert sources.stored() == before
    assert sources.take(WRONG).files == (), "its files are the batch's still"


def test_a_removal_that_waits_for_another_person_goes_on_after_the_answer(sources: Sources) -> None:
    sources.take(WRONG)
    sources.lake.services.topics.alter(sources.name, {"approver_is_not_requester": True})
    for _ in range(2):
        waits = sources.remap()
        assert waits.removal is not None and waits.removal.plan_id is not None
        assert (waits.removal.name, waits.result, len(sources.stored())) == ("needs_approval", None, 3)
    assert sources.lake.say("approve", waits.removal.plan_id, "--by", "bob", "--why", "seen").status == 0
    found = sources.remap()
    assert found.removal is not None
    assert (found.removal.name, found.removal.plan_id) == ("published", waits.removal.plan_id)
    assert sources.stored() == DONE


def test_a_refused_removal_brings_nothing_and_may_be_asked_for_again(sources: Sources) -> None:
    sources.take(WRONG)
    sources.lake.services.topics.alter(sources.name, {"approver_is_not_requester": True})
    waits = sources.remap()
    assert waits.removal is not None and waits.removal.plan_id is not None
    sources.lake.say("refuse", waits.removal.plan_id, "--by", "bob", "--why", "not today")
    sources.lake.world.set_now(Instant(NOW + 1))
    again = sources.remap()
    assert again.removal is not None
    assert (again.result, again.removal.name, len(sources.stored())) == (None, "needs_approval", 3)


def test_an_undo_brings_the_old_messages_back_and_says_that_both_are_there(sources: Sources) -> None:
    sources.take(WRONG)
    found = sources.remap()
    assert found.removal is not None and found.removal.plan_id is not None
    told = sources.lake.say("undo", found.removal.plan_id, "--by", "ann", "--why", "it was right", "-o", "json")
    assert told.status == 0, told.err
    assert [key for _, key in sources.stored()] == [b"of x", b"of y", b"of z", b"x", b"y", b"z"], "nothing is lost"
    (warning,) = [one for one in told.document["warnings"] if "both are in the log" in one]
    assert "`lifecycle message delete shop/orders --batch batch2 --by NAME --why WHY`" in warning
    assert (
        sources.lake.say("message", "delete", "shop/orders", "--batch", "batch2", "--by", "ann", "--why", "the old ones stay").status == 0
    )
    assert sources.stored() == [(0, b"of x"), (1, b"of y"), (2, b"of z")]


def test_an_undo_before_the_files_came_takes_the_removal_back(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.take(WRONG)
    dies_once(monkeypatch, sources.lake.services.ledger, "begin_batch", after=False)
    with pytest.raises(KeyboardInterrupt):
        sources.remap()
    (plan,) = sources.lake.services.ledger.plans(sources.name)
    outcome = steps.run(
        sources.lake.services, sources.name, as_of=NOW, work=UndoPlan(plan_id=plan.plan_id), approver=lambda *_: (True, "ann", "a mistake")
    )
    assert outcome.name == "published", outcome.detail
    found = sources.remap()
    assert found.removal is not None and found.removal.plan_id != plan.plan_id
    assert [key for _, key in sources.stored()] == [b"x", b"y", b"z"]


def test_files_that_are_missing_or_changed_refuse_the_remap(sources: Sources) -> None:
    sources.take(WRONG)
    before = sources.stored()
    content = (sources.folder / "b.jsonl").read_text()
    (sources.folder / "b.jsonl").unlink()
    with raises("RemapIncomplete", match=r"batch1.*b\.jsonl.*Nothing was changed"):
        sources.remap()
    sources.put("b.jsonl", "other")
    with raises("RemapIncomplete", match=r"b\.jsonl"):
        sources.remap()
    (sources.folder / "b.jsonl").write_text(content)
    with raises("MissingField"):
        sources.remap(replace(RIGHT, key="nowhere"))
    assert sources.stored() == before


def test_messages_that_are_gone_already_need_no_removal(sources: Sources) -> None:
    sources.take(WRONG)
    assert sources.lake.say("message", "delete", "shop/orders", "--batch", "batch1", "--by", "ann", "--why", "x").status == 0
    found = sources.remap()
    assert found.removal is not None
    assert (found.removal.name, sources.stored()) == ("no_op", DONE)


def test_a_batch_whose_offsets_nobody_knows_is_named(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.take(WRONG)
    real = module._with_ranges
    monkeypatch.setattr(module, "_with_ranges", lambda intake, name, batch: real(intake, name, replace(batch, ranges=None)))
    monkeypatch.setattr("message_lifecycle.stores.iceberg.append.end_of_batch", lambda *_: None)
    with raises("RemapUnknown", match="batch1"):
        remap(
            sources.lake.services, replace(sources.intake, engine=lambda: None), sources.name, str(sources.folder), IngestOptions(mapping=RIGHT), WORD,
            bring=sources.bring,
        )  # fmt: skip


def test_message_delete_names_positions_or_a_batch(sources: Sources) -> None:
    sources.take(WRONG)
    word = ("--by", "ann", "--why", "x")
    assert sources.lake.say("message", "delete", "shop/orders", *word).status == 2
    assert sources.lake.say("message", "delete", "shop/orders", "0:0", "--batch", "batch1", *word).status == 2
    assert "UnknownBatch" in sources.lake.say("message", "delete", "shop/orders", "--batch", "nothing", *word).err
