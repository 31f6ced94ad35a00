"""Who still needs a topic's messages: consumers, replicas, and compaction (EXP-6, TTL-6, CMP-9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from message_lifecycle.model.facts import Progress, ReaderKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Bound
from message_lifecycle.model.settings import Policy

READER = "compaction"
"""The name by which reports tell of the horizon (CMP-9)."""
_TOLD: dict[ReaderKind, tuple[str, str]] = {
    "consumer": ("consumer {}", "processed"),
    "replica": ("replica {}", "copied"),
    "compaction": ("{}", "compacted"),
}
"""How a reader of each kind is called, and what it has done with what it has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One that still pins, with its progress by partition."""

    name: str
    progress: dict[int, Progress]
    kind: ReaderKind
    silent_at: Instant | None
    """When it stops pinning unless it commits again; None: not known, or never."""

    def bound(self, partition: int) -> Bound:
        # Who has committed nothing in a partition has read nothing of it (unknown keeps data).
        mine = self.progress.get(partition)
        called, did = _TOLD[self.kind]
        name = called.format(self.name)
        if mine is not None and mine.lift is not None:
            return Bound(name=name, partition=partition, offset=mine.lift.through + 1, reason=mine.lift.reason)
        return Bound(
            name=name,
            partition=partition,
            offset=0 if mine is None else mine.offset + 1,
            reason=f"has {did} nothing here yet" if mine is None or mine.offset < 0 else f"has {did} up to offset {mine.offset}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Barriers:
    """`readers` pin at the run's `as_of`; `silent` are the names of those that fell silent and pin no more."""

    readers: tuple[Reader, ...]
    silent: tuple[str, ...]

    def slowest(self, partition: int, *, of_ttl: bool = False) -> tuple[Bound, ReaderKind] | None:
        """The lowest bound of a partition, and what kind of reader sets it. TTL is bound by no consumer (EXP-6)."""
        bounds = [(reader.bound(partition), reader.kind) for reader in self.readers if reader.kind != "consumer" or not of_ttl]
        return min(bounds, key=lambda found: found[0].offset or 0, default=None)

    @property
    def next_silent_at(self) -> Instant | None:
        return min((reader.silent_at for reader in self.readers if reader.silent_at is not None), default=None)


def barriers(consumers: Iterable[Progress], policy: Policy, as_of: Instant) -> Barriers:
    # By kind, too: a consumer may be called as compaction is.
    by_name: dict[tuple[str, ReaderKind], dict[int, Progress]] = {}
    for progress in consumers:
        by_name.setdefault((progress.consumer, progress.kind), {})[progress.partition] = progress
    readers, silent = [], []
    for (name, kind), progress_of in sorted(by_name.items()):
        # Alive in one partition is alive: a consumer with nothing new to read elsewhere still counts there.
        if any(progress.pins_at(as_of, policy.consumer_expiry_us) for progress in progress_of.values()):
            readers.append(Reader(name=name, progress=progress_of, kind=kind, silent_at=_silent_at(progress_of, policy)))
        else:
            silent.append(name)
    return Barriers(readers=tuple(readers), silent=tuple(silent))


def _silent_at(progress_of: dict[int, Progress], policy: Policy) -> Instant | None:
    ends = [progress.silent_at(policy.consumer_expiry_us) for progress in progress_of.values()]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None
