"""The part of a document that a client gets, and the checks of its position (SNP-1 to SNP-3, SNP-7, SNP-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from message_lifecycle.model.document import DocumentState
from message_lifecycle.model.errors import EpochMismatch, invalid_server_seq
from message_lifecycle.model.settings import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a client: the snapshot at `snapshot` (None: no snapshot), then every change after `after`."""

    snapshot: int | None
    after: int


def pull(state: DocumentState, client: str | None, seq: int, policy: Policy) -> Answer:
    """Return the answer for a client that has all changes up to `seq` (SNP-2).

    Raises:
        InvalidServerSeq: The document never had this number.
        EpochMismatch: The next change is gone and the client gets no snapshot (SNP-7). Nobody gets a hole.
    """
    _check_seq_in_range(state, seq)
    if state.seq - seq >= policy.snapshot_threshold and state.snapshots:
        return Answer(snapshot=state.last_snapshot, after=state.last_snapshot)
    if seq < state.seq and not _is_stored(state, seq + 1):
        raise EpochMismatch(state.document, client, state.epoch, state.epoch, f"change {seq + 1}, its next one, was purged")
    return Answer(snapshot=None, after=seq)


def attach(state: DocumentState) -> Answer:
    """Return the answer for a new client: from the newest snapshot, if there is one (SNP-3)."""
    if state.snapshots:
        return Answer(snapshot=state.last_snapshot, after=state.last_snapshot)
    return Answer(snapshot=None, after=0)


def check_epoch(state: DocumentState, client: str | None, seq: int, epoch: int, *, has_row: bool) -> None:
    """Raise EpochMismatch if a client at `seq` of `epoch` may not continue (SNP-7).

    A client with a synced row moves with the document, because no purge removed the changes that it needs. An epoch later than the
    document's never existed.
    """
    if epoch > state.epoch:
        raise EpochMismatch(state.document, client, epoch, state.epoch, "the document has not come to that epoch")
    if epoch < state.epoch and seq > 0 and not has_row:
        raise EpochMismatch(state.document, client, epoch, state.epoch, "changes were purged while it was not attached")


def check_client_seq(state: DocumentState, client: str, seq: int, policy: Policy) -> None:
    """Raise InvalidServerSeq or EpochMismatch if a client cannot be at `seq` (SNP-7)."""
    pull(state, client, seq, policy)


def check_next(document: str, seq: int, server_seq: int) -> None:
    """A change must be its document's next one (SNP-1). Raises InvalidServerSeq."""
    if server_seq != seq + 1:
        raise invalid_server_seq(document, server_seq, f"{seq + 1}, the next one")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """Entries from `first` to `last`, replayed from the state at `base` (0: from nothing). Empty: `first` > `last`."""

    base: int
    first: int
    last: int


def history(state: DocumentState, start: int = 0) -> HistoryRange:
    """Return the part of the history that can be shown from `start` on (SNP-8).

    The first available entry is the first change while no change was purged. After a purge it is the smallest snapshot with every later
    change stored, itself included if its change is stored.
    """
    nothing = HistoryRange(base=0, first=1, last=0)
    if state.first is None:
        return nothing
    whole = [snapshot for snapshot in state.snapshots if snapshot >= state.first - 1]
    if state.first == 1:
        available = 1
    elif whole:
        available = max(whole[0], state.first)
    else:
        return nothing
    first = max(start, available)
    if first > state.seq:
        return nothing
    return HistoryRange(base=_nearest(whole, first), first=first, last=state.seq)


def _nearest(snapshots: Sequence[int], seq: int) -> int:
    """Return the newest snapshot at or below `seq`, the nearest state to replay from."""
    return max((snapshot for snapshot in snapshots if snapshot <= seq), default=0)


def _is_stored(state: DocumentState, seq: int) -> bool:
    return state.first is not None and state.first <= seq <= state.seq


def _check_seq_in_range(state: DocumentState, seq: int) -> None:
    if not 0 <= seq <= state.seq:
        raise invalid_server_seq(state.document, seq, f"0 to {state.seq}, which the document has reached")
