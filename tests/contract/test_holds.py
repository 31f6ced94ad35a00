"""A legal hold survives every path, placed before a run or in the middle of it (DEL-8)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.due import due
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.operations.registry import Work, preview
from message_lifecycle.app.reading import commit_progress, read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.ledger import open_ledger, restore_ledger
from message_lifecycle.model.errors import HeldByLegalHold, PlanConflict
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey, RemoveMessages
from message_lifecycle.model.setting_list import Value
from tests.contract.conftest import NEEDS, TABLES_HUNTED, WHOLE_LOGS, MakeWorld
from tests.effort import effort, generated, hunt
from tests.errors import raises
from tests.holds import WHENS, When, held, run_with_hold
from tests.logs import SECOND, Log, logs

AS_OF = Instant(100 * SECOND)
TTL = (("Nats-TTL", b"1s"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One topic in one world, whose offset 1 is to be held."""

    world: World
    name: TopicName

    @property
    def s(self) -> Services:
        return self.world.services

    def append(self, *messages: NewMessage) -> None:
        self.world.writer.append(self.name, messages, policy_of(self.s, self.name))

    def offsets(self) -> list[int]:
        return [message.offset for message in self.s.reader.messages(self.name)]


def granted(_plan: object, _report: object) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


def case(make_world: MakeWorld, *, partitions: int = 1, **own: Value) -> Case:
    world = make_world({})
    name = TopicName(stream=f"{world.scratch}.holds" if world.scratch else "holds", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=partitions, settings={"max_removed_fraction": 1.0, **own})
    world.set_now(AS_OF)
    return Case(world=world, name=name)


def message(key: bytes | None, *, segment: int | None = None, ttl: bool = False, at: int = 1) -> NewMessage:
    return NewMessage(append_time=Instant(at * SECOND), key=key, value=b"v", segment=segment, headers=TTL if ttl else ())


def expiry(make_world: MakeWorld) -> Case:
    found = case(make_world, message_expiry=10)
    found.append(*(message(key, segment=at) for at, key in enumerate((b"a", b"b", b"c"))), message(b"d", segment=3, at=99))
    return found


@pytest.mark.parametrize("released", [False, True], ids=["placed", "released"])
def test_a_ledger_from_before_a_hold_deletes_nothing(make_world: MakeWorld, tmp_path: Path, released: bool) -> None:
    """The backup does not know the hold, and nothing was written to the log since: the mark alone tells."""
    found = expiry(make_world)
    hold = place_hold(found.s, found.name, by="ada", why="case 6") if released else None
    found.s.ledger.backup(tmp_path / "backup.gz")
    if hold is None:
        place_hold(found.s, found.name, by="ada", why="case 7")
    else:
        release_hold(found.s, hold.hold_id, by="ada", why="closed")
    address = f"sqlite:///{tmp_path}/older.sqlite"
    restore_ledger(address, tmp_path / "backup.gz")
    there = found.offsets()
    with open_ledger(address, clock=lambda: AS_OF) as older:
        before = replace(found.s, ledger=older)
        with raises("LedgerMismatch", match="older state"):
            steps.run(before, found.name, as_of=AS_OF, approver=granted)
        assert found.offsets() == there
        number = before.topics.describe(found.name).ledger
        assert number is not None
        older.accept(found.name, number)
        steps.run(before, found.name, as_of=AS_OF, approver=granted)  # a person took the topic on, knowing that


def ttl(make_world: MakeWorld) -> Case:
    found = case(make_world, allow_msg_ttl=True, subject_delete_marker_ttl=60)
    found.append(*(message(key, ttl=True) for key in (b"a", b"b", b"c")), message(b"d"))
    return found


def retention(**own: Value) -> Callable[[MakeWorld], Case]:
    def make(make_world: MakeWorld) -> Case:
        found = case(make_world, **own)
        found.append(*(message(key) for key in (b"a", b"b", b"c")), message(b"d", at=99))
        return found

    return make


def compacted(make_world: MakeWorld) -> Case:
    found = case(make_world, cleanup_policy="compact")
    found.append(*(message(key, segment=at) for at, key in enumerate((b"a", b"b", b"c", b"d"))))
    assert steps.run(found.s, found.name, as_of=AS_OF, work="compaction").name == "published"
    return found


