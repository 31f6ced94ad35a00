"""The view beside a topic hides what a logical read hides, by the same rule, at once; the catalog's readers pass over it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.aged import Row, edges_of, hidden_by_the_settings, policies, rows, rules
from tests.spark.lake import SECOND, Lake, Rows

from message_lifecycle.app import steps
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import alter_topic, create_topic, update_live_view
from message_lifecycle.model.errors import ForeignTable
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rules import Rule, rule_holds
from message_lifecycle.operations import expiry
from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.session import quote_identifier, sql_table
from message_lifecycle.stores.iceberg.table_folder import absolute, local_path, location_prefix

pytestmark = pytest.mark.spark

FAR = 4_000_000_000
"""Seconds: long after the machine's clock."""


def _drawn(wanted: int) -> list[tuple[Rule, list[Row], Instant, list[bool] | None]]:
    """Rules with rows, an instant at an edge of one of them, and where they come from a policy what the settings say."""
    found: list[tuple[Rule, list[Row], Instant, list[bool] | None]] = []

    @settings(max_examples=wanted, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(policy=st.one_of(st.none(), policies()), rule=rules(), stored=st.lists(rows(), min_size=1, max_size=6), chance=st.randoms())
    def draw(policy, rule, stored, chance: random.Random) -> None:
        judged = rule if policy is None else expiry.hiding_rule(policy)
        from message_lifecycle.model.rules import rule_holds_from

        edges = [e for row in stored for e in edges_of(rule_holds_from(judged, row)) if 0 <= e < INT64_MAX] or [Instant(0)]
        as_of = chance.choice(edges)
        found.append((judged, stored, as_of, None if policy is None else [hidden_by_the_settings(row, policy, as_of) for row in stored]))

    draw()
    return found


def test_sql_says_of_every_row_what_the_rule_says(lake: Lake) -> None:
    cases = _drawn(120)
    flat = [(case, row) for case, (_, stored, _, _) in enumerate(cases) for row in stored]
    assert len(flat) > 200
    frame = pa.table(
        {
            "case": pa.array([case for case, _ in flat], pa.int32()),
            "n": pa.array(range(len(flat)), pa.int32()),
            "append_time": pa.array([row.append_time for _, row in flat], pa.int64()),
            "expires_at": pa.array([row.expires_at for _, row in flat], pa.int64()),
            "never": pa.array([row.never for _, row in flat], pa.bool_()),
        }
    )
    lake.session.createDataFrame(frame).selectExpr(
        "case", "n", "timestamp_micros(append_time) AS append_time", "timestamp_micros(expires_at) AS expires_at", "never"
    ).createOrReplaceTempView("aged_rows")
    sides = [
        " ".join(f"WHEN {case} THEN {text(rule, f'{as_of}L')}" for case, (rule, _, as_of, _) in enumerate(cases))
        for text in (view_file.rule_condition, view_file.rule_opposite)
    ]
    asked = f"SELECT n, CASE case {sides[0]} END AS holds, CASE case {sides[1]} END AS holds_not FROM aged_rows ORDER BY n"
    found = lake.session.sql(asked).collect()
    wanted = [rule_holds(rule, row, as_of) for rule, stored, as_of, _ in cases for row in stored]
    assert [(row["holds"], row["holds_not"]) for row in found] == [(one, not one) for one in wanted]
    told = [told for _, stored, _, told in cases for told in (told or [None] * len(stored))]
    assert all(one == said for one, said in zip(wanted, told, strict=True) if said is not None)
    assert {True, False} <= set(wanted)


@pytest.fixture
def s(lake: Lake) -> Services:
    return lake.services()


def _topic(lake: Lake, s: Services, topic: str, **given_settings: object) -> TopicName:
    name = TopicName.parse(f"{lake.stream}/{topic}")
    create_topic(s, name, partitions=1, settings=given_settings)
    return name


def _shown(lake: Lake, name: TopicName) -> list[int]:
    return sorted(row["offset"] for row in lake.session.sql(f"SELECT offset FROM {sql_table(name, kind='live')}").collect())


def test_the_view_is_there_with_the_topic_and_follows_its_settings(lake: Lake, s: Services) -> None:
    name = _topic(lake, s, "Gröss-e view", max_age_seconds=60.0)
    assert _shown(lake, name) == []
    lake.append(name, Rows(base=0, times=(1, None, 0, FAR)))
    lake.session.sql(f"UPDATE {sql_table(name)} SET append_time = timestamp_micros(0L) WHERE offset = 2")
    assert _shown(lake, name) == [1, 2, 3]
    logical = [
        m.offset for m in s.reader.messages(name) if not rule_holds(expiry.hiding_rule(policy_of(s, name)), m, Instant(FAR * SECOND))
    ]
    assert logical == [1, 2, 3]
    alter_topic(s, name, {"max_age_seconds": None})
    assert _shown(lake, name) == [0, 1, 2, 3]
    alter_topic(s, name, {"allow_msg_ttl": True})
    lake.session.sql(f"UPDATE {sql_table(name)} SET expires_at = timestamp_seconds(offset * {FAR // 3}) WHERE offset > 0")
    assert _shown(lake, name) == [0, 2, 3]
    # All that a reader gets is in the view.
    assert lake.session.table(sql_table(name, kind="live")).schema == lake.session.table(sql_table(name)).schema


def test_a_view_is_written_again_only_where_it_says_something_else(lake: Lake, s: Services) -> None:
    name = _topic(lake, s, "same", message_expiry=60)
    place = name.namespace, name.table("live")
    first = Tables().pointers.one(place)
    alter_topic(s, name, {"undo_window": 60})
    full = update_live_view(s, name)
    assert Tables().pointers.one(place) == first
    assert s.topics.describe(name).live_view == full == f"lake.{name.namespace}.{name.table('live')}"
    alter_topic(s, name, {"message_expiry": 61})
    assert Tables().pointers.one(place) != first


def test_a_run_renews_the_view_after_the_servers_settings_have_changed(lake: Lake, s: Services) -> None:
    from dataclasses import replace

    name = _topic(lake, s, "server")
    lake.append(name, Rows(base=0, times=(1, FAR)))
    assert _shown(lake, name) == [0, 1]
    written_with = s.topics.describe(name).ledger
    assert written_with is not None
    s.ledger.accept(name, written_with)
    steps.plan(replace(s, server={"message_expiry": 60}), name, as_of=s.ledger.now())
    assert _shown(lake, name) == [1]


def test_files_without_live_messages_are_not_read(lake: Lake, s: Services) -> None:
    name = _topic(lake, s, "pruned", message_expiry=60)
    for base in range(0, 10, 2):
        lake.append(name, Rows(base=base, times=(FAR, FAR) if base == 8 else (1, 2)))
    dead = [file for segment in lake.log(name).segments if segment.base_offset < 8 for file in segment.files]
    location = Tables().load(name).location()
    for file in dead:
        local_path(absolute(location_prefix(location), file)).unlink()
    assert _shown(lake, name) == [8, 9]


def test_views_are_no_topics_and_hide_none(lake: Lake, s: Services) -> None:
    name = _topic(lake, s, "listed", message_expiry=60)
    foreign = quote_identifier("lake", name.namespace, "of_somebody")
    lake.session.sql(f"CREATE VIEW {foreign} AS SELECT 1 AS one")
    try:
        assert name in lake.topics.list(lake.stream)
        assert all("live" not in found.topic and "somebody" not in found.topic for found in lake.topics.list())
        listed = {identifier[-1] for identifier in Tables().catalog.list_tables(name.namespace)}
        assert name.table() in listed
        assert not listed & {name.table("live"), "of_somebody"}
        views = {row["viewName"] for row in lake.session.sql(f"SHOW VIEWS IN {quote_identifier('lake', name.namespace)}").collect()}
        assert {name.table("live"), "of_somebody"} <= views
    finally:
        lake.session.sql(f"DROP VIEW {foreign}")


def test_somebody_elses_table_in_the_views_place_stays_and_the_topic_works(lake: Lake, s: Services) -> None:
    first = _topic(lake, s, "there")
    name = TopicName.parse(f"{lake.stream}/taken")
    lake.session.sql(f"CREATE TABLE {sql_table(name, kind='live')} (a int)")
    create_topic(s, name, partitions=1, settings={})
    with pytest.raises(ForeignTable):
        update_live_view(s, name)
    assert lake.session.table(sql_table(name, kind="live")).columns == ["a"]
    assert {first, name} <= set(lake.topics.list(lake.stream))
    lake.session.sql(f"DROP TABLE {sql_table(name, kind='live')} PURGE")


def test_spark_replaces_and_drops_the_view_as_its_own(lake: Lake, s: Services) -> None:
    name = _topic(lake, s, "sparks")
    view = sql_table(name, kind="live")
    lake.session.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT offset FROM {sql_table(name)}")
    assert lake.session.table(view).columns == ["offset"]
    update_live_view(s, name)
    lake.session.catalog.refreshTable(view)
    assert len(lake.session.table(view).columns) == 12
    lake.session.sql(f"DROP VIEW {view}")
    update_live_view(s, name)
    assert _shown(lake, name) == []
