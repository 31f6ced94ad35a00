"""The capabilities of the catalog, declared per class of catalog and found by the class of the open catalog.

Neither an address nor a part of a name decides. A catalog without a declaration gets the defaults, which are right for every catalog.

A catalog reports some capabilities itself. `ViewCatalog` is an interface of its class. A REST catalog names its endpoints in `/v1/config`,
which Iceberg's library reads (`transaction.commits_at_once`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CatalogUnavailable

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.java import Java, Jvm


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a catalog.

    Args:
        places_tables: The catalog chooses the folders of new tables. False: new tables go to the folder in its setting `warehouse`.
        may_lower_format: The catalog may create a table with an older format version than requested, without an error.
        has_transactions: The catalog may offer to commit several tables at once. An operator states whether such a commit is atomic
            (`Jvm.is_atomic`).
        keeps_views: The class of the catalog has methods for views.
        has_sql_rows: PyIceberg's catalog is the table `iceberg_tables` of a SQL database, so that its rows can be read directly.
    """

    places_tables: bool = True
    may_lower_format: bool = True
    has_transactions: bool = False
    keeps_views: bool = False
    has_sql_rows: bool = False


DECLARED: dict[str, Capabilities] = {
    # JDBC, Hive, Glue, Nessie and others are its subclasses. Iceberg's library writes the metadata and gives the catalog their location.
    "org.apache.iceberg.BaseMetastoreCatalog": Capabilities(places_tables=False, may_lower_format=False),
    "org.apache.iceberg.rest.RESTCatalog": Capabilities(has_transactions=True),
    "pyiceberg.catalog.sql.SqlCatalog": Capabilities(has_sql_rows=True),
}
"""By the name of a class, of Java or of PyIceberg. A class without an entry uses the entry of its nearest superclass in Java."""
# PyIceberg's classes that have an entry, by their `type`.
_PYICEBERG_TYPES = {"sql": "pyiceberg.catalog.sql.SqlCatalog"}
_UNDECLARED = Capabilities()


def capabilities_of_java(jvm: Jvm) -> Capabilities:
    """Return the capabilities of Iceberg's own catalog."""
    declared = next((DECLARED[name] for name in _class_names(jvm.lake) if name in DECLARED), _UNDECLARED)
    # py4j's `is_instance_of` asks for its own class again each time.
    views = bool(jvm.jvm.py4j.reflection.TypeUtil.isInstanceOf("org.apache.iceberg.catalog.ViewCatalog", jvm.lake))
    return replace(declared, keeps_views=views)


def _class_names(java_object: Java) -> Iterator[str]:
    """Yield the names of the object's class and of its superclasses, nearest first."""
    found = java_object.getClass()
    while found is not None:
        yield str(found.getName())
        found = found.getSuperclass()


def capabilities_of_pyiceberg(properties: Mapping[str, str]) -> Capabilities:
    """Return the capabilities of the class that PyIceberg opens for a catalog of these properties, without opening it.

    A class of its own (`py-catalog-impl`) is found by its exact name: a subclass of SqlCatalog may keep its tables elsewhere.

    Raises:
        CatalogUnavailable: The properties name neither a type nor a class, and PyIceberg cannot infer one.
    """
    name = properties.get("py-catalog-impl")
    if name is None:
        kind = properties.get("type") or _inferred_type(properties)
        name = _PYICEBERG_TYPES.get(kind.lower(), kind)
    return DECLARED.get(name, _UNDECLARED)


def _inferred_type(properties: Mapping[str, str]) -> str:
    """Return the type that PyIceberg infers for a catalog without a configured type."""
    from pyiceberg.catalog import infer_catalog_type

    from message_lifecycle.stores.iceberg.layout import CATALOG

    try:
        found = infer_catalog_type(CATALOG, dict(properties))
    except ValueError as error:
        raise CatalogUnavailable(
            f"PyIceberg's configuration does not say which kind it is: {error}",
            advice="Set its `type` in `.pyiceberg.yaml`, as `sql` or `rest`.",
        ) from error
    return "" if found is None else found.value
