"""Compacted views as Iceberg tables: planned, staged, judged, published."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import CompactPartition
from message_lifecycle.model.instants import INT64_MAX, Either, Instant
from message_lifecycle.model.message import REASON_HEADER, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.operations.compaction import rules_of, settings_hash_after
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, Given
from message_lifecycle.stores.iceberg import data_rows, layout, relations, segments, view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import TableStore, Update, head_is, snapshot_at, staged_change
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction import InputFile, view_table
from message_lifecycle.stores.iceberg.compaction.read import IcebergViewReader, outlived_evidence
from message_lifecycle.stores.iceberg.compaction.stage import required_base
from message_lifecycle.stores.iceberg.compaction.view_table import SCHEMA as VIEW_SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import delete_horizons, files_by_partition
from message_lifecycle.stores.iceberg.data_rows import Vectors, read_rows
from message_lifecycle.stores.iceberg.erasure import MAIN
from message_lifecycle.stores.iceberg.erasure.metadata import snapshot_id_of
from message_lifecycle.stores.iceberg.fence import main_ancestors
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import CATALOG, COMPACTED, COUNTS, LATEST, PLAN_ID, SCRATCH_PROPERTY
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.relations import create_relation, database, duckdb_types
from message_lifecycle.stores.iceberg.session import engine, java_table, sql_table
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import SparkSession

# What the gate judges of a staged view: per partition, what is wrong in it, told from what it was made of. Without a JVM.
#
# What a run has made new is compared message by message. Of what was in the view before, only sums are compared: how many messages
# stay, and a digest of them. Where the view was kept its files are the same ones, so places are enough for that; where it was written
# anew the digest is of all columns. The questions are asked of the files by DuckDB, in other words than any engine makes a view.


Sums = dict[int, dict[str, Any]]
"""Sums by partition."""
_TOPIC = ", ".join(f'"{field.name}"' for field in TOPIC_SCHEMA.fields)
_NONE: Mapping[str, Any] = {}


def evidence(tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    """The frames of `gates.messages`. Raises PlanConflict where what was staged is gone."""
    if plan.is_empty or staged.view is None:
        figures = {"rows_in": plan.expected.rows_in, "rows_removed": 0, "rows_kept": plan.expected.rows_in, "fraction_lost": 0.0}
        parts = pa.table({"partition": pa.array([], pa.int32())})
        return {"partitions": parts, "figures": pa.Table.from_pylist([{**figures, "asks": len(plan.asks)}])}
    with database() as connection:
        return _Evidence(connection, tables, plan, staged, policy).frames()


class _Evidence:
    """The staged view (`made`) beside the view before and the tail (`source`)."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> None:
        assert plan.view is not None
        self._connection, self._plan = connection, plan
        self._view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)
        self._rules = rules_of(policy, as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
        # By event time a late message may lose to an older one, so nothing of the view is safe by its place.
        self._all_new = self._rules.by_event_time
        self._before = self._files(self._view, plan.view.snapshot_id)
        self._after = self._files(self._view, staged.snapshot_id)
        self._relate("before_view", self._before, VIEW_SCHEMA)
        self._relate("after_view", self._after, VIEW_SCHEMA)
        self._relate("log", self._files(log, plan.requirements.snapshot_id), TOPIC_SCHEMA)
        self._make_views()

    def _files(self, table: Table, snapshot_id: int | None) -> Mapping[int, list[InputFile]]:
        """Of the plan's partitions; None: of no snapshot."""
        snapshot = snapshot_at(table, snapshot_id, self._plan.plan_id)
        mine = {action.partition for action in self._plan.on_view.compact}
        return {partition: files for partition, files in files_by_partition(table, snapshot).items() if partition in mine}

    def _relate(self, name: str, files: Mapping[int, list[InputFile]], schema: Any) -> None:
        create_relation(self._connection, name, [file for group in files.values() for file in group], duckdb_types(schema))

    def _make_views(self) -> None:
        """`source`: messages that went in; `latest`: of each key; `judged`: `source` with whether each belongs; `made`."""
        order = 'max("offset")'
        if self._rules.by_event_time:
            order = """max({'time': coalesce(epoch_us(event_time), -9223372036854775808), 'offset': "offset"})['offset']"""
        latest_of = "source" if self._all_new else "(FROM source WHERE NOT of_view)"
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
            CREATE TEMP VIEW judged AS
            SELECT *, (deletes AND horizon IS NULL) OR (coalesce({past}, false)) AS ended, {dead} AS dead FROM (
                SELECT *, coalesce(delete_horizon, CASE WHEN deletes THEN {until}::TIMESTAMPTZ END) AS horizon FROM (
                    SELECT *, NOT of_view AND key IS NOT NULL AND (value IS NULL{empty}) AS deletes FROM source));
            CREATE TEMP VIEW made AS SELECT * FROM after_view WHERE NOT coalesce(remembered, false)"""
        )

    def frames(self) -> Mapping[str, object]:
        assert self._plan.view is not None
        fresh, stays, found, disordered = self._fresh(), self._stays(), self._found(), self._disordered()
        parts = [
            self._part(action, *(sums.get(action.partition, _NONE) for sums in (fresh, stays, found, disordered)))
            for action in self._plan.on_view.compact
        ]
        untouched = self._plan.view.rows - sum(row["view_rows"] for row in stays.values())
        rows_in = untouched + sum(row["view_rows"] + row["tail_rows"] for row in stays.values())
        rows = untouched + sum(row["rows"] for row in found.values())
        lost = sum(max(0, row["unreplaced"] - found.get(part, _NONE).get("unreplaced", 0)) for part, row in stays.items())
        figures = {
            "rows_in": rows_in,
            "rows_removed": rows_in - rows,
            "rows_kept": rows,
            "fraction_lost": lost / self._plan.view.rows if self._plan.view.rows else 0.0,
            "asks": len(self._plan.asks),
        }
        return {"partitions": pa.Table.from_pylist(parts), "figures": pa.Table.from_pylist([figures])}

    @staticmethod
    def _part(
        action: CompactPartition,
        fresh: Mapping[str, Any],
        stays: Mapping[str, Any],
        found: Mapping[str, Any],
        disordered: Mapping[str, Any],
    ) -> dict[str, int]:
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

    def _fresh(self) -> Sums:
        """What is past the old horizon (by event time: everything), message by message."""
        of, past = ("true", "true") if self._all_new else ("NOT of_view", self._span('"offset" > {after}', of="j."))
        no_key = "true" if self._rules.retain_null_key else "false"
        return self._sums(
            f"""SELECT partition, count_if(wanted IS NULL) AS unwanted, count_if(found IS NULL AND NOT no_key) AS missing,
                count_if(found IS NULL AND no_key) AS null_keys_missing, count_if(wanted <> found) AS changed
            FROM (
                SELECT j.partition, j."offset", j.key IS NULL AS no_key, hash({_of("j", "horizon")}) AS wanted
                FROM (FROM judged WHERE {of} AND NOT dead AND NOT ended AND NOT remembered) AS j
                LEFT JOIN latest AS l ON l.partition = j.partition AND l.key = j.key
                WHERE (j.key IS NULL AND {no_key}) OR l.latest = j."offset"
            ) FULL JOIN (SELECT j.partition, j."offset", hash({_of("j", "delete_horizon")}) AS found FROM made AS j WHERE {past}) USING (partition, "offset")
            GROUP BY partition"""
        )

    def _stays(self) -> Sums:
        """What went in; and what of the view stays as it was: no newer message of its key, and nothing due."""
        keep = "true" if self._rules.retain_null_key else "j.key IS NOT NULL"
        old = "false" if self._all_new else f"(of_view AND NOT coalesce(newer, false) AND NOT dead AND NOT ended AND {keep})"
        return self._sums(
            f"""SELECT j.partition, count_if(of_view) AS view_rows, count_if(NOT of_view) AS tail_rows,
                count_if(of_view AND NOT coalesce(newer, false)) AS unreplaced, count_if({old}) AS old,
                sum(hash({self._identity()})::HUGEINT) FILTER ({old}) AS old_digest
            FROM judged AS j LEFT JOIN latest AS l ON l.partition = j.partition AND l.key = j.key
            WHERE NOT remembered GROUP BY j.partition"""
        )

    def _found(self) -> Sums:
        """What is in the new view."""
        assert self._plan.view is not None
        before = self._span('"offset" <= {after}', of="j.")
        old = "false" if self._all_new else before
        sums = self._sums(
            f"""SELECT j.partition, count(*) AS rows, count_if(NOT coalesce(newer, false) AND {before}) AS unreplaced,
                count_if({old}) AS old, sum(hash({self._identity()})::HUGEINT) FILTER ({old}) AS old_digest,
                count_if({old} AND coalesce(newer, false)) AS repeated_keys,
                count_if({self._span('"offset" > {through}', of="j.")}) AS beyond
            FROM made AS j LEFT JOIN latest AS l ON l.partition = j.partition AND l.key = j.key GROUP BY j.partition"""
        )
        past = "true" if self._all_new or self._plan.view.rewrite else self._span('"offset" > {after}')
        twice = self._sums(
            f"""SELECT partition, sum(rows - 1)::BIGINT AS again FROM (
                SELECT partition, key, count(*) AS rows FROM made WHERE key IS NOT NULL AND {past} GROUP BY ALL HAVING rows > 1
            ) GROUP BY partition"""
        )
        for partition, row in twice.items():
            sums[partition]["repeated_keys"] += row["again"]
        return sums

    def _identity(self) -> str:
        """What tells that a message of the view is the same one after the run."""
        assert self._plan.view is not None
        return _of("j", "delete_horizon") if self._plan.view.rewrite else 'j.partition, j."offset"'

    def _disordered(self) -> Sums:
        """New files in which an offset does not come after the one before it."""
        found: Sums = {}
        known = {file.path for files in self._before.values() for file in files}
        for partition, files in self._after.items():
            new = (file.path for file in files if file.path not in known)
            offsets = (read_rows(self._view.io, path, np.empty(0, np.int64), ()).offsets for path in new)
            found[partition] = {"files": sum(bool((np.diff(each) <= 0).any()) for each in offsets)}
        return found

    def _span(self, condition: str, of: str = "") -> str:
        """A condition about each partition's horizon, old (`after`) and new (`through`)."""
        each = (
            f"({of}partition = {action.partition} AND {condition.format(after=action.after, through=action.through)})"
            for action in self._plan.on_view.compact
        )
        return f"({' OR '.join(each)})".replace('"offset"', f'{of}"offset"')

    def _sums(self, query: str) -> Sums:
        cursor = self._run(query)
        names = [column[0] for column in cursor.description or ()]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(query)


def _of(relation: str, horizon: str) -> str:
    """All columns that a view has of a message, of this relation."""
    return ", ".join([*(f'{relation}."{field.name}"' for field in TOPIC_SCHEMA.fields), f"{relation}.{horizon}"])


# Compacted views on tables: `ports.ViewReader` and `ports.ViewStore` by Iceberg's library; Spark is asked for where its SQL or its executors are needed.


class IcebergViews(TableStore, IcebergViewReader):
    """`ports.ViewStore`."""

    kinds = (COMPACTED,)

    def _table(self, plan: Plan) -> Table | None:
        return None if view_table.document_of(self._tables, plan.topic) is None else self._tables.load(plan.topic, kind=COMPACTED)

    def _tells(self, plan_id: str, snapshot_id: int, summary: Mapping[str, str]) -> Published:
        """What it left out is counted by the plan alone."""
        return Published(plan_id=plan_id, snapshot_id=snapshot_id, removed=tuple(sorted(json.loads(summary.get(COUNTS, "{}")).items())))

    def has_begun(self, plan: Plan) -> bool:
        table = self._table(plan)
        if table is None or not plan.on_view.compact:
            return super().has_begun(plan)
        # Nobody takes a compaction back, so an erasure that has ended its commit has left nothing that tells of it. Its snapshot is known by
        # an id that nothing else has.
        base_id, whole = None if plan.view is None else plan.view.snapshot_id, True
        for snapshot in layout.ancestors(table):
            summary = layout.summary_of(snapshot)
            if snapshot.snapshot_id == base_id:
                return False
            if summary.get(PLAN_ID) == plan.plan_id or snapshot.snapshot_id == snapshot_id_of(summary.get(PLAN_ID, ""), MAIN):
                return True
            whole = snapshot.parent_snapshot_id is None
        return not whole

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import stage

        nothing = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        if plan.is_empty:
            return nothing
        staged = stage(engine(self._session, tasks=True), self._tables, plan, sql=self._session)
        self._steps("after_stage")
        return staged if plan.on_view.compact else replace(nothing, view=staged.view)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.removals import removal_evidence, return_evidence

        if plan.on_view.compact or plan.is_empty:
            return evidence(self._tables, plan, staged, policy)
        assert plan.view is not None
        assert plan.view.snapshot_id is not None
        after_id = plan.view.snapshot_id
        frames: dict[str, object] = {}
        if plan.on_view.mark:
            assert staged.view is not None
            assert staged.view.snapshot_id is not None
            after_id = staged.view.snapshot_id
            frames["view"] = removal_evidence(self._tables, plan, plan.view.snapshot_id, after_id)
        if plan.on_view.back:
            assert staged.view is not None
            frames["view_returns"] = return_evidence(self._tables, plan, plan.view.snapshot_id, staged.view.snapshot_id)
        if plan.past_horizon:
            frames["outlived"] = outlived_evidence(self._tables, plan, after_id)
        return frames

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan, session = verdict.plan, engine(self._session)
        table = java_table(session, plan.topic, kind=COMPACTED)
        make = partial(_update, session, self._tables, table, verdict, self._session)
        done = self._commit(session, table, verdict, given, make, kind=COMPACTED)
        if plan.on_view.back:
            self._forget_source(plan)
        return done

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Needs no JVM. A scenario's topic has none."""
        if SCRATCH_PROPERTY in self._tables.document(name).properties:
            return None
        return keep_sql_view(self._tables, name, policy)


# Publishing a compaction: the staged view and its horizons in one fenced commit of the view's table (CMP-4, DEL-5).


def _update(session: SparkSession, tables: Tables, table: Java, verdict: Verdict, sql: Callable[[], SparkSession]) -> Update:
    """What the commit does. `sql`: asked for where memories are to be counted. Raises PlanConflict."""
    plan, told, base_id = verdict.plan, verdict.staged.view, required_base(table, verdict.plan)
    staged_id = None if told is None else told.snapshot_id
    change = staged_change(session, table, plan.plan_id, staged_id, base_id)
    before = next((found for ancestor in main_ancestors(table) if (found := ancestor.get(view_table.HORIZONS)) is not None), "{}")
    horizons = layout.offsets_of(before)
    for action in plan.on_view.compact:
        horizons[action.partition] = max(action.through, horizons.get(action.partition, -1))
    view = tables.load(plan.topic, kind=COMPACTED)
    staged = view.snapshot_by_id(staged_id or 0)
    assert staged is not None and told is not None, "its branch was just found"
    due = due_at(view, staged, Policy.of_values(plan.policy), as_of=plan.as_of)
    return Update(
        update=lambda on: change.with_added(on.newRowDelta(), base_id),
        condition=head_is(plan.plan_id, base_id, table="the compacted view was"),
        tells={
            view_table.HORIZONS: layout.by_partition(horizons),
            view_table.SETTINGS: settings_hash_after(plan, _judged(table, plan)),
            view_table.MEMORIES: str(_memories(sql, table, verdict, staged.snapshot_id)),
            **({} if due is None else {view_table.DUE_AT: str(due)}),
        },
        removed=told.removed,
    )


def _judged(table: Java, plan: Plan) -> Iterator[str]:
    """Hashes of settings, as `settings_hash_after` asks for them."""
    assert plan.view is not None
    for snapshot_id in (plan.view.snapshot_id, *((plan.on_view.source_id,) if plan.on_view.back else ())):
        snapshot = None if snapshot_id is None else table.snapshot(snapshot_id)
        yield "" if snapshot is None else str(snapshot.summary().get(view_table.SETTINGS) or "")


def _memories(sql: Callable[[], SparkSession], table: Java, verdict: Verdict, staged_id: int) -> int:
    """Rows of the staged view that are no messages; there are none where the latest is that of the highest offset."""
    if not Policy.of_values(verdict.plan.policy).by_event_time and not view_table.memories(table):
        return 0
    frame = sql().read.option("versionAsOf", str(staged_id)).table(sql_table(verdict.plan.topic, kind=COMPACTED))
    return frame.where("coalesce(remembered, false)").count()


# When the first message of a view may go by its age or its delete horizon: never later than the truth (CMP-5, CMP-7, CMP-8).
#
# By the bounds of its files, where those lie after the run. A file whose bounds do not holds messages that the run has marked, or
# the metadata do not say: its columns are read, or else every later run would find something due and do nothing.


_HORIZON = "delete_horizon"


def due_at(table: Table, snapshot: Snapshot, policy: Policy, *, as_of: Instant) -> Instant | None:
    """None: never. `as_of`: of the run that made the snapshot, which has taken what was due then."""
    rule = expiry.hidden(policy)
    prefix, vectors = location_prefix(table.location()), Vectors(table, snapshot)
    horizons = {path: horizon for path, horizon in delete_horizons(table, snapshot) if horizon is not None}
    columns = {*data_rows.columns_of(rule), _HORIZON}
    times = []
    for file in files_of(table, snapshot):
        if file.deleted >= file.rows:
            continue
        path = absolute(prefix, file.name)
        earliest = min(segments.begins(rule, file).some, horizons.get(path, INT64_MAX))
        if earliest <= as_of:
            found = read_rows(table.io, path, vectors[path], columns)
            until = np.asarray(found.columns[_HORIZON], np.int64)
            until = np.where(until == data_rows.UNKNOWN, INT64_MAX, until)
            each = np.minimum(data_rows.begins(rule, found.columns, len(found.offsets)), until)
            earliest = int(each[found.alive].min(initial=INT64_MAX))
        times.append(earliest)
    return min((Instant(time) for time in times if time < INT64_MAX), default=None)


# The SQL view of a compacted topic: the compacted table up to its horizons, then the log, as one relation (CMP-6).
#
# It names a snapshot of the compacted table, so that the two halves always fit: whoever compacts or purges writes it anew.


def keep_sql_view(tables: Tables, name: TopicName, policy: Policy) -> str | None:
    """Make the view say what the topic's newest compaction and its settings say; its name. None: nothing was compacted.

    Raises CompactedTableMissing, ForeignTable, TableBusy, CatalogUnavailable."""
    state = view_table.state_of(tables, name)
    if state is None:
        return None
    text, place = _text(name, state, policy), (name.namespace, name.table(LATEST))
    location = tables.pointers.one(place)
    if location is None or view_file.text_of(tables.at(place, location).content, place=place) != text:
        view_file.put(place, text, new=location is None)
    return ".".join((CATALOG, *place))


def _text(name: TopicName, state: ViewState, policy: Policy) -> str:
    columns = ", ".join(field.name for field in TOPIC_SCHEMA.fields)
    past = _past(state)
    both = (
        f"SELECT {columns} FROM {sql_table(name, kind=COMPACTED)} VERSION AS OF {state.snapshot_id} WHERE NOT coalesce(remembered, false) "
        f"UNION ALL SELECT {columns} FROM {sql_table(name)} WHERE {past}"
    )
    rule = expiry.hidden(policy)
    if rule == Either(()):
        return f"SELECT {columns} FROM ({both})"
    # What is dead hides every older message of its key (CMP-8); only past the horizon can it have one in the view. A join and no
    # subquery: of those Spark's optimizer fails on some.
    dead = f"SELECT partition, key, offset FROM {sql_table(name)} WHERE {past} AND {view_file.holds(rule)}"
    older = "d.partition = m.partition AND d.key = m.key AND d.offset > m.offset"
    return f"SELECT {columns} FROM ({both}) m LEFT ANTI JOIN ({dead}) d ON {older} WHERE {view_file.holds_not(rule)}"


def _past(state: ViewState) -> str:
    """Condition: the message lies past its partition's horizon."""
    each = [f"(partition = {partition} AND offset > {horizon})" for partition, horizon in sorted(state.horizons.items())]
    others = ", ".join(str(partition) for partition in sorted(state.horizons))
    return "(" + " OR ".join([*each, f"partition NOT IN ({others})" if others else "true"]) + ")"
