"""Compacted views on tables: `ports.ViewReader` and `ports.ViewStore` by Iceberg's library. Spark starts only for its SQL or its executors.

Every question about a topic needs its view's state, so functions that read data import their libraries late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rules import AnyOfRules
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.operations.compaction import settings_hash_after
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, CommitContext
from message_lifecycle.stores.iceberg import layout, parsed, segments, view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import TableStore, Update, forget_source, head_is, load_side_table, staged_change
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction import view_table
from message_lifecycle.stores.iceberg.compaction.read import IcebergViewReader
from message_lifecycle.stores.iceberg.compaction.view_table import columns_of, delete_horizons
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Walk
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import CATALOG, COMPACTED, COUNTS, LATEST, PLAN_ID, SCRATCH_PROPERTY
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.pointers import look
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.transaction import Ready

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from message_lifecycle.stores.iceberg.compaction.stage import Prepare


class _ViewStore(TableStore):
    """A change of compacted views."""

    kinds = (COMPACTED,)

    def _table(self, plan: Plan) -> Table | None:
        with look():  # both questions get the same answer
            return None if view_table.document_of(self._tables, plan.topic) is None else self._tables.load(plan.topic, kind=COMPACTED)

    def _describe_commit(self, plan_id: str, snapshot_id: int, summary: Mapping[str, str]) -> Published:
        """Describe a published plan. Only the plan itself counts the messages that it left out."""
        return Published(plan_id=plan_id, snapshot_id=snapshot_id, removed=tuple(sorted(parsed.counts(summary, COUNTS).items())))

    def _base_id(self, plan: Plan) -> int | None:
        return None if plan.view is None else plan.view.snapshot_id

    def _stage(self, plan: Plan, prepare: Prepare) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import stage

        staged = stage(self._engine(), self._tables, plan, prepare)
        self._steps("after_stage")
        return staged

    def _stage_beside_log(self, plan: Plan, prepare: Prepare) -> Staged:
        """Stage a change of a plan that may change the log, too. The stage of the log is then the plan's."""
        staged = self._stage(plan, prepare)
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id, view=staged.view)

    def _prepared(self, engine: Engine, verdict: Verdict, given: CommitContext) -> Ready | None:
        table = load_side_table(engine, verdict.plan, COMPACTED)
        return self._ready(engine, table, verdict, given, partial(self._update, engine, table, verdict), kind=COMPACTED)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        engine = self._engine()
        table = load_side_table(engine, verdict.plan, COMPACTED)
        return self._commit(engine, table, verdict, given, partial(self._update, engine, table, verdict), kind=COMPACTED)

    def _update(self, engine: Engine, table: Java, verdict: Verdict) -> Update:
        """Describe the commit: it adds the staged view and its horizons (CMP-4, DEL-5). Raises PlanConflict."""
        from message_lifecycle.stores.iceberg.compaction.stage import required_base

        plan, staged_view, base_id = verdict.plan, verdict.staged.view, required_base(table, verdict.plan)
        staged_id = None if staged_view is None else staged_view.snapshot_id
        change = staged_change(engine, table, plan.plan_id, staged_id, base_id)
        horizons = layout.offsets_of((Walk(table).state(layout.HORIZONS) or {}).get(layout.HORIZONS, "{}"))
        for action in plan.view_commit.compact:
            horizons[action.partition] = max(action.through, horizons.get(action.partition, -1))
        view = self._tables.load(plan.topic, kind=COMPACTED)
        staged = view.snapshot_by_id(staged_id or 0)
        assert staged is not None and staged_view is not None, "its branch was just found"
        due = due_at(view, staged, Policy.from_values(plan.policy), as_of=plan.as_of)
        judged = (_settings_hash(table, snapshot_id) for snapshot_id in self._judged_snapshot_ids(plan))
        return Update(
            update=lambda on: change.add_to_update(on.newRowDelta(), base_id),
            condition=head_is(plan.plan_id, base_id, table="the compacted view was"),
            tells={
                layout.HORIZONS: layout.by_partition(horizons),
                layout.VIEW_SETTINGS: settings_hash_after(plan, judged),
                layout.MEMORIES: str(_memories(table, verdict, view, staged)),
                **({} if due is None else {layout.DUE_AT: str(due)}),
            },
            removed=staged_view.removed,
        )

    def _judged_snapshot_ids(self, plan: Plan, /) -> Sequence[int | None]:
        """Return the view's snapshots whose settings judged its messages. None for a view that did not exist yet."""
        return (self._base_id(plan),)


