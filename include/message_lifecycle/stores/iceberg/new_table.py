"""Tables made by Iceberg's own library, on any catalog that it knows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CatalogUnavailable, CommitUnknown
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import ALREADY_THERE, NOT_THERE, Java, Jvm, identifier, java_class, result_unknown, texts, thrown
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.witness import next_witness, read_snapshot

_VERSION = 3

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

    from message_lifecycle.stores.iceberg.pointers import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Columns, partitioning and sort order of a new table.

    `first`: the schema whose columns, with their inner fields, get the first numbers; then come the other columns of `schema`. None: number
    all columns at once.
    """

    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    first: Schema | None = None


def create(place: Place, shape: TableShape, *, properties: Mapping[str, str], summary: Mapping[str, str]) -> bool:
    """Create the table, and its namespace, with one empty snapshot that carries `summary`.

    The table appears whole or not at all. A fresh uuid names its location, so a recreated topic never meets the files of its predecessor.

    Returns:
        False if another table or a view has the name. That table or view stays as it is.

    Raises:
        CatalogUnavailable: The catalog does not answer, or created a table of an older version, which is dropped again.
        CommitUnknown: Nobody knows whether the catalog created the table.
    """
    jvm = engine_of_process()
    with engine_failures():
        make_namespace(place[0])
        try:
            transaction = _begun(jvm, place, shape, properties, summary)
        except thrown() as error:
            if java_class(error) == ALREADY_THERE:
                return False
            raise
        try:
            # Do not commit by the transaction itself. If the catalog says that the name is taken, the transaction deletes its files. But
            # the table with that name may be this very table: a client repeats a request to a database if it lost the first answer.
            transaction.underlyingOps().commit(None, transaction.currentMetadata())
        except thrown() as error:
            # Check after every error: the check does no harm, and the errors differ from catalog to catalog.
            taken = java_class(error) == ALREADY_THERE
            unknown = taken or result_unknown(error)
            try:
                there = uuid_at(jvm, place)
            except thrown():
                if not unknown:
                    raise error from None
                raise CommitUnknown(_what(place)) from error
            if there != str(transaction.table().uuid()):
                if taken or (there is not None and unknown):
                    return False
                if not unknown:
                    raise
                raise CommitUnknown(_what(place)) from error  # it may still be on its way
        if jvm.capabilities.may_lower_format:
            made = jvm.lake.loadTable(identifier(jvm, place))
            if int(made.operations().current().formatVersion()) < _VERSION:
                jvm.lake.dropTable(identifier(jvm, place), False)
                raise _older_version(place)
    return True


def make_namespace(namespace: str) -> None:
    """Make the namespace if it is missing. Raises CatalogUnavailable."""
    jvm = engine_of_process()
    with engine_failures():
        wanted = jvm.jvm.org.apache.iceberg.catalog.Namespace.of(texts(jvm, namespace))
        if jvm.lake.namespaceExists(wanted):
            return
        try:
            jvm.lake.createNamespace(wanted)
        except thrown():
            # Another process may have made the namespace since the check, and catalogs report that in different ways.
            if not jvm.lake.namespaceExists(wanted):
                raise


def _begun(jvm: Jvm, place: Place, shape: TableShape, properties: Mapping[str, str], summary: Mapping[str, str]) -> Java:
    iceberg = jvm.jvm.org.apache.iceberg
    whole = iceberg.SchemaParser.fromJson(shape.schema.model_dump_json())
    first = shape.schema if shape.first is None else shape.first
    schema = iceberg.SchemaParser.fromJson(first.model_dump_json())
    later = [field.name for field in shape.schema.fields if field.name not in first.column_names]
    # The catalog refuses a property of a column that does not exist yet.
    after = {key: value for key, value in properties.items() if key.endswith(tuple(f".{name}" for name in later))}
    table = jvm.lake.buildTable(identifier(jvm, place), schema).withProperties(dict(properties.items() - after.items()))
    table = table.withLocation(_location(jvm, place, schema))
    table = table.withPartitionSpec(iceberg.PartitionSpecParser.fromJson(schema, shape.spec.model_dump_json()))
    table = table.withSortOrder(iceberg.SortOrderParser.fromJson(schema, shape.order.model_dump_json()))
    transaction = table.createTransaction()
    if int(transaction.currentMetadata().formatVersion()) < _VERSION:
        raise _older_version(place)
    if later:
        columns = transaction.updateSchema()
        for name in later:
            columns.addColumn(name, whole.findField(name).type())
        columns.commit()
        update = transaction.updateProperties()
        for key, value in after.items():
            update.set(key, value)
        update.commit()
    # Iceberg numbers columns itself, and what reads and writes files knows ours.
    assert whole.sameSchema(transaction.table().schema()), f"{'.'.join(place)}: its columns are numbered otherwise than its shape says"
    empty = transaction.newFastAppend()
    for key, value in summary.items():
        empty.set(key, value)
    empty.commit()
    if witness := next_witness(read_snapshot(transaction.currentMetadata().currentSnapshot()), {}):
        kept = transaction.updateProperties()
        for key, value in witness.items():
            kept.set(key, value)
        kept.commit()
    return transaction


def _location(jvm: Jvm, place: Place, schema: Java) -> str:
    """Return a location with a fresh name, in the folder where the catalog itself would create the table."""
    within = jvm.warehouse or _told_of(jvm, place[0])
    if within is None:
        nobodys = (place[0], f"{place[1]}__{uuid.uuid4().hex}")
        within = str(jvm.lake.buildTable(identifier(jvm, nobodys), schema).createTransaction().table().location()).rpartition("/")[0]
    return f"{within}/{uuid.uuid4()}"


def _told_of(jvm: Jvm, namespace: str) -> str | None:
    """Return the location that the catalog states for the namespace, or None if it states none."""
    wanted = jvm.jvm.org.apache.iceberg.catalog.Namespace.of(texts(jvm, namespace))
    found = jvm.lake.loadNamespaceMetadata(wanted).get("location")
    return None if found is None else str(found).rstrip("/")


def uuid_at(jvm: Jvm, place: Place) -> str | None:
    """Return the uuid of the table that the catalog has there, or None if it has no table."""
    try:
        return str(jvm.lake.loadTable(identifier(jvm, place)).uuid())
    except thrown() as error:
        if java_class(error) in NOT_THERE:
            return None
        raise


def _older_version(place: Place) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"asked for a table of format version {_VERSION}, {'.'.join(place)}, it makes an older one",
        advice="Single messages are removed by deletion vectors, which older versions do not have: use a catalog that makes such tables.",
    )


def _what(place: Place) -> str:
    return f"making the table {'.'.join(place)}"
