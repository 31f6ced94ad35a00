"""What an earlier head left open, half done or done is finished, and taken back, by this one (DEL-4, DEL-5, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.effort import sample
from tests.head_lake.cases import ERASED, LATER, UNDOS, grant
from tests.head_lake.restored import Restored, Topic, restored, topics
from tests.spark.key_search import files_with
from tests.spark.lake import tables

from message_lifecycle.app import receipts, steps
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.stores.iceberg.layout import COMPACTED, QUARANTINE, SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

OPEN = ("open", "staged", "waiting", "approved", "passed")
BEGUN = ("halfway", "deleting", "unverified")
PLANNED_ANEW = "snapshot_with_purge.halfway"
"""What a run that died between the two commits of a purge has left takes nothing away, and the next plan goes on from it."""


@pytest.fixture(scope="module")
def head_lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    with restored(tmp_path_factory.mktemp("head_lake"), tables(), lambda: spark) as made:
        yield made


def carried_out(topic: Topic) -> Outcome:
    """The plan as it stands, from where it stands to its end."""
    s, plan_id = topic.s, topic.plan_id
    if s.ledger.record(plan_id).staged is None:
        steps.stage(s, plan_id)
        steps.mark(s, plan_id)
    if s.ledger.record(plan_id).report is None:
        steps.gate(s, plan_id)
    record = s.ledger.record(plan_id)
    assert record.report is not None
    if record.report.judgement == "needs_approval" and record.approval is None:
        steps.approve(s, plan_id, granted=True, by="ada", text="as expected")
    steps.publish(s, plan_id)
    return steps.verify(s, plan_id)


def asked_again(topic: Topic) -> Outcome:
    """A run that comes again for the same."""
    return steps.run(topic.s, topic.name, as_of=topic.as_of, approver=grant, work=topic.work)


@pytest.mark.parametrize("title", sample([*topics(*OPEN), PLANNED_ANEW], *topics("approved", "passed"), PLANNED_ANEW))
def test_an_open_plan_comes_to_its_end_or_is_asked_again(head_lake: Restored, title: str) -> None:
    topic = head_lake.topic(title)
    if topic.is_of_this_format:
        assert carried_out(topic).name == "published"
    else:
        outcome = asked_again(topic)
        assert (outcome.name, outcome.plan_id != topic.plan_id) == ("published", True)
        ended = topic.s.ledger.record(topic.plan_id).outcome
        assert ended is not None and ended.name in ("lapsed", "superseded")
    assert topic.seen() == topic.rows("after")
    left(topic)


@pytest.mark.parametrize("title", [title for title in topics(*BEGUN) if title != PLANNED_ANEW])
def test_what_has_begun_comes_to_the_same_end(head_lake: Restored, title: str) -> None:
    """Whatever the format: in its own order, by its own plan."""
    topic = head_lake.topic(title)
    steps.publish(topic.s, topic.plan_id)
    assert steps.verify(topic.s, topic.plan_id).name == "published"
    assert topic.seen() == topic.rows("after")
    left(topic)


@pytest.mark.parametrize("case", sorted(UNDOS))
def test_what_was_published_is_taken_back(head_lake: Restored, case: str) -> None:
    topic = head_lake.topic(f"{case}.published")
    head_lake.clock.now = LATER
    outcome = steps.run(topic.s, topic.name, as_of=LATER, approver=grant, work=UndoPlan(plan_id=topic.plan_id))
    assert outcome.name == "published", outcome.detail
    of_undo = UNDOS[case]
    assert topic.seen() == (topic.rows("undone") if of_undo is None else head_lake.topic(f"{of_undo}.published").rows("after"))
    left(topic)


def left(topic: Topic) -> None:
    """Nothing of the work is left on the tables of a topic that stands, and no file of what was to go."""
    plan = topic.s.ledger.record(topic.plan_id).plan
    assert [path for action in plan.moved("gone") for path in local_path(action.location).rglob("*") if path.is_file()] == []
    if isinstance(topic.work, EraseKey):
        assert receipts.verify(topic.s, topic.work.request_id) == []
        assert [file for kind in ("", COMPACTED) for file in files_with(tables().load(topic.name, kind=kind).location(), ERASED)] == []
    for kind in ("", COMPACTED, SNAPSHOTS, QUARANTINE):
        place = topic.name.namespace, topic.name.table(kind)
        if tables().pointers.one(place) is not None:
            refs = tables().catalog.load_table(place).metadata.refs
            assert {ref for ref in refs if not ref.startswith("undo_")} == {"main"}, place
