"""The gate's evidence about a log of single records: the log before and after the removal, compared in SQL (DEL-2).

DuckDB evaluates questions about columns that a scan of the log fills. The evidence uses neither the rules in `operations` nor the reference
store, because a fault in the planning code would then vouch for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN
from message_lifecycle.model.message import Message, parse_ranges_text
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import request_reasons
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.record_log import Removal

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 100_000
_LOG = pa.schema(
    {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "segment": pa.int64(),
        "append_time": pa.int64(),
        "key": pa.binary(),
        "size_bytes": pa.int64(),
    }
)
_RUNS = pa.schema({"partition": pa.int32(), "first": pa.int64(), "last": pa.int64(), "reason": pa.string()})
_NOTHING: Mapping[str, tuple[()]] = dict.fromkeys(("difference", "order", "sample", "markers", "unmarked", "marked"), ())
"""Frames about segments that expire whole and about markers. A log of single records has neither (RET-6)."""


def columns_of(messages: Iterable[Message], ends: Mapping[int, int]) -> pa.Table:
    """Return the columns that the questions need.

    Args:
        messages: A scan of the log.
        ends: End offset of each partition at planning time. Later messages are left out.
    """
    rows = ((m.partition, m.offset, m.segment, m.append_time, m.key, m.size_bytes) for m in messages if m.offset < ends.get(m.partition, 0))
    return pa.Table.from_batches(_batches(rows), schema=_LOG)


def _batches(rows: Iterable[tuple[object, ...]]) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while some := list(islice(left, _BATCH_ROWS)):
        columns = zip(*some, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(columns, _LOG, strict=True)], schema=_LOG)


def evidence_of(log: pa.Table, removal: Removal, plan: Plan, policy: Policy) -> Mapping[str, object]:
    """Return the gate's frames, each a list of rows.

    Args:
        log: The log at planning time, see `columns_of`.
        removal: The messages that the commit will remove.
        plan: The planned removals, with reasons.
        policy: The topic's settings.
    """
    import duckdb

    acts = "retention_age" in plan.reasons  # a person's request removes the named messages, and no limit acts
    limits = policy.limits if acts else None
    with duckdb.connect() as sql:
        sql.register("log", log)
        sql.register("taken", _taken(removal))
        sql.register("named", _named(plan))
        sql.register("held", _held(plan))
        sql.execute(_JUDGED, {"too_old": _too_old(policy) if acts else None, "as_of": int(plan.as_of), "unknown": INT64_MIN})
        sql.execute(
            _RANKED.format(group="NULL" if limits is None else {"topic": "true", "partition": "partition", "key": "key"}[limits.scope]),
            {
                "acts": limits is not None,
                "by_key": limits is not None and limits.scope == "key",
                "records": None if limits is None else limits.max_records,
                "bytes": None if limits is None else limits.max_total_bytes,
                "min_keep": bool(limits is not None and limits.min_keep),
                "unknown": INT64_MIN,
            },
        )
        return {
            **{name: list(rows) for name, rows in _NOTHING.items()},
            "going": [{"partition": run.partition, "segment": run.first_base} for run in plan.log_commit.drop],
            "rows": _rows(sql, _ROWS, {"by_request": [reason for reason in request_reasons() if reason in plan.reasons]}),
            "purged": _rows(sql, _PURGED),
            "left": _rows(sql, _LEFT, {"acts": acts}),
            "limits": []
            if limits is None
            else _rows(sql, _LIMITS, {"min_keep": bool(limits.min_keep), "by_bytes": limits.max_total_bytes is not None}),
            "figures": _rows(sql, _FIGURES, {"asks": len(plan.asks)}),
        }


def _too_old(policy: Policy) -> int | None:
    """Return the age, in microseconds, that makes a message too old. None: never (CLK-2, RET-2)."""
    age = policy.max_age_us
    return None if age is None or age >= INT64_MAX else age


def _taken(removal: Removal) -> pa.Table:
    return _runs((partition, run, None) for partition, runs in removal.offsets.items() for run in runs)


def _named(plan: Plan) -> pa.Table:
    return _runs((rows.partition, run, rows.reason) for rows in plan.log_commit.mark for run in parse_ranges_text(rows.offsets))


def _held(plan: Plan) -> pa.Table:
    return _runs((held.partition, range(held.first_base, held.last_offset + 1), held.reason) for held in plan.held)


def _runs(runs: Iterable[tuple[int, range, str | None]]) -> pa.Table:
    rows = [{"partition": partition, "first": run.start, "last": run.stop - 1, "reason": reason} for partition, run, reason in runs]
    return pa.Table.from_pylist(rows, schema=_RUNS)


def _rows(sql: duckdb.DuckDBPyConnection, question: str, values: Mapping[str, object] | None = None) -> list[dict[str, object]]:
    columns = sql.execute(question, values)
    names = [name for name, *_ in columns.description or ()]
    return [dict(zip(names, row, strict=True)) for row in columns.fetchall()]


# A row for each message: does it leave, the plan's reason for it, and is it too old. A time of zero is unknown (CLK-4).
# Runs of one list do not overlap. If a damaged plan has overlapping runs, a message counts as not named, and the gate blocks.
_JUDGED = """
    CREATE TABLE judged AS
    SELECT l.*,
        coalesce(l."offset" <= t.last, false) AS gone,
        CASE WHEN l."offset" <= n.last THEN n.reason END AS reason,
        coalesce(
            l.append_time NOT IN (0, $unknown)
            AND l.append_time::HUGEINT + $too_old::HUGEINT < $as_of::HUGEINT
            AND l.append_time::HUGEINT + $too_old::HUGEINT + 1 < 9223372036854775807,
            false
        ) AS too_old
    FROM log AS l
    ASOF LEFT JOIN taken AS t ON t.partition = l.partition AND t.first <= l."offset"
    ASOF LEFT JOIN named AS n ON n.partition = l.partition AND n.first <= l."offset"
