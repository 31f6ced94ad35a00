"""A rule says the same of a message, of columns of a file, and as far as they go of a file's bounds (CLK-2 to CLK-4)."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.rules import (
    AnyOfRules,
    NeverExpires,
    NotRule,
    PeriodPassed,
    Rule,
    TimeKnown,
    predicate,
    rule_holds,
    rule_holds_from,
)
from message_lifecycle.operations import expiry
from message_lifecycle.stores.iceberg import data_rows, relations, segments
from message_lifecycle.stores.iceberg.segments import FileMetrics
from tests.aged import Row, edges_of, hidden_by_the_settings, policies, rows, rules, times

FILES = st.lists(rows(), min_size=1, max_size=6)
UNKNOWN = st.sets(
    st.sampled_from(("oldest_at", "newest_at", "unknown_times", "expires_from", "expires_to", "without_expiry", "without_never"))
)


def by_columns(rule: Rule, stored: list[Row]) -> list[int]:
    """As planning reads a file."""
    long, truth = pa.int64(), pa.bool_()
    columns = {
        "append_time": data_rows.time_values(pa.chunked_array([pa.array([r.append_time for r in stored], long)]), zero_is_unknown=True),
        "expires_at": data_rows.time_values(pa.chunked_array([pa.array([r.expires_at for r in stored], long)]), zero_is_unknown=False),
        "never": data_rows.bool_values(pa.chunked_array([pa.array([r.never for r in stored], truth)])),
    }
    wanted = {name: np.asarray(columns[name]) for name in data_rows.columns_of(rule)}
    return data_rows.first_times(rule, wanted, len(stored)).tolist()


def metrics(stored: list[Row], unknown: Iterable[str] = ()) -> FileMetrics:
    """As Iceberg would write them, but for those that are not known."""
    appended = [row.append_time for row in stored if row.append_time is not None]
    expires = [row.expires_at for row in stored if row.expires_at is not None]
    never = [row.never for row in stored if row.never is not None]
    known = FileMetrics(
        partition=0, segment=0, name="f", rows=len(stored), deleted=0, size_bytes=1, first_offset=0, last_offset=len(stored) - 1,
        oldest_at=min(appended, default=None), newest_at=max(appended, default=None), unknown_times=len(stored) - len(appended),
        expires_from=min(expires, default=None), expires_to=max(expires, default=None), without_expiry=len(stored) - len(expires),
        never=max(never, default=None), without_never=len(stored) - len(never),
    )  # fmt: skip
    return known._replace(**dict.fromkeys(unknown))


@given(rule=rules(), stored=FILES, as_of=times().filter(lambda time: time is not None))
@example(
    rule=PeriodPassed("append_time", 0), stored=[Row(append_time=Instant(INT64_MAX), expires_at=None, never=None)], as_of=Instant(INT64_MAX)
)
@example(rule=PeriodPassed("append_time", 5), stored=[Row(append_time=Instant(0), expires_at=None, never=None)], as_of=Instant(10))
def test_a_rule_made_a_function_says_the_same(rule: Rule, stored: list[Row], as_of: Instant) -> None:
    is_held = predicate(rule, as_of)
    assert [is_held(row) for row in stored] == [rule_holds(rule, row, as_of) for row in stored]


@settings(deadline=None)  # the machine may be busy
@given(rule=rules(), stored=FILES)
@example(rule=PeriodPassed("append_time", 0), stored=[Row(append_time=Instant(INT64_MIN), expires_at=None, never=None)])
@example(rule=PeriodPassed("append_time", 5), stored=[Row(append_time=Instant(0), expires_at=None, never=None)])
@example(rule=PeriodPassed("expires_at", 0), stored=[Row(append_time=None, expires_at=Instant(INT64_MAX), never=None)])
def test_columns_begin_when_messages_do(rule: Rule, stored: list[Row]) -> None:
    wanted = [rule_holds_from(rule, row) for row in stored]
    assert by_columns(rule, stored) == [INT64_MAX if begins is None else begins for begins in wanted]


@settings(deadline=None)  # the machine may be busy
@given(rule=rules(), stored=FILES, unknown=UNKNOWN)
@example(rule=NotRule(TimeKnown("append_time")), stored=[Row(append_time=Instant(0), expires_at=None, never=None)], unknown=set())
@example(
    rule=PeriodPassed("expires_at", 0),
    stored=[Row(append_time=None, expires_at=Instant(t), never=None) for t in (INT64_MIN, 5)],
    unknown=set(),
)
@example(
    rule=AnyOfRules((NeverExpires(), PeriodPassed("append_time", 1))),
    stored=[Row(append_time=Instant(1), expires_at=None, never=False)],
    unknown=set(),
)
@example(
    rule=PeriodPassed("append_time", 1),
    stored=[Row(append_time=time, expires_at=None, never=None) for time in (Instant(1), None)],
    unknown={"unknown_times"},
)
@example(
    rule=PeriodPassed("expires_at", 1),
    stored=[Row(append_time=None, expires_at=time, never=None) for time in (Instant(1), None)],
    unknown={"without_expiry"},
)
def test_bounds_promise_no_more_than_every_row_keeps(rule: Rule, stored: list[Row], unknown: set[str]) -> None:
    found = segments.first_times(rule, metrics(stored, unknown))
    begins = by_columns(rule, stored)
    assert found.some <= min(begins)
    assert found.all >= max(begins)


@settings(deadline=None)  # the machine may be busy
@given(policy=policies(), stored=FILES, unknown=UNKNOWN, other=times(), data=st.data())
def test_all_renderings_hide_what_the_settings_hide(policy, stored, unknown, other, data) -> None:
    rule = expiry.hiding_rule(policy)
    begins = by_columns(rule, stored)
    file = segments.first_times(rule, metrics(stored, unknown))
    edges = sorted({edge for begin in (*begins, other) for edge in edges_of(begin)})
    as_of = data.draw(st.sampled_from(edges) if edges else st.just(Instant(0)))
    told = [hidden_by_the_settings(row, policy, as_of) for row in stored]
    assert [rule_holds(rule, row, as_of) for row in stored] == told
    if as_of < INT64_MAX:  # which stands for never in columns and bounds
        assert [begin <= as_of for begin in begins] == told
        assert file.some <= as_of or not any(told)
        assert file.all > as_of or all(told)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_rule_holds_from_its_instant_on(by: int) -> None:
    row = Row(append_time=Instant(7), expires_at=None, never=None)
    assert rule_holds(PeriodPassed("append_time", 10), row, Instant(17 + by)) is (by >= 0)


@settings(deadline=None)  # the machine may be busy
@given(rule=rules(), stored=FILES, data=st.data())
@example(rule=AnyOfRules(()), stored=[Row(append_time=None, expires_at=None, never=None)], data=None)
@example(rule=PeriodPassed("expires_at", INT64_MAX), stored=[Row(append_time=None, expires_at=Instant(-INT64_MAX), never=None)], data=None)
def test_duckdb_finds_what_holds(
    rule: Rule, stored: list[Row], data: st.DataObject | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    edges = [Instant(0), *(edge for row in stored for edge in edges_of(rule_holds_from(rule, row)))]
    as_of = edges[0] if data is None else data.draw(st.sampled_from(edges))
    moment = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "append_time": pa.array([row.append_time for row in stored], pa.int64()).cast(moment),
            "expires_at": pa.array([row.expires_at for row in stored], pa.int64()).cast(moment),
            "never": pa.array([row.never for row in stored], pa.bool_()),
        }
    )
    path = tmp_path_factory.getbasetemp() / "rules.parquet"
    pq.write_table(table, path)
    found = [held for (held,) in duckdb.sql(f"SELECT {relations.rule_condition(rule, as_of)} FROM '{path}'").fetchall()]
    assert found == [rule_holds(rule, row, as_of) for row in stored]
