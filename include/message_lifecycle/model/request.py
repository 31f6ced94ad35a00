"""Requests of a person: messages to remove (MRK-2, PRG-1), or a plan to take back (DEL-7)."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.model.errors import BadInput
from message_lifecycle.model.instants import INT64_MAX


def invalid_request(text: str) -> BadInput:
    """Return the error for a request that names nothing, or contradicts itself."""
    return BadInput(text, code="InvalidRequest")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMessages:
    """Single messages by (partition, offset)."""

    positions: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.positions or any(partition < 0 or not 0 <= offset <= INT64_MAX for partition, offset in self.positions):
            raise invalid_request(
                "messages are named as PARTITION:OFFSET, neither of them negative, the offset at most 2^63 - 1, at least one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeKey:
    """Every message of a key.

    Attributes:
        before: Remove only messages below this offset.
        keep: Keep the newest messages, this many.
    """

    key: bytes
    before: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.before is not None and self.keep is not None:
            raise invalid_request("before and keep exclude each other: give one of them, or neither to purge all of the key")
        if (self.before is not None and not 0 <= self.before <= INT64_MAX) or (self.keep is not None and self.keep < 1):
            raise invalid_request("before is an offset (0 to 2^63 - 1), keep a number of messages (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseKey:
    """A key to erase everywhere. The ledger's request knows the key only by a keyed hash."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """Take a published plan back (DEL-7)."""

    plan_id: str


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """The whole topic, with every table and file next to its log (DEL-3, DEL-7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimDeleted:
    """The tables and files of the topic that the plan deleted, after its undo window (DEL-7)."""

    plan_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Every message of a partition below offset `before`, like Kafka's DeleteRecords."""

    partition: int
    before: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 1 <= self.before <= INT64_MAX:
            raise invalid_request("a log is truncated before an offset of a partition: 1 to 2^63 - 1; below it all of that partition goes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNullKeys:
    """Messages without a key in a partition, from offset `first` to `last`, both included. A purge of a key cannot reach them."""

    partition: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.first <= self.last <= INT64_MAX:
            raise invalid_request(
                f"messages without a key are named by a partition and its offsets from .. to, the first not above the last; found: "
                f"partition {self.partition}, from {self.first} to {self.last}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRanges:
    """Every message of ranges of offsets, as (partition, first, last): the messages of batches of an ingest."""

    ranges: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.ranges or any(partition < 0 or not 0 <= first <= last <= INT64_MAX for partition, first, last in self.ranges):
            raise invalid_request(
                "ranges are named by partition, first and last offset, none of them negative, the first not above the last"
            )

    def of(self, partition: int) -> list[range]:
        """Return the ranges of one partition."""
        return [range(first, last + 1) for of, first, last in self.ranges if of == partition]


Request = RemoveMessages | PurgeKey | TruncateLog | RemoveNullKeys | RemoveRanges


def requested_offsets(request: TruncateLog | RemoveNullKeys) -> range:
    """Return the requested offsets of the partition."""
    if isinstance(request, TruncateLog):
        return range(request.before)
    return range(request.first, request.last + 1)