"""

# The groups of the scope, each from its newest message back, without messages that an age removes (RET-1 to RET-4).
_RANKED = """
    CREATE TABLE ranked AS
    WITH dated AS (
        SELECT *, max(coalesce(append_time, $unknown)) OVER (
            PARTITION BY partition ORDER BY "offset" ROWS UNBOUNDED PRECEDING
        ) AS newest
        FROM judged WHERE $acts AND NOT too_old
    ), placed AS (
        SELECT *, {group} AS place,
            row_number() OVER newest_first AS nth,
            sum(size_bytes) OVER (newest_first ROWS UNBOUNDED PRECEDING) AS size_so_far
        FROM dated WHERE NOT $by_key OR key IS NOT NULL
        WINDOW newest_first AS (PARTITION BY {group} ORDER BY newest DESC, partition DESC, "offset" DESC)
    )
    SELECT *, CASE
        WHEN $min_keep AND nth = 1 THEN NULL
        WHEN nth > $records THEN 'retention_count'
        WHEN size_so_far > $bytes THEN 'retention_bytes'
    END AS beyond
    FROM placed
"""

_ROWS = """
    SELECT j.partition, j.segment, count(*) AS rows,
        count(*) FILTER (j.reason IS NULL) AS unnamed,
        count(*) FILTER (j.reason IS NOT NULL AND NOT coalesce(
            CASE j.reason
                WHEN 'retention_age' THEN j.too_old
                WHEN 'retention_count' THEN r.beyond = j.reason
                WHEN 'retention_bytes' THEN r.beyond = j.reason
                ELSE list_contains($by_request::VARCHAR[], j.reason)
            END, false
        )) AS unjustified,
        false AS active
    FROM judged AS j LEFT JOIN ranked AS r ON r.partition = j.partition AND r."offset" = j."offset"
    WHERE j.gone GROUP BY ALL ORDER BY ALL
"""

_PURGED = """
    SELECT count(DISTINCT key) AS keys, count(DISTINCT (partition, segment)) FILTER (key IS NULL) AS keyless
    FROM judged WHERE gone AND reason = 'purged' HAVING count(*) > 0
"""

# Messages that a limit removes but that stay. `named`: the plan names their holder.
_LEFT = """
    WITH stayed AS (
        SELECT j.partition, j.segment AS base_offset, max(j."offset") AS last_offset, count(*) AS rows
        FROM judged AS j LEFT JOIN ranked AS r ON r.partition = j.partition AND r."offset" = j."offset"
        WHERE $acts AND NOT j.gone AND (j.too_old OR r.beyond IS NOT NULL)
        GROUP BY ALL
    )
    SELECT *, EXISTS (FROM held AS h WHERE h.partition = s.partition AND s.base_offset BETWEEN h.first AND h.last) AS named
    FROM stayed AS s ORDER BY ALL
"""

# One row about all groups. A held message beyond the limits counts against no group (DEL-9).
_LIMITS = """
    WITH kept AS (
        SELECT place, count(*) AS records, sum(size_bytes) AS bytes
        FROM ranked AS r
        WHERE NOT gone AND NOT (beyond IS NOT NULL AND EXISTS (
            FROM held AS h
            WHERE h.reason IN ('retention_count', 'retention_bytes') AND h.partition = r.partition AND r."offset" BETWEEN h.first AND h.last
        ))
        GROUP BY place
    )
    SELECT
        (SELECT coalesce(max(records), 0) FROM kept)::BIGINT AS most_records,
        (SELECT coalesce(max(CASE WHEN $by_bytes AND NOT ($min_keep AND records = 1) THEN bytes ELSE 0 END), 0) FROM kept)::BIGINT AS most_bytes,
        (SELECT count(*) FROM ranked WHERE gone AND reason IN ('retention_count', 'retention_bytes') AND beyond IS NULL) AS within,
        (SELECT count(*) FROM ranked WHERE beyond IS NOT NULL) AS beyond
"""

_FIGURES = """
    SELECT count(*) AS rows_in, count(*) FILTER (gone) AS rows_removed, count(*) FILTER (NOT gone) AS rows_kept,
        coalesce(sum(size_bytes), 0)::BIGINT AS bytes_in, coalesce(sum(size_bytes) FILTER (gone), 0)::BIGINT AS bytes_removed,
        CASE WHEN count(*) = 0 THEN 0 ELSE rows_removed / count(*) END AS fraction_rows,
        CASE WHEN bytes_in = 0 THEN 0 ELSE bytes_removed / bytes_in END AS fraction_bytes,
        $asks::INTEGER AS asks
    FROM judged
"""
