"""Due messages of files: the kernels over bounds and columns against the rule for one message (CLK-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.hold import Spared
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import Message, Reason, RowAnswer, RowQuestion, offsets_of
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeKnown, rule_holds_from
from message_lifecycle.stores.iceberg import data_rows, due_rows, file_tasks, segments
from message_lifecycle.stores.iceberg.data_rows import FileRows
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.shares import Failed
from tests.engines import ForeignTasks
from tests.listed_rows import ListedRows, ListedVectors, opening

AS_OF = Instant(100)
TTL = Reason(name="ttl", rule=PeriodPassed("expires_at", 0))

FIELDS = st.sampled_from(["append_time", "expires_at"])
TIMES = st.one_of(st.none(), st.integers(-5, 20), st.sampled_from([INT64_MIN + 1, INT64_MAX - 5, INT64_MAX - 1, INT64_MAX]))
AFTER = st.builds(PeriodPassed, FIELDS, st.sampled_from([0, 1, 5, 2**62, INT64_MAX]))
TIMELESS = st.one_of(st.just(NeverExpires()), st.builds(TimeKnown, FIELDS), st.just(AnyOfRules((NeverExpires(), TimeKnown("expires_at")))))
RULES: st.SearchStrategy[Rule] = st.recursive(
    st.one_of(AFTER, TIMELESS, TIMELESS.map(NotRule)),
    lambda rule: st.one_of(
        st.lists(rule, max_size=3).map(lambda r: AnyOfRules(tuple(r))), st.lists(rule, max_size=3).map(lambda r: AllOfRules(tuple(r)))
    ),
    max_leaves=4,
)


def message(offset: int, *, at: int | None = 1, dies: int | None = None, never: bool = False) -> Message:
    return Message(
        partition=0,
        offset=offset,
        append_time=None if at is None else Instant(at),
        key=None,
        value=None,
        segment=0,
        headers=(),
        expires_at=None if dies is None else Instant(dies),
        never=never,
    )


@dataclass(frozen=True, slots=True)
class File:
    """A data file; `removed`: offsets that a deletion vector marks."""

    name: str
    messages: Sequence[Message]
    removed: frozenset[int] = field(default_factory=frozenset)

    @property
    def metrics(self) -> FileMetrics:
        times = [m.append_time for m in self.messages if m.append_time is not None]
        ends = [m.expires_at for m in self.messages if m.expires_at is not None]
        rows = len(self.messages)
        return FileMetrics(
            partition=0,
            segment=0,
            name=self.name,
            rows=rows,
            deleted=len(self.removed),
            size_bytes=1,
            first_offset=self.messages[0].offset,
            last_offset=self.messages[-1].offset,
            oldest_at=min(times, default=None),
            newest_at=max(times, default=None),
            unknown_times=rows - len(times),
            expires_from=min(ends, default=None),
            expires_to=max(ends, default=None),
            without_expiry=rows - len(ends),
            never=True if any(m.never for m in self.messages) else None,
            without_never=sum(not m.never for m in self.messages),
        )

    @property
    def rows(self) -> FileRows:
        return FileRows(
            offsets=np.array([m.offset for m in self.messages], np.int64),
            columns=columns(self.messages),
            alive=np.array([m.offset not in self.removed for m in self.messages]),
        )


def columns(messages: Sequence[Message]) -> Mapping[str, np.ndarray]:
    def times(found: Sequence[int | None]) -> np.ndarray:
        return np.array([data_rows.UNKNOWN if time is None else time for time in found], np.int64)

    return {
        "append_time": times([m.append_time for m in messages]),
        "expires_at": times([m.expires_at for m in messages]),
        "never": np.array([m.never for m in messages]),
    }


class Snapshot:
    """Stands for a PyIceberg table of one segment."""

    io = None

    def snapshot_by_id(self, _id: int) -> object:
        return self

    def location(self) -> str:
        return "/lake/topic"

    def name(self) -> tuple[str, ...]:
        return ("lake", "topic")


def answer(monkeypatch: pytest.MonkeyPatch, files: Sequence[File], *reasons: Reason, spared: tuple[Spared, ...] = ()) -> RowAnswer:
    def listed(path: str) -> FileRows:
        return next(file.rows for file in files if path.endswith(file.name))

    monkeypatch.setattr(due_rows, "files_of", lambda *_: [file.metrics for file in files])
    monkeypatch.setattr(due_rows, "Vectors", lambda *_: ListedVectors(listed))
    monkeypatch.setattr(due_rows, "open_rows", opening(lambda path: ListedRows(listed(path))))
    question = RowQuestion(as_of=AS_OF, reasons=reasons, spared=spared)
    here = due_rows.due_rows(Snapshot(), 1, question)  # stands for a table
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    assert here == due_rows.due_rows(Snapshot(), 1, question, engine=ForeignTasks().engine), "tasks answer as this process does"
    return here


@given(
    st.lists(
        st.builds(message, st.just(0), at=TIMES.map(lambda time: time or None), dies=TIMES, never=st.booleans()), min_size=1, max_size=5
    ),
    RULES,
)
@settings(max_examples=500, deadline=None)
def test_a_rule_means_the_same_of_a_message_a_column_and_the_bounds_of_a_file(messages: list[Message], rule: Rule) -> None:
    wanted = [INT64_MAX if (begins := rule_holds_from(rule, m)) is None else begins for m in messages]
    assert data_rows.first_times(rule, columns(messages), len(messages)).tolist() == wanted
    found = segments.first_times(rule, File("f", messages).metrics)
    assert found.some <= min(wanted)
    assert found.all == INT64_MAX or found.all >= max(wanted)


def test_a_file_without_any_message_left_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that held the segment's newest time stays when its messages go. It goes with no other: the gate counts the files named."""
    emptied = File("b", [message(1, at=9, dies=5)], removed=frozenset({1}))
    found = answer(monkeypatch, [File("a", [message(0, dies=6)]), emptied], TTL)
    assert [(entry.file, entry.taken) for entry in found.due] == [("a", "0")]
    assert set(found.whole) == {"a"}


