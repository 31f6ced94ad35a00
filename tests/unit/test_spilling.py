"""Work on more rows than memory holds gives the same results, in the same order: the compaction and its gate, limits by key, documents,
erasure (CMP-1, CMP-2, RET-4, SNP-1)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from message_lifecycle.model.change import CompactPartition, SnapshotDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.erasure import KeyMatch, KeySecret
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import LimitQuestion
from message_lifecycle.model.rules import Limits
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg import relations
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction import PartitionJob, evidence, kernel
from message_lifecycle.stores.iceberg.documents import DocumentFile, FoldBucket, FoldJob, FoldSettings
from message_lifecycle.stores.iceberg.documents.fold import fold_bucket
from message_lifecycle.stores.iceberg.documents.store import write_changes
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder, rewrite
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.limit_rows import Files, FileWithRemainingRows
from message_lifecycle.stores.iceberg.limited import find_rows_beyond_key_limits, offsets_of
from message_lifecycle.stores.iceberg.relations import opened
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.shares import MEBIBYTE, THREAD_BYTES, Resources
from message_lifecycle.stores.iceberg.tasks import InputFile, NewFile
from tests.effort import sample

ROWS, FILES, GROUP_ROWS, VALUE_BYTES = 1_100_000, 2, 125_000, 48
MEMORY_BYTES = 80 * MEBIBYTE
"""Less than the rows' keys and values take."""
Longs = NDArray[np.int64]


def large_files(
    folder: Path, keys: Longs, chance: np.random.Generator, times: Longs | None = None, *, value_bytes: int = VALUE_BYTES
) -> list[InputFile]:
    """Write a topic's files with these keys, in the order of their offsets; one message in twenty has no value. `times`: event times."""
    found, rows = [], len(keys) // FILES
    for number in range(FILES):
        mine = keys[number * rows : (number + 1) * rows]
        kinds = {field.name: field.type for field in SCHEMA.as_arrow()}
        values = pa.Array.from_buffers(pa.binary(value_bytes), rows, [None, pa.py_buffer(chance.bytes(rows * value_bytes))])
        columns = {
            "partition": pa.array(np.zeros(rows), pa.int32()),
            "offset": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "key": pa.array(mine).cast(pa.string()).cast(kinds["key"]),
            "value": pa.array(values.to_numpy(zero_copy_only=False), kinds["value"], mask=chance.random(rows) < 0.05),
        }
        if times is not None:
            columns["event_time"] = pa.array(times[number * rows : (number + 1) * rows]).cast(kinds["event_time"])
        path = folder / f"{number}.parquet"
        every = [columns.get(name, pa.nulls(rows, kind)) for name, kind in kinds.items()]
        pq.write_table(pa.table(every, names=list(kinds)), path, row_group_size=GROUP_ROWS)
        found.append(InputFile(path=str(path), size_bytes=path.stat().st_size))
    return found


