"""How much of a log is kept, whatever its age: limits by number and by size, and within what they count (RET-1, RET-3, RET-4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["topic", "partition", "key"]
SCOPES: tuple[Scope, ...] = ("topic", "partition", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`max_records` messages and `max_total_bytes` bytes (MSG-2), each at least 1 or None for no limit, of each group of the scope.

    `min_keep` 1: a group's newest message stays, also where it alone passes the limit of bytes. Messages without a key are in no
    group of the scope `key`."""

    max_records: int | None
    max_total_bytes: int | None
    min_keep: int = 0
    scope: Scope = "topic"
