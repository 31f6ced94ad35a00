"""The latest flight of each aircraft, found in the demo's files by pandas: what the compacted view of the topic must hold.

It shares no code with compaction: the rules are said again, for this one topic (CMP-1, CMP-8)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message

Flight = tuple[str, ...]
_TOLD = ("carrier", "flight", "origin", "dest", "sched_dep_time")
"""Fields that tell flights of one aircraft apart."""


def expected(folder: Path, *, shift_days: int, as_of: Instant, message_expiry_us: int) -> dict[str, Flight]:
    """Tail number -> the flight. `folder`: the files that were landed; `message_expiry_us`: 0 = never.

    Flights after `as_of` are not compacted yet; an aircraft whose latest flight is expired then is not in the view at all."""
    import pandas as pd

    files = [pd.read_parquet(path, columns=["tailnum", "time_hour", *_TOLD]) for path in sorted(folder.glob("*.parquet"))]
    flights = pd.concat(files).dropna(subset=["tailnum"])
    flights["at"] = flights["time_hour"] + pd.Timedelta(days=shift_days)
    now = pd.Timestamp(as_of, unit="us", tz="UTC")
    latest = flights[flights["at"] <= now].groupby("tailnum", sort=False).tail(1)
    alive = latest[latest["at"] + pd.Timedelta(microseconds=message_expiry_us) > now] if message_expiry_us else latest
    return {row[0]: tuple(str(field) for field in row[1:]) for row in alive[["tailnum", *_TOLD]].itertuples(index=False)}


def found(messages: Iterable[Message]) -> dict[str, list[Flight]]:
    """Tail number -> its flights among the messages; those without an aircraft are left out."""
    flights: dict[str, list[Flight]] = {}
    for message in messages:
        if message.key is not None:
            fields = json.loads(message.value or b"{}")
            flights.setdefault(message.key.decode(), []).append(tuple(str(fields.get(name)) for name in _TOLD))
    return flights


def differences(wanted: dict[str, Flight], there: dict[str, list[Flight]]) -> list[str]:
    """Aircraft whose flights in the view are not exactly the one that is wanted, in order."""
    return sorted(tail for tail in wanted.keys() | there.keys() if there.get(tail) != ([wanted[tail]] if tail in wanted else None))
