"""Choose data files and deletion vectors by name in the JVM, describe them, and commit them on a branch."""

from __future__ import annotations

import gzip
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import PlanConflict, Unavailable, undo_source_gone
from message_lifecycle.model.message import Place
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.branches import commit_to
from message_lifecycle.stores.iceberg.data_rows import NO_POSITIONS, Positions, VectorFiles, open_rows
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.file_tasks import files_of_tasks, naming_file
from message_lifecycle.stores.iceberg.java import Java, each
from message_lifecycle.stores.iceberg.puffin import write_vector_file as write_vectors_at
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.table_folder import absolute, is_local, local_path, location_prefix, on_disk
from message_lifecycle.stores.iceberg.tasks import NewFile, NewVector, Store, Written

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

# Sets of data files in the JVM, chosen by name.
#
# A plan names tens of thousands of files, and one call through py4j takes a tenth of a millisecond. So the names cross over as one packed
# text, and Java's own classes choose the files.


def planned_files(engine: Engine, table: Java, snapshot: Java, plan: Plan) -> Java:
    """Return the DataFileSet of the plan's files in the snapshot, without files that the snapshot lacks."""
    jvm: Java = engine.jvm
    reach = _reach(jvm, plan)
    evaluator = jvm.org.apache.iceberg.expressions.ManifestEvaluator.forPartitionFilter(reach, table.spec(), True)
    named = _by_name(jvm, location_prefix(str(table.location())), plan.selection.files)
    columns = ["file_path", "partition"]
    found = jvm.org.apache.iceberg.util.DataFileSet.create()
    for manifest in snapshot.dataManifests(table.io()):
        if evaluator.eval(manifest):
            reader = jvm.org.apache.iceberg.ManifestFiles.read(manifest, table.io(), table.specs()).filterPartitions(reach).select(columns)
            try:
                found.addAll(jvm.org.apache.iceberg.util.DataFileSet.of(_guava(jvm).collect.Iterables.filter(reader, named)))
            finally:
                reader.close()
    return found


def files_named(engine: Engine, table: Java, snapshot: Java, paths: Iterable[str]) -> list[Java]:
    """Return the data files with the given paths in the snapshot, without files that the snapshot lacks."""
    jvm: Java = engine.jvm
    named, found = _one_of(jvm, "ContentFile", "location", paths), []
    for manifest in snapshot.dataManifests(table.io()):
        reader = jvm.org.apache.iceberg.ManifestFiles.read(manifest, table.io(), table.specs())
        try:
            found += [file.copy() for file in each(_guava(jvm).collect.Iterables.filter(reader, named))]
        finally:
            reader.close()
    return found


def vectors_of(engine: Engine, table: Java, snapshot: Java, paths: Iterable[str]) -> list[Java]:
    """Return the deletion vectors of the given data files in the snapshot.

    Raises:
        PlanConflict: Deletes of an older kind may concern the files. A new vector replaces all of them, so they would be lost.
    """
    jvm: Java = engine.jvm
    predicates = _guava(jvm).base.Predicates
    named = _one_of(jvm, "DeleteFile", "referencedDataFile", paths)
    unnamed = predicates.compose(predicates.isNull(), _text_of(jvm, "DeleteFile", "referencedDataFile"))
    found = []
    for manifest in snapshot.deleteManifests(table.io()):
        reader = jvm.org.apache.iceberg.ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs())
        try:
            mine = _guava(jvm).collect.Iterables.filter(reader, getattr(predicates, "or")(named, unnamed))
            found += [file.copy() for file in each(mine)]
        finally:
            reader.close()
    vectors = [file for file in found if file.content().name() == "POSITION_DELETES"]
    if any(file.format().name() != "PUFFIN" for file in vectors):
        raise PlanConflict("staged", "the table holds position deletes of an older kind; rewrite them first")
    return vectors


