"""Evidence about a staged view for the gate: the errors in each partition. No JVM is needed.

The evidence compares every new message with its source. For old messages of the view it compares sums only: how many messages stay, and a
digest of them. If the run kept the view's files, a digest of positions is enough. If the run rewrote the view, the digest covers all
columns.

DuckDB answers the questions. Its queries differ from the queries that make a view, so one mistake cannot hide in both.

New messages are read whole. Every partition is a task, as in the compaction itself; the driver receives sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import CompactPartition
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.message import REASON_HEADER
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.compaction import FoldRules, rules_of
from message_lifecycle.stores.iceberg import relations
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import snapshot_at
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import SCHEMA as VIEW_SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import files_by_partition
from message_lifecycle.stores.iceberg.data_rows import read_columns
from message_lifecycle.stores.iceberg.engine import Engine, job_text
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.relations import create_relation, duckdb_types, opened
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.tasks import InputFile

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


Sum = dict[str, Any]
Sums = dict[int, Sum]
"""Sums by partition."""
_TOPIC = ", ".join(f'"{field.name}"' for field in TOPIC_SCHEMA.fields)
_NONE: Sum = {}


def evidence_failed(partition: int, kind: str, reason: str) -> Unavailable:
    """Return the error for a task that could not read a partition's evidence. The partition stays unjudged."""
    return Unavailable(
        f"judging the new view of partition {partition} failed ({kind}): {reason} The view is as it was; mend that and run again.",
        code="EvidenceFailed",
    )