class IcebergViewStore(_ViewStore, IcebergViewReader):
    """Implements `ports.ViewStore`: reads and compacts views."""

    def has_begun(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.erasure.metadata import snapshot_id_of
        from message_lifecycle.stores.iceberg.erasure.search import MAIN

        table = self._table(plan)
        if table is None:
            return False
        # A compaction has no undo, so a finished erasure leaves no trace of an older compaction. The id of the erasure's own snapshot is
        # unique and identifies it.
        base_id, whole = self._base_id(plan), True
        for snapshot in layout.ancestors(table):
            summary = layout.summary_of(snapshot)
            if snapshot.snapshot_id == base_id:
                return False
            if summary.get(PLAN_ID) == plan.plan_id or snapshot.snapshot_id == snapshot_id_of(summary.get(PLAN_ID, ""), MAIN):
                return True
            whole = snapshot.parent_snapshot_id is None
        return not whole

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import compaction_work

        return self._stage(plan, compaction_work)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.evidence import evidence

        return evidence(self._engine(), self._tables, plan, staged, policy)

    def older_rows_frame(self, plan: Plan, staged: Staged) -> object:
        from message_lifecycle.stores.iceberg.compaction.tails import older_rows_evidence

        view_id = self._base_id(plan) if staged.view is None else staged.view.snapshot_id
        assert view_id is not None
        return older_rows_evidence(self._tables, plan, view_id)

    def _judged_snapshot_ids(self, _plan: Plan) -> Sequence[int | None]:
        return ()  # a compaction judges every message itself

    def update_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Update the SQL view of a topic, without a JVM. The topic of a scenario has no SQL view."""
        if SCRATCH_PROPERTY in self._tables.document(name).properties:
            return None
        return update_sql_view(self._tables, name, policy)


class IcebergViewRemovals(_ViewStore):
    """Removes single messages from views."""

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import removal_work

        return self._stage_beside_log(plan, removal_work)

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.removals import removal_evidence

        assert staged.view is not None
        return {"view_removals": removal_evidence(self._tables, plan, self._base_id(plan), staged.view.snapshot_id)}


class IcebergViewReturns(_ViewStore):
    """Restores single messages to views."""

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import restoration_work

        return self._stage_beside_log(plan, restoration_work)

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.removals import return_evidence

        assert staged.view is not None
        return {"view_returns": return_evidence(self._tables, plan, self._base_id(plan), staged.view.snapshot_id)}

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        done = super().publish(verdict, given)
        forget_source(self._tables, verdict.plan, self.kinds)
        return done

    def _judged_snapshot_ids(self, plan: Plan) -> Sequence[int | None]:
        return (self._base_id(plan), plan.view_return.source_id)


def _settings_hash(table: Java, snapshot_id: int | None) -> str:
    """Return the hash of the settings that judged every message of the snapshot. Empty: the settings differ, or are unknown."""
    snapshot = None if snapshot_id is None else table.snapshot(snapshot_id)
    return "" if snapshot is None else str(snapshot.summary().get(layout.VIEW_SETTINGS) or "")


def _memories(table: Java, verdict: Verdict, view: Table, staged: Snapshot) -> int:
    """Count the memories in the staged view: rows that are no messages. Only a compaction by event time writes them (CMP-12)."""
    if not Policy.from_values(verdict.plan.policy).by_event_time and not view_table.memories(table):
        return 0
    files = chain.from_iterable(view_table.files_by_partition(view, staged).values())
    return sum(columns_of(view.io, file, ["remembered"])["remembered"].to_pylist().count(True) for file in files)


# The first time when age or a delete horizon may remove a message of a view; never later than the truth (CMP-5, CMP-7, CMP-8).
#
# The bounds of a file give that time if they lie after the run. Otherwise the run has marked the file's oldest messages, or the metadata
# have no bounds. The code then reads the file's columns, because a time in the past would make every later run start work and find nothing.


_HORIZON = "delete_horizon"


def due_at(table: Table, snapshot: Snapshot, policy: Policy, *, as_of: Instant) -> Instant | None:
    """Return the first time when a rule may remove a message of the snapshot; None: never.

    Args:
        table: The view's table.
        snapshot: The snapshot to judge.
        policy: The topic's policy.
        as_of: The time of the run that made the snapshot. The run has removed every message that was due then.
    """
    import numpy as np

    from message_lifecycle.stores.iceberg import data_rows
    from message_lifecycle.stores.iceberg.data_rows import Vectors, read_rows

    rule = expiry.hiding_rule(policy)
    prefix, vectors = location_prefix(table.location()), Vectors(table, snapshot)
    horizons = {path: horizon for path, horizon in delete_horizons(table, snapshot) if horizon is not None}
    columns = {*data_rows.columns_of(rule), _HORIZON}
    times = []
    for file in files_of(table, snapshot):
        if file.deleted >= file.rows:
            continue
        path = absolute(prefix, file.name)
        earliest = min(segments.first_times(rule, file).some, horizons.get(path, INT64_MAX))
        if earliest <= as_of:
            found = read_rows(table.io, path, vectors[path], columns)
            until = np.asarray(found.columns[_HORIZON], np.int64)
            until = np.where(until == data_rows.UNKNOWN, INT64_MAX, until)
            each = np.minimum(data_rows.first_times(rule, found.columns, len(found.offsets)), until)
            earliest = int(each[found.alive].min(initial=INT64_MAX))
        times.append(earliest)
    return min((Instant(time) for time in times if time < INT64_MAX), default=None)


# The SQL view of a compacted topic: the compacted table up to its horizons, then the log, as one relation (CMP-6).
#
# The SQL view names a snapshot of the compacted table, so that the two halves always fit. Every compaction and every purge writes a new SQL
# view.


def update_sql_view(tables: Tables, name: TopicName, policy: Policy) -> str | None:
    """Update the SQL view to the topic's newest compaction and settings, and return its name. None: no compaction so far.

    Raises:
        CompactedTableMissing: The compacted table is missing or damaged.
        ForeignTable: A table, not a view, has the name.
        TableBusy: Another process wrote the view first.
        CatalogUnavailable: The catalog has no views, or did not answer.
    """
    state = view_table.state_of(tables, name)
    if state is None:
        return None
    text, place = _text(name, state, policy), (name.namespace, name.table(LATEST))
    view_file.write_view(tables, place, text)
    return ".".join((CATALOG, *place))


def _text(name: TopicName, state: ViewState, policy: Policy) -> str:
    columns = ", ".join(field.name for field in TOPIC_SCHEMA.fields)
    past = _past(state)
    both = (
        f"SELECT {columns} FROM {sql_table(name, kind=COMPACTED)} VERSION AS OF {state.snapshot_id} WHERE NOT coalesce(remembered, false) "
        f"UNION ALL SELECT {columns} FROM {sql_table(name)} WHERE {past}"
    )
    rule = expiry.hiding_rule(policy)
    if rule == AnyOfRules(()):
        return f"SELECT {columns} FROM ({both})"
    # A dead message hides every older message of its key (CMP-8). Only a dead message past the horizon can have an older one in the view.
    # The query uses a join, because Spark's optimizer fails on some subqueries.
    dead = f"SELECT partition, key, offset FROM {sql_table(name)} WHERE {past} AND {view_file.rule_condition(rule)}"
    older = "d.partition = m.partition AND d.key = m.key AND d.offset > m.offset"
    return f"SELECT {columns} FROM ({both}) m LEFT ANTI JOIN ({dead}) d ON {older} WHERE {view_file.rule_opposite(rule)}"


def _past(state: ViewState) -> str:
    """Return the condition that a message lies past its partition's horizon."""
    each = [f"(partition = {partition} AND offset > {horizon})" for partition, horizon in sorted(state.horizons.items())]
    others = ", ".join(str(partition) for partition in sorted(state.horizons))
    return "(" + " OR ".join([*each, f"partition NOT IN ({others})" if others else "true"]) + ")"
