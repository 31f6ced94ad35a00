"""The reference store: a log in memory, with snapshots, a staged change and a fenced commit, as plainly as they can be written.

Every other store is held to it. It implements all the seams of `ports` at once, because there is nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from uuid import uuid4

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import PlanConflict, UnknownTopic, invalid_append, is_a_document_topic, topic_exists, undo_source_gone
from message_lifecycle.model.facts import ActiveSegment, CopyState, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import digest, is_marker
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged, StagedMarkers
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.rows import RowAnswer, RowQuestion, offsets_of
from message_lifecycle.model.settings import Policy, Value, topic_settings
from message_lifecycle.model.topic_config import role_of
from message_lifecycle.model.undo import Effect, Range, Returning
from message_lifecycle.operations.admission import ERASED, admission
from message_lifecycle.operations.lifetime import Refusal
from message_lifecycle.operations.numbering import admit
from message_lifecycle.operations.replication import new_in_origin
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Copied, Given, Topic
from message_lifecycle.stores.memory import undo
from message_lifecycle.stores.memory.evidence import evidence_of
from message_lifecycle.stores.memory.log import Position, Version, publish_seal, seal, segments
from message_lifecycle.stores.memory.marks import markers_of, owed, removed_by, superseded_by
from message_lifecycle.stores.memory.rows import due_rows, requested_rows
from message_lifecycle.stores.memory.table import Commit, Table, published_by
from message_lifecycle.stores.memory.view_log import View


class MemoryStore(ChangeStore):
    """Topics, MessageReader, MessageWriter, Copier and MessageStore over dictionaries."""

    def __init__(self) -> None:
        self._tables: dict[TopicName, Table] = {}
        self.views: dict[TopicName, View] = {}

    # Topics

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic:
        if name in self._tables:
            raise topic_exists(str(name))
        topic = Topic(name=name, uuid=str(uuid4()), partitions=partitions, role=role_of(settings), settings=dict(settings), ledger=ledger)
        head = Version(
            end_offsets=dict.fromkeys(range(partitions), 0),
            active={partition: ActiveSegment(base_offset=0) for partition in range(partitions)},
        )
        first = Commit(snapshot_id=1, operation="append", plan_id=None)
        self._tables[name] = Table(topic=topic, head=head, versions={1: deepcopy(head)}, commits=[first])
        return topic

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        table = self._table(name)
        merged = {**table.topic.settings, **settings}
        kept = {key: value for key, value in merged.items() if value is not None}
        table.topic = replace(table.topic, settings=topic_settings(kept, where=f"topic {name}"))
        return table.topic

    def describe(self, name: TopicName) -> Topic:
        return self._table(name).topic

    def list(self, stream: str | None = None) -> Sequence[TopicName]:
        return sorted(name for name in self._tables if stream is None or name.stream == stream)

    def live_view(self, name: TopicName, policy: Policy) -> str | None:  # noqa: ARG002  # nobody reads it but through us
        return None

    def _table(self, name: TopicName) -> Table:
        if name not in self._tables:
            raise UnknownTopic(str(name))
        return self._tables[name]

    def _messages(self, name: TopicName) -> Table:
        """Raises IsADocumentTopic."""
        table = self._table(name)
        if "fold" in table.topic.settings:
            raise is_a_document_topic(str(name))
        return table

    def whole(self, name: TopicName) -> Table:
        """Raises UnknownTopic."""
        return self._table(name)

    def take_out(self, name: TopicName) -> None:
        del self._tables[name]
        self.views.pop(name, None)

    def put_back(self, name: TopicName, table: Table, view: View | None) -> None:
        self._tables[name] = table
        if view is not None:
            self.views[name] = view

    def version(self, name: TopicName, snapshot_id: int) -> Version:
        return self._table(name).versions[snapshot_id]

    def touch(self, name: TopicName, ledger: tuple[str, int]) -> None:
        """A commit of ours beside the log was made with that ledger."""
        table = self._table(name)
        table.topic = replace(table.topic, ledger=ledger)

    # MessageReader

    def log(self, name: TopicName, *, late_after: Instant | None = None) -> LogState:
        table = self._messages(name)
        return LogState(
            topic=name,
            table_uuid=table.topic.uuid,
            snapshot_id=table.snapshot_id,
            end_offsets=dict(table.head.end_offsets),
            segments=tuple(segments(table.head, late_after)),
            purged_through=dict(table.head.purged_through),
        )

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        return dict(self._messages(name).head.end_offsets)

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        assert log.snapshot_id is not None
        return due_rows(self._table(log.topic).versions[log.snapshot_id], question)

    def requested(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        assert log.snapshot_id is not None
        return requested_rows(self._table(log.topic).versions[log.snapshot_id], request, as_of)

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        assert log.snapshot_id is not None
        commits = [commit for commit in self._table(log.topic).commits if since < commit.snapshot_id <= log.snapshot_id]
        return tuple(commit.snapshot_id for commit in commits if commit.operation == "delete" and commit.plan_id is None)

    def marker(self, name: TopicName) -> str:
        return str(self._table(name).snapshot_id)

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        table = self._messages(name)
        stored = table.head.messages if at is None else table.versions[at.snapshot_id or 0].messages
        for of, offset in sorted(stored):
            if offset >= max(start, (after or {}).get(of, -1) + 1) and partition in (None, of):
                yield stored[of, offset]

    def published(self, plan: Plan) -> Published | None:
        found = self._find(plan.topic, plan.plan_id)
        return None if found is None else published_by(plan.plan_id, found)

    def effect(self, plan: Plan) -> Effect:
        if plan.parent is not None:
            return undo.returned(self._table(plan.topic).head, plan)
        found = self._find(plan.topic, plan.plan_id)
        return Effect() if found is None else Effect(files=tuple(found.files))

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        found, versions = self._find(name, plan_id), self._table(name).versions
        return () if found is None else undo.given(versions[found.snapshot_id - 1], versions[found.snapshot_id])

    def returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        table, found = self._table(plan.topic), self._find(plan.topic, plan.plan_id)
        if found is None:
            raise undo_source_gone(plan.plan_id, "its commit is not in the log's history")
        source_id, head = found.snapshot_id - 1, table.versions[log.snapshot_id or 0]
        before = table.versions[source_id]
        return undo.returning(before, head, plan, staged.superseded, source_id=source_id, own=tuple(own), without=tuple(without))

    def _find(self, name: TopicName, plan_id: str) -> Commit | None:
        return next((commit for commit in self._table(name).commits if commit.plan_id == plan_id), None)

    # MessageWriter

    def append(
        self, name: TopicName, messages: Iterable[NewMessage], policy: Policy, forbidden: KeyMatch | None = None
    ) -> Sequence[Position | Refusal]:
        table = self._messages(name)
        if table.topic.role == "mirror":
            raise invalid_append(f"topic {name} is a mirror; it takes messages from its origin alone")
        version = deepcopy(table.head)
        given = [self._append_one(version, message, policy, forbidden) for message in messages]
        table.commit(version, operation="append", plan_id=None)
        return given

    @staticmethod
    def _append_one(version: Version, message: NewMessage, policy: Policy, forbidden: KeyMatch | None = None) -> Position | Refusal:
        own = admission(message, policy, forbidden)
        if isinstance(own, Refusal):
            return own
        partition = message.partition
        end = version.end_offsets.get(partition, 0)
        active = version.active.setdefault(partition, ActiveSegment(base_offset=end))
        before = deepcopy(active)
        offset, segment = admit(message, end_offset=end, active=active, policy=policy)
        if before.rows and segment != before.base_offset:
            seal(version, partition, before)
        stored = message.stored(offset=offset, segment=segment, expires_at=own.expires_at, never=own.never)
        version.messages[(partition, offset)] = stored
        known = stored.append_time
        if known is not None:
            version.written.setdefault((partition, segment), []).append(known)
        version.end_offsets[partition] = offset + 1
        return partition, offset

    def seal(self, name: TopicName, partition: int) -> None:
        table = self._table(name)
        version = deepcopy(table.head)
        active = version.active.get(partition)
        if active is not None and active.rows:
            seal(version, partition, deepcopy(active))
            active.restart(version.end_offsets[partition])
        table.commit(version, operation="append", plan_id=None)

    def foreign_delete(self, name: TopicName, offsets: Sequence[Position]) -> None:
        table = self._table(name)
        version = deepcopy(table.head)
        for position in offsets:
            version.messages.pop(position, None)
        table.commit(version, operation="delete", plan_id=None)

    # Copier

    def copied(self, name: TopicName) -> CopyState:
        return self._table(name).head.copy_state

    def copy(
        self, name: TopicName, origin: LogState, policy: Policy, *, ledger: tuple[str, int], forbidden: KeyMatch | None = None
    ) -> Copied:
        table = self._table(name)
        assert origin.snapshot_id is not None
        of_origin = self._table(origin.topic).versions[origin.snapshot_id]
        version = deepcopy(table.head)
        last = new_in_origin(name, origin, version.copy_state)
        new = [
            message
            for position, message in sorted(of_origin.messages.items())
            if message.offset > version.copied.get(position[0], -1)
        ]  # fmt: skip
        given = [
            self._append_one(version, self._copy_of(message, version, mirror=table.topic.role == "mirror"), policy, forbidden)
            for message in new
        ]
        version.copied |= last
        version.copied_from = origin.table_uuid
        if table.topic.role == "mirror":
            _end_as_origin(version, origin)
        table.commit(version, operation="append", plan_id=None)
        table.topic = replace(table.topic, ledger=ledger)
        erased = given.count(ERASED)
        return Copied(copied=dict(version.copied), rows=len(new) - erased, erased=erased)

    @staticmethod
    def _copy_of(message: Message, version: Version, *, mirror: bool) -> NewMessage:
        # A segment that the mirror has closed by itself takes no more messages: the rest of the origin's starts another.
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

    # MessageStore

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        table = self._table(plan.topic)
        self._require(plan, table)
        if plan.is_empty:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        assert plan.requirements.snapshot_id is not None
        if plan.plan_id not in table.staged:
            table.staged[plan.plan_id] = (-plan.requirements.snapshot_id, self._removed(plan, table))
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=table.staged[plan.plan_id][0])

    @staticmethod
    def _removed(plan: Plan, table: Table) -> Version:
        version = deepcopy(table.versions[plan.requirements.snapshot_id or 0])
        for position in [position for position in version.messages if plan.taking(*position)]:
            del version.messages[position]
        if plan.on_log.source_id is not None:
            undo.restore(version, table.versions[plan.on_log.source_id], plan)
        return version

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        assert policy.marker_ttl_us is not None
        assert plan.requirements.snapshot_id is not None
        table = self._table(plan.topic)
        # From the removal alone: a run that died here may have left its markers.
        before, after = table.versions[plan.requirements.snapshot_id], self._removed(plan, table)
        made = markers_of(
            before, after, owed(table.versions, plan.on_log.sweep) if plan.on_log.sweep else removed_by(before, after, plan), plan, policy
        )
        superseded = superseded_by(made, after, plan)
        for action in superseded:
            for offset in offsets_of(action.offsets):
                del after.messages[action.partition, offset]
        for one in plan.on_log.seal:
            publish_seal(after, one)
        for marker in made:
            self._append_one(after, marker.message(), policy)
        table.staged[plan.plan_id] = table.staged[plan.plan_id][0], after
        table.markers[plan.plan_id] = made
        return replace(staged, markers=StagedMarkers(count=len(made), digest=digest(made), superseded=superseded))

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        table = self._table(plan.topic)
        assert plan.requirements.snapshot_id is not None
        before = table.versions[plan.requirements.snapshot_id]
        after = table.staged[staged.plan_id][1] if staged.plan_id in table.staged else before
        if plan.parent is not None:
            source = None if plan.on_log.source_id is None else table.versions[plan.on_log.source_id]
            return undo.evidence(before, after, source, plan, tuple(self.marker_offsets(plan.topic, plan.parent or "")))
        horizons = self.views[plan.topic].horizons if plan.topic in self.views else {}
        return evidence_of(before, after, plan, policy, staged, owed(table.versions, plan.on_log.sweep), horizons)

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan = verdict.plan
        table = self._table(plan.topic)
        done = self.published(plan)
        if done is not None:
            return done
        if plan.is_empty or plan.plan_id not in table.staged:
            raise PlanConflict(plan.plan_id, "nothing is staged for it")
        self._require(plan, table)
        for commit in reversed(table.commits):
            if commit.snapshot_id == plan.requirements.snapshot_id:
                break
            if commit.operation != "append" or commit.plan_id:
                rival = commit.plan_id or f"snapshot {commit.snapshot_id}"
                raise PlanConflict(plan.plan_id, f"conflicting {commit.operation}", rival=rival)
        base, after = table.versions[plan.requirements.snapshot_id or 0], table.staged[plan.plan_id][1]
        version = deepcopy(table.head)
        for position in [position for position in base.messages if position not in after.messages]:
            del version.messages[position]
        if plan.on_log.source_id is not None:
            undo.restore(version, table.versions[plan.on_log.source_id], plan)
        for one in plan.on_log.seal:
            publish_seal(version, one)
        for run in plan.on_log.drop:
            if run.reason == "compacted":
                version.purged_through[run.partition] = run.last_offset
        # A message that came since the plan makes its key's marker needless (MRK-3), and the older marker, which has gone above (MRK-5).
        arrived = {
            message.key
            for position, message in table.head.messages.items()
            if position not in base.messages and not is_marker(message.headers)
        }
        made = table.markers.get(plan.plan_id, ())
        kept = [marker for marker in made if marker.key not in arrived]
        for marker in kept:
            self._append_one(version, marker.message(), Policy.of_values(plan.policy))
        committed = table.commit(
            version,
            operation="delete",
            plan_id=plan.plan_id,
            counts=verdict.staged.removed(plan),
            files=plan.selection.files,
            markers=len(kept),
            cancelled=len(made) - len(kept),
            restored=plan.restored_rows,
        )
        table.topic = replace(table.topic, ledger=given.ledger())
        return published_by(plan.plan_id, committed)

    def discard(self, plan: Plan) -> None:
        self._table(plan.topic).staged.pop(plan.plan_id, None)
        self._table(plan.topic).markers.pop(plan.plan_id, None)

    def _require(self, plan: Plan, table: Table) -> None:
        if plan.requirements.table_uuid != table.topic.uuid:
            raise PlanConflict(plan.plan_id, "the topic is another table now")
        if plan.requirements.snapshot_id not in table.versions:
            raise PlanConflict(plan.plan_id, f"snapshot {plan.requirements.snapshot_id} is gone")


def _end_as_origin(version: Version, origin: LogState) -> None:
    """A mirror's log ends where its origin's does, and its last segment is closed where the origin's is (MSG-5)."""
    closed = {(segment.partition, segment.base_offset) for segment in origin.segments if segment.sealed}
    for partition, end in origin.end_offsets.items():
        version.end_offsets[partition] = max(end, version.end_offsets.get(partition, 0))
        active = version.active.setdefault(partition, ActiveSegment(base_offset=0))
        if active.rows and (partition, active.base_offset) in closed:
            seal(version, partition, deepcopy(active))
            active.restart(version.end_offsets[partition])