def _reach(jvm: Java, plan: Plan) -> Java:
    """Return an expression of where the plan's files can be, per partition, to skip manifests and entries without any."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    spans: dict[int, tuple[int, int]] = {}
    dropped = ((run.partition, run.first_base, run.last_base) for run in plan.log_commit.drop)
    for partition, base, last_base in (*dropped, *((rows.partition, rows.base_offset, rows.base_offset) for rows in plan.log_commit.mark)):
        first, last = spans.get(partition, (base, last_base))
        spans[partition] = min(first, base), max(last, last_base)
    reach = expressions.alwaysFalse()
    for partition, (first, last) in spans.items():
        span = getattr(expressions, "and")(expressions.greaterThanOrEqual("segment", first), expressions.lessThanOrEqual("segment", last))
        reach = getattr(expressions, "or")(reach, getattr(expressions, "and")(expressions.equal("partition", partition), span))
    return reach


def _by_name(jvm: Java, prefix: str, names: Iterable[str]) -> Java:
    """Return a predicate: whether a data file's location is one of the names."""
    return _one_of(jvm, "ContentFile", "location", (absolute(prefix, name) for name in names))


def _one_of(jvm: Java, of_class: str, method: str, texts: Iterable[str]) -> Java:
    """Return a predicate: whether the method returns one of the texts for a file."""
    guava, io = _guava(jvm), jvm.java.io
    # The compressed texts cross over in a third of the time. Java's HashSet accepts null; Guava's own set raises an error.
    packed = jvm.java.util.zip.GZIPInputStream(io.ByteArrayInputStream(gzip.compress("\n".join(texts).encode(), compresslevel=1)))
    known = jvm.java.util.HashSet(io.BufferedReader(io.InputStreamReader(packed, "UTF-8")).lines().toList())
    contained = getattr(guava.base.Predicates, "in")(known)
    return guava.base.Predicates.compose(contained, _text_of(jvm, of_class, method))


def _text_of(jvm: Java, of_class: str, method: str) -> Java:
    """Return a text method of one of Iceberg's classes, as a function object."""
    method_type = jvm.java.lang.invoke.MethodType.methodType(jvm.Class.forName("java.lang.String"))
    handle = jvm.java.lang.invoke.MethodHandles.publicLookup().findVirtual(
        jvm.Class.forName(f"org.apache.iceberg.{of_class}"), method, method_type
    )
    function = jvm.Class.forName("org.apache.iceberg.relocated.com.google.common.base.Function")
    return jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)


def _guava(jvm: Java) -> Java:
    """Return Iceberg's own copy of Guava."""
    return jvm.org.apache.iceberg.relocated.com.google.common


# Copy a data file's bytes to a new path of the same table, with the table's own I/O.


_CHUNK = 8 * 1024 * 1024


def copy_file(io: FileIO, source: str, target: str) -> int:
    """Copy a file and return its number of bytes. `target` must not exist yet."""
    written = 0
    with io.new_output(target).create() as stream:
        for chunk in _chunks(io, source):
            stream.write(chunk)
            written += len(chunk)
    return written


def write_file(io: FileIO, path: str, content: bytes) -> None:
    """Write a file. `path` must not exist yet."""
    with io.new_output(path).create() as stream:
        stream.write(content)


def digest_of(io: FileIO, path: str) -> str:
    """Return the SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    for chunk in _chunks(io, path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(io: FileIO, path: str) -> Iterator[bytes]:
    # PyIceberg may read a local file whole when it opens it.
    with local_path(path).open("rb") if is_local(path) else io.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


# Restore files that a table dropped, as copies under new paths (DEL-7).
#
# The old path is unsafe. An engine that expires snapshots the old way would delete the live file together with the snapshot that had
# dropped it.


_COPY = re.compile(r"-undo-(\d{6,})\.parquet$")


def copied_from(path: str) -> int | None:
    """Return which of the plan's files a staged file is the copy of; None: no such copy."""
    found = _COPY.search(path)
    return None if found is None else int(found[1])


