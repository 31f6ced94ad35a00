"""Seam to what the ledger keeps of erasures: requests, what they forbid, receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from message_lifecycle.model.erasure import ErasureRequest, ErasureState, KeyDigest
from message_lifecycle.model.names import TopicName


class ErasureReader(Protocol):
    """Of a key nothing is here but its keyed hash."""

    def erasure(self, request_id: str) -> ErasureRequest:
        """By id or a unique beginning of one. Raises UnknownErasure, AmbiguousErasure."""
        ...

    def erasures(self, *, limit: int | None = None) -> Sequence[ErasureRequest]:
        """Newest first."""
        ...

    def forbidden(self, topic: TopicName) -> Sequence[ErasureRequest]:
        """Requests whose key may not come into the topic, oldest first."""
        ...

    def receipt(self, request_id: str) -> str:
        """JSON. Raises UnknownErasure, AmbiguousErasure, NoReceipt."""
        ...


class ErasureWriter(Protocol):
    """The same write again changes nothing."""

    def add_erasure(
        self, request_id: str, key: KeyDigest, *, topics: Sequence[TopicName], forbid: bool, requested_by: str, why: str
    ) -> ErasureRequest:
        """Raises UnnamedErasure."""
        ...

    def set_erasure_state(self, request_id: str, state: ErasureState, *, detail: str = "") -> None: ...

    def allow_again(self, request_id: str, *, by: str, why: str) -> ErasureRequest:
        """Raises NothingForbidden, UnnamedErasure."""
        ...

    def keep_receipt(self, request_id: str, made: Callable[[str | None], str]) -> None:
        """`made`: the new one from the one before, with nobody in between."""
        ...


class ErasureMemory(ErasureReader, ErasureWriter, Protocol):
    """What the ledger keeps of erasures."""
