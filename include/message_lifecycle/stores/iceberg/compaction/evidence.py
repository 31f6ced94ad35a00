"""Evidence about a staged view for the gate: the errors in each partition. No JVM is needed.

The evidence compares every new message with its source. For old messages of the view it compares sums only: how many messages stay, and a
digest of them. If the run kept the view's files, a digest of positions is enough. If the run rewrote the view, the digest covers all
columns.

DuckDB answers the questions. Its queries differ from the queries that make a view, so one mistake cannot hide in both.

New messages are read whole, one span of offsets after the other, so that a join never writes values to disk. Every partition is a task, as
in the compaction itself; the driver receives sums. Within a partition an offset names one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from message_lifecycle.operations.compaction import CompactionRules, rules_of
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


BYTES_PER_WINNER = 400
"""Memory for each winner of a join: the tables of both sides, and room for the rows that are read. With 160, a test ran out of memory."""
Sum = dict[str, Any]
_TOPIC = ", ".join(f'"{field.name}"' for field in TOPIC_SCHEMA.fields)


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
    return _frames(plan, _answers(engine, plan, _questions(tables, plan, staged, policy)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionQuestion:
    """One partition.

    Attributes:
        log: Files of the log.
        before: Files of the view before the plan; empty for a first compaction.
        after: Files of the staged view.
        rewrite: Whether the run wrote the whole view again.
    """

    action: CompactPartition
    log: tuple[InputFile, ...]
    before: tuple[InputFile, ...]
    after: tuple[InputFile, ...]
    rules: CompactionRules
    rewrite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSums:
    """Sums of one partition.

    Attributes:
        fresh: Errors among new messages.
        stays: Messages that went in, and messages of the old view that stay.
        found: Messages of the new view.
        disordered: New files with wrong order.
    """

    fresh: Sum
    stays: Sum
    found: Sum
    disordered: int


def _questions(tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> list[PartitionQuestion]:
    """Return one question per partition. The partitions are independent of one another."""
    assert plan.view is not None
    view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)

    def files(table: Table, snapshot_id: int | None) -> Mapping[int, Sequence[InputFile]]:
        """Return the files by partition; None: no snapshot."""
        return files_by_partition(table, snapshot_at(table, snapshot_id, plan.plan_id))

    of_log, before = files(log, plan.requirements.snapshot_id), files(view, plan.view.snapshot_id)
    after, rules = files(view, staged.snapshot_id), rules_of(policy, as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
    return [
        PartitionQuestion(
            action=action,
            log=tuple(of_log.get(action.partition, ())),
            before=tuple(before.get(action.partition, ())),
            after=tuple(after.get(action.partition, ())),
            rules=rules,
            rewrite=plan.view.rewrite,
        )
        for action in plan.view_commit.compact
    ]


def _answers(engine: Engine, plan: Plan, questions: Sequence[PartitionQuestion]) -> list[PartitionSums]:
    """Run one task per partition. Raises EvidenceFailed."""
    found = engine.run(questions, _answered, description=job_text(plan, f"judging {len(questions)} partitions"))
    answers = []
    for question, one in zip(questions, found, strict=True):
        if isinstance(one, Failed):
            raise evidence_failed(question.action.partition, one.kind, one.reason)
        answers.append(one)
    return answers


def _answered(question: PartitionQuestion, share: Resources) -> PartitionSums:
    """Answer one question in a task."""
    with opened(share) as (connection, _):
        return _PartitionComparison(connection, question, share).answer()


def _frames(plan: Plan, answers: Sequence[PartitionSums]) -> Mapping[str, object]:
    assert plan.view is not None
    parts = [_part(action, answer) for action, answer in zip(plan.view_commit.compact, answers, strict=True)]
    untouched = plan.view.rows - sum(answer.stays["view_rows"] for answer in answers)
    rows_in = untouched + sum(answer.stays["view_rows"] + answer.stays["tail_rows"] for answer in answers)
    rows = untouched + sum(answer.found["rows"] for answer in answers)
    lost = sum(max(0, answer.stays["unreplaced"] - answer.found["unreplaced"]) for answer in answers)
    figures = {
        "rows_in": rows_in,
        "rows_removed": rows_in - rows,
        "rows_kept": rows,
        "fraction_lost": lost / plan.view.rows if plan.view.rows else 0.0,
        "asks": len(plan.asks),
    }
    return {"partitions": pa.Table.from_pylist(parts), "figures": pa.Table.from_pylist([figures])}


def _part(action: CompactPartition, answer: PartitionSums) -> dict[str, int]:
    fresh, stays, found = answer.fresh, answer.stays, answer.found
    more = found["old"] - stays["old"]
    differ = not more and found["old_digest"] != stays["old_digest"]
    return {
        "partition": action.partition,
        "rows": found["rows"],
        "repeated_keys": found["repeated_keys"],
        "unwanted": fresh["unwanted"] + max(0, more),
        "missing": fresh["missing"] + max(0, -more),
        "null_keys_missing": fresh["null_keys_missing"],
        "changed": fresh["changed"] + int(differ),
        "disordered": answer.disordered,
        "beyond": found["beyond"],
    }


class _PartitionComparison:
    """Compares the staged view (`made`) with the old view and the tail (`source`)."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, question: PartitionQuestion, share: Resources) -> None:
        self._connection, self._question, self._rules, self._share = connection, question, question.rules, share
        # By event time a late message may lose to an older one, so a position in the view proves nothing.
        self._all_new = self._rules.by_event_time
        self._relate("before_view", question.before, VIEW_SCHEMA)
        self._relate("after_view", question.after, VIEW_SCHEMA)
        self._relate("log", question.log, TOPIC_SCHEMA)
        self._make_views()

    def answer(self) -> PartitionSums:
        fresh = self._compare_fresh_messages()
        return PartitionSums(
            fresh=fresh,
            stays=self._count_unchanged_messages(),
            found=self._count_view_messages(fresh),
            disordered=self._count_disordered_files(),
        )

    def _relate(self, name: str, files: Sequence[InputFile], schema: Schema) -> None:
        create_relation(self._connection, name, files, duckdb_types(schema))

    def _make_views(self) -> None:
        """Create the relations of the comparison.

        - `source`: messages that went in.
        - `latest`: the latest offset of each key, and of messages without a key.
        - `winners`: the offsets of these messages, and of all messages without a key if these stay.
        - `judged`: `source`, with whether each message is dead or ended.
        - `made`: messages of the staged view.
        """
        action = self._question.action
        latest_of, latest, newer, tail_rows = "(FROM source WHERE NOT of_view)", 'max("offset")', "true", "count(*)"
        if self._rules.by_event_time:
            latest_of, newer, tail_rows = "source", "bool_or(NOT of_view)", "count_if(NOT of_view)"
            latest = f"""max({{'time': {relations.micros("event_time")}, 'offset': "offset"}})['offset']"""
        empty = (
            ""
            if self._rules.empty_is_value
            else (
                f" OR octet_length(value) = 0 OR coalesce(list_contains(list_transform(headers, lambda h: h.name), '{REASON_HEADER}'), false)"
            )
        )
        until = "NULL" if self._rules.tombstones_until is None else relations.instant(self._rules.tombstones_until)
        dead = " OR ".join([relations.rule_condition(rule, self._rules.as_of) for _, rule in self._rules.ages] or ["false"])
        past = relations.due("horizon", self._rules.as_of)
        self._run(
            f"""CREATE TEMP VIEW source AS
            SELECT {_TOPIC}, delete_horizon, coalesce(remembered, false) AS remembered, true AS of_view FROM before_view
            UNION ALL SELECT {_TOPIC}, NULL, false, false FROM log
            WHERE partition = {action.partition} AND "offset" > {action.after} AND "offset" <= {action.through};
            CREATE TEMP TABLE latest AS
            SELECT key, {latest} AS latest, {newer} AS newer, {tail_rows} AS tail_rows FROM {latest_of} GROUP BY key;
            CREATE TEMP VIEW judged AS
            SELECT *, (deletes AND horizon IS NULL) OR (coalesce({past}, false)) AS ended, {dead} AS dead FROM (
                SELECT *, coalesce(delete_horizon, CASE WHEN deletes THEN {until}::TIMESTAMPTZ END) AS horizon FROM (
                    SELECT *, NOT of_view AND key IS NOT NULL AND (value IS NULL{empty}) AS deletes FROM source));
            CREATE TEMP VIEW made AS SELECT * FROM after_view WHERE NOT coalesce(remembered, false)"""
        )
        no_key = f'UNION ALL SELECT "offset" FROM {latest_of} WHERE key IS NULL'
        unkeyed = self._rules.retain_null_key and self._query_sum("SELECT count(*) AS groups FROM latest WHERE key IS NULL")["groups"]
        self._run(
            f"""CREATE TEMP VIEW winners AS SELECT latest AS "offset" FROM latest WHERE key IS NOT NULL {no_key if unkeyed else ""}"""
        )

    def _compare_fresh_messages(self) -> Sum:
        """Compare each message past the old horizon (by event time: every message).

        The query finds winners by their offsets. So it compares keys once, for `latest`, and reads whole rows once. A dead winner has no
        `wanted`: a WHERE condition instead would test every message, not only winners.
        """
        of, past = ("true", "true") if self._all_new else ("NOT of_view", f'j."offset" > {self._question.action.after}')
        found = Counter[str]()
        for span in self._spans():
            found.update(
                self._query_sum(
                    f"""SELECT count_if(wanted IS NULL AND found IS NOT NULL) AS unwanted,
                        count_if(found IS NULL AND wanted IS NOT NULL AND NOT no_key) AS missing,
                        count_if(found IS NULL AND wanted IS NOT NULL AND no_key) AS null_keys_missing,
                        count(*) FILTER (wanted <> found) AS changed
                    FROM (
                        SELECT j."offset", j.key IS NULL AS no_key,
                            CASE WHEN NOT dead AND NOT ended AND NOT remembered THEN hash({_view_columns_list("j", "horizon")}) END AS wanted
                        FROM (FROM judged WHERE {of} AND {span}) AS j SEMI JOIN (FROM winners WHERE {span}) AS w ON j."offset" = w."offset"
                    ) FULL JOIN (
                        SELECT j."offset", hash({_view_columns_list("j", "delete_horizon")}) AS found FROM made AS j WHERE {past} AND {span}
                    ) USING ("offset")"""
                )
            )
        return dict(found)

    def _spans(self) -> list[str]:
        """Return conditions that divide all offsets. No span has many more winners than fit into memory.

        A join with more winners than fit into memory would write the rows that it compares to disk, with their values: as much as the whole
        partition.
        """
        winners = self._query_sum("SELECT count(*) AS winners FROM winners")["winners"]
        sampled = f"""FROM winners WHERE hash("offset") % {max(1, winners // self._share.sampled_offsets)} = 0"""
        return relations.offset_spans(self._connection, sampled, -(-winners * BYTES_PER_WINNER // self._share.memory_bytes))

    def _count_unchanged_messages(self) -> Sum:
        """Count the messages that went in, and messages of the view that stay unchanged.

        A message stays unchanged if its key has no newer message and no rule removes it.
        """
        keep = "true" if self._rules.retain_null_key else "j.key IS NOT NULL"
        # The compaction that added a message to the view judged it then. The row's delete horizon records the result.
        due = f"coalesce({relations.due('delete_horizon', self._rules.as_of)}, false)"
        old = f"(NOT coalesce(newer, false) AND NOT dead AND NOT {due} AND {keep})"
        return self._query_sum("SELECT sum(tail_rows)::BIGINT AS tail_rows FROM latest") | self._query_sum(
            f"""SELECT count(*) AS view_rows, count_if(NOT coalesce(newer, false)) AS unreplaced, {self._old_messages_query(old)}
            FROM {self._with_digest("judged WHERE of_view AND NOT remembered")} AS j LEFT JOIN latest AS l ON l.key = j.key"""
        )

    def _count_view_messages(self, fresh: Sum) -> Sum:
        """Count the messages of the new view.

        A key can repeat only through an unwanted row, or through an old row with a newer one. There is one wanted row per key, and
        `_count_disordered_files` finds repeated offsets.
        """
        action = self._question.action
        repeated = "0" if self._all_new else "count_if(coalesce(newer, false))"
        found = self._query_sum(f'SELECT count(*) AS rows, count_if("offset" > {action.through}) AS beyond FROM made') | self._query_sum(
            f"""SELECT count_if(NOT coalesce(newer, false)) AS unreplaced, {repeated} AS repeated_keys, {self._old_messages_query("true")}
            FROM {self._with_digest(f'made WHERE "offset" <= {action.after}')} AS j LEFT JOIN latest AS l ON l.key = j.key"""
        )
        if fresh["unwanted"]:
            past = "true" if self._all_new or self._question.rewrite else f'"offset" > {action.after}'
            found["repeated_keys"] += self._query_sum(
                f"""SELECT sum(rows - 1)::BIGINT AS again FROM (
                    SELECT count(*) AS rows FROM made WHERE key IS NOT NULL AND {past} GROUP BY key HAVING rows > 1)"""
            )["again"]
        return found

    def _old_messages_query(self, condition: str) -> str:
        """Return the SQL for the number and the digest of the view's old messages. By event time every message is compared as a new one."""
        if self._all_new:
            return "0 AS old, 0 AS old_digest"
        return f"count_if({condition}) AS old, sum(digest::HUGEINT) FILTER ({condition}) AS old_digest"

    def _with_digest(self, rows: str) -> str:
        """Return the rows with a digest of what identifies a message of the view before and after the run.

        The digest is computed before any join, because a join that does not fit into memory writes all columns that it still needs to disk.
        """
        columns = _view_columns_list("m", "delete_horizon") if self._question.rewrite else 'm."offset"'
        return f"(SELECT m.*, hash({columns}) AS digest FROM (FROM {rows}) AS m)"

    def _count_disordered_files(self) -> int:
        """Count new files with descending or repeated offsets, and pairs of new files whose offsets overlap."""
        known = {file.path for file in self._question.before}
        new = (file for file in self._question.after if file.path not in known)
        offsets = [read_columns(file.store.io, file.path, ("offset",))["offset"].to_numpy() for file in new]
        spans = sorted((int(each.min()), int(each.max())) for each in offsets if len(each))
        wrong = sum(bool((np.diff(each) <= 0).any()) for each in offsets)
        return wrong + sum(before[1] >= after[0] for before, after in pairwise(spans))

    def _query_sum(self, query: str) -> Sum:
        """Return the one row of the query's result. DuckDB's sum over no rows is null; here it is 0."""
        cursor = self._run(query)
        names = [column[0] for column in cursor.description or ()]
        (row,) = cursor.fetchall()
        return {name: value or 0 for name, value in zip(names, row, strict=True)}

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(query)


def _view_columns_list(relation: str, horizon: str) -> str:
    """Return the list of a relation's message columns in a view."""
    return ", ".join([*(f'{relation}."{field.name}"' for field in TOPIC_SCHEMA.fields), f"{relation}.{horizon}"])
