"""Which ends of a call leave open what it did, above all of a commit (DEL-4): seen as py4j and PySpark tell of them, without a JVM."""

from __future__ import annotations

import ast
from typing import Any
from unittest.mock import MagicMock

import pytest
from bench.house import modules
from py4j.protocol import Py4JError, Py4JNetworkError

from lifecycle_local.layout import project_root
from message_lifecycle.model.change import MovedTable
from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.stores.iceberg import branches, deleted_reclaim, fence, java, new_table, topic_delete
from message_lifecycle.stores.iceberg.java import result_unknown
from tests.errors import raises
from tests.java_errors import java_error, pyspark_error

PLACE = ("lake", "t1")
# A class of Java's own, of which nobody can tell whether it was raised before the catalog had done what it was told, or after.
UNKNOWN = "ArrayIndexOutOfBoundsException"
NOT_OFFERED = "UnsupportedOperationException"
of_either = pytest.mark.parametrize("made", [java_error, pyspark_error])
"""In a process that does not know Spark's SQL, and in one that does."""


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    found = MagicMock()
    for module in (deleted_reclaim, new_table, topic_delete):
        monkeypatch.setattr(module, "engine_of_process", lambda: found)
        monkeypatch.setattr(module, "identifier", lambda *_: None)
    monkeypatch.setattr(new_table, "texts", lambda *_: None)
    return found


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
    assert result_unknown(java_error(name))


@pytest.mark.parametrize(
    "name", ["CommitFailedException", "ValidationException", "AlreadyExistsException", "ForbiddenException", "NotFoundException"]
)
def test_a_catalog_that_refuses_does_not(name: str) -> None:
    assert not result_unknown(java_error(name))


@pytest.mark.parametrize("name", ["RuntimeIOException", "S3Exception"])
def test_nor_does_a_store_that_takes_no_metadata_before_the_catalog_is_asked(name: str) -> None:
    assert not result_unknown(java_error(name))


def test_java_that_does_not_answer_leaves_it_open() -> None:
    assert result_unknown(Py4JNetworkError("An error occurred while trying to connect to the Java server"))
    assert result_unknown(Py4JError("An error occurred while calling o1.commit"))


def test_a_call_that_there_is_no_method_for_was_not_made() -> None:
    assert not result_unknown(
        Py4JError("An error occurred while calling o1.comit. Trace:\npy4j.Py4JException: Method comit([]) does not exist")
    )
    assert not result_unknown(ValueError("of ours"))


def test_what_pyspark_makes_of_javas_own_exceptions_is_known_as_javas() -> None:
    """It does so in a process that knows Spark's SQL: a catalog that refuses an empty transaction was taken for a fault of the program."""
    error = pyspark_error("IllegalArgumentException")
    assert isinstance(error, java.thrown())
    assert java.java_class(error) == "IllegalArgumentException"
    assert java.java_message(error) == "in its words"
    assert not result_unknown(error)
    assert result_unknown(pyspark_error(UNKNOWN)), "it may have been raised by what came after the commit"


def test_what_java_raises_is_caught_by_that_word_alone() -> None:
    """Code that names py4j's errors misses PySpark's."""
    found = {
        path.rpartition("message_lifecycle/")[2]
        for path, tree in modules(project_root()).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is not None and "Py4J" in ast.unparse(node.type)
    }
    assert found == {"stores/iceberg/java.py"}


def test_a_table_that_nobody_said_was_forgotten_is_looked_for(monkeypatch: pytest.MonkeyPatch, jvm: MagicMock) -> None:
    """A run that took it for there would leave its files to a later one, and keys to them went with the table."""
    monkeypatch.setattr(deleted_reclaim, "uuid_at", lambda *_: None)
    for error in (java_error(UNKNOWN), pyspark_error(UNKNOWN), Py4JNetworkError("Answer from Java side is empty")):
        jvm.lake.dropTable.side_effect = error
        deleted_reclaim.forget(PLACE)
    monkeypatch.setattr(deleted_reclaim, "uuid_at", lambda *_: "u1")
    with raises("JavaEnded"):
        deleted_reclaim.forget(PLACE)


@of_either
def test_a_catalog_that_takes_no_table_back_says_so(jvm: MagicMock, made: Any) -> None:
    jvm.lake.registerTable.side_effect = made(NOT_OFFERED)
    assert not deleted_reclaim.register_again(PLACE, "s3://lake/t1/metadata/1.metadata.json")


@of_either
def test_a_namespace_that_another_has_made_meanwhile_is_there(jvm: MagicMock, made: Any) -> None:
    jvm.lake.createNamespace.side_effect = made("IllegalArgumentException")
    jvm.lake.namespaceExists.side_effect = [False, True]
    new_table.make_namespace("lake")


@of_either
def test_a_table_that_may_have_been_made_is_looked_for(monkeypatch: pytest.MonkeyPatch, jvm: MagicMock, made: Any) -> None:
    transaction = MagicMock()
    monkeypatch.setattr(new_table, "_begun", lambda *_: transaction)
    transaction.underlyingOps().commit.side_effect = made(UNKNOWN)
    transaction.table().uuid.return_value = "u1"
    jvm.capabilities.may_lower_format = False
    shape: Any = None
    jvm.lake.loadTable().uuid.return_value = "u1"
    assert new_table.create(PLACE, shape, properties={}, summary={})
    jvm.lake.loadTable.side_effect = made("IllegalArgumentException")
    with pytest.raises(CommitUnknown):
        new_table.create(PLACE, shape, properties={}, summary={})


@of_either
def test_a_table_that_may_have_got_its_name_is_looked_for(monkeypatch: pytest.MonkeyPatch, jvm: MagicMock, made: Any) -> None:
    plan, action = MagicMock(), MovedTable(table="", table_uuid="u1", snapshot_id=1, rows=1)
    jvm.lake.renameTable.side_effect = made(UNKNOWN)
    monkeypatch.setattr(topic_delete, "uuid_at", lambda *_: "u1")
    topic_delete._rename(plan, action, PLACE, ("lake", "t2"))
    monkeypatch.setattr(topic_delete, "uuid_at", lambda *_: None)
    with pytest.raises(CommitUnknown):
        topic_delete._rename(plan, action, PLACE, ("lake", "t2"))
    monkeypatch.setattr(topic_delete, "uuid_at", MagicMock(side_effect=made("IllegalArgumentException")))
    with pytest.raises(CommitUnknown):
        topic_delete._rename(plan, action, PLACE, ("lake", "t2"))


@of_either
def test_a_branch_that_may_have_been_set_is_looked_for(made: Any) -> None:
    table = MagicMock()
    table.manageSnapshots().commit.side_effect = made(UNKNOWN)
    branches.set_refs(table, lambda refs: refs, done=lambda: True, what="a test")
    with raises("CommitUnknown"):
        branches.set_refs(table, lambda refs: refs, done=lambda: False, what="a test")
    table.refresh.side_effect = made("IllegalArgumentException")
    with raises("CommitUnknown"):
        branches.set_refs(table, lambda refs: refs, done=lambda: True, what="a test")


@of_either
def test_a_look_that_fails_leaves_a_commit_as_unknown_as_it_was(made: Any) -> None:
    table = MagicMock(**{"refresh.side_effect": made("IllegalArgumentException")})
    with pytest.raises(CommitUnknown):
        fence.find_after_error(CommitUnknown("a test"), table, "p1", None)
