"""The store over any record log, and a record log in the form of the reference store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from uuid import uuid4

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import PlanConflict, UnknownTopic, invalid_append, log_replaced, not_undoable
from message_lifecycle.model.facts import ActiveSegment, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, RowAnswer, RowQuestion
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve, topic_settings
from message_lifecycle.model.topic import check_operation, check_policy
from message_lifecycle.model.undo import Range, Returning
from message_lifecycle.operations.admission import Refusal, admission, admit
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext, Topic
from message_lifecycle.stores.memory.rows import due_rows, requested_rows
from message_lifecycle.stores.memory.tables import Version, segments
from message_lifecycle.stores.record_log import Commit, DamagedRecords, Head, RecordLog, RecordLogs, Removal
from message_lifecycle.stores.record_log.evidence import columns_of, evidence_of

# A record log in the form of the reference store, so that both share its rules and its evidence.


def version_of(messages: Iterable[Message], end_offsets: Mapping[int, int], segments: Mapping[int, int]) -> Version:
    """Return the log up to those ends. `segments`: base offset of each partition's active segment."""
    found = {(m.partition, m.offset): m for m in messages if m.offset < end_offsets.get(m.partition, 0)}
    version = Version(
        messages=found,
        end_offsets=dict(end_offsets),
        active={partition: ActiveSegment(base_offset=segments.get(partition, 0)) for partition in end_offsets},
    )
    ordered = (found[position] for position in sorted(found))
    for place, group in groupby(ordered, key=lambda message: (message.partition, message.segment)):
        inside = list(group)
        times = [message.append_time for message in inside]
        known = [time for time in times if time is not None]
        version.written[place] = known
        newest = max(known) if len(known) == len(times) else None
        active = version.active[place[0]]
        if place[1] < active.base_offset:
            version.sealed[place] = (inside[-1].offset, newest, len(inside))
        else:
            active.count_messages(size=0, rows=len(inside), newest_at=newest, any_unknown=newest is None, first_at=next(iter(known), None))
    return version


def removal_of(plan: Plan, rows: int) -> Removal:
    """Return the messages that the plan names, merged to runs. `rows`: the number of existing messages among them."""
    named: dict[int, list[range]] = {}
    for partition, run in plan.log_commit.removed_runs():
        named.setdefault(partition, []).append(run)
    return Removal(plan_id=plan.plan_id, offsets={partition: merged(runs) for partition, runs in named.items()}, rows=rows)


def merged(runs: Iterable[range]) -> tuple[range, ...]:
    """Return ascending runs. Adjacent runs become one run."""
    found: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return tuple(found)


# Topics, MessageReader, MessageWriter and MessageStore over any record log: the verbs run on it like on tables.
#
# A stage holds no data, because the plan already names the messages, on one state of the log. The gate compares the log with and without
# them (`evidence`). The commit removes exactly these messages, in one step of the backend, and only if no other message has left since.
# Messages that were appended meanwhile are past the ends that the plan knows, and stay (DEL-4).


Position = tuple[int, int]
Evidence = Mapping[str, object]


def as_rows(evidence: Evidence) -> Evidence:
    """Return frames as lists of dicts, for `gates.plain`."""
    return evidence