@pytest.mark.parametrize(("threads", "distinct"), sample(product((1, 2), (ROWS, ROWS // 2)), (1, ROWS // 2), (2, ROWS)))
def test_kernel_writes_offsets_in_order_beyond_its_memory(threads: int, distinct: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(distinct)
    keys = chance.permutation(ROWS) % distinct
    tail = large_files(tmp_path, keys, chance)
    rows_of_keys = {int(key): offset for offset, key in enumerate(keys.tolist())}
    values = np.concatenate([pq.read_table(file.path, columns=["value"])["value"].to_numpy() for file in tail])
    resources = Resources(
        spill_folder=str(tmp_path),
        threads=threads,
        memory_bytes=max(MEMORY_BYTES, threads * THREAD_BYTES),
        file_bytes=sum(file.size_bytes for file in tail) // 3,
        sampled_offsets=ROWS // 10,
    )
    job = PartitionJob(partition=0, after=-1, through=ROWS, view=(), tail=tuple(tail), rewrite=True, whole_tail=True)
    result = kernel.compact(job, CompactionRules(as_of=Instant(1)), resources, data_folder=str(tmp_path / "data"), run="run")
    winners = np.sort(np.array(list(rows_of_keys.values())))
    expected = winners[np.array([values[at] is not None for at in winners])]
    found = [pq.read_table(file.path, columns=["offset", "value"]) for file in result.files]
    assert len(found) > 1
    written = pa.concat_tables(found)
    assert np.array_equal(written["offset"].to_numpy(), expected)
    assert written["value"].to_pylist() == values[expected].tolist()
    assert result.removed == {
        reason: count for reason, count in (("superseded", ROWS - distinct), ("tombstoned", len(winners) - len(expected))) if count
    }


@pytest.mark.parametrize(("mebibytes", "threads"), [(8, 1), (80, 1), (96, 2), (10_000, 8)])
def test_a_small_memory_has_fewer_threads(mebibytes: int, threads: int, tmp_path: Path) -> None:
    with opened(Resources(spill_folder=str(tmp_path), threads=8, memory_bytes=mebibytes * MEBIBYTE)) as (connection, _):
        assert connection.execute("SELECT current_setting('threads')").fetchone() == (threads,)


@pytest.mark.parametrize("threads", sample([1, 2], 2))
def test_kernel_chooses_by_event_time_beyond_its_memory(threads: int, tmp_path: Path) -> None:  # CMP-12
    """In the view and in the tail. The second half of the messages is older by event time than most of the first half."""
    chance = np.random.default_rng(3)
    keys, times = chance.permutation(ROWS) % (ROWS // 2), chance.permutation(ROWS)
    files = large_files(tmp_path, keys, chance, times)
    resources = Resources(spill_folder=str(tmp_path), threads=threads, memory_bytes=max(MEMORY_BYTES, threads * THREAD_BYTES))
    rules = CompactionRules(as_of=Instant(1), tombstones_until=Instant(5), remember_until=Instant(5))
    view: tuple[InputFile, ...] = ()
    for number, file in enumerate(files):
        half = ROWS // FILES
        job = PartitionJob(partition=0, after=number * half - 1, through=(number + 1) * half - 1, view=view, tail=(file,), rewrite=True)
        result = kernel.compact(job, rules, resources, data_folder=str(tmp_path / "data"), run=f"run{number}")
        view = tuple(InputFile(path=new.path, size_bytes=new.bytes) for new in result.files)
    order = np.argsort(times)
    latest = np.zeros(ROWS // 2, np.int64)
    latest[keys[order]] = order  # the last one stays
    found = pa.concat_tables([pq.read_table(file.path, columns=["offset", "key", "event_time"]) for file in view])
    assert np.array_equal(found["offset"].to_numpy(), np.sort(latest))
    assert np.array_equal(found["event_time"].cast(pa.int64()).to_numpy(), times[np.sort(latest)])


RULES = CompactionRules(as_of=Instant(1))


def judged(
    log: list[InputFile], view: list[InputFile], resources: Resources, *, before: list[InputFile] | None = None, after: int = -1
) -> evidence.PartitionSums:
    """Return the gate's sums of the partition: a compaction of the log's messages past `after`, and of the view `before`, into this view."""
    question = evidence.PartitionQuestion(
        action=CompactPartition(partition=0, after=after, through=ROWS, rows=ROWS),
        log=tuple(log),
        before=tuple(before or ()),
        after=tuple(view),
        rules=RULES,
        rewrite=True,
    )
    return evidence._answered(question, resources)


def test_gate_judges_more_rows_than_its_memory(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    keys = chance.permutation(ROWS) % (ROWS // 2)
    tail = large_files(tmp_path, keys, chance)
    resources = Resources(spill_folder=str(tmp_path), threads=1, memory_bytes=2 * MEMORY_BYTES)
    job = PartitionJob(partition=0, after=-1, through=ROWS, view=(), tail=tuple(tail), rewrite=True, whole_tail=True)
    result = kernel.compact(job, CompactionRules(as_of=Instant(1)), resources, data_folder=str(tmp_path / "data"), run="run")
    view = [InputFile(path=file.path, size_bytes=file.bytes) for file in result.files]
    found = judged(tail, view, resources)
    assert found.fresh == {"unwanted": 0, "missing": 0, "null_keys_missing": 0, "changed": 0}
    assert (found.found["rows"], found.found["repeated_keys"], found.disordered) == (result.rows_out, 0, 0)
    twice = judged(tail, [*view, view[-1]], resources)
    assert (twice.disordered, twice.fresh["changed"]) == (1, 0)
    # Two rows change their places, one is lost, and one has another value.
    rows = pq.read_table(view[-1].path)
    order = np.arange(len(rows) - 1)
    order[[5, 6]] = order[[6, 5]]
    values = rows["value"].to_pylist()
    values[9] = b"another"
    rows = rows.set_column(rows.column_names.index("value"), rows.schema.field("value"), pa.array(values, rows.schema.field("value").type))
    pq.write_table(rows.take(order), tmp_path / "wrong.parquet")
    found = judged(tail, [*view[:-1], replace(view[-1], path=str(tmp_path / "wrong.parquet"))], resources)
    assert (found.fresh["missing"], found.fresh["changed"], found.fresh["unwanted"]) == (1, 1, 0)
    assert found.disordered == 1


def test_gate_writes_no_values_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of 20 GB with 60 million keys filled a disk of 39 GB: a join wrote whole messages to it."""
    chance, value_bytes, half = np.random.default_rng(9), 200, ROWS // FILES
    first, second = large_files(tmp_path, chance.permutation(ROWS), chance, value_bytes=value_bytes)
    resources = Resources(spill_folder=str(tmp_path), threads=1)
    views: list[list[InputFile]] = [[]]
    for number, file in enumerate((first, second)):
        after, through = number * half - 1, (number + 1) * half - 1
        job = PartitionJob(partition=0, after=after, through=through, view=tuple(views[-1]), tail=(file,), rewrite=True)
        result = kernel.compact(job, RULES, resources, data_folder=str(tmp_path / "data"), run=f"run{number}")
        views.append([InputFile(path=new.path, size_bytes=new.bytes) for new in result.files])
    settings, disk = relations._settings, ROWS * value_bytes // 4
    monkeypatch.setattr(relations, "_settings", lambda *given: {**settings(*given), "max_temp_directory_size": f"{disk}B"})
    found = judged([second], views[2], replace(resources, memory_bytes=2 * MEMORY_BYTES), before=views[1], after=half - 1)
    assert found.fresh == {"unwanted": 0, "missing": 0, "null_keys_missing": 0, "changed": 0}
    assert (found.found["old"], found.found["old_digest"]) == (found.stays["old"], found.stays["old_digest"])
    assert found.found["old"] == sum(pq.read_metadata(file.path).num_rows for file in views[1])


def test_limits_by_key_rank_more_rows_than_their_memory(tmp_path: Path) -> None:
    chance, keep = np.random.default_rng(11), 2
    keys = chance.permutation(ROWS) % (ROWS // 5)
    files = large_files(tmp_path, keys, chance)
    left = [
        FileWithRemainingRows(file=metrics(number, Path(file.path).name), rows=ROWS // FILES, lapsed=False, all=True)
        for number, file in enumerate(files)
    ]
    limits = Limits(max_records=keep, max_total_bytes=None, scope="key")
    reads = Files(
        table=cast(Any, SimpleNamespace(io=LakeFileIO())),
        vectors=cast(Any, defaultdict(lambda: np.empty(0, np.int64))),
        prefix=f"{tmp_path}/",
        as_of=Instant(1),
        beyond=LimitQuestion(limits=limits),
        memory="64MB",
    )
    found = find_rows_beyond_key_limits(reads, left, limits)
    gone = np.concatenate([offsets_of(runs) for _, runs in sorted(found.runs.items())])
    newest_first = np.lexsort((-np.arange(ROWS), keys))
    rank = np.arange(ROWS) - np.searchsorted(keys[newest_first], keys[newest_first], side="left")
    assert np.array_equal(gone, np.sort(newest_first[rank >= keep]))
    assert found.most_records == keep


def metrics(number: int, name: str) -> FileMetrics:
    rows = ROWS // FILES
    return FileMetrics(
        partition=0,
        segment=number * rows,
        name=name,
        rows=rows,
        deleted=0,
        size_bytes=1,
        first_offset=number * rows,
        last_offset=(number + 1) * rows - 1,
        oldest_at=None,
        newest_at=None,
        unknown_times=rows,
        expires_from=None,
        expires_to=None,
        without_expiry=rows,
        never=None,
        without_never=rows,
    )


def test_documents_are_folded_in_order_beyond_memory(tmp_path: Path) -> None:
    """The changes of each document lie in several files, the newest in the first, and take more than the task's memory."""
    documents, each, files = 1_500, 40, 4
    chance = np.random.default_rng(13)
    names = [f"document-{number:04}" for number in range(documents)]
    padding = {name: chance.bytes(700).hex() for name in names}
    sources = []
    for number in range(files):
        seqs = range(each - (number + 1) * each // files + 1, each - number * each // files + 1)
        changes = [
            Change(
                document=name,
                server_seq=seq,
                client="c",
                at=Instant(seq),
                payload=b'{"last": %d, "pad": "%s"}' % (seq, padding[name].encode()),
            )
            for name in names
            for seq in seqs
        ]
        new = write_changes(LakeFileIO(), str(tmp_path / f"{number}.parquet"), changes)
        sources.append(document_file(new))
    plan = tuple(SnapshotDocument(document=name, seq=each, after=0, snapshot=each, epoch=0) for name in names)
    bucket = FoldBucket(bucket=0, documents=plan, changes=tuple(sources), snapshots=())
    job = FoldJob(
        run="run",
        folder=FoldSettings(fold="json_merge_patch"),
        changes_folder=str(tmp_path),
        snapshots_folder=str(tmp_path),
        buckets=(bucket,),
    )
    made = fold_bucket(job, bucket, Resources(spill_folder=str(tmp_path), memory_bytes=64 * MEBIBYTE))
    assert (made.made, made.blocked) == (documents, ())
    (file,) = made.snapshots.files
    rows = pq.read_table(file.path)
    assert rows["document"].to_pylist() == names
    assert all(state.startswith(b'{"last":%d' % each) for state in rows["state"].to_pylist())


def document_file(new: NewFile) -> DocumentFile:
    file = InputFile(path=new.path, size_bytes=new.bytes)
    return DocumentFile(file=file, bucket=0, rows=new.rows, first_document=None, last_document=None, last_seq=None)


def test_erasure_reads_and_writes_a_row_group_at_a_time(tmp_path: Path) -> None:
    """The key lies in several row groups; every other row keeps its place, and memory holds a few row groups."""
    keys = np.arange(ROWS)
    erased = np.array([0, GROUP_ROWS - 1, 3 * GROUP_ROWS + 5, ROWS // FILES - 1])
    keys[erased] = -1
    (file, _) = large_files(tmp_path, keys, np.random.default_rng(1))
    before = pq.read_table(file.path)
    io, new, secret = LakeFileIO({}), str(tmp_path / "new.parquet"), KeySecret(b"s" * 32)
    match = KeyMatch.for_requests(secret, [secret.digests([b"-1"])])
    whole, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        gone = KeyRowFinder(match)(io, file.path, "log")
        made = rewrite(io, file.path, gone, new, (), new_puffin=str(tmp_path / "vector"), within="topic")
    finally:
        pa.set_memory_pool(whole)
    assert gone.tolist() == erased.tolist()
    assert made.rows == len(before) - len(erased)
    assert pq.read_table(new).equals(before.filter(pa.array(~np.isin(np.arange(len(before)), erased))))
    assert pool.max_memory() < 4 * before.nbytes // pq.ParquetFile(file.path).num_row_groups
