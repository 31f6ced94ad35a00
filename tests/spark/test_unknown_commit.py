"""A commit that was made or not, and the catalog did not say: looked for by plan id, never repeated, nothing cleaned up (DEL-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.effort import sample
from tests.engines import change_tables
from tests.errors import raises
from tests.ledgers import StandingClock
from tests.spark.documents import Documents, typed
from tests.spark.lake import EXPIRY_S, SECOND, Lake, Rows
from tests.spark.landing import Landing, json_lines
from tests.spark.tables import unheard, unheard_operations
from tests.verdicts import by

from message_lifecycle.app import steps
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import CommitUnknown, PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import append, branches, new_table
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, PLAN_ID, QUARANTINE, SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = pytest.mark.spark

AS_OF = 1000.0
YOUNG = AS_OF - EXPIRY_S + 1
LEDGER = ("ledger", 2)
# Iceberg's own word, and what its JDBC catalog lets through when it loses the connection to its database.
UNKNOWN, LOST, REFUSED = "CommitStateUnknownException", "UncheckedSQLException", "CommitFailedException"
EACH = pytest.mark.parametrize("word", [UNKNOWN, LOST])


@contextmanager
def losing(*, made: bool, by: str) -> Iterator[None]:
    """The answers to commits of stores are lost."""
    with pytest.MonkeyPatch.context() as patched:
        change_tables(patched, lambda table, _kind: unheard(table, made=made, by=by))
        yield


def planned(lake: Lake) -> tuple[TopicName, Plan]:
    """A topic with three messages that are expired and one that is not, and the plan of their removal."""
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
    return name, lake.plan(name, AS_OF)


def verdict(lake: Lake, plan: Plan) -> Verdict:
    return lake.verdict(plan, lake.store().stage(plan))


def files(name: TopicName) -> set[Path]:
    """Every file of the table, those of its metadata too."""
    return {path for path in local_path(Tables().load(name).location()).rglob("*") if path.is_file()}


def commits_of(name: TopicName, plan: Plan) -> int:
    main = Tables().load(name)
    return sum(1 for snapshot in main.snapshots() if snapshot.summary and snapshot.summary[PLAN_ID] == plan.plan_id)


@EACH
@pytest.mark.parametrize("came", [(), (4,)], ids=["as staged", "made again"])
def test_a_publish_that_was_made_is_found(lake: Lake, word: str, came: tuple[int, ...]) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    for offset in came:
        lake.append(name, Rows(base=offset, times=(YOUNG,)))
    with losing(made=True, by=word):
        published = lake.store().publish(judged, by(LEDGER))
    assert published.removed == (("expiry", 3),)
    assert published == lake.reader.find_published(plan) == lake.store().publish(judged, by(LEDGER))
    assert commits_of(name, plan) == 1
    assert lake.offsets(name) == [3, *came]


@pytest.mark.parametrize("word", [UNKNOWN, LOST, REFUSED])
def test_a_stage_of_which_no_answer_is_heard_is_whole(lake: Lake, word: str) -> None:
    """A catalog that is asked again after its first answer was lost refuses what it has done."""
    name, plan = planned(lake)
    with losing(made=True, by=word):
        staged = lake.store().stage(plan)
    assert staged.branch is not None and len(Tables().load(name).refs()) == 2
    assert lake.store().publish(lake.verdict(plan, staged), by(LEDGER)).removed == (("expiry", 3),)
    assert lake.offsets(name) == [3]


@EACH
def test_a_publish_that_was_not_made_says_so_and_leaves_all_for_the_next_run(lake: Lake, word: str) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    log, branches, there = lake.log(name), Tables().load(name).refs(), files(name)
    with losing(made=False, by=word), pytest.raises(CommitUnknown, match=plan.plan_id[:12]):
        lake.store().publish(judged, by(LEDGER))
    assert (lake.log(name), Tables().load(name).refs()) == (log, branches)
    assert files(name) > there, "what the attempt wrote stays as well: it may be named by a commit that is still on its way"
    assert lake.reader.find_published(plan) is None
    assert lake.store().publish(judged, by(LEDGER)).removed == (("expiry", 3),)
    assert commits_of(name, plan) == 1
    assert lake.offsets(name) == [3]


def test_an_append_after_a_publish_of_unknown_result_does_not_hide_it(lake: Lake) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    with losing(made=True, by=UNKNOWN):
        first = lake.store().publish(judged, by(LEDGER))
    lake.append(name, Rows(base=4, times=(1, 2)))
    assert lake.store().publish(judged, by(LEDGER)) == first
    assert lake.offsets(name) == [3, 4, 5]


@EACH
def test_a_branch_that_nobody_knows_of_and_is_not_there_is_named_and_made_anew(lake: Lake, word: str) -> None:
    name, plan = planned(lake)
    with losing(made=False, by=word), pytest.raises(CommitUnknown, match=f"staging plan {plan.plan_id[:12]}"):
        lake.store().stage(plan)
    assert lake.publish(plan).removed == (("expiry", 3),)
    assert lake.offsets(name) == [3]


# An answer that was lost, after which a database is told again, and finds that another commit came first: its own (DEL-4).


MINUTE = 60 * SECOND


def is_whole(name: TopicName, kind: str = "") -> bool:
    """Every file that the table's metadata name is there."""
    table = Tables().load(name, kind=kind)
    named = {snapshot.manifest_list for snapshot in table.snapshots()}
    gone = {path for path in named if not table.io.new_input(path).exists()}
    for snapshot in table.snapshots():
        for manifest in () if snapshot.manifest_list in gone else snapshot.manifests(table.io):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            gone |= {
                path
                for path in (manifest.manifest_path, *(entry.data_file.file_path for entry in entries))
                if not table.io.new_input(path).exists()
            }
    return not gone


