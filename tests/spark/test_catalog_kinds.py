"""The capabilities of Iceberg's own catalogs in Java, and a table made in a catalog of a toy kind."""

from __future__ import annotations

import pytest

from message_lifecycle.stores.iceberg import new_table
from message_lifecycle.stores.iceberg.capabilities import DECLARED, Capabilities
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import PROPERTIES, Jvm, identifier
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES
from message_lifecycle.stores.iceberg.shapes import MESSAGES_SHAPE

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("lake_environment")]
TOY = "org.apache.iceberg.inmemory.InMemoryCatalog"
PLACE = ("shop", "orders")


def with_catalog(**settings: str) -> Jvm:
    """Java of this process with another catalog."""
    running = engine_of_process()
    return Jvm({f"{PROPERTIES}.{name}": value for name, value in settings.items()}, lambda _: (running.gateway, None))


@pytest.mark.parametrize(
    ("package", "name", "places", "transactions", "views"),
    [
        ("rest", "RESTCatalog", True, True, True),
        ("jdbc", "JdbcCatalog", False, False, True),
        ("hive", "HiveCatalog", False, False, True),
        ("nessie", "NessieCatalog", False, False, True),
        ("hadoop", "HadoopCatalog", False, False, False),
    ],
)
def test_each_kind_of_java_answers_by_its_class(package: str, name: str, places: bool, transactions: bool, views: bool) -> None:
    jvm = with_catalog()
    jvm.__dict__["lake"] = getattr(getattr(jvm.jvm.org.apache.iceberg, package), name)()
    assert jvm.capabilities == Capabilities(places_tables=places, may_lower_format=places, has_transactions=transactions, keeps_views=views)


@pytest.mark.parametrize("declared", [False, True])
def test_a_table_lies_where_a_toy_kind_says(monkeypatch: pytest.MonkeyPatch, declared: bool) -> None:
    if declared:
        monkeypatch.setitem(DECLARED, TOY, Capabilities())
    jvm = with_catalog(**{"catalog-impl": TOY, "warehouse": "/the/rest"})
    monkeypatch.setattr(new_table, "engine_of_process", lambda: jvm)
    assert new_table.create(PLACE, MESSAGES_SHAPE, properties=TABLE_PROPERTIES, summary={})
    location = str(jvm.lake.loadTable(identifier(jvm, PLACE)).location())
    # Where the catalog chooses, tables lie in the folder of their namespace.
    assert location.rpartition("/")[0] == ("/the/rest/shop" if declared else "/the/rest")
    assert not new_table.create(PLACE, MESSAGES_SHAPE, properties=TABLE_PROPERTIES, summary={})
