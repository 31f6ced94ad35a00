"""Messages that stay whatever the rules say: legal holds (DEL-8), and the offsets that holds and undone plans keep (DEL-7)."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from message_lifecycle.model.errors import invalid_hold
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import join_ranges_texts, parse_ranges_text, runs_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import short

_INT32_MAX = 2**31 - 1
SparedBy = Literal["hold", "undone_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTopic:
    """The whole topic, now and in future."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKey:
    """Every message of a key. In a topic of documents, the document with that name.

    Attributes:
        key: None: the hold was released. Only the digest stays, because the key may be erased later.
    """

    key: bytes | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Messages of a partition from offset `first` to `last`, both included.

    Attributes:
        last: None: future messages, too.
    """

    partition: int
    first: int
    last: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.partition <= _INT32_MAX:
            raise invalid_hold("partition", self.partition, f"0 to {_INT32_MAX}")
        if not 0 <= self.first <= INT64_MAX:
            raise invalid_hold("from", self.first, "an offset, 0 to 2^63 - 1")
        if self.last is not None and not self.first <= self.last <= INT64_MAX:
            raise invalid_hold("to", self.last, f"an offset from {self.first} (`from`) to 2^63 - 1, or none for all that come")


What = HeldTopic | HeldKey | HeldRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A legal hold.

    Attributes:
        released_at: None: the hold is active.
    """

    hold_id: str
    topic: TopicName
    what: What
    placed_by: str
    why: str
    placed_at: Instant
    released_at: Instant | None = None
    released_by: str | None = None
    released_why: str | None = None

    @property
    def is_active(self) -> bool:
        return self.released_at is None

    @property
    def description(self) -> str:
        """The hold's id, owner and reason, for reports. Never the key."""
        return f"legal hold {short(self.hold_id)} by {self.placed_by}: {self.why}"


def held_key(hold_id: str, key: bytes) -> HeldKey:
    """Return the key with a digest that only this hold uses. The same key under two holds has two digests, so nobody can match them."""
    return HeldKey(key=key, digest=hashlib.sha256(hold_id.encode() + b"\0" + key).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """Offsets `first` to `last` of a partition, both included, that stay.

    Attributes:
        last: None: no end.
        name: The id of the hold or of the plan.
        detail: The owner of the hold and the reason, for reports.
    """

    partition: int
    first: int
    last: int | None
    holder: SparedBy
    name: str
    detail: str

    @property
    def end(self) -> int:
        return INT64_MAX if self.last is None else self.last


class SparedOffsets:
    """The spared offsets of a log, for questions about many offsets."""

    def __init__(self, given: Iterable[Spared]) -> None:
        of: dict[int, list[Spared]] = {}
        for spared in given:
            of.setdefault(spared.partition, []).append(spared)
        # First and last offsets of disjoint runs, ascending, each with its hold or plan. Where several overlap, the run that began first
        # counts.
        self._runs = {partition: _merge_overlapping(entries) for partition, entries in of.items()}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def find_spared(self, partition: int, first: int, last: int) -> Spared | None:
        """Return the hold or plan that spares any of these offsets, both ends included. None if the offsets are free."""
        runs = self._runs.get(partition)
        if runs is None:
            return None
        at = bisect_left(runs.lasts, first)
        return runs.spared[at] if at < len(runs.lasts) and runs.firsts[at] <= last else None

    def between(self, partition: int, first: int | None, last: int | None) -> SparedOffsets:
        """Return the spared runs of a partition that overlap the offsets from `first` to `last`, both included. None: no bound."""
        found, runs = SparedOffsets(()), self._runs.get(partition)
        if runs is not None and first is None and last is None:
            found._runs = {partition: runs}
        elif runs is not None:
            some = slice(
                0 if first is None else bisect_left(runs.lasts, first),
                len(runs.firsts) if last is None else bisect_right(runs.firsts, last),
            )
            if runs.firsts[some]:
                found._runs = {partition: _Runs(runs.firsts[some], runs.lasts[some], runs.spared[some])}
        return found

    def split(self, partition: int, text: str) -> tuple[str, list[tuple[Spared, str]]]:
        """Return the free offsets, and the spared offsets of each hold or plan, all as `ranges_text`."""
        runs = self._runs.get(partition)
        if runs is None:
            return text, []
        free: list[range] = []
        kept: dict[Spared, list[range]] = {}
        for run in parse_ranges_text(text):
            start, at = run.start, bisect_left(runs.lasts, run.start)
            while at < len(runs.lasts) and runs.firsts[at] < run.stop:
                first, after = max(start, runs.firsts[at]), min(run.stop, runs.lasts[at] + 1)
                if start < first:
                    free.append(range(start, first))
                kept.setdefault(runs.spared[at], []).append(range(first, after))
                start, at = after, at + 1
            if start < run.stop:
                free.append(range(start, run.stop))
        return runs_text(free), [(spared, runs_text(of)) for spared, of in kept.items()]


class _Runs(NamedTuple):
    firsts: list[int]
    lasts: list[int]
    spared: list[Spared]


def _merge_overlapping(entries: Iterable[Spared]) -> _Runs:
    found = _Runs([], [], [])
    # An undone plan may spare a million runs. The runs share one value, so answers count them together.
    holders: dict[tuple[SparedBy, str, str], Spared] = {}
    after = 0
    for entry in sorted(entries, key=lambda spared: (spared.first, spared.end)):
        first = max(entry.first, after)
        if first <= entry.end:
            known = entry.holder, entry.name, entry.detail
            if known not in holders:
                holders[known] = replace(entry, first=0, last=None)
            found.firsts.append(first)
            found.lasts.append(entry.end)
            found.spared.append(holders[known])
            after = entry.end + 1
    return found


def spared_text(given: Iterable[Spared], ends: Mapping[int, int]) -> tuple[tuple[int, str], ...]:
    """Return the spared offsets of a log with these ends, by partition as `ranges_text`. A plan stores this form."""
    everything = ((partition, runs_text([range(end)])) for partition, end in sorted(ends.items()) if end)
    offsets = SparedOffsets(given)
    found = ((partition, join_ranges_texts(text for _, text in offsets.split(partition, all_)[1])) for partition, all_ in everything)
    return tuple((partition, text) for partition, text in found if text)
