"""The tasks that read the files of a batch: their messages go to scratch files, their refused rows to the quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.instants import Instant
from message_lifecycle.sources.files import InputFile
from message_lifecycle.sources.heads import check_heads
from message_lifecycle.sources.messages import Findings, messages_of, read_slices, slices
from message_lifecycle.sources.reader import ERASED, UNREADABLE_LINE, Job, Slice
from message_lifecycle.stores.iceberg import scratch
from message_lifecycle.stores.iceberg.append import Place, results_of
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.incoming import mark_forbidden
from message_lifecycle.stores.iceberg.refused_rows import REFUSED, write_refused_batches
from message_lifecycle.stores.iceberg.scratch import Batches, Part
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.shares import Resources
from message_lifecycle.stores.iceberg.tasks import NewFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRules:
    """How the tasks of a batch read.

    Attributes:
        job: How records become messages.
        forbidden: The keys that may not come in.
        shift_days: All times move by so many days.
        description: The beginning of the jobs' descriptions.
    """

    job: Job
    forbidden: KeyMatch | None = field(default=None, repr=False)  # it has the secret of keyed hashes
    shift_days: int = 0
    description: str

    def rows(self, group: Sequence[Slice], found: Findings) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the slices, and count them in `found`."""
        mark = None if self.forbidden is None else partial(mark_forbidden, match=self.forbidden, code=ERASED, keyless=UNREADABLE_LINE)
        return read_slices(group, self.job, found, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    number: int
    slices: Sequence[Slice]
    reading: ReadingRules
    place: Place | None = None
    batch_id: str = ""
    at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """The findings of a batch, and its messages in scratch files: by partition, in the order of the log."""

    found: Findings
    parts: Mapping[int, Sequence[Part]]


def read_files(engine: Engine, files: Sequence[InputFile], reading: ReadingRules, place: Place | None = None) -> BatchContent:
    """Read the files once.

    Args:
        engine: Runs the tasks.
        files: The files to read.
        reading: How the tasks read.
        place: The place for the messages, until `remove_scratch`. None: return only the findings.

    Raises:
        MissingField: A CSV or Parquet file does not have a wanted field.
        UnreadableFile: A file is not what its name says.
        StorageRefused: A store does not hand a file out.
    """
    check_heads(files, reading.job.mapping)
    groups = [_Group(number=number, slices=group, reading=reading, place=place) for number, group in enumerate(slices(files))]
    found = Findings()
    parts: dict[int, list[Part]] = {}
    answers = results_of(engine.run(groups, _read, description=f"{reading.description}: reading {len(files)} files"))
    for group, (of_group, batches) in zip(groups, answers, strict=True):
        found.join(of_group)
        for partition, some in batches.items():
            assert place is not None
            parts.setdefault(partition, []).append(Part(path=_scratch(place, group.number), batches=some))
    return BatchContent(found=found, parts=parts)


def remove_scratch(place: Place, files: Sequence[InputFile]) -> None:
    """Remove the files that the reading tasks left in the place."""
    for number in range(len(slices(files))):
        place.store.remove(_scratch(place, number))


def _scratch(place: Place, number: int) -> str:
    return place.path(f"{number:05}{scratch.SUFFIX}")


def _read(group: _Group, _share: Resources) -> tuple[Findings, Mapping[int, Batches]]:
    """Read the slices of one task."""
    found = Findings()
    rows = group.reading.rows(group.slices, found)
    if group.place is None:
        for _ in rows:
            pass
        return found, {}
    messages = (messages_of(batch, shift_days=group.reading.shift_days) for batch in rows)
    with engine_failures():
        return found, scratch.write(group.place.store, _scratch(group.place, group.number), messages)


def write_refused_rows(
    engine: Engine, files: Sequence[InputFile], reading: ReadingRules, place: Place, *, batch_id: str, at: Instant
) -> list[NewFile]:
    """Read the files again, each by one task, and write their refused rows for the quarantine."""
    groups = [
        _Group(number=number, slices=group, reading=reading, place=place, batch_id=batch_id, at=at)
        for number, group in enumerate(slices(files, whole=True))
    ]
    description = f"{reading.description}: refused rows of {len(files)} files"
    return [
        new for new in results_of(engine.run(groups, _write_refused_rows_of_group, description=description)) if isinstance(new, NewFile)
    ]


def _write_refused_rows_of_group(group: _Group, _share: Resources) -> NewFile | None:
    assert group.place is not None and group.at is not None
    rows = (
        batch.filter(pc.and_(pc.is_valid(batch["code"]), pc.fill_null(pc.not_equal(batch["code"], ERASED), False))).select(REFUSED)
        for batch in group.reading.rows(group.slices, Findings())
    )
    with engine_failures():
        return write_refused_batches(group.place, group.number, rows, batch_id=group.batch_id, at=group.at)