def test_offsets_named_are_those_of_messages_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its bounds alone a file would name gaps, and what was removed before."""
    gap = File("a", [message(0, dies=5), message(7, dies=5)])
    marked = File("b", [message(8, dies=5), message(9, dies=5), message(10, dies=5)], removed=frozenset({9}))
    for entry in answer(monkeypatch, [gap, marked], TTL).due:
        assert len(list(offsets_of(entry.taken))) == entry.rows
    assert [entry.taken for entry in answer(monkeypatch, [gap, marked], TTL).due] == ["0,7", "8,10"]


def test_what_a_reader_holds_may_die_by_its_own_ttl_first(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replace(TTL, name="retention_age", rule=PeriodPassed("append_time", 50), below={0: 1})
    found = answer(monkeypatch, [File("a", [message(0, at=1, dies=5), message(1, at=1, dies=170)])], TTL, held)
    assert [(entry.reason, entry.rows, entry.held) for entry in found.due] == [("ttl", 1, 0), ("retention_age", 0, 1)]
    assert found.next_at == 170


def test_a_file_that_shows_the_newest_time_before_late_ones_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLK-4: beside a message of the future, the segment's age is the newest time that has come (EXP-4)."""
    in_time, late = File("a", [message(0, at=90, dies=95)]), File("b", [message(1, at=10_000)])
    assert answer(monkeypatch, [in_time, late], TTL).whole == {}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_microseconds_whatever_the_file_counts_in(unit: str) -> None:
    at = pa.chunked_array([pa.array([1_700_000_000_000_000, None, 0], pa.timestamp("us", "UTC"))])
    found = data_rows.time_values(at.cast(pa.timestamp(unit, "UTC")), zero_is_unknown=True)
    assert found.tolist() == [1_700_000_000_000_000, data_rows.UNKNOWN, data_rows.UNKNOWN]


def test_tasks_get_the_bounds_and_the_spared_offsets_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first due message of each file is spared, so another one is the first that may leave."""
    files = [File(f"f{at}", [message(10 * at + more, dies=at + more or None) for more in range(4)]) for at in range(3)]
    held = tuple(Spared(partition=0, first=10 * at, last=10 * at + 1, holder="hold", name="h", detail="h") for at in range(3))
    bounded = replace(TTL, below={0: 22, 1: 5}, segments=frozenset({(0, 0), (0, 99)}))

    found = answer(monkeypatch, files, bounded, spared=held).due

    assert [(entry.taken, entry.held) for entry in found] == [("1-3", 0), ("10-13", 0), ("20-21", 2)]
    assert [(entry.since, entry.free_since) for entry in found] == [(1, 2), (1, 3), (2, None)]


def test_only_a_file_with_due_messages_is_asked_for_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are most of the bytes that a search would read, and most files of a search after a removal have no due message."""
    files = [
        File("due", [message(0, dies=100), message(1, dies=101)]),
        File("left", [message(2, dies=100), message(3, dies=101)], frozenset({2})),
    ]
    opened = {file.name: ListedRows(file.rows) for file in files}
    answer(monkeypatch, files, TTL)
    monkeypatch.setattr(due_rows, "open_rows", opening(lambda path: opened[path.rpartition("/")[2]]))
    found = due_rows.due_rows(Snapshot(), 1, RowQuestion(as_of=AS_OF, reasons=(TTL,)))  # stands for a table
    assert [(entry.file, entry.taken) for entry in found.due] == [("due", "0")]
    assert found.next_at == 101
    assert {name: rows.columns_read for name, rows in opened.items()} == {"due": ["expires_at", "offset"], "left": ["expires_at"]}


def test_files_of_one_share_are_read_here_and_more_by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [File(f"f{at}", [message(10 * at, dies=1), message(10 * at + 1)]) for at in range(5)]
    answer(monkeypatch, files, TTL)
    question, tasks = RowQuestion(as_of=AS_OF, reasons=(TTL,)), ForeignTasks()
    for of_task, counts in ((5, []), (4, [2]), (1, [5])):
        tasks.counts.clear()
        monkeypatch.setattr(file_tasks, "FILES_OF_TASK", of_task)
        assert len(due_rows.due_rows(Snapshot(), 1, question, engine=tasks.engine).due) == len(files)  # stands for a table
        assert tasks.counts == counts


def test_a_lost_executor_is_named_and_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(ForeignTasks):
        def run(self, items: Sequence[object], *_: object, **_by_name: object) -> list[object]:
            return [Failed(kind="ExecutorLost", reason="it ran out of memory.") for _ in items]

    files = [File(f"f{at}", [message(10 * at, dies=1), message(10 * at + 1)]) for at in range(2)]
    answer(monkeypatch, files, TTL)
    with pytest.raises(Unavailable, match=r"finding due messages failed \(ExecutorLost\): it ran out of memory\. Nothing") as error:
        due_rows.due_rows(Snapshot(), 1, RowQuestion(as_of=AS_OF, reasons=(TTL,)), engine=Lost().engine)  # stands for a table
    assert error.value.code == "DueSearchFailed"
