"""Parts of the services that send each call to the lake or to the configured backend that holds the topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import ErasedTable, KeyMatch, KeySearchResult
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.in_values import Needle, ValuePlace
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, RowAnswer, RowQuestion
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import Range, Returning
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import (
    NO_CONTEXT,
    ChangeStore,
    CommitContext,
    Eraser,
    Groups,
    MessageReader,
    MessageStore,
    Prepared,
    Topic,
    Topics,
)

Store = TypeVar("Store", bound=ChangeStore)
ServicesOf = Callable[[TopicName], Services]
"""Returns the services that hold a topic."""


@dataclass(frozen=True, slots=True)
class RoutingTopics(Topics):
    """Topics of the lake and of the backends. `list` and `look` ask the lake alone: one backend that is away must not stop all topics."""

    lake: Topics
    services_of: ServicesOf

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic:
        return self.services_of(name).topics.create(name, partitions=partitions, settings=settings, ledger=ledger)

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        return self.services_of(name).topics.alter(name, settings)

    def describe(self, name: TopicName) -> Topic:
        return self.services_of(name).topics.describe(name)

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        self.services_of(name).topics.record_ledger(name, ledger)

    def list(self, stream: str | None = None) -> Sequence[TopicName]:
        return self.lake.list(stream)

    def look(self) -> AbstractContextManager[None]:
        return self.lake.look()

    def update_live_view(self, name: TopicName, policy: Policy) -> str | None:
        return self.services_of(name).topics.update_live_view(name, policy)


@dataclass(frozen=True, slots=True)
class RoutingReader(MessageReader):
    """Reads logs of the lake and of the backends."""

    services_of: ServicesOf

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        return self.services_of(name).reader.marker_offsets(name, plan_id)

    def find_returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        return self.services_of(log.topic).reader.find_returning(log, plan, staged, own=own, without=without)

    def log(self, name: TopicName, *, latest_allowed_time: Instant | None = None) -> LogState:
        return self.services_of(name).reader.log(name, latest_allowed_time=latest_allowed_time)

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        return self.services_of(name).reader.end_offsets(name)

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        return self.services_of(log.topic).reader.rows(log, question)

    def find_requested_rows(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        return self.services_of(log.topic).reader.find_requested_rows(log, request, as_of=as_of)

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        return self.services_of(log.topic).reader.removed_by_others(log, since)

    def marker(self, name: TopicName) -> str:
        return self.services_of(name).reader.marker(name)

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        return self.services_of(name).reader.messages(name, partition=partition, start=start, after=after, at=at)

    def removed_files(self, plan: Plan) -> Sequence[str]:
        return self.services_of(plan.topic).reader.removed_files(plan)


@dataclass(frozen=True, slots=True)
class _RoutingChanges(ChangeStore, Generic[Store]):
    store_of: Callable[[TopicName], Store]

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT, /) -> Staged:
        return self.store_of(plan.topic).stage(plan, given)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, given: CommitContext = NO_CONTEXT, /) -> Mapping[str, object]:
        return self.store_of(plan.topic).evidence(plan, staged, policy, given)

    def prepare(self, verdict: Verdict, given: CommitContext, /) -> Prepared | None:
        return self.store_of(verdict.plan.topic).prepare(verdict, given)

    def publish(self, verdict: Verdict, given: CommitContext, /) -> Published:
        return self.store_of(verdict.plan.topic).publish(verdict, given)

    def find_published(self, plan: Plan, /) -> Published | None:
        return self.store_of(plan.topic).find_published(plan)

    def has_begun(self, plan: Plan, /) -> bool:
        return self.store_of(plan.topic).has_begun(plan)

    def is_lost(self, plan: Plan, /) -> bool:
        return self.store_of(plan.topic).is_lost(plan)

    def finish(self, plan: Plan, /) -> Published:
        return self.store_of(plan.topic).finish(plan)

    def find_unapplied(self, plan: Plan, /) -> Sequence[str]:
        return self.store_of(plan.topic).find_unapplied(plan)

    def discard(self, plan: Plan, /) -> None:
        self.store_of(plan.topic).discard(plan)


@dataclass(frozen=True, slots=True)
class RoutingLogs(_RoutingChanges[MessageStore], MessageStore):
    """Changes logs of the lake and of the backends."""

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        return self.store_of(plan.topic).mark(plan, staged, policy)


@dataclass(frozen=True, slots=True)
class RoutingEraser(_RoutingChanges[Eraser], Eraser):
    """Erases keys from topics of the lake and of the backends."""

    def find_key(
        self, name: TopicName, matches: KeyMatch, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeySearchResult]:
        return self.store_of(name).find_key(name, matches, policy, as_of=as_of, undoable=undoable)

    def find_in_values(
        self, name: TopicName, needle: Needle, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[ValuePlace]:
        return self.store_of(name).find_in_values(name, needle, policy, as_of=as_of, undoable=undoable)

    def erased_tables(
        self, plan: Plan, matches: KeyMatch, went: Mapping[str, Sequence[str]] = MappingProxyType({}), /
    ) -> Sequence[ErasedTable]:
        return self.store_of(plan.topic).erased_tables(plan, matches, went)

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        return self.store_of(name).describe_old_copies(name, until)


@dataclass(frozen=True, slots=True)
class RoutingGroups(Groups):
    """Consumer groups that the backends know. The lake knows none."""

    services_of: ServicesOf

    def progress(self, name: TopicName) -> Sequence[Progress]:
        groups = self.services_of(name).groups
        return () if groups is None else groups.progress(name)
