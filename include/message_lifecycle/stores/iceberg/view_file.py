"""The views beside a topic's table, which hide dead messages from every reader at once: written by Iceberg's library, read without a JVM."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, cast

from message_lifecycle.model.errors import CatalogUnavailable, ForeignTable, SparkUnavailable, TableBusy
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.java import Java, Jvm, identifier, java_class, result_unknown
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.session import engine

# How Iceberg says that another process was first: it made the view, took its name for a table, wrote it anew, or dropped it.
_OVERTAKEN = ("AlreadyExistsException", "CommitFailedException", "NoSuchViewException")


def text_of(content: Mapping[str, Any], *, place: Place) -> str:
    """The view's query for Spark, from its document. Raises ForeignTable where the document is no view's."""
    newest = [version for version in content.get("versions", ()) if version["version-id"] == content.get("current-version-id")]
    if not newest:
        raise ForeignTable(".".join(place), ".".join(place))
    return next((str(told["sql"]) for told in newest[0]["representations"] if told.get("dialect") == "spark"), "")


def put(place: Place, text: str, *, new: bool) -> None:
    """Make the view, or replace what is there. `new`: it was not there when the caller looked.

    Raises TableBusy where another process was first; CatalogUnavailable where the catalog has no views, or cannot be told."""
    from py4j.protocol import Py4JError

    try:
        java = _java()
        _written(java, place, text, new=new).createOrReplace()
    except SparkUnavailable as error:
        raise CatalogUnavailable(str(error)) from error
    except Py4JError as error:
        if result_unknown(error):
            raise CatalogUnavailable(f"it did not say whether the view {'.'.join(place)} was written; the next look tells") from error
        kind = java_class(error)
        if kind in _OVERTAKEN:
            raise TableBusy(f"writing the view {'.'.join(place)}", 1) from error
        if kind == "NoSuchNamespaceException":
            raise CatalogUnavailable(f"Spark's configuration names one without the namespace {place[0]}") from error
        if kind == "UnsupportedOperationException":
            raise CatalogUnavailable("it keeps no views; views need a SQL (JDBC) catalog of schema version V1") from error
        raise


def drop(place: Place) -> None:
    """Forget the view; it is no error when there is none, nor where the catalog keeps none."""
    from py4j.protocol import Py4JJavaError

    java = cast("Jvm", engine())
    with engine_failures():
        try:
            if _keeps_views(java):
                java.lake.dropView(identifier(java, place))
        except Py4JJavaError as error:
            if java_class(error) != "UnsupportedOperationException":
                raise


def _java() -> Jvm:
    """Raises CatalogUnavailable where the catalog has no views."""
    java = cast("Jvm", engine())
    if not _keeps_views(java):
        raise CatalogUnavailable("it keeps no views; views need a SQL (JDBC) catalog of schema version V1")
    return java


def _keeps_views(java: Jvm) -> bool:
    from py4j.java_gateway import is_instance_of

    return bool(is_instance_of(java.gateway, java.lake, "org.apache.iceberg.catalog.ViewCatalog"))


def _written(java: Jvm, place: Place, text: str, *, new: bool) -> Java:
    iceberg = java._jvm.org.apache.iceberg
    view = java.lake.buildView(identifier(java, place)).withSchema(iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json()))
    view = view.withDefaultCatalog(CATALOG).withDefaultNamespace(iceberg.catalog.Namespace.empty()).withQuery("spark", text)
    warehouse = java.warehouse
    if new and warehouse is not None:
        # A view that is made again never meets the files of its predecessor.
        view = view.withLocation(f"{warehouse}/{uuid.uuid4()}")
    # Spark matches the query's columns to the schema by these names.
    return view.withProperty("spark.query-column-names", ",".join(field.name for field in SCHEMA.fields))
