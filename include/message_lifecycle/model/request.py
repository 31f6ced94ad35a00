"""What a person may ask to have removed (MRK-2, PRG-1)."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.model.errors import BadInput
from message_lifecycle.model.instants import INT64_MAX


class InvalidRequest(BadInput):
    """A request that names nothing, or contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMessages:
    """Single messages by (partition, offset)."""

    positions: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.positions or any(partition < 0 or not 0 <= offset <= INT64_MAX for partition, offset in self.positions):
            raise InvalidRequest(
                "messages are named as PARTITION:OFFSET, neither of them negative, the offset at most 2^63 - 1, at least one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeKey:
    """All messages of a key; those below offset `before` alone, or all but the newest `keep`."""

    key: bytes
    before: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.before is not None and self.keep is not None:
            raise InvalidRequest("before and keep exclude each other: give one of them, or neither to purge all of the key")
        if (self.before is not None and not 0 <= self.before <= INT64_MAX) or (self.keep is not None and self.keep < 1):
            raise InvalidRequest("before is an offset (0 to 2^63 - 1), keep a number of messages (1 or more)")


Request = RemoveMessages | PurgeKey
