"""Data files by name, as sets that live in the JVM.

A plan names tens of thousands of files, and one call through py4j takes a tenth of a millisecond: so the names cross over as
one packed text, and the choosing is put together from what the JVM has.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
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
            found += [file.copy() for file in _each(_guava(jvm).collect.Iterables.filter(reader, named))]
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
            found += [file.copy() for file in _each(mine)]
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


def _each(java_iterable: Java) -> Iterator[Java]:
    iterator = java_iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _guava(jvm: Java) -> Java:
    """Iceberg's own copy."""
    return jvm.org.apache.iceberg.relocated.com.google.common
