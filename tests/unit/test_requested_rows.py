"""Requested messages of files: by offsets and keys, against the memory store (DEL-8, PRG-1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.errors import PartlyUnavailable
from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.message import RowAnswer, offsets_of
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, RemoveRanges, Request, TruncateLog
from message_lifecycle.stores.iceberg import due_rows, file_tasks
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.memory import rows as memory
from message_lifecycle.stores.memory.tables import Version
from tests.engines import ForeignTasks
from tests.errors import raises
from tests.listed_rows import ListedRows, ListedVectors, opening
from tests.unit.test_due_rows import AS_OF, Snapshot, message
from tests.unit.test_due_rows import File as OneSegment
from tests.unit.test_limited_rows import File, tables

Bounds = Sequence[tuple[bool, bool]]
"""Whether the metadata of each file have its first and its last offset."""

_PARTITIONS, _OFFSETS = st.integers(0, 3), st.one_of(st.integers(0, 32), st.just(INT64_MAX))
_RANGES = st.tuples(_PARTITIONS, _OFFSETS, _OFFSETS).map(lambda drawn: (drawn[0], min(drawn[1:]), max(drawn[1:])))
_BOUNDS = st.sampled_from([(True, True), (True, True), (True, False), (False, True), (False, False)])
_KEYS = st.sampled_from([b"", b"a", b"b", b"c"])
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(RemoveMessages, positions=st.lists(st.tuples(_PARTITIONS, _OFFSETS), min_size=1, max_size=8).map(tuple)),
    st.builds(RemoveRanges, ranges=st.lists(_RANGES, min_size=1, max_size=4).map(tuple)),
    st.builds(PurgeKey, key=_KEYS),
    st.builds(PurgeKey, key=_KEYS, before=st.integers(0, 32)),
    st.builds(PurgeKey, key=_KEYS, keep=st.integers(1, 3)),
    st.builds(TruncateLog, partition=_PARTITIONS, before=st.integers(1, 32)),
    _RANGES.map(lambda drawn: RemoveNullKeys(partition=drawn[0], first=drawn[1], last=drawn[2])),
)


def of_table(files: Sequence[File], bounds: Bounds, request: Request) -> RowAnswer:
    def named(path: str) -> File:
        return next(file for file in files if path.endswith(f"/{file.name}"))

    def listed(path: str) -> ListedRows:
        return ListedRows(named(path).rows, keys=[m.key for m in named(path).messages])

    metrics = []
    for file, (has_first, has_last) in zip(files, bounds, strict=True):
        first, last = file.metrics.first_offset, file.metrics.last_offset
        metrics.append(file.metrics._replace(first_offset=first if has_first else None, last_offset=last if has_last else None))
    table, snapshot = Snapshot(), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_rows, "files_of", lambda *_: metrics)
        patch.setattr(due_rows, "Vectors", lambda *_: ListedVectors(lambda path: named(path).rows))
        patch.setattr(due_rows, "open_rows", opening(listed))
        patch.setattr(file_tasks, "FILES_OF_TASK", 1)
        here, by_tasks = (
            due_rows.requested_rows(table, snapshot, request, as_of=AS_OF, unsealed=frozenset(), engine=engine)
            for engine in (lambda: None, ForeignTasks().engine)
        )
    assert here == by_tasks
    return here


def of_memory(files: Sequence[File], request: Request) -> RowAnswer:
    stored = [m for file in files for m in file.messages if m.offset not in file.removed]
    ends = dict.fromkeys({m.partition for m in stored}, 31)
    return memory.requested_rows(Version(messages={(m.partition, m.offset): m for m in stored}, end_offsets=ends), request, AS_OF)


@given(tables().flatmap(lambda files: st.tuples(st.just(files), st.lists(_BOUNDS, min_size=len(files), max_size=len(files)))), REQUESTS)
@settings(max_examples=400, deadline=None)
def test_a_table_finds_the_requested_messages_of_memory(drawn: tuple[list[File], Bounds], request_: Request) -> None:
    files, bounds = drawn
    of_files, of_messages = of_table(files, bounds, request_), of_memory(files, request_)
    assert taken(of_files) == taken(of_messages)
    live = {file.name: len(file.messages) - len(file.removed) for file in files}
    assert all(sum(entry.rows for entry in of_files.due if entry.file == name) == live[name] for name in of_files.whole)
    for entry in of_files.due:
        offsets = list(offsets_of(entry.taken))
        assert (entry.rows, entry.first_offset, entry.last_offset) == (len(offsets), offsets[0], offsets[-1])


def taken(answer: RowAnswer) -> Mapping[tuple[int, int], str]:
    return {(entry.partition, offset): entry.reason for entry in answer.due for offset in offsets_of(entry.taken)}


def test_a_request_is_cut_to_the_bounds_of_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends before a file, or begins after it, does not open the file."""
    files = [OneSegment(f"f{first}", [message(offset) for offset in range(first, first + 5)]) for first in (0, 5, 10)]
    offsets_of_files = dict[str, str]()

    def answer(_search: object, _io: object, one: Any) -> list[int]:
        offsets_of_files[one.file.name] = one.offsets
        return []

    monkeypatch.setattr(due_rows, "files_of", lambda *_: [file.metrics for file in files])
    monkeypatch.setattr(due_rows, "Vectors", lambda *_: ListedVectors(lambda _path: files[0].rows))
    monkeypatch.setattr(due_rows._RequestSearch, "answer", answer)
    request = RemoveRanges(ranges=((0, 2, 4), (0, 10, 11), (0, 14, 20), (0, 21, 30), (1, 5, 9)))
    due_rows.requested_rows(Snapshot(), None, request, as_of=AS_OF, unsealed=frozenset())  # stands for a table
    assert offsets_of_files == {"f0": "2-4", "f10": "10-11,14-30"}


