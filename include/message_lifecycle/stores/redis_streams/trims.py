"""How a removal is done to one stream: whole from the beginning as far as that goes, then entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from message_lifecycle.stores.redis_streams.entries import Field, id_of, offset_of

IDS_AT_ONCE = 1_000
"""In one text: Lua hands no more than 8,000 values to a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """`first`: how many entries go from the beginning, after which `keep_from` is the first id that may be there; `last`: the last that
    goes; `beside`: ids that go elsewhere, for something before them stays. `by_count`: all go because there were too many."""

    partition: int
    first: int
    keep_from: str
    last: str
    beside: tuple[str, ...]
    by_count: bool

    @property
    def rows(self) -> int:
        return self.first + len(self.beside)

    def arguments(self) -> list[Field]:
        """As `scripts.REPLACE` reads them."""
        texts = [" ".join(self.beside[at : at + IDS_AT_ONCE]) for at in range(0, len(self.beside), IDS_AT_ONCE)]
        how = "MAXLEN" if self.by_count else "MINID"
        return [self.partition, self.first, how, self.keep_from, self.last, len(self.beside), len(texts), *texts]


def trim_of(partition: int, end: int, takes: Callable[[int, int], bool], ids: Iterable[bytes], *, by_count: bool) -> Trim:
    """`ids`: of all entries from the first on; nothing goes from the offset `end` on."""
    first, keep_from, last = 0, "", "0-0"
    beside: list[str] = []
    for entry_id in ids:
        if not takes(partition, offset_of(entry_id)):
            keep_from = keep_from or entry_id.decode()
            continue
        last = entry_id.decode()
        if keep_from:
            beside.append(last)
        else:
            first += 1
    return Trim(
        partition=partition,
        first=first,
        keep_from=keep_from or id_of(end),
        last=last,
        beside=tuple(beside),
        by_count=by_count,
    )