PATHS: dict[str, tuple[Callable[[MakeWorld], Case], Work, list[int]]] = {
    # Made how, taken by what, and what is left when offset 1 is held.
    "expiry": (expiry, "message_cleaner", [1, 3]),
    "ttl": (ttl, "message_cleaner", [1, 3, 4, 5]),
    "age": (retention(max_age_seconds=50), "message_cleaner", [1, 3]),
    "count": (retention(max_records=1), "message_cleaner", [1, 3]),
    "bytes": (retention(max_total_bytes=2), "message_cleaner", [1, 3]),
    "retention": (retention(max_age_seconds=50, max_records=1), "retention", [1, 3]),
    "compaction purge": (compacted, "purge_compacted", [1, 2, 3]),
}


# On tables each costs seconds: there `retention` stands for its rules in the cleaner, and between stage and gate is as before the stage.
RUNS = [
    pytest.param(
        store,
        path,
        when,
        marks=(
            *NEEDS.get(store, ()),
            *([hunt] if store == "iceberg" and (when == "planned" or (when == "judged" and path != "expiry")) else ()),
        ),
    )
    for store in WHOLE_LOGS
    for path in PATHS
    for when in WHENS
    if store == "memory" or (path not in ("age", "count", "bytes") and when != "staged")
]


@pytest.mark.parametrize(("store_kind", "path", "when"), RUNS, indirect=["store_kind"])
def test_a_held_message_survives(make_world: MakeWorld, path: str, when: When) -> None:
    make, work, left = PATHS[path]
    found = make(make_world)
    outcome = run_with_hold(found.s, found.name, work, as_of=AS_OF, when=when, place=lambda: held(found.s, found.name, offsets=(1, 1)))
    assert (outcome.name, found.offsets()) == ("published", left), outcome.detail
    assert [entry.rows for entry in outcome.held if entry.holder == "hold"] == [2 if path == "compaction purge" else 1]
    again = steps.run(found.s, found.name, as_of=AS_OF, work=work)
    assert (again.name, found.offsets()) == ("no_op", left), again.detail


@TABLES_HUNTED
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("work", [RemoveMessages(positions=((0, 0), (0, 1))), PurgeKey(key=b"b")], ids=["remove", "purge"])
def test_a_request_that_names_a_held_message_is_refused_whole(make_world: MakeWorld, work: Work, when: When) -> None:
    found = case(make_world, subject_delete_marker_ttl=60)
    found.append(message(b"a"), message(b"b"))
    with pytest.raises(HeldByLegalHold, match="by ada: case 7"):
        run_with_hold(found.s, found.name, work, as_of=AS_OF, when=when, place=lambda: held(found.s, found.name, key=b"b"))
    assert found.offsets() == [0, 1]
    _, refused = found.s.ledger.history(found.name, limit=1)[0]
    assert (refused.name, refused.operation, refused.plan_id) == ("refused", "message_request", None)
    assert "HeldByLegalHold" in refused.detail


