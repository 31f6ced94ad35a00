"""Limits by number and by size on a table's files against the memory store, message by message: whatever the files, their order, what was
removed before, and which rules of age have some (RET-1 to RET-4, DEL-9, P12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import LimitQuestion, Message, Reason, RowAnswer, RowQuestion, offsets_of
from message_lifecycle.model.rules import Limits, PeriodPassed
from message_lifecycle.stores.iceberg import due_rows, file_tasks, limit_rows
from message_lifecycle.stores.iceberg.data_rows import FileRows
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.memory import rows as memory
from message_lifecycle.stores.memory.tables import Version
from tests.engines import ForeignTasks
from tests.listed_rows import ListedRows, ListedVectors, opening
from tests.unit.test_due_rows import Snapshot, columns

AS_OF = Instant(100)
LAPSED = PeriodPassed("append_time", 60)
TTL = Reason(name="ttl", rule=PeriodPassed("expires_at", 0))
AGE = Reason(name="retention_age", rule=PeriodPassed("append_time", 80), below={0: 6, 2: 3})
TIMES = st.one_of(st.none(), st.integers(-5, 110), st.sampled_from([0, 10, 50, 90, 91]))


@dataclass(frozen=True, slots=True)
class File:
    """Of one partition and segment; `removed`: offsets that a deletion vector marks."""

    name: str
    messages: Sequence[Message]
    removed: frozenset[int]

    @property
    def metrics(self) -> FileMetrics:
        times = [m.append_time for m in self.messages if m.append_time is not None]
        ends = [m.expires_at for m in self.messages if m.expires_at is not None]
        rows = len(self.messages)
        return FileMetrics(
            partition=self.messages[0].partition,
            segment=self.messages[0].segment,
            name=self.name,
            rows=rows,
            deleted=len(self.removed),
            size_bytes=1,
            first_offset=min(m.offset for m in self.messages),
            last_offset=max(m.offset for m in self.messages),
            oldest_at=min(times, default=None),
            newest_at=max(times, default=None),
            unknown_times=rows - len(times),
            expires_from=min(ends, default=None),
            expires_to=max(ends, default=None),
            without_expiry=rows - len(ends),
            never=None,
            without_never=rows,
        )

    @property
    def rows(self) -> FileRows:
        sizes = np.array([m.size_bytes for m in self.messages], np.int64)
        read = {**columns(self.messages), "size_bytes": sizes}
        # As a reader of columns does: zero is no time.
        read["append_time"] = np.where(read["append_time"] == 0, np.iinfo(np.int64).min, read["append_time"])
        return FileRows(
            offsets=np.array([m.offset for m in self.messages], np.int64),
            columns=read,
            alive=np.array([m.offset not in self.removed for m in self.messages]),
        )


# Made once: Hypothesis looks a strategy through where it is first drawn from.
_OFFSETS = st.sets(st.integers(0, 30), max_size=14)
_KEYS = st.sampled_from([None, b"", b"a", b"b"])
_ENDS = st.sampled_from([None, None, None, Instant(50)])
_STEPS = st.sampled_from([1, 1, 1, 2])


@st.composite
def tables(draw: st.DrawFn) -> list[File]:
    files: list[File] = []
    for partition in range(draw(st.integers(1, 3))):
        offsets = sorted(draw(_OFFSETS))
        messages = [
            Message(
                partition=partition,
                offset=offset,
                append_time=None if (time := draw(TIMES)) is None else Instant(time),
                key=draw(_KEYS),
                value=b"v" * draw(st.integers(0, 20)),
                segment=0 if offset < 15 else 15,
                expires_at=draw(_ENDS),
            )
            for offset in offsets
        ]
        if draw(st.booleans()):  # as a log is mostly written
            times = iter(sorted(m.append_time for m in messages if m.append_time is not None))
            messages = [m if m.append_time is None else replace(m, append_time=next(times)) for m in messages]
        for segment in (0, 15):
            of_segment = [m for m in messages if m.segment == segment]
            while of_segment:
                # Neighbours mostly; now and then files whose offsets overlap.
                step = draw(_STEPS)
                taken = of_segment[: draw(st.integers(1, 6)) * step : step]
                of_segment = [m for m in of_segment if m not in taken]
                removed = frozenset(m.offset for m in taken if draw(st.integers(0, 4)) == 0)
                files.append(File(f"f{len(files)}", taken, removed))
    return draw(st.permutations(files))


QUESTIONS = st.builds(
    lambda limits, lapsed, dead, below, reasons: RowQuestion(
        as_of=AS_OF, reasons=reasons, beyond=LimitQuestion(limits=limits, lapsed=lapsed, dead=dead, below=below)
    ),
    st.builds(
        Limits,
        max_records=st.none() | st.integers(1, 20),
        max_total_bytes=st.none() | st.integers(1, 120),
        min_keep=st.sampled_from([0, 1]),
        scope=st.sampled_from(["topic", "partition"]),
    ),
    st.sampled_from([None, LAPSED]),
    st.sampled_from([frozenset(), frozenset({(0, 0)})]),
    st.sampled_from([{}, {0: 5}, {0: 20, 1: 0}]),
    st.sampled_from([(), (TTL,), (TTL, AGE), (AGE,)]),
)


def of_table(files: Sequence[File], question: RowQuestion) -> RowAnswer:
    def named(path: str) -> File:
        return next(file for file in files if path.endswith(f"/{file.name}"))

    def keys_at(_io: object, path: str, positions: Iterable[int]) -> pa.Array:
        return pa.array([named(path).messages[at].key for at in positions], pa.binary())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_rows, "files_of", lambda *_: [file.metrics for file in files])
        patch.setattr(due_rows, "Vectors", lambda *_: ListedVectors(lambda path: named(path).rows))
        for module in (due_rows, limit_rows):
            patch.setattr(module, "open_rows", opening(lambda path: ListedRows(named(path).rows)))
        patch.setattr(limit_rows, "read_keys", keys_at)
        table: Any = Snapshot()
        here = due_rows.due_rows(table, 1, question)
        patch.setattr(file_tasks, "FILES_OF_TASK", 1)
        assert here == due_rows.due_rows(table, 1, question, engine=ForeignTasks().engine), "tasks answer as this process does"
        return here


def of_memory(files: Sequence[File], question: RowQuestion) -> RowAnswer:
    """Another writer may have put a zero for a time; it is no time (CLK-4)."""
    stored = [replace(m, append_time=m.append_time or None) for file in files for m in file.messages if m.offset not in file.removed]
    return memory.due_rows(Version(messages={(m.partition, m.offset): m for m in stored}), question)


def found(answer: RowAnswer) -> Mapping[str, object]:
    taken = {(entry.partition, offset): entry.reason for entry in answer.due for offset in offsets_of(entry.taken)}
    held: dict[tuple[int, int, str], int] = {}
    for entry in answer.due:
        if entry.held:
            place = entry.partition, entry.base_offset, entry.reason
            held[place] = held.get(place, 0) + entry.held
    assert sum(entry.rows for entry in answer.due) == len(taken)
    return {"taken": taken, "held": held, "emptied": answer.emptied, "oversized": answer.oversized}


@given(tables(), QUESTIONS)
@settings(max_examples=600, deadline=None)
def test_a_table_answers_as_memory_does(files: list[File], question: RowQuestion) -> None:
    assert found(of_table(files, question)) == found(of_memory(files, question))


@given(tables(), QUESTIONS)
@settings(max_examples=40, deadline=None)
def test_keys_of_a_table_are_counted_as_in_memory(files: list[File], question: RowQuestion) -> None:
    assert question.beyond is not None
    of_keys = replace(question, beyond=replace(question.beyond, limits=replace(question.beyond.limits, scope="key")))
    assert found(of_table(files, of_keys)) == found(of_memory(files, of_keys))


@given(tables(), QUESTIONS)
@settings(max_examples=100, deadline=None)
def test_what_a_table_says_it_keeps_satisfies_the_limits(files: list[File], question: RowQuestion) -> None:
    assert question.beyond is not None
    limits, kept = question.beyond.limits, of_table(files, question).limited
    assert limits.max_records is None or kept.most_records <= limits.max_records
    assert limits.max_total_bytes is None or kept.most_bytes <= limits.max_total_bytes


def test_only_the_files_in_which_a_cut_falls_are_read() -> None:
    """By number, of a log of one partition or of several: the rest is told by counts and bounds."""
    read: list[str] = []

    class Counted(File):
        @property
        def rows(self) -> FileRows:
            read.append(self.name)
            return super().rows

    def file(partition: int, at: int) -> File:
        offsets = range(at * 10, at * 10 + 10)
        messages = [
            Message(partition=partition, offset=o, append_time=Instant(1 + o * 2 + partition), key=None, value=b"v", segment=0)
            for o in offsets
        ]
        return Counted(f"p{partition}-{at}", messages, frozenset())

    neighbours = {f"p{partition}-{at}" for partition in (0, 1) for at in (7, 8)}
    for partitions, records, read_at_most in ((1, 35, {"p0-6"}), (1, 40, set()), (2, 35, neighbours)):
        read.clear()
        files = [file(partition, at) for partition in range(partitions) for at in range(10)]
        question = RowQuestion(
            as_of=Instant(10_000), reasons=(), beyond=LimitQuestion(limits=Limits(max_records=records, max_total_bytes=None))
        )
        answer = of_table(files, question)
        assert set(read) <= read_at_most
        assert found(answer) == found(of_memory(files, question))


def test_a_message_without_bytes_fits_where_the_newer_ones_fit_exactly() -> None:
    def file(offset: int, size: int) -> File:
        message = Message(partition=0, offset=offset, append_time=Instant(1), key=None, value=b"v" * size, segment=0)
        return File(f"f{offset}", [message], frozenset())

    files = [file(0, 1), file(1, 0), file(2, 10)]
    question = RowQuestion(as_of=AS_OF, reasons=(), beyond=LimitQuestion(limits=Limits(max_records=None, max_total_bytes=10)))
    assert found(of_table(files, question))["taken"] == {(0, 0): "retention_bytes"}
