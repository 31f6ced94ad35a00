"""Which ends of a commit leave open whether it was made (DEL-4): seen as py4j tells of them, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from message_lifecycle.stores.iceberg import deleted_reclaim, java
from message_lifecycle.stores.iceberg.java import result_unknown
from tests.errors import raises


def thrown(by: str) -> Py4JJavaError:
    of_class = SimpleNamespace(getSimpleName=lambda: by)
    return Py4JJavaError("An error occurred", SimpleNamespace(_target_id="o1", getClass=lambda: of_class))


@pytest.mark.parametrize(
    "name",
    [
        "CommitStateUnknownException",
        "UncheckedSQLException",
        "RESTException",
        "ServiceUnavailableException",
        "ProvisionedThroughputException",
    ],
)
def test_a_catalog_that_does_not_know_leaves_it_open(name: str) -> None:
    assert result_unknown(thrown(name))


@pytest.mark.parametrize(
    "name", ["CommitFailedException", "ValidationException", "AlreadyExistsException", "ForbiddenException", "NotFoundException"]
)
def test_a_catalog_that_refuses_does_not(name: str) -> None:
    assert not result_unknown(thrown(name))


@pytest.mark.parametrize("name", ["RuntimeIOException", "S3Exception"])
def test_nor_does_a_store_that_takes_no_metadata_before_the_catalog_is_asked(name: str) -> None:
    assert not result_unknown(thrown(name))


def test_java_that_does_not_answer_leaves_it_open() -> None:
    assert result_unknown(Py4JNetworkError("An error occurred while trying to connect to the Java server"))
    assert result_unknown(Py4JError("An error occurred while calling o1.commit"))


def test_a_call_that_there_is_no_method_for_was_not_made() -> None:
    assert not result_unknown(
        Py4JError("An error occurred while calling o1.comit. Trace:\npy4j.Py4JException: Method comit([]) does not exist")
    )
    assert not result_unknown(ValueError("of ours"))


def test_a_table_that_nobody_said_was_forgotten_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that took it for there would leave its files to a later one, and keys to them went with the table."""
    java = MagicMock()
    monkeypatch.setattr(deleted_reclaim, "engine", lambda: java)
    for name in ("identifier", "uuid_at"):
        monkeypatch.setattr(deleted_reclaim, name, lambda *_: None)
    java.lake.dropTable.side_effect = Py4JNetworkError("Answer from Java side is empty")
    deleted_reclaim.forget(("lifecycle_deleted", "t1"))
    monkeypatch.setattr(deleted_reclaim, "uuid_at", lambda *_: "u1")
    with raises("JavaEnded"):
        deleted_reclaim.forget(("lifecycle_deleted", "t1"))


def test_what_pyspark_makes_of_javas_own_exceptions_is_known_as_javas() -> None:
    """It does so in a process that knows Spark's SQL: a catalog that refuses an empty transaction was taken for a fault of the program."""
    from pyspark.errors.exceptions.captured import IllegalArgumentException

    origin = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "IllegalArgumentException"))
    error = IllegalArgumentException.__new__(IllegalArgumentException)  # to make one it asks Spark's Java
    error._origin = origin  # type: ignore[assignment]  # stands for one of Java's
    assert isinstance(error, java.thrown())
    assert java.java_class(error) == "IllegalArgumentException"
    assert not result_unknown(error)
    of_another = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "ArrayIndexOutOfBoundsException"))
    error._origin = of_another  # type: ignore[assignment]  # as above
    assert result_unknown(error), "it may have been raised by what came after the commit"