class RecordLogStore(ChangeStore):
    """The store over any record log.

    Args:
        server: Settings below the topics' own, because a policy is refused as a whole.
        operations: Returns the operations that logs of single records support.
        frames: Converts the evidence to the gate's form.
    """

    def __init__(
        self,
        logs: RecordLogs,
        *,
        server: Mapping[str, Value],
        operations: Callable[[], Collection[str]],
        frames: Callable[[Evidence], Evidence] = as_rows,
    ) -> None:
        self._logs, self._server, self._operations, self._frames = logs, server, operations, frames
        self._kept: tuple[tuple[TopicName, int, Mapping[int, int]], Version] | None = None

    # Topics

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic:
        """Raises TopicExists, UnsupportedLimit (RET-6)."""
        self._check(name, settings)
        head = Head(
            uuid=str(uuid4()),
            partitions=partitions,
            settings=dict(settings),
            ledger=ledger,
            end_offsets=dict.fromkeys(range(partitions), 0),
            segments=dict.fromkeys(range(partitions), 0),
        )
        self._logs.create(name, head)
        return _topic(name, head)

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        """Raises UnknownTopic, UnsupportedLimit (RET-6)."""
        log = self._logs.open(name)
        with log.lock():
            head = log.head()
            merged_ = {**head.settings, **settings}
            kept = {key: value for key, value in merged_.items() if value is not None}
            checked = topic_settings(kept, where=f"topic {name}")
            self._check(name, checked)
            head = replace(head, settings=checked)
            log.replace(head)
        return _topic(name, head)

    def describe(self, name: TopicName) -> Topic:
        """Return the topic.

        Raises:
            UnknownTopic: The backend has no such topic.
            UnsupportedLimit: The policy has changed, and the backend does not support it (RET-6).
        """
        head = self._logs.open(name).head()
        self._check(name, head.settings)
        return _topic(name, head)

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        log = self._logs.open(name)
        with log.lock():
            log.replace(replace(log.head(), ledger=ledger))

    def list(self, stream: str | None = None) -> Sequence[TopicName]:
        return sorted(name for name in self._logs.names() if stream is None or name.stream == stream)

    def look(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update_live_view(self, name: TopicName, policy: Policy) -> str | None:  # noqa: ARG002  # nobody reads it but through us
        return None

    def _check(self, name: TopicName, settings: Mapping[str, Value]) -> None:
        check_policy(self._logs.backend, resolve(topic=settings, server=self._server), settings, where=f"topic {name}")

    # MessageReader

    def log(self, name: TopicName, *, latest_allowed_time: Instant | None = None) -> LogState:
        head = self._logs.open(name).head()
        return LogState(
            topic=name,
            table_uuid=head.uuid,
            snapshot_id=head.generation,
            end_offsets=dict(head.end_offsets),
            segments=tuple(segments(self._read_and_cache(name, head.generation, head.end_offsets), latest_allowed_time)),
        )

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        return dict(self._logs.open(name).head().end_offsets)

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        return due_rows(self._version_at(log), question)

    def find_requested_rows(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        return requested_rows(self._version_at(log), request, as_of)

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        assert log.snapshot_id is not None
        commits = self._logs.open(log.topic).head().commits
        later = [commit for commit in commits if since < commit.generation <= log.snapshot_id]
        if len(later) != log.snapshot_id - since:
            return None
        return tuple(commit.generation for commit in later if commit.plan_id is None)

    def marker(self, name: TopicName) -> str:
        head = self._logs.open(name).head()
        return f"{head.uuid}/{head.generation}/" + ",".join(f"{p}:{end}" for p, end in sorted(head.end_offsets.items()))

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,  # noqa: ARG002  # of a record log no older state can be read
    ) -> Iterator[Message]:
        """Yield the present messages. Raises LogReplaced if the backend cannot continue after a concurrent removal."""
        log = self._logs.open(name)
        _, messages = log.scan()
        if log.head().partitions > 1:
            # The log is in order of appending, so partitions are mixed.
            messages = iter(sorted(messages, key=lambda message: (message.partition, message.offset)))
        for message in messages:
            if message.offset >= max(start, (after or {}).get(message.partition, -1) + 1) and (
                partition is None or message.partition == partition
            ):
                yield message

    def find_published(self, plan: Plan) -> Published | None:
        found = self._logs.open(plan.topic).head().commit_of(plan.plan_id)
        return None if found is None else published_from_commit(plan.plan_id, found)

    def is_lost(self, plan: Plan) -> bool:
        """Return True if the log was put back to a time before the plan's commit. A log remembers only its newest commits (COMMITS_KEPT)."""
        head, made_from = self._logs.open(plan.topic).head(), plan.requirements.snapshot_id
        if made_from is None or head.uuid != plan.requirements.table_uuid or head.commit_of(plan.plan_id) is not None:
            return False
        return head.generation <= made_from or any(commit.generation == made_from + 1 for commit in head.commits)

    def removed_files(self, plan: Plan) -> Sequence[str]:
        found = self._logs.open(plan.topic).head().commit_of(plan.plan_id)
        return () if found is None else tuple(found.files)

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:  # noqa: ARG002  # no plan makes any here (RET-6)
        return ()

    def find_returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:  # noqa: ARG002  # the port's signature
        """Always raises NotUndoable: a removal rewrites the log at once, and no history has the messages (RET-6)."""
        raise not_undoable(plan.plan_id, f"a {self._logs.backend} log rewrites its records at once, and keeps nothing of what it removed")

    def quarantined(self, name: TopicName) -> int:
        """Return the number of damaged records that are no longer messages (RET-6)."""
        return self._logs.open(name).head().quarantined

    def _read_and_cache(self, name: TopicName, generation: int, ends: Mapping[int, int]) -> Version:
        """Read the log and cache it for the next question, because planning asks for the log and then for its rows."""
        version = self._read_version(name, generation, ends)
        self._kept = (name, generation, dict(ends)), version
        return version

    def _version_at(self, log: LogState) -> Version:
        """Return the version of the state `log`. Raises LogReplaced if that state is gone."""
        assert log.snapshot_id is not None
        (kept, self._kept), state = (self._kept, None), (log.topic, log.snapshot_id, dict(log.end_offsets))
        return kept[1] if kept is not None and kept[0] == state else self._read_version(*state)

    def _read_version(self, name: TopicName, generation: int, ends: Mapping[int, int]) -> Version:
        """Read the version of a state. Raises LogReplaced if that state is gone."""
        log = self._logs.open(name)
        head = log.head()
        found, messages = log.scan()
        if found != generation:
            raise log_replaced(str(name), found, generation)
        return version_of(messages, ends, head.segments)

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
        log = self._logs.open(name)
        with log.lock():
            head = log.head()
            ends, bases = dict(head.end_offsets), dict(head.segments)
            given: list[Position | Refusal] = []
            new: list[Message] = []
            for message in messages:
                own = admission(message, policy, forbidden)
                if isinstance(own, Refusal):
                    given.append(own)
                    continue
                if message.partition not in ends:
                    raise invalid_append(f"topic {name} has {head.partitions} partitions; there is no partition {message.partition}")
                made = _numbered(message, ends, bases, policy, latest_allowed_time)
                new.append(made)
                given.append((made.partition, made.offset))
            if new:
                log.append(new, replace(head, end_offsets=ends, segments=bases))
        return given

    def seal(self, name: TopicName, partition: int) -> None:
        log = self._logs.open(name)
        with log.lock():
            head = log.head()
            log.replace(replace(head, segments={**head.segments, partition: head.end_offsets[partition]}))

    def foreign_delete(self, name: TopicName, offsets: Sequence[Position]) -> None:
        log = self._logs.open(name)
        named = {partition: merged(range(o, o + 1) for p, o in offsets if p == partition) for partition, _ in offsets}
        with log.lock():
            head = log.head()
            commits = head.with_commit(plan_id=None)
            log.replace(replace(head, generation=head.generation + 1, commits=commits), Removal(plan_id=None, offsets=named))

    # MessageStore

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        """Stage nothing, but name the log's content.

        Raises:
            PlanConflict: The log no longer fits the plan.
            UnsupportedLimit: The backend does not support the operation (RET-5).
        """
        check_operation(self._logs.backend, plan.operation, self._operations(), where=f"topic {plan.topic}")
        log = self._logs.open(plan.topic)
        require(plan, log.head())
        return Staged(plan_id=plan.plan_id, branch=log.content(), snapshot_id=plan.requirements.snapshot_id)

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:  # noqa: ARG002  # a policy with markers is refused when loaded
        check_operation(self._logs.backend, "marker_generation", self._operations(), where=f"topic {plan.topic}")
        return staged

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Evidence:
        """Return the gate's frames. Raises PlanConflict if messages have left since the plan."""
        log = self._logs.open(plan.topic)
        head = log.head()
        require(plan, head)
        require_content(plan, staged, log)
        found, messages = log.scan()
        if found != head.generation:
            raise log_replaced(str(plan.topic), found, head.generation)
        columns = columns_of(messages, dict(plan.requirements.end_offsets))
        return self._frames(evidence_of(columns, removal_of(plan, plan.expected.removed_rows), plan, policy))

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan = verdict.plan
        log = self._logs.open(plan.topic)
        with log.lock():
            head = log.head()
            done = head.commit_of(plan.plan_id)
            if done is not None:
                return published_from_commit(plan.plan_id, done)
            require(plan, head)
            require_content(plan, verdict.staged, log)
            removed = verdict.staged.removed(plan)
            commits = head.with_commit(plan_id=plan.plan_id, removed=removed, files=plan.selection.files)
            after = replace(head, generation=head.generation + 1, ledger=given.ledger(), commits=commits)
            log.replace(after, removal_of(plan, sum(rows for _, rows in removed)))
        return published_from_commit(plan.plan_id, commits[-1])

    def discard(self, plan: Plan) -> None:
        """Drop files that a failed commit has left next to the log. A stage itself makes no file."""
        with suppress(UnknownTopic):
            log = self._logs.open(plan.topic)
            if isinstance(log, DamagedRecords):
                log.drop_leftovers()


def require(plan: Plan, head: Head) -> None:
    """Raise PlanConflict if this is another log, if messages have left it, or if it is shorter than the plan knows."""
    if plan.requirements.table_uuid != head.uuid:
        raise PlanConflict(plan.plan_id, "the topic is another log now")
    if plan.requirements.snapshot_id != head.generation:
        rival = head.commits[-1].plan_id if head.commits else None
        raise PlanConflict(plan.plan_id, "messages have gone from the log since", rival=rival or "another writer's delete")
    for partition, end in plan.requirements.end_offsets:
        found = head.end_offsets.get(partition, 0)
        if found < end:
            detail = f"partition {partition} ends at offset {found}, and ended at {end} when it was planned"
            raise PlanConflict(plan.plan_id, f"an older state of the log was put back: {detail}")


def require_content(plan: Plan, staged: Staged, log: RecordLog) -> None:
    """Raise PlanConflict if the log does not begin with the messages that it had when the plan was staged.

    The generation alone is not enough, because an older copy of the log, from before some appends, has the same generation. The plan would
    then remove too much or too little of the present log.
    """
    if staged.branch is not None and log.content(staged.branch) != staged.branch:
        raise PlanConflict(
            plan.plan_id, "the log has other messages than when it was staged: another or an older state was put in its place"
        )


def _topic(name: TopicName, head: Head) -> Topic:
    return Topic(name=name, uuid=head.uuid, partitions=head.partitions, role="local", settings=dict(head.settings), ledger=head.ledger)


def published_from_commit(plan_id: str, commit: Commit) -> Published:
    """Return the result of a commit, as the log's head records it."""
    return Published(plan_id=plan_id, snapshot_id=commit.generation, removed=commit.removed)


def _numbered(
    message: NewMessage, ends: dict[int, int], bases: dict[int, int], policy: Policy, latest_allowed_time: Instant | None
) -> Message:
    """Return the message with its place, and move `ends` and `bases` on."""
    partition = message.partition
    active = ActiveSegment(base_offset=bases[partition], rows=int(ends[partition] > bases[partition]))
    offset, segment = admit(message, end_offset=ends[partition], active=active, policy=policy, latest_allowed_time=latest_allowed_time)
    ends[partition], bases[partition] = offset + 1, segment
    return message.stored(offset=offset, segment=segment)
