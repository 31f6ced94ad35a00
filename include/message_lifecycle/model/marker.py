"""Limit markers: what tells a reader that a key's last message went, and why (MRK-1, MRK-3)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Header, NewMessage
from message_lifecycle.model.rows import RemovalReason
from message_lifecycle.model.ttl import TTL_HEADER

REASON_HEADER = "Nats-Marker-Reason"
ROLLUP_HEADER = "Nats-Rollup"
KV_HEADER = "KV-Operation"
MarkerReason = Literal["MaxAge", "Remove", "Purge"]

REASONS: dict[RemovalReason, MarkerReason] = {
    "expiry": "MaxAge",
    "ttl": "MaxAge",
    "retention_age": "MaxAge",
    "removed": "Remove",
    "purged": "Purge",
}
"""Retention by count or bytes, and a marker that a new one replaces, make none (DEL-9, MRK-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker without its offset, which publishing gives (MRK-4). `replaces`: the offset of the newest message that it stands for;
    markers of one run are in the order of (partition, replaces)."""

    partition: int
    replaces: int
    key: bytes
    reason: MarkerReason
    append_time: Instant
    ttl_us: int

    @property
    def headers(self) -> tuple[Header, ...]:
        return (
            (REASON_HEADER, self.reason.encode()),
            (TTL_HEADER, go_duration(self.ttl_us).encode()),
            (ROLLUP_HEADER, b"sub"),
        )

    def message(self) -> NewMessage:
        return NewMessage(append_time=self.append_time, key=self.key, value=b"", partition=self.partition, headers=self.headers)


def is_marker(headers: Iterable[Header]) -> bool:
    return any(name == REASON_HEADER for name, _ in headers)


def causes_none(headers: Iterable[Header]) -> bool:
    """A marker, or a purge entry of a key-value store, leaves no marker when it goes (MRK-3)."""
    return any(name == REASON_HEADER or (name == KV_HEADER and value == b"PURGE") for name, value in headers)


def go_duration(us: int) -> str:
    """Whole seconds as Go prints them: `1s`, `1m0s`, `1h0m0s`."""
    seconds = us // 1_000_000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    shown = f"{seconds % 60}s"
    if hours or minutes:
        shown = f"{minutes}m{shown}"
    return f"{hours}h{shown}" if hours else shown


def digest(markers: Iterable[Marker]) -> str:
    """Of all of them, in order, without offsets: what the gate judges is what is published (MRK-4)."""
    text = json.dumps([[m.partition, m.key.hex(), m.reason, m.append_time, m.ttl_us] for m in markers])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
