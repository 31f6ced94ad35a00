"""Scratch streams taken away whole: tables, views and files, without Spark, for its own DROP looks at every file first."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.layout import DELETED, LATEST, LIVE, STREAM_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from message_lifecycle.stores.iceberg.catalog import Tables


def drop_stream(catalog: Catalog, namespace: str) -> None:
    """All that is in the namespace, and the namespace; it is no error when there is none. Files that are not local stay where they are."""
    if not catalog.namespace_exists(namespace):
        return
    for identifier in catalog.list_tables(namespace):
        location = catalog.load_table(identifier).location()
        catalog.drop_table(identifier)
        if is_local(location):
            shutil.rmtree(local_path(location), ignore_errors=True)
        for kind in (LIVE, LATEST):
            view_file.drop((namespace, f"{identifier[-1]}__{kind}"))
    catalog.drop_namespace(namespace)


def drop_deleted(tables: Tables, streams: str) -> None:
    """Tables of deleted topics of streams that begin so."""
    for place, location in tables.pointers.all(DELETED):
        found = tables.at(place, location)
        if found.properties.get(STREAM_PROPERTY, "").startswith(streams):
            tables.catalog.drop_table(place)
            if is_local(str(found.content["location"])):
                shutil.rmtree(local_path(str(found.content["location"])), ignore_errors=True)