# Requested messages in real files.


def requested(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    columns: Mapping[str, pa.Array],
    request: Request,
    *,
    engines: Sequence[Callable[[], Any]] = (lambda: None, ForeignTasks().engine),
) -> list[tuple[str, int]]:
    """Return the requested messages of two files with these columns. Bounds and offsets of the files are 0 to 4."""
    messages = [message(offset) for offset in range(5)]
    files = [OneSegment(name, messages) for name in ("a", "b")]
    for file in files:
        pq.write_table(pa.table(columns), folder / file.name)
    table: Any = SimpleNamespace(io=LakeFileIO(), location=lambda: str(folder), name=lambda: ("lake", "topic"))
    monkeypatch.setattr(due_rows, "files_of", lambda *_: [file.metrics for file in files])
    monkeypatch.setattr(due_rows, "Vectors", lambda *_: ListedVectors(lambda _path: files[0].rows))
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    snapshot: Any = None
    here, *others = [
        due_rows.requested_rows(table, snapshot, request, as_of=AS_OF, unsealed=frozenset(), engine=engine) for engine in engines
    ]
    assert all(other == here for other in others)
    assert [entry.file for entry in here.due] in ([], ["a", "b"])
    return [(entry.taken, entry.rows) for entry in here.due[:1]]


OFFSETS = pa.array([0, 1, 2, 3, 4], pa.int64())
KEYED = {"offset": OFFSETS, "key": pa.array([b"a", None, b"b", b"a", None], pa.binary())}
TEXTS = {"offset": OFFSETS, "key": pa.array(["a", None, "b", "a", None], pa.large_string())}


@pytest.mark.parametrize("columns", [KEYED, TEXTS], ids=["bytes", "text"])
@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (PurgeKey(key=b"a"), [("0,3", 2)]),
        (PurgeKey(key=b"a", before=3), [("0", 1)]),
        (PurgeKey(key=b"c"), []),
        (RemoveNullKeys(partition=0, first=2, last=INT64_MAX), [("4", 1)]),
        (RemoveNullKeys(partition=1, first=0, last=4), []),
        (RemoveMessages(positions=((0, 4), (0, 2), (0, INT64_MAX), (1, 1))), [("2,4", 2)]),
        (RemoveRanges(ranges=((0, 3, INT64_MAX), (0, 1, 1), (0, 1, 2))), [("1-4", 4)]),
        (TruncateLog(partition=0, before=2), [("0-1", 2)]),
    ],
)
def test_requested_messages_are_found_by_offset_and_by_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: Mapping[str, pa.Array], request_: Request, wanted: list[tuple[str, int]]
) -> None:
    assert requested(monkeypatch, tmp_path, columns, request_) == wanted


ENGINES = pytest.mark.parametrize("engine", [lambda: None, ForeignTasks().engine], ids=["this process", "tasks"])


@ENGINES
@pytest.mark.parametrize("request_", [PurgeKey(key=b"a"), RemoveNullKeys(partition=0, first=1, last=3)], ids=["a key", "null keys"])
def test_the_keys_of_a_file_without_the_column_are_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: Callable[[], Any], request_: Request
) -> None:
    """Another engine may have renamed the column since. Unknown keys are not null."""
    columns = {"offset": OFFSETS, "old name": KEYED["key"]}
    with raises("KeysUnknown", match="a: the file has no column `key`", kind=PartlyUnavailable):
        requested(monkeypatch, tmp_path, columns, request_, engines=[engine])
    assert requested(monkeypatch, tmp_path, columns, TruncateLog(partition=0, before=2), engines=[engine]) == [("0-1", 2)]


@ENGINES
@pytest.mark.parametrize("request_", [PurgeKey(key=b"a"), TruncateLog(partition=0, before=2)], ids=["a key", "truncation"])
def test_a_requested_message_without_an_offset_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: Callable[[], Any], request_: Request
) -> None:
    columns = {**KEYED, "offset": pa.array([0, 1, 2, None, 4], pa.int64())}
    with raises("MessageWithoutPlace"):
        requested(monkeypatch, tmp_path, columns, request_, engines=[engine])