def originals(engine: Engine, io: FileIO, table: Java, source_id: int | None, wanted: Mapping[str, int], *, undone: str) -> dict[int, Java]:
    """Return the plan's removed files by their place in the plan. The source snapshot describes each file, and each file still exists.

    Args:
        engine: Runs the work in the JVM.
        io: Reads and writes the table's files.
        table: The table that dropped the files.
        source_id: The source snapshot. None: it is unknown.
        wanted: The place in the plan, by path.
        undone: The id of the plan to undo; the error names it.

    Raises:
        UndoSourceGone: The source snapshot or a file is missing.
    """
    source = None if source_id is None else table.snapshot(source_id)
    if source is None:
        raise undo_source_gone(undone, "the snapshot that holds what it removed has been expired")
    described = {wanted[str(file.location())]: file for file in files_named(engine, table, source, wanted)} if wanted else {}
    gone = sorted(path for path, at in wanted.items() if at not in described or not io.new_input(path).exists())
    if gone:
        raise undo_source_gone(undone, f"{len(gone)} of the {len(wanted)} files that it removed are not there any more, {gone[0]} first")
    return described


_AT_ONCE = 8
"""How many copies run at the same time: each copy waits for the disk or the store."""


def copies(
    engine: Engine, io: FileIO, table: Java, originals: Mapping[int, Java], *, undone: str
) -> Iterator[tuple[int, tuple[str, Java]]]:
    """Write the copies and yield, by place in the plan, the path and the description of each copy. Raises UndoSourceGone."""
    jvm: Java = engine.jvm
    # py4j makes a call into the JVM for every part of a name, so look these names up once for all files.
    once, locations, specs, describe = uuid.uuid4(), table.locationProvider(), dict(table.specs()), jvm.org.apache.iceberg.DataFiles.builder
    files = [originals[at] for at in sorted(originals)]
    sources = [str(file.location()) for file in files]
    paths = [str(locations.newDataLocation(f"{once}-undo-{at:06}.parquet")) for at in sorted(originals)]
    threads = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="copy")
    try:
        found = list(threads.map(partial(copy_file, io), sources, paths))
    finally:
        # Wait after a failure, too: no copy may appear after the caller has cleaned up.
        threads.shutdown(wait=True, cancel_futures=True)
    for at, file, source, path, written in zip(sorted(originals), files, sources, paths, found, strict=True):
        size = int(file.fileSizeInBytes())
        if written != size:
            raise undo_source_gone(undone, f"{source} has {written} bytes, the table says {size}")
        yield at, (path, describe(specs[file.specId()]).copy(file).withPath(path).build())


# Commit the tasks' files on a branch of their table, in one commit. For the compacted table, rows and horizon change together (CMP-4).


def commit(
    engine: Engine,
    table: Java,
    results: Sequence[Written],
    branch: str,
    *,
    properties: Mapping[str, str],
    partitioned_by: str = "partition",
) -> int:
    """Commit new files and vectors, remove the ones that they replace, and return the new snapshot's id.

    Args:
        engine: Runs the work in the JVM.
        table: The table of the branch, partitioned by one field.
        results: The changes in each partition.
        branch: The branch to commit to.
        properties: Properties of the snapshot's summary.
        partitioned_by: The name of the table's only partition field.

    Raises:
        PlanConflict: A file to replace or the branch is missing, Iceberg's own checks see a conflict, or position deletes of an older
            kind may concern the files.
        TableBusy: Other commits kept coming first.
        CommitUnknown: The catalog's answer is missing.
    """
    head, update = table.snapshot(branch), table.newRowDelta()
    replaced = {
        path for result in results for path in (*result.dropped, *result.unmarked, *(vector.data_file for vector in result.vectors))
    }
    if head is not None:
        update.validateFromSnapshot(head.snapshotId())
    if replaced:
        for vector in vectors_of(engine, table, head, replaced):
            update.removeDeletes(vector)
    dropped = {path for result in results for path in result.dropped}
    if dropped:
        old = files_named(engine, table, head, dropped)
        if len(old) != len(dropped):
            raise PlanConflict("staged", f"{len(dropped) - len(old)} of its files are not in the table any more")
        for file in old:
            update.removeRows(file)
    for result in results:
        for new in result.files:
            update.addRows(data_file(engine, table, f"{partitioned_by}={result.partition}", new))
    places = {vector.data_file: f"{partitioned_by}={result.partition}" for result in results for vector in result.vectors}
    for _, described in vector_files(engine, table, (vector for result in results for vector in result.vectors), places):
        update.addDeletes(described)
    for key, value in properties.items():
        update.set(key, value)
    commit_to(table, branch, update, what=f"committing {sum(len(result.files) for result in results)} files to branch {branch}")
    table.refresh()
    return int(table.snapshot(branch).snapshotId())


