"""Java tables that something happens to: another process commits at the worst moment, the catalog does not say how a commit ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from secrets import token_hex
from typing import Any

from tests.histories import set_properties

from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.engine import Engine, engine_of_process
from message_lifecycle.stores.iceberg.java import Java


class Overtaken:
    """Between the first look at the table's branches and the commit that changes them, another process commits. `times`: how often."""

    def __init__(self, table: Java, deed: Callable[[], object], *, times: int = 1) -> None:
        self._table, self._deed, self._left = table, deed, times

    def manageSnapshots(self) -> Java:  # the name is Iceberg's
        refs = self._table.manageSnapshots()
        if self._left:
            self._left -= 1
            self._deed()
        return refs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def touch(name: TopicName) -> None:
    """A commit of another process that changes no message."""
    set_properties((name.namespace, name.table()), {"another.writer": f"was here {token_hex(4)}"})


# Compiled by the Janino that Spark ships: what a catalog throws must come from Java.
_UNHEARD = """
public class Unheard implements org.apache.iceberg.TableOperations {
  private final org.apache.iceberg.TableOperations real;
  private final boolean made;
  private final RuntimeException last;
  public Unheard(Object real, Boolean made, Object last) {
    this.real = (org.apache.iceberg.TableOperations) real; this.made = made.booleanValue(); this.last = (RuntimeException) last;
  }
  public void commit(org.apache.iceberg.TableMetadata base, org.apache.iceberg.TableMetadata next) {
    if (made) real.commit(base, next);
    throw last;
  }
  public org.apache.iceberg.TableMetadata current() { return real.current(); }
  public org.apache.iceberg.TableMetadata refresh() { return real.refresh(); }
  public org.apache.iceberg.io.FileIO io() { return real.io(); }
  public org.apache.iceberg.encryption.EncryptionManager encryption() { return real.encryption(); }
  public String metadataFileLocation(String name) { return real.metadataFileLocation(name); }
  public org.apache.iceberg.io.LocationProvider locationProvider() { return real.locationProvider(); }
  public org.apache.iceberg.TableOperations temp(org.apache.iceberg.TableMetadata next) { return real.temp(next); }
  public long newSnapshotId() { return real.newSnapshotId(); }
  public boolean requireStrictCleanup() { return real.requireStrictCleanup(); }
}
"""


def unheard(table: Java, *, made: bool, by: str) -> Java:
    """The table on a catalog that loses every answer."""
    return engine_of_process().jvm.org.apache.iceberg.BaseTable(unheard_operations(table.operations(), made=made, by=by), table.name())


def unheard_operations(real: Java, *, made: bool, by: str) -> Java:
    """Iceberg's TableOperations of such a table: each commit ends with the exception `by`, after it was `made` or without."""
    jvm: Java = engine_of_process().jvm
    gateway: Java = engine_of_process().gateway
    lost = jvm.java.lang.RuntimeException("the line went dead")
    none = gateway.new_array(jvm.Object, 0)
    error = {
        "CommitStateUnknownException": lambda: jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(lost),
        "UncheckedSQLException": lambda: jvm.org.apache.iceberg.jdbc.UncheckedSQLException("Database Connection failed", none),
        "CommitFailedException": lambda: jvm.org.apache.iceberg.exceptions.CommitFailedException("Another commit came first", none),
        "AlreadyExistsException": lambda: jvm.org.apache.iceberg.exceptions.AlreadyExistsException("Table already exists", none),
    }[by]()
    given = gateway.new_array(jvm.Object, 3)
    given[0], given[1], given[2] = real, made, error
    return _unheard(engine_of_process()).getConstructors()[0].newInstance(given)


@cache
def _unheard(engine: Engine) -> Java:
    """The class, once an engine: py4j keeps a class's methods by its name."""
    compiler = engine.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(engine.jvm.java.lang.Class.forName("org.apache.iceberg.TableOperations").getClassLoader())
    compiler.cook(_UNHEARD)
    return compiler.getClassLoader().loadClass("Unheard")
