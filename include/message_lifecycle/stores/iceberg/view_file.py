"""The views next to a topic's table: the rules as SQL, reading and writing of views; and removal of scratch streams with their views."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, assert_never

from message_lifecycle.model.errors import CatalogUnavailable, ForeignTable, SparkUnavailable, TableBusy, TableUnreadable, UnknownTopic
from message_lifecycle.model.instants import INT64_MIN
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeColumn, TimeKnown
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java, Jvm, identifier, java_class, result_unknown, thrown
from message_lifecycle.stores.iceberg.layout import CATALOG, DELETED, LATEST, LIVE, STREAM_PROPERTY
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_files import delete_files, list_files
from message_lifecycle.stores.iceberg.table_folder import Metadata, is_local, local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from message_lifecycle.stores.iceberg.catalog import Tables

# Rules about messages, rendered as Spark SQL for reads: as text, because a view keeps text.
#
# Either side of a rule is written out, never negated as a whole: so each condition is true or false where a column is null, and Spark
# can hand it to the scan, which then leaves out files by their bounds.


NOW = "unix_micros(current_timestamp())"


def rule_condition(rule: Rule, as_of: str = NOW) -> str:
    """Return the condition that the rule holds.

    Args:
        rule: The rule to render as SQL.
        as_of: SQL of whole microseconds, from 0 to below INT64_MAX. No sum here can overflow with such a value.
    """
    return _side(rule, as_of, holding=True)


def rule_opposite(rule: Rule, as_of: str = NOW) -> str:
    """The opposite of `rule_condition`, true where a time is unknown."""
    return _side(rule, as_of, holding=False)


def _side(rule: Rule, as_of: str, *, holding: bool) -> str:
    match rule:
        case PeriodPassed(column, us):
            # The bound moves, not the time: a sum with a stored time could overflow, and no scan understands it.
            bound = f"timestamp_micros({as_of} - {us}L)"
            return f"({_known(column)} AND {column} <= {bound})" if holding else f"({_unknown(column)} OR {column} > {bound})"
        case NeverExpires():
            return "(never IS NOT NULL AND never)" if holding else "(never IS NULL OR NOT never)"
        case TimeKnown(column):
            return f"({_known(column)})" if holding else f"({_unknown(column)})"
        case NotRule(inner):
            return _side(inner, as_of, holding=not holding)
        case AnyOfRules(rules):
            return _join_conditions(rules, as_of, holding=holding, by="OR" if holding else "AND")
        case AllOfRules(rules):
            return _join_conditions(rules, as_of, holding=holding, by="AND" if holding else "OR")
        case never:
            assert_never(never)


def _join_conditions(rules: tuple[Rule, ...], as_of: str, *, holding: bool, by: str) -> str:
    # An empty group of rules must not change the result of the others.
    if not rules:
        return "true" if by == "AND" else "false"
    return "(" + f" {by} ".join(_side(inner, as_of, holding=holding) for inner in rules) + ")"


def _unknown(column: TimeColumn) -> str:
    return " OR ".join((f"{column} IS NULL", *(f"{column} = timestamp_micros({time})" for time in _unknown_times(column))))


def _known(column: TimeColumn) -> str:
    return " AND ".join((f"{column} IS NOT NULL", *(f"{column} <> timestamp_micros({time})" for time in _unknown_times(column))))


def _unknown_times(column: TimeColumn) -> tuple[str, ...]:
    # Spark reads the least number only as a text.
    first = f"bigint('{INT64_MIN}')"
    return ("0L", first) if column == "append_time" else (first,)


# The views next to a topic's table hide dead messages from every reader at once. Iceberg's library writes them. Reading needs no JVM.


# Iceberg's exceptions if another process was first: it made the view, used the name for a table, rewrote the view, or dropped it.
_OVERTAKEN = ("AlreadyExistsException", "CommitFailedException", "NoSuchViewException")


def write_view(tables: Tables, place: Place, text: str) -> None:
    """Make the view have this text, and replace a view without metadata.

    A view has no content besides `text`, so replacing it is safe. Its metadata may be missing because a deletion removed the view's file
    and a restored catalog names it again. Raises as `put`, ForeignTable, and TableUnreadable.
    """
    location = tables.pointers.one(place)
    if location is not None:
        try:
            if view_query(tables.at(place, location).content, place=place) == text:
                return
        except UnknownTopic:
            location = None  # dropped since
        except TableUnreadable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            drop(place)
            location = None
    put(place, text, new=location is None)


def view_query(content: Metadata, *, place: Place) -> str:
    """The view's query for Spark, from its document. Raises ForeignTable where the document is no view's."""
    newest = [version for version in content.get("versions", ()) if version["version-id"] == content.get("current-version-id")]
    if not newest:
        raise ForeignTable(".".join(place), ".".join(place))
    return next((str(one["sql"]) for one in newest[0]["representations"] if one.get("dialect") == "spark"), "")


_SAME_CATALOG = "Let SPARK_CONF_DIR and PYICEBERG_HOME name the same catalog."
_KEEPS_VIEWS = "Views need a SQL (JDBC) catalog of schema version V1 (`jdbc.schema-version`)."


def put(place: Place, text: str, *, new: bool) -> None:
    """Make the view, or replace the existing one. `new`: the view did not exist when the caller checked.

    Raises:
        TableBusy: Another process was first.
        CatalogUnavailable: The catalog has no views, or does not answer.
        StorageFull, StorageRefused: The store did not take the view's file.
    """
    with engine_failures():
        try:
            java = _java_with_views()
            _commit_view(java, place, text, new=new).createOrReplace()
        except SparkUnavailable as error:
            raise CatalogUnavailable(str(error)) from error
        except thrown() as error:
            if result_unknown(error):
                raise CatalogUnavailable(
                    f"it did not say whether the view {'.'.join(place)} was written", advice="The next look tells."
                ) from error
            kind = java_class(error)
            if kind in _OVERTAKEN:
                raise TableBusy(f"writing the view {'.'.join(place)}", 1) from error
            if kind == "NoSuchNamespaceException":
                raise CatalogUnavailable(
                    f"Spark's configuration names one without the namespace {place[0]}", advice=_SAME_CATALOG
                ) from error
            if kind == "UnsupportedOperationException":
                raise CatalogUnavailable("it keeps no views", advice=_KEEPS_VIEWS) from error
            raise


def drop(place: Place) -> None:
    """Drop the view. A missing view is no error, and neither is a catalog without views."""
    java = engine_of_process()
    with engine_failures():
        try:
            if java.capabilities.keeps_views:
                java.lake.dropView(identifier(java, place))
        except thrown() as error:
            if java_class(error) != "UnsupportedOperationException":
                raise


def _java_with_views() -> Jvm:
    """Raises CatalogUnavailable where the catalog has no views."""
    java = engine_of_process()
    if not java.capabilities.keeps_views:
        raise CatalogUnavailable("it keeps no views", advice=_KEEPS_VIEWS)
    return java


def _commit_view(java: Jvm, place: Place, text: str, *, new: bool) -> Java:
    iceberg = java.jvm.org.apache.iceberg
    view = java.lake.buildView(identifier(java, place)).withSchema(iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json()))
    view = view.withDefaultCatalog(CATALOG).withDefaultNamespace(iceberg.catalog.Namespace.empty()).withQuery("spark", text)
    warehouse = java.warehouse
    if new and warehouse is not None:
        # A view that is made again never meets the files of its predecessor.
        view = view.withLocation(f"{warehouse}/{uuid.uuid4()}")
    # Spark matches the query's columns to the schema by these names.
    return view.withProperty("spark.query-column-names", ",".join(field.name for field in SCHEMA.fields))


# Scratch streams are removed whole (tables, views and files) without Spark, because Spark's own DROP reads every file first.


def drop_stream(catalog: Catalog, namespace: str) -> None:
    """Drop the namespace and everything in it. A missing namespace is no error."""
    if not catalog.namespace_exists(namespace):
        return
    for name in catalog.list_tables(namespace):
        _drop_table(catalog, name)
        for kind in (LIVE, LATEST):
            drop((namespace, f"{name[-1]}__{kind}"))
    catalog.drop_namespace(namespace)


def drop_deleted(tables: Tables, streams: str) -> None:
    """Tables of deleted topics of streams that begin so."""
    for place, location in tables.pointers.all(DELETED):
        if tables.at(place, location).properties.get(STREAM_PROPERTY, "").startswith(streams):
            _drop_table(tables.catalog, place)


def _drop_table(catalog: Catalog, place: tuple[str, ...]) -> None:
    """With its files."""
    table = catalog.load_table(place)
    location, io = table.location(), table.io
    # While the table is there: keys that a catalog gives out for it go with it, and so does the way to what is left.
    files = [] if is_local(location) else [file.name for file in list_files(io, location)]
    catalog.drop_table(place)
    if is_local(location):
        shutil.rmtree(local_path(location), ignore_errors=True)
    else:
        delete_files(io, location, files)