def data_file(engine: Engine, table: Java, place: str, new: NewFile) -> Java:
    """Return Iceberg's description of a file.

    Args:
        engine: Runs the work in the JVM.
        table: The table that the file is for; gives its partitioning and the settings of metrics.
        place: The file's partition, as `name=value`.
        new: The new file.
    """
    on_disk(new.path)
    jvm: Java = engine.jvm
    iceberg = jvm.org.apache.iceberg
    # The file's footer has counts and bounds, in the units of the table's own settings.
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(new.path), iceberg.MetricsConfig.forTable(table))
    described = iceberg.DataFiles.builder(table.spec()).withPath(new.path).withFormat("parquet").withFileSizeInBytes(new.bytes)
    return described.withPartitionPath(place).withMetrics(metrics).withSortOrder(table.sortOrder()).build()


def vector_files(engine: Engine, table: Java, vectors: Iterable[NewVector], places: Mapping[str, str]) -> Iterator[tuple[str, Java]]:
    """Yield the path of each data file, and Iceberg's description of its vector.

    Args:
        engine: Runs the work in the JVM.
        table: The table of the data files.
        vectors: The new vectors.
        places: The partition of each data file, as a path.
    """
    jvm: Java = engine.jvm
    build = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder
    for puffin, group in groupby(vectors, key=lambda vector: vector.puffin):
        on_disk(puffin.path)
        file = build(table.spec()).ofPositionDeletes().withFormat("puffin").withPath(puffin.path).withFileSizeInBytes(puffin.bytes)
        for new in group:
            file = file.withPartitionPath(places[new.data_file]).withReferencedDataFile(new.data_file)
            file = file.withContentOffset(new.offset).withContentSizeInBytes(new.length).withRecordCount(new.rows)
            yield new.data_file, file.build()


def written_files(results: Sequence[Written]) -> list[NewFile]:
    """Return every file that the tasks wrote, data and vectors."""
    return [new for result in results for new in (*result.files, *{vector.puffin for vector in result.vectors})]


# Mark single messages, named by file and offset, as removed on a branch, with deletion vectors that we write ourselves.
#
# A `DELETE` in SQL would search every column and file that might hold the rows. The plan already names the files, so one narrow column of
# these files gives the positions. The vectors go into one small file.


def marking_failed(kind: str, reason: str) -> Unavailable:
    """Return the error for a task that could not find the rows to mark. No row is marked then."""
    return Unavailable(
        f"finding the rows to remove failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="MarkingFailed"
    )


def delete_rows(
    engine: Engine,
    io: FileIO,
    name: TopicName,
    branch: str,
    removals: Sequence[RemoveRows],
    properties: Mapping[str, str] | None = None,
    *,
    description: Callable[[str], str],
) -> None:
    """Mark the named messages as removed, in one commit on the branch. Tasks find their rows, this process commits.

    Missing messages, and messages that are already marked, are skipped. The commit's summary counts the newly marked messages.

    Args:
        engine: Runs the tasks.
        io: Reaches the table's files.
        name: The topic.
        branch: The branch of the commit.
        removals: The messages, by file.
        properties: Properties of the commit's summary.
        description: Returns the job's description, given the words for its tasks.

    Raises:
        FileLost, FileUnreadable, MessageWithoutPlace, OffsetGivenTwice: A file is missing or damaged.
        MarkingFailed: A task failed before it read a file.
    """
    table = engine.table(name)
    prefix = location_prefix(str(table.location()))
    by_file = {absolute(prefix, file): list(group) for file, group in groupby(sorted(removals, key=_file), key=_file)}
    head = table.snapshot(branch)
    before = {str(vector.referencedDataFile()): vector for vector in vectors_of(engine, table, head, by_file)}
    update = table.newRowDelta().validateFromSnapshot(head.snapshotId())
    places = {path: (group[0].partition, group[0].base_offset) for path, group in by_file.items()}
    store = Store.of_io(io, str(table.location()))
    found = _vectors(engine, store, by_file, before, description(f"finding rows in {len(by_file)} files"))
    for path, vector in write_vector_files(engine, table, io, found, places):
        update.addDeletes(vector)
        if path in before:
            update.removeDeletes(before[path])
    for key, value in (properties or {}).items():
        update.set(key, value)
    commit_to(table, branch, update, what=f"committing {len(by_file)} vectors to branch {branch}")
    engine.forget(name)