@TABLES_HUNTED
@pytest.mark.parametrize("what", ["topic", "key", "range"])
def test_a_purge_is_refused_where_the_view_alone_has_what_is_held(make_world: MakeWorld, what: str) -> None:
    found = compacted(make_world)
    assert steps.run(found.s, found.name, as_of=AS_OF, work="purge_compacted").name == "published"
    assert 0 not in found.offsets()
    given_ = {"topic": {}, "key": {"key": b"a"}, "range": {"offsets": (0, 0)}}[what]
    held(found.s, found.name, **given_)  # type: ignore[arg-type]  # each is one of its own keywords
    with pytest.raises(HeldByLegalHold):
        steps.run(found.s, found.name, as_of=AS_OF, work=PurgeKey(key=b"a"))
    assert [m.key for m in read_compacted(found.s, found.name)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("what", ["topic", "key", "range"])
def test_the_only_copy_of_a_held_message_stays_in_the_view(make_world: MakeWorld, what: str) -> None:
    found = compacted(make_world)
    assert steps.run(found.s, found.name, as_of=AS_OF, work="purge_compacted").name == "published"
    given_ = {"topic": {}, "key": {"key": b"a"}, "range": {"offsets": (0, 0)}}[what]
    hold = held(found.s, found.name, **given_)  # type: ignore[arg-type]  # each is one of its own keywords
    found.append(message(b"a", at=50))
    waits = steps.run(found.s, found.name, as_of=AS_OF, work="compaction")
    assert (waits.name, [entry.holder for entry in waits.held]) == ("no_op", ["hold"]), waits.detail
    assert next((m.key, m.offset) for m in read_compacted(found.s, found.name)) == (b"a", 0), "and the tail beside it"
    release_hold(found.s, hold.hold_id, by="ada", why="over")
    assert steps.run(found.s, found.name, as_of=AS_OF, work="compaction").name == "published"
    assert [m.offset for m in read_compacted(found.s, found.name)] == [1, 2, 3, 4]


def test_a_lagging_compaction_takes_no_held_message_from_the_view(make_world: MakeWorld) -> None:  # CMP-9
    """The dead message past the horizon waits: were it to go first, the older one would be the latest of its key."""
    found = case(make_world, max_age_seconds=50, max_compaction_lag=10)
    found.append(message(b"a", at=60), message(b"b", at=60))
    assert steps.run(found.s, found.name, as_of=Instant(61 * SECOND), work="compaction").name == "published"
    found.world.set_now(Instant(200 * SECOND))
    assert steps.run(found.s, found.name, as_of=Instant(120 * SECOND), approver=granted).name == "published"
    assert found.offsets() == [], "the view alone has them, until its next compaction"
    held(found.s, found.name, offsets=(0, 0))
    found.append(message(b"a", at=130), message(b"b", at=130))
    outcome = steps.run(found.s, found.name, as_of=Instant(200 * SECOND), approver=granted)
    assert found.offsets() == [2, 3], outcome.detail
    view = found.s.stores.view.view(found.name)
    assert view is not None
    assert [row.message.offset for row in found.s.stores.view.view_rows(found.name, view)] == [0, 1]


def test_releasing_a_hold_makes_the_topic_due_again(make_world: MakeWorld) -> None:
    found = expiry(make_world)
    hold = held(found.s, found.name, offsets=(0, 2))
    assert steps.run(found.s, found.name, as_of=AS_OF).name == "no_op"
    assert not due(found.s, [found.name], as_of=AS_OF)[0].due
    release_hold(found.s, hold.hold_id, by="ada", why="over")
    (answer,) = due(found.s, [found.name], as_of=AS_OF)
    assert answer.due, answer.reason


def test_a_held_message_tells_its_holder(make_world: MakeWorld) -> None:
    found = expiry(make_world)
    hold = held(found.s, found.name, key=b"b")
    told = explain_message(found.s, found.name, 0, 1, as_of=AS_OF)
    assert (told.verdict, told.why) == ("held", f"it is due, but on {hold.description}")
    assert [(view.hold_id, view.placed_by, view.why) for view in told.holds] == [(hold.hold_id, "ada", "case 7")]
    alive = explain_message(found.s, found.name, 0, 3, as_of=AS_OF)
    assert (alive.verdict, alive.holds) == ("kept", [])


def test_a_hold_waits_for_a_publish_in_flight(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is placed after what was being published, and before whatever comes next."""
    found = expiry(make_world)
    placed, waits = threading.Event(), threading.Event()
    lock = found.s.ledger.lock

    def asked(name: TopicName, **options: Any) -> Any:
        waits.set()
        return lock(name, **options)

    def place() -> None:
        place_hold(found.s, found.name, by="ada", why="case 7")
        placed.set()

    with lock(found.name):
        monkeypatch.setattr(found.s.ledger, "lock", asked)
        thread = threading.Thread(target=place)
        thread.start()
        assert waits.wait(30)
        assert not placed.wait(0.2), "whoever publishes has the lock"
        assert found.s.ledger.holds(found.name) == []
    thread.join(timeout=30)
    assert placed.is_set()


def test_no_publish_passes_a_hold_that_its_plan_does_not_know(make_world: MakeWorld) -> None:
    """The choke point by itself, after the gate and a person's word."""
    found = expiry(make_world)
    plan_id = steps.plan(found.s, found.name, as_of=AS_OF).plan.plan_id
    steps.stage(found.s, plan_id)
    if steps.gate(found.s, plan_id).judgement == "needs_approval":
        steps.approve(found.s, plan_id, granted=True, by="tester", text="as expected")
    hold = held(found.s, found.name, offsets=(900, None))
    with pytest.raises(PlanConflict, match=hold.hold_id[:12]):
        steps.publish(found.s, plan_id)
    assert found.offsets() == [0, 1, 2, 3]


def test_the_gate_by_itself_blocks_a_plan_that_takes_what_is_held(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were planning to forget the hold though it knows of it: the gate resolves holds anew."""
    found = expiry(make_world)
    held(found.s, found.name, key=b"b")
    with monkeypatch.context() as forgetful:
        forgetful.setattr("message_lifecycle.app.sparing.spared_of", lambda *_: ())
        plan = preview(found.s, found.name, as_of=AS_OF)
    assert plan.expected.removed_rows == 3
    found.s.ledger.add_plan(plan)
    steps.stage(found.s, plan.plan_id)
    report = steps.gate(found.s, plan.plan_id)
    assert (report.judgement, [check.id for check in report.blocking]) == ("blocked", ["holds_untouched"])
    assert found.offsets() == [0, 1, 2, 3]


SPANS = st.tuples(st.integers(0, 1), st.integers(0, 20), st.one_of(st.none(), st.integers(0, 5)))
KEYS = st.sampled_from([b"", b"a", b"b"])
OWN: tuple[dict[str, Value], ...] = (
    {"message_expiry": 10, "segment_size_bytes": 10},
    {"message_expiry": 10, "max_age_seconds": 5, "segment_size_bytes": 1000, "subject_delete_marker_ttl": 60},
    {"max_records": 1, "retention_scope": "key"},
    {"max_total_bytes": 4, "max_age_seconds": 15, "segment_size_bytes": 1, "message_expiry": 10},
)


@generated
def test_no_held_message_ever_goes_and_every_run_passes_its_gate(make_world: MakeWorld, store_kind: str) -> None:
    """Over generated logs and holds, by every rule; what is not held goes as the rules say, and a second run changes nothing."""

    @given(logs(), st.lists(st.one_of(SPANS, KEYS), max_size=3), st.sampled_from(OWN))
    @effort(store_kind, 60, on_tables=1)
    def holds(log: Log, given_: list[tuple[int, int, int | None] | bytes], own: dict[str, Value]) -> None:
        world = make_world({})
        name = TopicName(stream=f"{world.scratch}.holds" if world.scratch else "holds", topic=f"t{random.getrandbits(64):x}")
        create_topic(world.services, name, partitions=2, settings={"max_removed_fraction": 1.0, **own})
        found = Case(world=world, name=name)
        for batch in log.batches:
            found.append(*batch)
        for what in given_:
            if isinstance(what, bytes):
                place_hold(found.s, name, by="ada", why="case 7", key=what)
            else:
                partition, first, more = what
                span = HeldRange(partition=partition, first=first, last=None if more is None else first + more)
                place_hold(found.s, name, by="ada", why="case 7", offsets=span)
        before = list(found.s.reader.messages(name))
        kept = {(m.partition, m.offset) for m in before if any(_holds(what, m.partition, m.offset, m.key) for what in given_)}
        world.set_now(AS_OF)
        outcome = steps.run(found.s, name, as_of=AS_OF, approver=granted)
        assert outcome.name in ("published", "no_op"), outcome.detail
        after = {(m.partition, m.offset) for m in found.s.reader.messages(name)}
        assert kept <= after
        assert outcome.rows_kept == len(before) - outcome.removed_rows

    holds()


def _holds(what: tuple[int, int, int | None] | bytes, partition: int, offset: int, key: bytes | None) -> bool:
    if isinstance(what, bytes):
        return what == key
    return what[0] == partition and what[1] <= offset and (what[2] is None or offset <= what[1] + what[2])


def test_a_held_message_that_ranks_before_others_once_theirs_have_gone_is_no_failure(make_world: MakeWorld) -> None:  # RET-4
    own: dict[str, Value] = {"max_total_bytes": 4, "max_age_seconds": 15, "segment_size_bytes": 1, "message_expiry": 10}
    found = case(make_world, partitions=2, **own)

    def new(value: bytes, *, partition: int = 0, at_s: int | None = None) -> NewMessage:
        return NewMessage(append_time=None if at_s is None else Instant(at_s * SECOND), key=None, value=value, partition=partition)

    found.append(new(b""))
    found.append(new(b"vv", partition=1), new(b"vv", at_s=91))
    found.append(new(b"v"), new(b"vv"))
    held(found.s, found.name, offsets=(0, None), partition=1)
    outcome = steps.run(found.s, found.name, as_of=AS_OF, approver=granted)
    assert (outcome.name, outcome.detail) == ("published", "")
    assert (1, 0) in {(m.partition, m.offset) for m in found.s.reader.messages(found.name)}


@pytest.mark.parametrize("own", [{}, {"min_keep": 1}], ids=["", "min_keep"])
def test_a_held_message_that_fits_once_a_larger_one_has_gone_is_no_failure(make_world: MakeWorld, own: dict[str, Value]) -> None:  # RET-1
    """It lay beyond when the plan was made, and is named there as held: the gate counts by that log, not by the one that is left."""
    found = case(make_world, max_total_bytes=10, **own)
    found.append(*(NewMessage(append_time=Instant(SECOND), key=None, value=b"v" * size) for size in (2, 3, 20, 1, 5)))
    held(found.s, found.name, offsets=(0, 0))
    plan = preview(found.s, found.name, as_of=AS_OF)
    assert [(entry.holder, entry.rows, entry.reason) for entry in plan.held] == [("hold", 1, "retention_bytes")]
    outcome = steps.run(found.s, found.name, as_of=AS_OF, approver=granted)
    assert (outcome.name, found.offsets()) == ("published", [0, 3, 4]), outcome.detail
    again = steps.run(found.s, found.name, as_of=AS_OF, approver=granted)
    assert (again.name, again.held, found.offsets()) == ("no_op", (), [0, 3, 4]), again.detail


@pytest.mark.parametrize(("own", "ttl", "late"), [({"allow_msg_ttl": True}, True, 0), ({"max_age_seconds": 1}, False, 1)])
def test_what_may_go_is_overdue_since_its_own_time_not_since_that_of_what_is_held(
    make_world: MakeWorld, own: dict[str, Value], ttl: bool, late: int
) -> None:
    """Of one file: else a hold on an old message makes the alarm ring for one that has just become due (DEL-6). `late`: an age is passed a
    microsecond after it is reached."""
    found = case(make_world, **own)
    found.append(*(message(b"a", ttl=ttl, at=at) for at in (1, 50, 60)))
    place_hold(found.s, found.name, by="ada", why="case 7", offsets=HeldRange(partition=0, first=0, last=0))
    plan = preview(found.s, found.name, as_of=AS_OF)
    assert plan.due_since == Instant(51 * SECOND + late)
    assert [(entry.holder, entry.rows, entry.overdue_since) for entry in plan.held] == [("hold", 1, Instant(2 * SECOND + late))]


@pytest.mark.parametrize("how", ["registered", "set back", "replica"])
def test_a_ledger_from_before_a_reader_deletes_nothing(make_world: MakeWorld, tmp_path: Path, how: str) -> None:
    """A reader keeps what it has not read: a ledger that does not know the reader, or knows it further on, would take that."""
    found = expiry(make_world)
    if how == "set back":
        commit_progress(found.s, found.name, "billing", 0, 2, AS_OF)
    found.s.ledger.backup(tmp_path / "backup.gz")
    if how == "replica":
        copy = TopicName(stream=found.name.stream, topic=f"copy{random.getrandbits(64):x}")
        create_topic(found.s, copy, partitions=None, settings={"origin": str(found.name), "role": "source"})
    else:
        commit_progress(found.s, found.name, "billing", 0, -1 if how == "registered" else 0, AS_OF)
    address = f"sqlite:///{tmp_path}/older.sqlite"
    restore_ledger(address, tmp_path / "backup.gz")
    there = found.offsets()
    with open_ledger(address, clock=lambda: AS_OF) as older:
        with raises("LedgerMismatch", match="older state"):
            steps.run(replace(found.s, ledger=older), found.name, as_of=AS_OF, approver=granted)
        assert found.offsets() == there
