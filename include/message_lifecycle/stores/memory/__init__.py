"""The reference store: a log in memory, with snapshots, a staged change and a fenced commit, in the plainest code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from uuid import uuid4

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import UnknownTopic, invalid_append, topic_exists
from message_lifecycle.model.facts import ActiveSegment, CopyState, LogState
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.message import Marker, Message, NewMessage, RowAnswer, RowQuestion, digest, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged, StagedMarkers
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.setting_list import Value, check_messages
from message_lifecycle.model.settings import Policy, topic_settings
from message_lifecycle.model.topic import role_of
from message_lifecycle.model.undo import Range, Returning, UndoEffect
from message_lifecycle.operations.admission import ERASED, Refusal, new_in_origin, opens_too_many, policies_by_span
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext, Copied, Topic
from message_lifecycle.stores.memory import rows
from message_lifecycle.stores.memory.evidence import evidence_of
from message_lifecycle.stores.memory.rows import due_rows, markers_of, owed, requested_rows, rows_removed_by, superseded_by
from message_lifecycle.stores.memory.tables import (
    Position,
    StagedVersion,
    Table,
    TopicTables,
    Version,
    append,
    apply,
    bring_back,
    difference,
    in_order,
    seal,
    segments,
)

# Tests compare every other store with this one. The memory store implements all protocols of `ports` itself, without further layers.


class MemoryStore(ChangeStore):
    """Topics, MessageReader, MessageWriter, Copier and MessageStore. `tables`: the tables of every topic."""

    def __init__(self) -> None:
        self.tables: dict[TopicName, TopicTables] = {}

    def of(self, name: TopicName) -> TopicTables:
        """Raises UnknownTopic."""
        if name not in self.tables:
            raise UnknownTopic(str(name))
        return self.tables[name]

    def log_of(self, name: TopicName) -> Table[Version]:
        """Raises UnknownTopic, IsADocumentTopic."""
        tables = self.of(name)
        check_messages(tables.topic.settings, name)
        return tables.log

    # Topics

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic:
        if name in self.tables:
            raise topic_exists(str(name))
        topic = Topic(name=name, uuid=str(uuid4()), partitions=partitions, role=role_of(settings), settings=dict(settings), ledger=ledger)
        first = Version(
            end_offsets=dict.fromkeys(range(partitions), 0),
            active={partition: ActiveSegment(base_offset=0) for partition in range(partitions)},
        )
        log = Table(kind="log", uuid=topic.uuid, empty=first, first=1)
        log.write(first)
        self.tables[name] = TopicTables(topic=topic, log=log, changes=Table(kind="log", uuid=topic.uuid, empty={}))
        return topic

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        tables = self.of(name)
        merged = {**tables.topic.settings, **settings}
        kept = {key: value for key, value in merged.items() if value is not None}
        tables.topic = replace(tables.topic, settings=topic_settings(kept, where=f"topic {name}"))
        return tables.topic

    def describe(self, name: TopicName) -> Topic:
        return self.of(name).topic

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        self.of(name).touch(ledger)

    def list(self, stream: str | None = None) -> Sequence[TopicName]:
        return sorted(name for name in self.tables if stream is None or name.stream == stream)

    def look(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update_live_view(self, name: TopicName, policy: Policy) -> str | None:  # noqa: ARG002  # nobody reads it but through us
        return None

    # MessageReader

    def log(self, name: TopicName, *, latest_allowed_time: Instant | None = None) -> LogState:
        table = self.log_of(name)
        return LogState(
            topic=name,
            table_uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            end_offsets=dict(table.head.end_offsets),
            segments=tuple(segments(table.head, latest_allowed_time)),
            purged_through=dict(table.head.purged_through),
        )

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        return dict(self.log_of(name).head.end_offsets)

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        return due_rows(self.of(log.topic).log.at(log.snapshot_id), question)

    def find_requested_rows(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        return requested_rows(self.of(log.topic).log.at(log.snapshot_id), request, as_of)

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        assert log.snapshot_id is not None
        later = [commit for commit in self.of(log.topic).log.commits if since < commit.snapshot_id <= log.snapshot_id]
        return tuple(commit.snapshot_id for commit in later if commit.takes and commit.plan_id is None)

    def marker(self, name: TopicName) -> str:
        tables = self.of(name)
        return f"{tables.log.snapshot_id}/{tables.changes.snapshot_id}"

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        table = self.log_of(name)
        version = table.head if at is None else table.at(at.snapshot_id)
        for message in in_order(version.messages):
            if message.offset >= max(start, (after or {}).get(message.partition, -1) + 1) and partition in (None, message.partition):
                yield message

    def find_published(self, plan: Plan) -> Published | None:
        return self.of(plan.topic).main.find_published(plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        return self.of(plan.topic).main.has_lost(plan, plan.requirements.snapshot_id)

    def removed_files(self, plan: Plan) -> Sequence[str]:
        found = self.of(plan.topic).log.commit_of(plan.plan_id)
        return () if found is None else found.files

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        log = self.of(name).log
        found = log.commit_of(plan_id)
        return () if found is None else rows.marker_ranges(log.at(log.source_of(plan_id)), found.version)

    def find_returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        table = self.of(plan.topic).log
        source_id = table.source_of(plan.plan_id)
        assert source_id is not None, "the first version of a log is empty, and no plan's"
        before, head = table.at(source_id), table.at(log.snapshot_id)
        return rows.find_returning_messages(
            before, head, plan, staged.superseded, source_id=source_id, own=tuple(own), without=tuple(without)
        )

    # MessageWriter

    def append(
        self,
        name: TopicName,
        messages: Iterable[NewMessage],
        policy: Policy,
        forbidden: KeyMatch | None = None,
        *,
        latest_allowed_time: Instant | None = None,
    ) -> Sequence[Position | Refusal]:
        table = self.log_of(name)
        if self.of(name).topic.role == "mirror":
            raise invalid_append(f"topic {name} is a mirror; it takes messages from its origin alone")
        batch = tuple(messages)
        version, given, _ = _append_batch(table.head, lambda _version: batch, policy, forbidden, latest_allowed_time)
        table.write(version)
        return given

    def seal(self, name: TopicName, partition: int) -> None:
        table = self.of(name).log
        version = table.head.copy()
        seal(version, partition)
        table.write(version)

    def foreign_delete(self, name: TopicName, offsets: Sequence[Position]) -> None:
        table = self.of(name).log
        table.write(table.head.without(offsets), takes=True)

    # Copier

    def copy_state(self, name: TopicName) -> CopyState:
        return self.of(name).log.head.copy_state

    def copy_new_messages(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        latest_allowed_time: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        tables = self.of(name)
        mirror, head = tables.topic.role == "mirror", tables.log.head
        last = new_in_origin(name, origin, head.copy_state)
        of_origin = in_order(self.of(origin.topic).log.at(origin.snapshot_id).messages)
        new = [message for message in of_origin if message.offset > head.copied.get(message.partition, -1)]
        version, given, doubled = _append_batch(
            head, lambda version: (_copy_of(message, version, mirror=mirror) for message in new), policy, forbidden, latest_allowed_time
        )
        version.copied |= last
        version.copied_from = origin.table_uuid
        if mirror:
            _end_as_origin(version, origin)
        tables.log.write(version)
        tables.touch(ledger)
        erased = given.count(ERASED)
        return Copied(copied=dict(version.copied), rows=len(new) - erased, erased=erased, span_seconds=doubled)

    # MessageStore

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        table = self.of(plan.topic).log
        table.require(plan)
        assert plan.requirements.snapshot_id is not None
        if plan.plan_id not in table.staged:
            table.staged[plan.plan_id] = StagedVersion(version=_apply_plan(table, plan.requirements.snapshot_id, plan))
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=-plan.requirements.snapshot_id)

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        table, base = self.of(plan.topic).log, plan.requirements.snapshot_id
        # From the removal without markers, because a run that died here may have staged some.
        before, after = table.at(base), _apply_plan(table, base, plan)
        gone = owed(table, plan.log_commit.sweep) if plan.log_commit.sweep else rows_removed_by(before, after, plan)
        made = markers_of(before, after, gone, plan, policy)
        staged = replace(staged, markers=StagedMarkers(count=len(made), digest=digest(made), superseded=superseded_by(made, after, plan)))
        table.staged[plan.plan_id] = StagedVersion(version=_apply_plan(table, base, plan, staged), markers=made)
        return staged

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        tables, table = self.of(plan.topic), self.of(plan.topic).log
        before, made = table.at(plan.requirements.snapshot_id), table.staged.get(staged.plan_id)
        after = (
            before
            if made is None
            else _with_markers(made.version, made.markers, policy, latest_allowed_time=policy.latest_allowed_time(plan.as_of))
        )
        return evidence_of(before, after, plan, policy, staged, owed(table, plan.log_commit.sweep), tables.view.head.horizons)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan = verdict.plan
        tables, table = self.of(plan.topic), self.of(plan.topic).log
        done = table.find_published(plan.plan_id)
        if done is not None:
            return done
        table.require(plan)
        table.refuse_removals(plan)  # first: the error names the rival, even if the rival has removed the stage
        made, base = table.staged_by(plan), table.at(plan.requirements.snapshot_id).messages
        # A message that came since the plan makes its key's new marker needless (MRK-3). The older marker leaves anyway (MRK-5).
        came = difference(base, table.head.messages).came
        arrived = {message.key for message in came.values() if not is_marker(message.headers)}
        kept = tuple(marker for marker in made.markers if marker.key not in arrived)
        version = _apply_plan(table, table.snapshot_id, plan, verdict.staged)
        _require_judged(table, plan, version)
        tables.touch(given.ledger())
        done = Published(
            plan_id=plan.plan_id,
            snapshot_id=table.next_id,
            removed=verdict.staged.removed(plan),
            markers=len(kept),
            cancelled_markers=len(made.markers) - len(kept),
        )
        policy = Policy.from_values(plan.policy)
        marked = _with_markers(version, kept, policy, latest_allowed_time=policy.latest_allowed_time(plan.as_of))
        return table.publish(marked, done, files=plan.selection.files)

    def discard(self, plan: Plan) -> None:
        if plan.topic in self.tables:
            self.of(plan.topic).log.staged.pop(plan.plan_id, None)


class MemoryLogReturns(ChangeStore):
    """`ports.LogReturns`: brings messages back to a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        table, base_id = self._store.of(plan.topic).log, plan.requirements.snapshot_id
        table.require(plan)
        assert base_id is not None
        table.staged.setdefault(plan.plan_id, StagedVersion(version=bring_back(table.at(base_id), plan.log_return, _source(table, plan))))
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=-base_id)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        table = self._store.of(plan.topic).log
        before, made = table.at(plan.requirements.snapshot_id), table.staged.get(plan.plan_id)
        own = tuple(self._store.marker_offsets(plan.topic, plan.parent_id))
        return rows.log_evidence(before, before if made is None else made.version, _source(table, plan), plan, own)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan = verdict.plan
        tables, table = self._store.of(plan.topic), self._store.of(plan.topic).log
        done = table.find_published(plan.plan_id)
        if done is not None:
            return done
        table.require(plan)
        table.refuse_removals(plan)
        version = bring_back(table.head, plan.log_return, _source(table, plan))
        _require_judged(table, plan, version)
        tables.touch(given.ledger())
        removed, restored = verdict.staged.removed(plan), plan.restored_rows
        return table.publish(version, Published(plan_id=plan.plan_id, snapshot_id=table.next_id, removed=removed, restored=restored))

    def find_published(self, plan: Plan) -> Published | None:
        return self._store.find_published(plan)

    def is_lost(self, plan: Plan) -> bool:
        return self._store.is_lost(plan)

    def discard(self, plan: Plan) -> None:
        self._store.discard(plan)

    def effect(self, plan: Plan) -> UndoEffect:
        return rows.undo_effect(self._store.of(plan.topic).log.head, plan)


