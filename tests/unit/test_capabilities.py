"""The capabilities of a catalog come from its class: neither its address nor a part of a name decides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.capabilities import DECLARED, Capabilities, capabilities_of_pyiceberg
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.java import ATOMIC, PROPERTIES, Jvm
from message_lifecycle.stores.iceberg.pointers import CatalogPointers, SqlPointers
from message_lifecycle.stores.iceberg.transaction import commits_at_once
from tests.errors import raises

METASTORE, JDBC = "org.apache.iceberg.BaseMetastoreCatalog", "org.apache.iceberg.jdbc.JdbcCatalog"
REST, OBJECT = "org.apache.iceberg.rest.RESTCatalog", "java.lang.Object"
TOY = "com.example.ToyCatalog"
HTTP, DATABASE = "https://lake.example/api", "jdbc:postgresql://rest.example/rest"


class JavaClass:
    def __init__(self, *names: str) -> None:
        self._names = names

    def getName(self) -> str:  # Java's name
        return self._names[0]

    def getSuperclass(self) -> JavaClass | None:  # Java's name
        return JavaClass(*self._names[1:]) if self._names[1:] else None


def jvm(*classes: str, views: bool = True, **settings: str) -> Jvm:
    """A JVM whose catalog has this class and these superclasses."""
    made = Jvm({f"{PROPERTIES}.{name}": value for name, value in settings.items()}, _no_java)
    interfaces = SimpleNamespace(isInstanceOf=lambda *_: views)
    made.__dict__["lake"] = SimpleNamespace(getClass=lambda: JavaClass(*classes))
    made.__dict__["jvm"] = SimpleNamespace(py4j=SimpleNamespace(reflection=SimpleNamespace(TypeUtil=interfaces)))
    return made


def _no_java(_settings: object) -> Any:
    raise AssertionError("no JVM is needed")


@pytest.mark.parametrize(
    ("classes", "settings", "warehouse"),
    [
        pytest.param((JDBC, METASTORE, OBJECT), {"type": "jdbc", "uri": DATABASE}, "s3://b/p", id="SQL at an address with rest"),
        pytest.param(
            ("com.forest.Jdbc", JDBC, METASTORE, OBJECT), {"catalog-impl": "com.forest.Jdbc"}, "s3://b/p", id="class named forest"
        ),
        pytest.param((REST, OBJECT), {"type": "rest", "uri": HTTP}, None, id="REST at an address without rest"),
        pytest.param(("com.example.Http", REST, OBJECT), {"catalog-impl": "com.example.Http"}, None, id="REST by another name"),
        pytest.param(("com.example.Arn", OBJECT), {"catalog-impl": "com.example.Arn"}, None, id="nobody declared it"),
    ],
)
def test_the_class_of_the_catalog_decides_where_tables_lie(
    classes: tuple[str, ...], settings: dict[str, str], warehouse: str | None
) -> None:
    found = jvm(*classes, **settings, warehouse="s3://b/p/")
    assert found.warehouse == warehouse
    assert found.capabilities.may_lower_format is (warehouse is None)
    assert found.capabilities.has_transactions is (REST in classes)


@pytest.mark.parametrize("text", ["", "false", "yes", "true", "TRUE"])
@pytest.mark.parametrize("classes", [(REST, OBJECT), (JDBC, METASTORE, OBJECT)], ids=["REST", "SQL"])
def test_the_setting_alone_says_that_a_catalog_is_atomic(classes: tuple[str, ...], text: str) -> None:
    assert jvm(*classes, **({ATOMIC: text} if text else {})).is_atomic is (text.lower() == "true")


def test_a_toy_kind_of_catalog_declares_its_capabilities_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = jvm(TOY, METASTORE, OBJECT, views=False, warehouse="a name", **{ATOMIC: "true"})
    with raises("NoTransactions", match="no REST catalog"):
        commits_at_once(toy)
    assert toy.warehouse == "a name"

    monkeypatch.setitem(DECLARED, TOY, Capabilities(has_transactions=True, has_sql_rows=True))
    toy = jvm(TOY, METASTORE, OBJECT, views=False, warehouse="a name", **{ATOMIC: "true"})
    toy.lake.commitTransaction = lambda _: None
    toy.jvm.java = SimpleNamespace(util=SimpleNamespace(ArrayList=list))
    assert commits_at_once(toy)
    assert toy.warehouse is None
    monkeypatch.setattr(view_file, "engine_of_process", lambda: toy)
    with raises("CatalogUnavailable", match="keeps no views"):
        view_file.put(("shop", "orders__live"), "SELECT 1", new=True)
    assert isinstance(pointers(monkeypatch, {"py-catalog-impl": TOY, "uri": HTTP}), SqlPointers)


@pytest.mark.parametrize(
    ("properties", "by_rows"),
    [
        ({"type": "sql", "uri": "postgresql+psycopg://rest.example/rest"}, True),
        ({"type": "SQL", "uri": "mysql://lake.example/lake"}, True),
        ({"py-catalog-impl": "pyiceberg.catalog.sql.SqlCatalog", "uri": "sqlite:///rest.db"}, True),
        ({"uri": "sqlite:///lake.db"}, True),
        ({"type": "rest", "uri": HTTP}, False),
        ({"uri": HTTP}, False),
        ({"type": "in-memory", "uri": "sqlite:///lake.db"}, False),
        ({"py-catalog-impl": "com.example.Own", "uri": "postgresql://lake.example/lake"}, False),
    ],
)
def test_rows_are_read_of_the_class_that_pyiceberg_opens(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], by_rows: bool
) -> None:
    assert isinstance(pointers(monkeypatch, properties), SqlPointers if by_rows else CatalogPointers)


@pytest.mark.parametrize("properties", [{"uri": "jdbc:postgresql://lake.example/lake"}, {"warehouse": "s3://lake"}])
def test_a_catalog_of_no_known_kind_is_refused_by_name(properties: dict[str, str]) -> None:
    with raises("CatalogUnavailable", match="does not say which kind.*`type`"):
        capabilities_of_pyiceberg(properties)


def pointers(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]) -> object:
    tables = Tables()
    monkeypatch.setattr(tables, "_configured", lambda: properties)
    tables.__dict__["catalog"] = SimpleNamespace()
    return tables.pointers
