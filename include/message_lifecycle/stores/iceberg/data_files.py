"""Data files by name, as sets that live in the JVM.

A plan names tens of thousands of files, and one call through py4j takes a tenth of a millisecond: so the names cross over as
one packed text, and the choosing is put together from what the JVM has.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.java import each
from message_lifecycle.stores.iceberg.session import Java
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession


def planned_files(session: SparkSession, table: Java, snapshot: Java, plan: Plan) -> Java:
    """The DataFileSet of the plan's files as they stand in the snapshot; files that are not there are not in it."""
    jvm: Java = session._jvm
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


def files_named(session: SparkSession, table: Java, snapshot: Java, paths: Iterable[str]) -> list[Java]:
    """The data files of these paths in the snapshot; one that is not there is not in the list."""
    jvm: Java = session._jvm
    named, found = _one_of(jvm, "ContentFile", "location", paths), []
    for manifest in snapshot.dataManifests(table.io()):
        reader = jvm.org.apache.iceberg.ManifestFiles.read(manifest, table.io(), table.specs())
        try:
            found += [file.copy() for file in each(_guava(jvm).collect.Iterables.filter(reader, named))]
        finally:
            reader.close()
    return found


def vectors_of(session: SparkSession, table: Java, snapshot: Java, paths: Iterable[str]) -> list[Java]:
    """The deletion vectors of these data files in the snapshot. Raises PlanConflict where older kinds of marks may concern them: a
    vector takes the place of all of those, so they would be lost."""
    jvm: Java = session._jvm
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
    """Where the plan's files can be, per partition: to leave out manifests, and entries, that cannot hold any."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    spans: dict[int, tuple[int, int]] = {}
    dropped = ((run.partition, run.first_base, run.last_base) for run in plan.on_log.drop)
    for partition, base, last_base in (*dropped, *((rows.partition, rows.base_offset, rows.base_offset) for rows in plan.on_log.mark)):
        first, last = spans.get(partition, (base, last_base))
        spans[partition] = min(first, base), max(last, last_base)
    reach = expressions.alwaysFalse()
    for partition, (first, last) in spans.items():
        span = getattr(expressions, "and")(expressions.greaterThanOrEqual("segment", first), expressions.lessThanOrEqual("segment", last))
        reach = getattr(expressions, "or")(reach, getattr(expressions, "and")(expressions.equal("partition", partition), span))
    return reach


def _by_name(jvm: Java, prefix: str, names: Iterable[str]) -> Java:
    """A predicate on data files: whether its location is one of the names."""
    return _one_of(jvm, "ContentFile", "location", (absolute(prefix, name) for name in names))


def _one_of(jvm: Java, of_class: str, method: str, texts: Iterable[str]) -> Java:
    """A predicate on files: whether the method gives one of the texts."""
    guava, io = _guava(jvm), jvm.java.io
    # Compressed, they cross over in a third of the time. Guava's own set refuses to be asked for null.
    packed = jvm.java.util.zip.GZIPInputStream(io.ByteArrayInputStream(gzip.compress("\n".join(texts).encode(), compresslevel=1)))
    known = jvm.java.util.HashSet(io.BufferedReader(io.InputStreamReader(packed, "UTF-8")).lines().toList())
    contained = getattr(guava.base.Predicates, "in")(known)
    return guava.base.Predicates.compose(contained, _text_of(jvm, of_class, method))


def _text_of(jvm: Java, of_class: str, method: str) -> Java:
    """A method of one of Iceberg's classes that gives a text, as a function object."""
    method_type = jvm.java.lang.invoke.MethodType.methodType(jvm.Class.forName("java.lang.String"))
    handle = jvm.java.lang.invoke.MethodHandles.publicLookup().findVirtual(
        jvm.Class.forName(f"org.apache.iceberg.{of_class}"), method, method_type
    )
    function = jvm.Class.forName("org.apache.iceberg.relocated.com.google.common.base.Function")
    return jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)


def _guava(jvm: Java) -> Java:
    """Iceberg's own copy."""
    return jvm.org.apache.iceberg.relocated.com.google.common


# A data file's bytes under a fresh path of the same table, by the table's own I/O.


_CHUNK = 8 * 1024 * 1024


def copy_file(io: FileIO, source: str, target: str) -> int:
    """How many bytes were written. `target` must not be there yet."""
    written = 0
    with io.new_output(target).create() as stream:
        for chunk in _chunks(io, source):
            stream.write(chunk)
            written += len(chunk)
    return written


def write_file(io: FileIO, path: str, content: bytes) -> None:
    """`path` must not be there yet."""
    with io.new_output(path).create() as stream:
        stream.write(content)


def digest_of(io: FileIO, path: str) -> str:
    """SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    for chunk in _chunks(io, path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(io: FileIO, path: str) -> Iterator[bytes]:
    # PyIceberg's own opening of a local file may read it whole.
    with local_path(path).open("rb") if is_local(path) else io.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


# Files that a table let go, back as copies under fresh paths (DEL-7).
#
# Were its old path added again, any engine that expires snapshots the old way would delete the live file with the snapshot that had dropped it.


_COPY = re.compile(r"-undo-(\d{6})\.parquet$")


def copied_from(path: str) -> int | None:
    """Which of the plan's files a staged one is the copy of; None: it is no such copy."""
    found = _COPY.search(path)
    return None if found is None else int(found[1])


def originals(
    session: SparkSession, io: FileIO, table: Java, source_id: int | None, wanted: Mapping[str, int], *, undone: str
) -> dict[int, Java]:
    """The files by their place in the plan, which `wanted` gives by path: each described by the source, and each still there.
    Raises UndoSourceGone of the `undone` plan."""
    source = None if source_id is None else table.snapshot(source_id)
    if source is None:
        raise undo_source_gone(undone, "the snapshot that holds what it removed has been expired")
    described = {wanted[str(file.location())]: file for file in files_named(session, table, source, wanted)} if wanted else {}
    gone = sorted(path for path, at in wanted.items() if at not in described or not io.new_input(path).exists())
    if gone:
        raise undo_source_gone(undone, f"{len(gone)} of the {len(wanted)} files that it removed are not there any more, {gone[0]} first")
    return described


def copies(
    session: SparkSession, io: FileIO, table: Java, originals: Mapping[int, Java], *, undone: str
) -> Iterator[tuple[int, tuple[str, Java]]]:
    """Write them; by their place in the plan the path and the description of each copy. Raises UndoSourceGone."""
    jvm: Java = session._jvm
    once = uuid.uuid4()
    for at, file in sorted(originals.items()):
        path = str(table.locationProvider().newDataLocation(f"{once}-undo-{at:06}.parquet"))
        written = copy_file(io, str(file.location()), path)
        if written != int(file.fileSizeInBytes()):
            raise undo_source_gone(undone, f"{file.location()} has {written} bytes, the table says {file.fileSizeInBytes()}")
        spec = table.specs().get(file.specId())
        yield at, (path, jvm.org.apache.iceberg.DataFiles.builder(spec).copy(file).withPath(path).build())