def _source(table: Table[Version], plan: Plan) -> Version:
    return table.at(plan.log_return.source_id)


def _apply_plan(table: Table[Version], snapshot_id: int | None, plan: Plan, staged: Staged | None = None) -> Version:
    """Return the version after the plan's change, without the older markers that the stage replaces."""
    older = () if staged is None else staged.superseded
    return apply(table.at(snapshot_id), replace(plan.log_commit, mark=(*plan.log_commit.mark, *older)))


def _require_judged(table: Table[Version], plan: Plan, version: Version) -> None:
    judged = difference(table.at(plan.requirements.snapshot_id).messages, table.staged_by(plan).version.messages).gone
    goes = difference(table.head.messages, version.messages).gone
    assert judged.keys() == goes.keys(), "what goes is what the gate has seen go"


def _with_markers(version: Version, markers: Iterable[Marker], policy: Policy, *, latest_allowed_time: Instant) -> Version:
    after = version.copy()
    for marker in markers:
        append(after, marker.message(), policy, latest_allowed_time=latest_allowed_time)
    return after


def _append_batch(
    head: Version,
    messages: Callable[[Version], Iterable[NewMessage]],
    policy: Policy,
    forbidden: KeyMatch | None,
    latest_allowed_time: Instant | None,
) -> tuple[Version, list[Position | Refusal], int | None]:
    """Return the version with one more batch, the placed messages, and the span in seconds if it was doubled (EXP-3).

    The first span that does not open too many segments is used.
    """
    for by in policies_by_span(policy):
        version = head.copy()
        given = [append(version, message, by, forbidden, latest_allowed_time=latest_allowed_time) for message in messages(version)]
        stored = (version.messages[place] for place in given if not isinstance(place, Refusal))
        if not opens_too_many((message.offset, message.segment) for message in stored):
            break
    return version, given, None if by is policy else by.segment_max_us // MICROS_PER_SECOND


def _copy_of(message: Message, version: Version, *, mirror: bool) -> NewMessage:
    # A segment that the mirror has closed by itself takes no more messages. The rest of the origin's segment starts another.
    active = version.active.get(message.partition, ActiveSegment(base_offset=0))
    return NewMessage(
        append_time=message.append_time,
        key=message.key,
        value=message.value,
        partition=message.partition,
        headers=message.headers,
        event_time=message.event_time,
        offset=message.offset if mirror else None,
        segment=max(message.segment, active.base_offset) if mirror else None,
        origin_offset=message.offset,
    )


def _end_as_origin(version: Version, origin: LogState) -> None:
    """End the mirror's log at the origin's end, and close its last segment if the origin's is closed (MSG-5)."""
    closed = {(segment.partition, segment.base_offset) for segment in origin.segments if segment.sealed}
    for partition, end in origin.end_offsets.items():
        version.end_offsets[partition] = max(end, version.end_offsets.get(partition, 0))
        active = version.active.setdefault(partition, ActiveSegment(base_offset=0))
        if (partition, active.base_offset) in closed:
            seal(version, partition)