def write_vector_files(
    engine: Engine, table: Java, io: FileIO, vectors: Iterable[tuple[str, Positions]], places: Mapping[str, Place]
) -> Iterator[tuple[str, Java]]:
    """Write one small file of vectors. Yield the path of each data file, and Iceberg's description of its vector.

    Args:
        engine: Runs the work in the JVM.
        table: The table, which names the place of the new file.
        io: Reads and writes the table's files.
        vectors: The path of each data file, with the marked positions.
        places: The segment of each data file, by its path.
    """
    path = str(table.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.puffin"))
    written = write_vectors_at(path, vectors, partial(write_file, io))
    yield from vector_files(engine, table, written, {path: f"partition={at[0]}/segment={at[1]}" for path, at in places.items()})


@dataclass(frozen=True, slots=True)
class _Removals:
    """Messages to remove from some files.

    Attributes:
        store: How a task reaches the files.
        offsets: By file, the offsets of the messages, as `ranges_text` writes them.
        marked: By file, the file with its current vector.
    """

    store: Store
    offsets: Mapping[str, Sequence[str]]
    marked: Mapping[str, str]


def _vectors(
    engine: Engine, store: Store, by_file: Mapping[str, Sequence[RemoveRows]], before: Mapping[str, Java], description: str
) -> Iterator[tuple[str, Positions]]:
    marked = {path: str(vector.location()) for path, vector in before.items()}
    items = [
        _Removals(
            store=store,
            offsets={path: [removal.offsets for removal in by_file[path]] for path in some},
            marked={path: marked[path] for path in some if path in marked},
        )
        for some in files_of_tasks(list(by_file))
    ]
    for found in engine.run(items, _marked_rows, description=description):
        if isinstance(found, Failed):
            raise found.error(marking_failed)
        yield from found


def _marked_rows(removals: _Removals, _share: Resources) -> list[tuple[str, Positions]]:
    """Return the positions of each file's new vector. A data file has only one vector, so the new one repeats earlier marks."""
    io, found = removals.store.io, []
    vectors = VectorFiles(io)
    for path, texts in removals.offsets.items():
        earlier = vectors.vector(removals.marked[path], path) if path in removals.marked else NO_POSITIONS
        with naming_file(path), open_rows(io, path, NO_POSITIONS) as rows:
            offsets, marked = rows.offsets(), ~rows.unmarked(earlier)
        for text in texts:
            marked |= is_named(offsets, text)
        found.append((path, np.flatnonzero(marked)))
    return found


def is_named(offsets: NDArray[np.int64], text: str) -> NDArray[np.bool_]:
    """Return which of the offsets a `ranges_text` names. Raises ValueError if the text is damaged."""
    if not text:
        return np.zeros(len(offsets), np.bool_)
    # `3,7-9` as 3, 7, -9: the negative numbers are the ends of runs. Python's ranges, one for each run, would take ten times as long.
    numbers = np.fromiter(map(int, text.replace("-", ",-").split(",")), np.int64)
    begins = numbers >= 0
    if not (begins[:-1] | begins[1:]).all():
        raise ValueError(f"invalid literal for offsets: {text[:50]!r} has a run with two ends")
    firsts = numbers[begins]
    lasts = firsts.copy()
    lasts[np.cumsum(begins)[~begins] - 1] = -numbers[~begins]
    at = np.searchsorted(firsts, offsets, side="right") - 1
    return np.asarray((at >= 0) & (offsets <= lasts[np.maximum(at, 0)]), np.bool_)


def _file(removal: RemoveRows) -> str:
    return removal.file