def evidence(engine: Engine, tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    """Return the frames of `gates.messages`.

    Raises:
        PlanConflict: The staged view is missing.
        EvidenceFailed: A task could not read its files.
    """
    if plan.is_empty or staged.view is None:
        figures = {"rows_in": plan.expected.rows_in, "rows_removed": 0, "rows_kept": plan.expected.rows_in, "fraction_lost": 0.0}
        parts = pa.table({"partition": pa.array([], pa.int32())})
        return {"partitions": parts, "figures": pa.Table.from_pylist([{**figures, "asks": len(plan.asks)}])}
    question = _question(tables, plan, staged, policy)
    return _frames(plan, _answers(engine, plan, question))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Files by partition.

    Attributes:
        log: Files of the log.
        before: Files of the view before the plan; empty for a first compaction.
        after: Files of the staged view.
        rewrite: Whether the run wrote the whole view again.
    """

    actions: tuple[CompactPartition, ...]
    log: Mapping[int, tuple[InputFile, ...]]
    before: Mapping[int, tuple[InputFile, ...]]
    after: Mapping[int, tuple[InputFile, ...]]
    rules: FoldRules
    rewrite: bool

    def each(self) -> list[Question]:
        """Return one question per partition. The partitions are independent of one another."""
        return [replace(self, actions=(action,), **self._of(action.partition)) for action in self.actions]

    def _of(self, partition: int) -> dict[str, Any]:
        files = {"log": self.log, "before": self.before, "after": self.after}
        return {name: {partition: found.get(partition, ())} for name, found in files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Sums by partition.

    Attributes:
        fresh: Errors among new messages.
        stays: Messages that went in, and messages of the old view that stay.
        found: Messages of the new view.
        disordered: New files with wrong order.
    """

    fresh: Sums
    stays: Sums
    found: Sums
    disordered: Sums


def _question(tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> Question:
    assert plan.view is not None
    view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)
    mine = {action.partition for action in plan.on_view.compact}

    def files(table: Table, snapshot_id: int | None) -> dict[int, tuple[InputFile, ...]]:
        """Return the files of the plan's partitions; None: no snapshot."""
        found = files_by_partition(table, snapshot_at(table, snapshot_id, plan.plan_id))
        return {partition: tuple(each) for partition, each in found.items() if partition in mine}

    return Question(
        actions=tuple(plan.on_view.compact),
        log=files(log, plan.requirements.snapshot_id),
        before=files(view, plan.view.snapshot_id),
        after=files(view, staged.snapshot_id),
        rules=rules_of(policy, as_of=plan.as_of, tombstones_until=plan.view.tombstones_until),
        rewrite=plan.view.rewrite,
    )


def _answers(engine: Engine, plan: Plan, question: Question) -> Answer:
    """Run one task per partition and join the answers. Raises EvidenceFailed."""
    whole = Answer(fresh={}, stays={}, found={}, disordered={})
    parts = question.each()
    found = engine.run(parts, _answered, description=job_text(plan, f"judging {len(parts)} partitions"))
    for action, one in zip(question.actions, found, strict=True):
        if isinstance(one, Failed):
            raise evidence_failed(action.partition, one.kind, one.reason)
        whole.fresh.update(one.fresh)
        whole.stays.update(one.stays)
        whole.found.update(one.found)
        whole.disordered.update(one.disordered)
    return whole


def _answered(question: Question, share: Resources) -> Answer:
    """Answer one question in a task."""
    with opened(share) as (connection, _):
        return _Evidence(connection, question).answer()


def _frames(plan: Plan, answer: Answer) -> Mapping[str, object]:
    assert plan.view is not None
    fresh, stays, found, disordered = answer.fresh, answer.stays, answer.found, answer.disordered
    parts = [
        _part(action, *(sums.get(action.partition, _NONE) for sums in (fresh, stays, found, disordered))) for action in plan.on_view.compact
    ]
    untouched = plan.view.rows - sum(row["view_rows"] for row in stays.values())
    rows_in = untouched + sum(row["view_rows"] + row["tail_rows"] for row in stays.values())
    rows = untouched + sum(row["rows"] for row in found.values())
    lost = sum(max(0, row["unreplaced"] - found.get(part, _NONE).get("unreplaced", 0)) for part, row in stays.items())
    figures = {
        "rows_in": rows_in,
        "rows_removed": rows_in - rows,
        "rows_kept": rows,
        "fraction_lost": lost / plan.view.rows if plan.view.rows else 0.0,
        "asks": len(plan.asks),
    }
    return {"partitions": pa.Table.from_pylist(parts), "figures": pa.Table.from_pylist([figures])}


def _part(action: CompactPartition, fresh: Sum, stays: Sum, found: Sum, disordered: Sum) -> dict[str, int]:
    more = found.get("old", 0) - stays.get("old", 0)
    differ = not more and found.get("old_digest") != stays.get("old_digest")
    return {
        "partition": action.partition,
        "rows": found.get("rows", 0),
        "repeated_keys": found.get("repeated_keys", 0),
        "unwanted": fresh.get("unwanted", 0) + max(0, more),
        "missing": fresh.get("missing", 0) + max(0, -more),
        "null_keys_missing": fresh.get("null_keys_missing", 0),
        "changed": fresh.get("changed", 0) + int(differ),
        "disordered": disordered.get("files", 0),
        "beyond": found.get("beyond", 0),
    }


class _Evidence:
    """Compares the staged view (`made`) with the old view and the tail (`source`)."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, question: Question) -> None:
        self._connection, self._question, self._rules = connection, question, question.rules
        # By event time a late message may lose to an older one, so a position in the view proves nothing.
        self._all_new = self._rules.by_event_time
        self._has_view = any(question.before.values())
        self._relate("before_view", question.before, VIEW_SCHEMA)
        self._relate("after_view", question.after, VIEW_SCHEMA)
        self._relate("log", question.log, TOPIC_SCHEMA)
        self._make_views()

    def answer(self) -> Answer:
        fresh = self._fresh()
        return Answer(fresh=fresh, stays=self._stays(), found=self._found(fresh), disordered=self._disordered())

    def _relate(self, name: str, files: Mapping[int, tuple[InputFile, ...]], schema: Schema) -> None:
        create_relation(self._connection, name, [file for group in files.values() for file in group], duckdb_types(schema))

    def _make_views(self) -> None:
        """Create the relations of the comparison.

        - `source`: messages that went in.
        - `latest`: the latest offset of each key.
        - `winners`: the places of these messages, and of messages without a key that stay.
        - `judged`: `source`, with whether each message is dead or ended.
        - `made`: messages of the staged view.
        """
        order = 'max("offset")'
        if self._rules.by_event_time:
            order = f"""max({{'time': {relations.micros("event_time")}, 'offset': "offset"}})['offset']"""
        latest_of = "source" if self._all_new else "(FROM source WHERE NOT of_view)"
        no_key = f'UNION ALL SELECT partition, "offset" FROM {latest_of} WHERE key IS NULL' if self._rules.retain_null_key else ""
        empty = (
            ""
            if self._rules.empty_is_value
            else (
                f" OR octet_length(value) = 0 OR coalesce(list_contains(list_transform(headers, lambda h: h.name), '{REASON_HEADER}'), false)"
            )
        )
        until = "NULL" if self._rules.tombstones_until is None else relations.instant(self._rules.tombstones_until)
        dead = " OR ".join([relations.holds(rule, self._rules.as_of) for _, rule in self._rules.ages] or ["false"])
        past = relations.due("horizon", self._rules.as_of)
        self._run(
            f"""CREATE TEMP VIEW source AS
            SELECT {_TOPIC}, delete_horizon, coalesce(remembered, false) AS remembered, true AS of_view FROM before_view
            UNION ALL SELECT {_TOPIC}, NULL, false, false FROM log WHERE {self._span('"offset" > {after} AND "offset" <= {through}')};
            CREATE TEMP TABLE latest AS
            SELECT partition, key, {order} AS latest, bool_or(NOT of_view) AS newer FROM {latest_of} WHERE key IS NOT NULL GROUP BY ALL;
            CREATE TEMP VIEW winners AS SELECT partition, latest AS "offset" FROM latest {no_key};
            CREATE TEMP VIEW judged AS
            SELECT *, (deletes AND horizon IS NULL) OR (coalesce({past}, false)) AS ended, {dead} AS dead FROM (
                SELECT *, coalesce(delete_horizon, CASE WHEN deletes THEN {until}::TIMESTAMPTZ END) AS horizon FROM (
                    SELECT *, NOT of_view AND key IS NOT NULL AND (value IS NULL{empty}) AS deletes FROM source));
            CREATE TEMP VIEW made AS SELECT * FROM after_view WHERE NOT coalesce(remembered, false)"""
        )

    def _fresh(self) -> Sums:
        """Compare each message past the old horizon (by event time: every message).

        The query finds winners by their places. So it compares keys once, for `latest`, and reads whole rows once. A dead winner has no
        `wanted`: a WHERE condition instead would test every message, not only winners.
        """
        of, past = ("true", "true") if self._all_new else ("NOT of_view", self._span('"offset" > {after}', of="j."))
        return self._sums(
            f"""SELECT partition, count_if(wanted IS NULL AND found IS NOT NULL) AS unwanted,
                count_if(found IS NULL AND wanted IS NOT NULL AND NOT no_key) AS missing,
                count_if(found IS NULL AND wanted IS NOT NULL AND no_key) AS null_keys_missing, count(*) FILTER (wanted <> found) AS changed
            FROM (
                SELECT j.partition, j."offset", j.key IS NULL AS no_key,
                    CASE WHEN NOT dead AND NOT ended AND NOT remembered THEN hash({_of("j", "horizon")}) END AS wanted
                FROM (FROM judged WHERE {of}) AS j SEMI JOIN winners AS w ON j.partition = w.partition AND j."offset" = w."offset"
            ) FULL JOIN (SELECT j.partition, j."offset", hash({_of("j", "delete_horizon")}) AS found FROM made AS j WHERE {past}) USING (partition, "offset")
            GROUP BY partition"""
        )

    def _stays(self) -> Sums:
        """Count the messages that went in, and messages of the view that stay unchanged.

        A message stays unchanged if its key has no newer message and no rule removes it.
        """
        sums: Sums = {
            action.partition: {"view_rows": 0, "tail_rows": 0, "unreplaced": 0, "old": 0, "old_digest": None}
            for action in self._question.actions
        }
        tail = self._span('"offset" > {after} AND "offset" <= {through}')
        parts = [f"SELECT partition, count(*) AS tail_rows FROM log WHERE {tail} GROUP BY ALL"]
        if self._has_view:
            keep = "true" if self._rules.retain_null_key else "j.key IS NOT NULL"
            # The compaction that added a message to the view judged it then. The row's delete horizon records the result.
            due = f"coalesce({relations.due('delete_horizon', self._rules.as_of)}, false)"
            old = f"(NOT coalesce(newer, false) AND NOT dead AND NOT {due} AND {keep})"
            parts.append(
                f"""SELECT j.partition, count(*) AS view_rows, count_if(NOT coalesce(newer, false)) AS unreplaced, {self._old(old)}
                FROM (FROM judged WHERE of_view AND NOT remembered) AS j LEFT JOIN latest AS l ON l.partition = j.partition AND l.key = j.key
                GROUP BY j.partition"""
            )
        return self._added(sums, parts)

    def _found(self, fresh: Sums) -> Sums:
        """Count the messages of the new view.

        A key can repeat only through an unwanted row, or through an old row with a newer one. There is one wanted row per key, and
        `_disordered` finds repeated offsets.
        """
        sums: Sums = {}
        parts = [
            f"""SELECT j.partition, count(*) AS rows, count_if({self._span('"offset" > {through}', of="j.")}) AS beyond,
                0 AS unreplaced, 0 AS repeated_keys, 0 AS old, NULL AS old_digest FROM made AS j GROUP BY j.partition"""
        ]
        if self._has_view:
            repeated = "0" if self._all_new else "count_if(coalesce(newer, false))"
            parts.append(
                f"""SELECT j.partition, count_if(NOT coalesce(newer, false)) AS unreplaced, {repeated} AS repeated_keys, {self._old("true")}
                FROM (FROM made AS j WHERE {self._span('"offset" <= {after}', of="j.")}) AS j
                LEFT JOIN latest AS l ON l.partition = j.partition AND l.key = j.key GROUP BY j.partition"""
            )
        self._added(sums, parts)
        if any(row["unwanted"] for row in fresh.values()):
            past = "true" if self._all_new or self._question.rewrite else self._span('"offset" > {after}')
            twice = self._sums(
                f"""SELECT partition, sum(rows - 1)::BIGINT AS again FROM (
                    SELECT partition, key, count(*) AS rows FROM made WHERE key IS NOT NULL AND {past} GROUP BY ALL HAVING rows > 1
                ) GROUP BY partition"""
            )
            for partition, row in twice.items():
                sums[partition]["repeated_keys"] += row["again"]
        return sums

    def _old(self, condition: str) -> str:
        """Return the SQL for the number and the digest of the view's old messages. By event time every message is compared as a new one."""
        if self._all_new:
            return "0 AS old, NULL AS old_digest"
        return f"count_if({condition}) AS old, sum(hash({self._identity()})::HUGEINT) FILTER ({condition}) AS old_digest"

    def _added(self, sums: Sums, queries: list[str]) -> Sums:
        for query in queries:
            for partition, row in self._sums(query).items():
                sums.setdefault(partition, {}).update(row)
        return sums

    def _identity(self) -> str:
        """Return the columns that identify a message of the view before and after the run."""
        return _of("j", "delete_horizon") if self._question.rewrite else 'j.partition, j."offset"'

    def _disordered(self) -> Sums:
        """Count new files with descending or repeated offsets, and pairs of new files whose offsets overlap."""
        found: Sums = {}
        known = {file.path for files in self._question.before.values() for file in files}
        for partition, files in self._question.after.items():
            new = (file for file in files if file.path not in known)
            offsets = [read_columns(file.store.io, file.path, ("offset",))["offset"].to_numpy() for file in new]
            spans = sorted((int(each.min()), int(each.max())) for each in offsets if len(each))
            wrong = sum(bool((np.diff(each) <= 0).any()) for each in offsets)
            wrong += sum(before[1] >= after[0] for before, after in pairwise(spans))
            found[partition] = {"files": wrong}
        return found

    def _span(self, condition: str, of: str = "") -> str:
        """Return a condition that names each partition's old horizon (`after`) and new horizon (`through`)."""
        each = (
            f"({of}partition = {action.partition} AND {condition.format(after=action.after, through=action.through)})"
            for action in self._question.actions
        )
        return f"({' OR '.join(each)})".replace('"offset"', f'{of}"offset"')

    def _sums(self, query: str) -> Sums:
        cursor = self._run(query)
        names = [column[0] for column in cursor.description or ()]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(query)


def _of(relation: str, horizon: str) -> str:
    """Return the list of a relation's message columns in a view."""
    return ", ".join([*(f'{relation}."{field.name}"' for field in TOPIC_SCHEMA.fields), f"{relation}.{horizon}"])
