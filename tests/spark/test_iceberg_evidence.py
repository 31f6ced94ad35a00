"""What the gate is shown: the deed as it is staged, whoever planned it, and everything that differs besides (DEL-2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.changes import named
from tests.evidence import SCHEMAS
from tests.spark.lake import EXPIRY_S, SECOND, Lake, Rows

from message_lifecycle.model.change import DropSegments
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.iceberg.engine import Engine, engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.store import IcebergStore

pytestmark = pytest.mark.spark

AS_OF = 1000.0
OLD = AS_OF - EXPIRY_S
YOUNG = OLD + 1
SPARK_NAMES = {"int32": "int", "int64": "long", "bool": "boolean", "double": "double", "string": "string"}
Frames = Mapping[str, list[dict[str, Any]]]


def evidence(lake: Lake, plan: Plan, staged: Staged | None = None) -> Frames:
    store = lake.store()
    if plan.is_empty:  # as the verbs do, which ask no store to stage it
        staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    frames = store.evidence(plan, staged or store.stage(plan), lake.policy(plan.topic))
    found: dict[str, list[dict[str, Any]]] = {}
    for name, frame in frames.items():
        columns = [tuple(field.split()) for field in SCHEMAS[name].split(", ")]
        assert isinstance(frame, pa.Table)
        assert [(field.name, SPARK_NAMES[str(field.type)]) for field in frame.schema] == columns, name
        found[name] = frame.to_pylist()
    return found


def topic(lake: Lake, **settings: Value) -> TopicName:
    name = lake.topic(**settings)
    lake.append(name, Rows(base=0, times=(1, 2, 3)))
    lake.append(name, Rows(base=3, times=(4, OLD)), Rows(base=5, times=(YOUNG,)), Rows(base=6, times=(YOUNG, 1, 2)))
    return name


def test_a_good_plan_is_borne_out(lake: Lake) -> None:
    name = topic(lake)
    plan = lake.plan(name, AS_OF)
    found = evidence(lake, plan)
    assert sorted(found["going"], key=lambda row: row["segment"]) == [
        {"partition": 0, "segment": 0, "rows": 3, "first_offset": 0, "last_offset": 2, "newest_at": 3 * SECOND, "any_kept": False, "active": False, "planned": True},
        {"partition": 0, "segment": 3, "rows": 2, "first_offset": 3, "last_offset": 4, "newest_at": OLD * SECOND, "any_kept": False, "active": False, "planned": True},
    ]  # fmt: skip
    assert (found["difference"], found["order"], found["left"]) == ([], [], [])
    assert {row["offset"] for row in found["sample"]} == {0, 1, 2, 3, 4}
    assert not any(row["too_young"] or row["outside_bounds"] for row in found["sample"])
    figures = found["figures"][0]
    assert (figures["rows_in"], figures["rows_removed"], figures["rows_kept"], figures["asks"]) == (9, 5, 4, 0)
    assert (figures["bytes_in"], figures["bytes_removed"]) == (plan.expected.bytes_in, plan.expected.removed_bytes)
    assert figures["fraction_rows"] == 5 / 9


@pytest.mark.parametrize("markers", [{}, {"allow_msg_ttl": True, "subject_delete_marker_ttl": 60}], ids=["no markers", "markers"])
def test_no_session_is_asked_for(lake: Lake, markers: Mapping[str, Value]) -> None:
    name = topic(lake, **markers)
    plan, policy = lake.plan(name, AS_OF), lake.policy(name)
    staged = lake.store().stage(plan)
    if markers:
        staged = lake.store().mark(plan, staged, policy)
        assert staged.markers is not None
        assert staged.markers.count == 5

    def none() -> Engine:
        raise AssertionError("an engine was asked for")

    by_itself = IcebergStore(none, server={}).evidence(plan, staged, policy)
    assert {frame: rows.to_pylist() for frame, rows in by_itself.items()} == evidence(lake, plan, staged)
    assert by_itself["sample"]


def test_another_age_is_seen_to_be_too_young(lake: Lake) -> None:
    # The evidence takes the policy from its caller and the times from the files, not from the plan.
    name = topic(lake)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    shorter = replace(plan, as_of=Instant(plan.as_of - 1))
    frames = store.evidence(shorter, staged, lake.policy(name))
    sample = frames["sample"].to_pylist()
    assert {row["offset"] for row in sample if row["too_young"]} == {4}


def test_overdue_messages_that_stay_are_listed_with_whether_the_plan_names_them(lake: Lake) -> None:
    name = topic(lake)
    reader = (Progress(consumer="c", partition=0, offset=2, at=None),)
    plan = lake.plan(name, AS_OF, consumers=reader)
    assert evidence(lake, plan)["left"] == [{"partition": 0, "base_offset": 3, "last_offset": 4, "rows": 2, "named": True}]
    assert evidence(lake, replace(plan, held=()))["left"][0]["named"] is False


def test_an_empty_plan_has_figures_and_what_is_left(lake: Lake) -> None:
    name = topic(lake)
    plan = lake.plan(name, AS_OF)
    empty = replace(plan, changes=(), selection=replace(plan.selection, files=()), held=())
    found = evidence(lake, empty)
    assert [found[frame] for frame in ("going", "difference", "order", "sample")] == [[], [], [], []]
    assert sorted(row["base_offset"] for row in found["left"]) == [0, 3]
    assert found["figures"][0]["rows_removed"] == 0
    nothing = lake.topic()
    found = evidence(lake, lake.plan(nothing, AS_OF))
    assert found["figures"][0] == {
        "rows_in": 0, "rows_removed": 0, "rows_kept": 0, "bytes_in": 0, "bytes_removed": 0, "fraction_rows": 0.0, "fraction_bytes": 0.0, "asks": 0
    }  # fmt: skip


def tampered(lake: Lake, plan: Plan, statement: str) -> Frames:
    """Evidence of a stage that somebody has changed."""
    store = lake.store()
    staged = store.stage(plan)
    assert staged.branch is not None
    lake.session.sql(statement.format(table=sql_table(plan.topic, branch=staged.branch)))
    engine_of_process().forget(plan.topic)
    branch = lake.session.sql(f"SELECT snapshot_id FROM {sql_table(plan.topic, metadata='refs')} WHERE name = '{staged.branch}'").collect()
    return evidence(lake, plan, replace(staged, snapshot_id=branch[0][0]))


def test_a_file_more_than_planned_is_seen(lake: Lake) -> None:
    name = topic(lake)
    found = tampered(lake, lake.plan(name, AS_OF), "DELETE FROM {table} WHERE segment = 6")
    assert [row["how"] for row in found["difference"]] == ["a data file that the plan does not name is gone"]
    assert found["rows"] == [{"partition": 0, "segment": 6, "rows": 3, "unnamed": 3, "unjustified": 0, "active": False}]


def test_a_message_more_than_planned_is_seen(lake: Lake) -> None:
    name = topic(lake)
    found = tampered(lake, lake.plan(name, AS_OF), "DELETE FROM {table} WHERE offset = 7")
    assert [row["how"] for row in found["difference"]] == ["messages are marked as removed that the plan does not name"]
    assert found["rows"] == [{"partition": 0, "segment": 6, "rows": 1, "unnamed": 1, "unjustified": 0, "active": False}]


def test_a_file_that_appeared_is_seen(lake: Lake) -> None:
    name = topic(lake)
    copy = "INSERT INTO {table} SELECT partition, offset + 100, append_time, event_time, key, value, headers, size_bytes, segment, expires_at, never, origin_offset FROM {table} WHERE segment = 6"
    found = tampered(lake, lake.plan(name, AS_OF), copy)
    assert [row["how"] for row in found["difference"]] == ["a data file that was not there"]


def test_a_file_that_should_have_gone_is_seen(lake: Lake) -> None:
    name = topic(lake)
    plan = lake.plan(name, AS_OF)
    staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    found = evidence(lake, plan, staged)
    assert {row["how"] for row in found["difference"]} == {"a data file that the plan names is still there"}
    assert len(found["left"]) == 2


def test_never_is_seen_in_the_bounds(lake: Lake) -> None:
    name = topic(lake)
    lake.session.sql(f"UPDATE {sql_table(name)} SET never = true WHERE offset = 4")
    engine_of_process().forget(name)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    assert evidence(lake, plan, staged)["going"], "the topic heeds no TTL, so nothing is kept by one"
    heeding = resolve(topic={**lake.topics.describe(name).settings, "allow_msg_ttl": True}, server={})
    going = store.evidence(plan, staged, heeding)["going"]
    assert {row["segment"] for row in going.to_pylist() if row["any_kept"]} == {3}


def test_messages_that_go_by_row_are_counted_and_the_late_ones_excepted(lake: Lake) -> None:
    # CLK-4: offset 1 lies in the future and stays; the segment behind it goes, and may.
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, AS_OF + 5000, 2)), Rows(base=3, times=(3, 4)), Rows(base=5, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    found = evidence(lake, plan)
    assert [(row["segment"], row["rows"], row["newest_at"], row["planned"]) for row in found["going"]] == [(3, 2, 4 * SECOND, True)]
    assert found["rows"] == [{"partition": 0, "segment": 0, "rows": 2, "unnamed": 0, "unjustified": 0, "active": False}]
    assert (found["difference"], found["order"], found["left"]) == ([], [], [])
    assert {row["offset"] for row in found["sample"]} == {3, 4}
    assert not any(row["too_young"] or row["outside_bounds"] for row in found["sample"])
    lake.publish(plan)
    # What was left of it then stops nothing behind it.
    lake.append(name, Rows(base=6, times=(YOUNG + 1,)), Rows(base=7, times=(YOUNG + 2,)))
    next_plan = lake.plan(name, AS_OF + 1.5)
    found = evidence(lake, next_plan)
    assert [row["segment"] for row in found["going"]] == [5]
    assert (found["difference"], found["order"], found["left"]) == ([], [], [])


def test_a_hole_in_the_log_is_seen(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(YOUNG,)), Rows(base=1, times=(1,)), Rows(base=2, times=(AS_OF,)))
    plan = lake.plan(name, AS_OF)
    assert plan.is_empty
    other = lake.plan(name, AS_OF + 1)
    second = next(segment for segment in lake.log(name).segments if segment.base_offset == 1)
    drop = DropSegments(partition=0, first_base=1, last_base=1, last_offset=1, segments=1, rows=1, size_bytes=1, newest_at=Instant(SECOND))
    wrong = replace(
        other,
        changes=named(drop),
        selection=replace(other.selection, files=second.files),
        expected=replace(other.expected, removed=(("expiry", 1),), segments=1),
    )
    found = evidence(lake, wrong)
    assert found["order"] == [{"partition": 0, "segment": 1}]
    assert found["difference"] == []


def test_a_reason_that_does_not_hold_is_seen(lake: Lake) -> None:
    """Rows named by the plan for a rule that takes only some of them."""
    name = lake.topic(message_expiry=0, max_age_seconds=float(EXPIRY_S))
    lake.append(name, Rows(base=0, times=(1, YOUNG, 2)), Rows(base=3, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    (action,) = plan.log_commit.mark
    assert (action.offsets, action.reason) == ("0,2", "retention_age")
    wider = replace(plan.expected, removed=(("retention_age", 3),))
    more = replace(plan, changes=named(replace(action, offsets="0-2", rows=3)), expected=wider)
    assert evidence(lake, more)["rows"] == [{"partition": 0, "segment": 0, "rows": 3, "unnamed": 0, "unjustified": 1, "active": False}]
