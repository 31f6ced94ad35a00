"""What a record log has none of: compacted views, documents, copies. Asking for one is refused by name (RET-6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NoReturn

from message_lifecycle.model.change import DocumentsBefore, ReturningView, SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import unsupported_limit
from message_lifecycle.model.facts import CopyState, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Outlived, Tail, ViewRow, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import LooseFiles, LooseQuestion, TableHistory
from message_lifecycle.model.topic import Backend
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Copied, Given

# ruff: noqa: ARG002  # the arguments are the ports'; whatever they are, the answer is the same


class _Absent:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def _refuse(self, what: str, name: TopicName) -> NoReturn:
        raise unsupported_limit(backend=self._backend, limit=what, where=f"topic {name}", allowed="reading and retention")


class _NoChanges(_Absent, ChangeStore):
    """No plan of such changes is ever made."""

    what: ClassVar[str]

    def stage(self, plan: Plan, given: Given = NOTHING_GIVEN) -> Staged:
        self._refuse(self.what, plan.topic)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        self._refuse(self.what, plan.topic)

    def publish(self, verdict: Verdict, given: Given) -> Published:
        self._refuse(self.what, verdict.plan.topic)

    def published(self, plan: Plan) -> Published | None:
        return None


class NoViews(_NoChanges):
    """ViewReader and ViewStore of a store without compacted views: none of its topics was ever compacted, so a compacted read is the whole
    log (CMP-4)."""

    what = "compaction"

    def view(self, name: TopicName) -> ViewState | None:
        return None

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant, late_after: Instant) -> Sequence[Tail]:
        self._refuse("compaction", log.topic)

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        self._refuse("a compacted view", log.topic)

    def outlived(self, view: ViewState, plan: Plan) -> Outlived:
        self._refuse("a compacted view", plan.topic)

    def returning(self, view: ViewState, plan: Plan) -> ReturningView:
        self._refuse("a compacted view", plan.topic)

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        self._refuse("a compacted view", name)

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        self._refuse("a compacted view", name)

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        return None


class NoDocuments(_NoChanges):
    """Documents of a store without documents."""

    what = "documents"

    def tables(self, name: TopicName) -> DocumentTables:
        self._refuse("documents", name)

    def states(
        self,
        name: TopicName,
        tables: DocumentTables,
        *,
        older_than: Instant | None = None,
        own: Mapping[str, Instant | None] | None = None,
        only: Collection[str] | None = None,
    ) -> Sequence[DocumentState]:
        self._refuse("documents", name)

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        self._refuse("documents", name)

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        self._refuse("documents", name)

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        self._refuse("documents", plan.topic)

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        self._refuse("documents", name)


class NoCopies(_Absent):
    """Copier of a store that holds no copies."""

    def copied(self, name: TopicName) -> CopyState:
        self._refuse("copies of another log", name)

    def copy(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        late_after: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        self._refuse("copies of another log", name)


class NoPast(_NoChanges):
    """Reclaimer of a store that keeps no past: what it removes frees its space at once."""

    what = "a past to reclaim"

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        self._refuse("a past to reclaim", name)

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        self._refuse("a past to reclaim", name)

    def hidden_bytes(self, name: TopicName) -> int | None:
        return None
