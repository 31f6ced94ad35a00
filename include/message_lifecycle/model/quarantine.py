"""What lies in the quarantine beside a topic: rows that broke a rule, by the files that hold them (QUA-1)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter

from message_lifecycle.model.instants import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineFile:
    """`oldest_at`, `newest_at`: when its rows were refused; None: the metadata does not say. `rows`: those still to be read."""

    name: str
    rows: int
    size_bytes: int
    oldest_at: Instant | None
    newest_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineState:
    """The quarantine at its newest snapshot, by metadata alone. `snapshot_id` None: nothing was ever refused."""

    table_uuid: str
    snapshot_id: int | None
    files: tuple[QuarantineFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CameBack:
    """What an undo has brought back to the quarantine, by the `times` at which it was refused, spans in order of which none meet;
    `detail`: what lets it go (DEL-7)."""

    times: tuple[tuple[int, int], ...]
    detail: str

    def may_be(self, file: QuarantineFile) -> bool:
        """Whether a row of the file may have come back: an erasure, or another writer, may have written the file anew since."""
        if file.oldest_at is None or file.newest_at is None:
            return True
        at = bisect_right(self.times, int(file.newest_at), key=itemgetter(0)) - 1
        return at >= 0 and self.times[at][1] >= file.oldest_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReturning:
    """Files that a plan took and that are not in the quarantine now, with the oldest and newest time of their rows. `source_id`: the
    snapshot that holds them. `present`: rows that it took and that are there again already."""

    source_id: int
    files: tuple[tuple[QuarantineFile, tuple[Instant, Instant]], ...]
    present: int