@pytest.mark.parametrize("came", [(), (4,)], ids=["as staged", "made again"])
def test_a_publish_that_meets_its_own_commit_leaves_the_table_whole(lake: Lake, came: tuple[int, ...]) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    for offset in came:
        lake.append(name, Rows(base=offset, times=(YOUNG,)))
    with losing(made=True, by=REFUSED):
        published = lake.store().publish(judged, by(LEDGER))
    assert is_whole(name)
    assert (published.removed, commits_of(name, plan)) == ((("expiry", 3),), 1)
    assert published == lake.reader.find_published(plan) == lake.store().publish(judged, by(LEDGER))
    assert lake.offsets(name) == [3, *came]


@pytest.mark.parametrize("sweep", [False, True], ids=["with a removal", "alone"])
def test_markers_that_meet_their_own_commit_leave_the_table_whole(lake: Lake, sweep: bool) -> None:
    clock = StandingClock()
    s, name = lake.services(clock), TopicName.parse(f"{lake.stream}/marked {sweep}")
    create_topic(s, name, partitions=1, settings={"subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
    made = [NewMessage(append_time=Instant(MINUTE), key=key, value=b"v", headers=(("Nats-TTL", b"60s"),)) for key in (b"a", b"b")]
    IcebergWriter(engine_of_process).append(name, made, policy_of(s, name))
    if sweep:  # what another writer removes gets them later
        assert steps.run(s, name, as_of=Instant(MINUTE), work="marker_generation").name == "no_op"
        lake.delete(name, "true")
    clock.now = Instant(3 * MINUTE)
    plan = steps.plan(s, name, as_of=clock.now, work="marker_generation" if sweep else "message_cleaner").plan
    steps.stage(s, plan.plan_id)
    steps.mark(s, plan.plan_id)
    if steps.gate(s, plan.plan_id).judgement == "needs_approval":
        steps.approve(s, plan.plan_id, granted=True, by="tester", text="as expected")
    with losing(made=True, by=REFUSED):
        steps.publish(s, plan.plan_id)
    assert is_whole(name)
    outcome = steps.verify(s, plan.plan_id)
    assert (outcome.name, outcome.markers, commits_of(name, plan)) == ("published", 2, 1)
    assert lake.offsets(name) == [2, 3]


def test_a_compaction_that_meets_its_own_commit_leaves_the_view_whole(lake: Lake) -> None:
    s, name = lake.services(), TopicName.parse(f"{lake.stream}/compacted")
    create_topic(s, name, partitions=1, settings={"max_removed_fraction": 1.0})
    made = [NewMessage(append_time=Instant(SECOND), key=b"a", value=b"v", segment=segment) for segment in (0, 0, 2)]
    IcebergWriter(engine_of_process).append(name, made, policy_of(s, name))
    plan = steps.plan(s, name, as_of=Instant(100 * SECOND), work="compaction").plan
    steps.stage(s, plan.plan_id)
    if steps.gate(s, plan.plan_id).judgement == "needs_approval":
        steps.approve(s, plan.plan_id, granted=True, by="tester", text="as expected")
    with losing(made=True, by=REFUSED):
        steps.publish(s, plan.plan_id)
    assert is_whole(name, COMPACTED)
    assert steps.verify(s, plan.plan_id).name == "published"
    assert [message.offset for message in read_compacted(s, name)] != []


# The commit of a stage, on its branch: what the catalog names stays, whatever the answer was.


LATE = AS_OF + 5000
WHOLE = (Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
# Offset 1 is of a time to come: of its segment, the others go by row (CLK-4).
BY_ROW = (Rows(base=0, times=(1, LATE, 3)), Rows(base=3, times=(YOUNG,)))
ANSWERS = pytest.mark.parametrize("word", [UNKNOWN, LOST, REFUSED])
REFUSES = pytest.mark.parametrize("word", sample([UNKNOWN, LOST, REFUSED], REFUSED))
"""Every kind of stage is committed by one function, which `ANSWERS` asks in all ways."""


@contextmanager
def losing_stages(*, made: bool, by: str) -> Iterator[None]:
    """The answers to commits on branches are lost."""
    commit, asked = branches.commit_metadata_change, list[str]()

    def lost(operations: Java, change: Callable[[Java, Java], None], *, what: str) -> None:
        asked.append(what)
        commit(unheard_operations(operations, made=made, by=by), change, what=what)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(branches, "commit_metadata_change", lost)
        yield
        assert asked, "Iceberg's own `commit()` asks the catalog itself"


@ANSWERS
@pytest.mark.parametrize(("rows", "left"), [(WHOLE, [3]), (BY_ROW, [1, 3])], ids=["whole segments", "single messages"])
def test_a_stage_that_was_made_is_found_and_published(lake: Lake, word: str, rows: tuple[Rows, ...], left: list[int]) -> None:
    name = lake.topic()
    lake.append(name, *rows)
    plan = lake.plan(name, AS_OF)
    with losing_stages(made=True, by=word):
        made = lake.store().stage(plan)
    assert is_whole(name)
    lake.store().publish(lake.verdict(plan, made), by(LEDGER))
    assert (lake.offsets(name), commits_of(name, plan)) == (left, 1)


def test_nothing_is_committed_to_a_branch_that_is_gone(lake: Lake) -> None:
    """It would be made anew at main, and without an age: nobody would ever end it."""
    name = lake.topic()
    lake.append(name, *WHOLE)
    table = engine_of_process().table(name)
    with pytest.raises(PlanConflict, match="the branch lc_0123456789abcdef of its stage is gone"):
        branches.commit_to(table, "lc_0123456789abcdef", table.newAppend(), what="a test")
    assert set(Tables().load(name).refs()) == {"main"}


@EACH
@pytest.mark.parametrize("rows", [WHOLE, BY_ROW], ids=["whole segments", "single messages"])
def test_a_stage_that_was_not_made_says_so_and_is_made_anew(lake: Lake, word: str, rows: tuple[Rows, ...]) -> None:
    name = lake.topic()
    lake.append(name, *rows)
    plan = lake.plan(name, AS_OF)
    with losing_stages(made=False, by=word), pytest.raises(CommitUnknown):
        lake.store().stage(plan)
    assert is_whole(name)
    assert lake.publish(plan).removed == (("expiry", plan.expected.removed_rows),)


@REFUSES
def test_the_stages_of_a_view_and_of_markers_that_were_made_are_found(lake: Lake, word: str) -> None:
    clock = StandingClock()
    s, name = lake.services(clock), TopicName.parse(f"{lake.stream}/staged {token_hex(4)}")
    create_topic(s, name, partitions=1, settings={"subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
    made = [NewMessage(append_time=Instant(MINUTE), key=key, value=b"v", headers=(("Nats-TTL", b"60s"),)) for key in (b"a", b"b")]
    IcebergWriter(engine_of_process).append(name, made, policy_of(s, name))
    clock.now = Instant(MINUTE)
    for work, kind in (("compaction", COMPACTED), ("message_cleaner", "")):
        plan = steps.plan(s, name, as_of=clock.now, work=work).plan
        with losing_stages(made=True, by=word):
            steps.stage(s, plan.plan_id)
            steps.mark(s, plan.plan_id)
        assert is_whole(name, kind)
        outcome = steps.run(s, name, as_of=clock.now, work=work, approver=lambda *_: (True, "tester", "as expected"))
        assert (outcome.name, outcome.plan_id) == ("published", plan.plan_id), outcome.detail
        clock.now = Instant(3 * MINUTE)
    assert lake.offsets(name) == [2, 3], "the markers"


@REFUSES
def test_the_stage_of_an_undo_that_was_made_is_found(lake: Lake, word: str) -> None:
    s, name = lake.services(clock=lambda: Instant(round(AS_OF * SECOND))), lake.topic(max_removed_fraction=1.0)
    s.ledger.accept(name, LEDGER)
    lake.append(name, *BY_ROW)
    as_of = Instant(round(AS_OF * SECOND))
    taken = steps.run(s, name, as_of=as_of, approver=lambda *_: (True, "tester", "as expected"))
    plan = steps.plan(s, name, as_of=as_of, work=UndoPlan(plan_id=taken.plan_id or "")).plan
    with losing_stages(made=True, by=word):
        steps.stage(s, plan.plan_id)
    assert is_whole(name)
    outcome = steps.run(
        s, name, as_of=as_of, work=UndoPlan(plan_id=taken.plan_id or ""), approver=lambda *_: (True, "tester", "as expected")
    )
    assert (outcome.name, outcome.restored) == ("published", 2), outcome.detail
    assert lake.offsets(name) == [0, 1, 2, 3]


@REFUSES
def test_the_stage_of_documents_that_was_made_is_found(lake: Lake, word: str) -> None:
    topic = Documents.on(lake, snapshot_interval=3, snapshot_threshold=2, snapshot_with_purging_changes=True)
    topic.add(*typed("one", 1, 6))
    topic.sync("one", a=5)
    with losing_stages(made=True, by=word):
        topic.staged()
    assert (is_whole(topic.name), is_whole(topic.name, SNAPSHOTS)) == (True, True)
    assert topic.run().name == "published"
    assert topic.stored("one") == [5, 6]


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    return Landing(lake, tmp_path)


def test_an_ingest_that_meets_its_own_commit_leaves_the_tables_whole(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    folder = landing.source(a_jsonl=json_lines(("a", "1", "2024-05-01T12:00:00Z")) + "no json\n")
    commit = append.commit_staged

    def lost(stage: append.Stage, written: append.Written, **named: Any) -> None:
        commit(replace(stage, table=unheard(stage.table, made=True, by=REFUSED)), written, **named)

    with monkeypatch.context() as patched:
        patched.setattr(append, "commit_staged", lost)
        result = landing.take(name, folder)
    assert (is_whole(name), is_whole(name, QUARANTINE)) == (True, True)
    assert (result.rows, [message.offset for message in landing.messages(name)], len(landing.quarantine(name))) == (1, [0], 1)
    assert landing.take(name, folder).files == ()


def test_changes_that_meet_their_own_commit_keep_their_files(lake: Lake) -> None:
    topic = Documents.on(lake)
    with losing(made=True, by=REFUSED):
        topic.add(*typed("one", 1, 3))
    assert is_whole(topic.name)
    assert topic.stored("one") == [1, 2, 3]


# A topic's creation; `test_unknown_creation` has the rest of it.


def test_a_topic_that_another_process_makes_first_is_told_as_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name, real = TopicName.parse(f"{lake.stream}/t {token_hex(4)}"), new_table._begun

    def overtaken(*asked: Any) -> Java:
        begun = real(*asked)
        with monkeypatch.context() as patched:
            patched.setattr(new_table, "_begun", real)
            IcebergTopics(Tables()).create(name, partitions=2, settings={}, ledger=LEDGER)
        return begun

    with monkeypatch.context() as patched, raises("TopicExists"):
        patched.setattr(new_table, "_begun", overtaken)
        lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    snapshot = Tables().load(name).current_snapshot()
    assert snapshot is not None
    assert (lake.topics.describe(name).partitions, snapshot.manifests(Tables().load(name).io)) == (2, [])
