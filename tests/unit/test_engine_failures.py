"""Why an engine stopped, in our words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from message_lifecycle.app import wiring
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import EXIT_UNAVAILABLE, FileUnreadable
from message_lifecycle.stores.iceberg import session, view_file
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.session import engine_failures
from tests.errors import raises


class Cause:
    """A Java exception as it is seen from here."""

    def __init__(self, text: str, cause: Cause | None = None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:
        return self.text

    def getCause(self) -> Cause | None:
        return self.cause

    def getSQLState(self) -> str | None:
        raise Py4JError("Method getSQLState([]) does not exist")


class SqlCause(Cause):
    def __init__(self, text: str, state: str | None) -> None:
        super().__init__(text)
        self.state = state

    def getSQLState(self) -> str | None:
        return self.state


def stopped(cause: Cause) -> PySparkException:
    error = PySparkException("Job aborted")
    vars(error)["_origin"] = cause
    return error


@pytest.mark.parametrize(
    ("error", "named", "said"),
    [
        (stopped(Cause("job", Cause("java.io.IOException: No space left on device"))), "StorageFull", "No space left on device"),
        (stopped(Cause("job", Cause("java.io.IOException: File too large"))), "StorageFull", "Free some space"),
        (OSError(errno.ENOSPC, "No space left on device"), "StorageFull", "No space left"),
        (OSError(errno.EROFS, "Read-only file system", "/lake/a.json"), "StorageRefused", "/lake/a.json: Read-only file system"),
        (OSError(errno.EACCES, "Permission denied"), "StorageRefused", "a table's files: Permission denied"),
        (
            stopped(Cause("job", Cause("java.io.FileNotFoundException: /lake/a.json (Read-only file system)"))),
            "StorageRefused",
            "/lake/a.json: Read-only file system",
        ),
        (
            stopped(Cause("job", Cause("java.io.FileNotFoundException: /my lake/a.json (Permission denied)"))),
            "StorageRefused",
            "/my lake/a.json: Permission denied",
        ),
        (
            stopped(Cause("create", Cause("java.io.IOException: Mkdirs failed to create /my lake/t/metadata (exists=false, cwd=file:/)"))),
            "StorageRefused",
            "/my lake/t/metadata: the folder cannot be made",
        ),
        (
            stopped(Cause("org.apache.iceberg.exceptions.RESTException: Error occurred while processing POST request")),
            "CatalogUnavailable",
            "processing POST",
        ),
        (
            stopped(Cause("write", Cause("software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate"))),
            "StorageRefused",
            "a table's files: Please reduce",
        ),
        (
            stopped(
                Cause(
                    "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: /my lake/t/metadata/snap-1.avro",
                    Cause("org.apache.hadoop.fs.ChecksumException: Checksum error: snap-1.avro at 2048"),
                )
            ),
            "FileUnreadable",
            "/my lake/t/metadata/snap-1.avro: .* Checksum error",
        ),
        (
            stopped(Cause("job", Cause("org.apache.iceberg.exceptions.NotFoundException: File does not exist: s3://lake/t/a.parquet"))),
            "FileLost",
            "s3://lake/t/a.parquet: .* it is not there",
        ),
        (
            stopped(Cause("org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: /lake/t/snap-1.avro")),
            "FileLost",
            "/lake/t/snap-1.avro: .* it is not there",
        ),
        (
            stopped(
                Cause(
                    "org.apache.iceberg.exceptions.NotFoundException: Location does not exist: s3://lake/t/a",
                    Cause("software.amazon.awssdk.services.s3.model.NoSuchKeyException: null"),
                )
            ),
            "FileLost",
            "s3://lake/t/a: .* it is not there",
        ),
        (
            stopped(Cause("org.apache.iceberg.exceptions.AlreadyExistsException: Conflict in the namespace.")),
            "CatalogUnavailable",
            "another had been first: Conflict in the namespace. Try again",
        ),
        (
            stopped(
                Cause(
                    "org.apache.iceberg.exceptions.CommitFailedException: x",
                    SqlCause("PSQLException: could not extend file", "53100"),
                )
            ),
            "StorageFull",
            "extend",
        ),
        (OSError("When initiating multiple part upload: AWS Error SLOW_DOWN"), "StorageRefused", "SLOW_DOWN"),
        (PermissionError("Cannot open file, access denied: s3://lake/t/a.parquet"), "StorageRefused", "access denied"),
        (FileUnreadable("s3://lake/t/a.parquet", "AWS Error SLOW_DOWN"), "FileUnreadable", "cannot read this file of a table"),
        (Py4JNetworkError("Answer from Java side is empty"), "JavaEnded", "before it answered"),
        (Py4JError("An error occurred while calling o3.commit"), "JavaEnded", "before it answered"),
        (stopped(Cause("catalog", SqlCause("PSQLException: Connection to 127.0.0.1:1 refused", "08001"))), "CatalogUnavailable", "refused"),
        (stopped(Cause("catalog", SqlCause("PSQLException: terminating connection", "57P01"))), "CatalogUnavailable", "terminating"),
        (stopped(Cause("catalog", SqlCause("PSQLException: could not extend file", "53100"))), "StorageFull", "extend"),
    ],
)
def test_what_a_person_can_mend_is_named(error: Exception, named: str, said: str) -> None:
    with raises(named, match=said) as told, engine_failures():
        raise error
    assert told.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down",
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
    ],
)
def test_a_cluster_that_has_gone_is_named_and_a_context_that_was_stopped_otherwise_is_not(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SimpleNamespace(lost=True, master="spark://127.0.0.1:7077")
    monkeypatch.setattr(session, "_watch", watch)
    with raises("ClusterLost", match="at spark://127.0.0.1:7077 has no executor.*run the same command again"), engine_failures():
        raise stopped(Cause(text))
    watch.lost = False
    error = stopped(Cause(text))
    with pytest.raises(type(error)) as told, engine_failures():
        raise error
    assert told.value is error


@pytest.mark.parametrize(
    "error",
    [
        stopped(Cause("java.lang.Error: x")),
        stopped(
            Cause(
                "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: /lake/a.avro",
                Cause("java.lang.OutOfMemoryError: Java heap space"),
            )
        ),
        stopped(Cause("org.apache.iceberg.exceptions.BadRequestException: Malformed request: of ours")),
        stopped(Cause("software.amazon.awssdk.services.glue.model.GlueException: throttled")),
        stopped(SqlCause("duplicate key", "23505")),
        OSError(errno.ENOENT, "no"),
        AnalysisException("x"),
    ],
)
def test_anything_else_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as told, engine_failures():
        raise error
    assert told.value is error


def test_a_full_disk_is_named_without_an_engine_too() -> None:
    with raises("StorageFull", match="too large"), reaching_catalog():
        raise OSError(errno.EFBIG, "File too large")
    with pytest.raises(PermissionError), reaching_catalog():
        raise PermissionError(errno.EACCES, "no")


def test_a_view_that_a_full_disk_does_not_take_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    class Written:
        def createOrReplace(self) -> None:
            raise stopped(Cause("java.io.FileNotFoundException: /lake/a.json (No space left on device)"))

    monkeypatch.setattr(view_file, "_java_with_views", lambda: None)
    monkeypatch.setattr(view_file, "_commit_view", lambda *_, **__: Written())
    with raises("StorageFull"):
        view_file.put(("orders", "prices__live"), "SELECT 1", new=False)


class Store(WithNamedErrors):
    def deed(self) -> None:
        raise OSError("AWS Error SLOW_DOWN during HeadObject operation")

    def question(self) -> None:
        raise ConnectionError("the catalog's line broke")

    def one_by_one(self) -> Iterator[int]:
        yield 1
        self.deed()

    def _inner(self) -> None:
        raise OSError("AWS Error SLOW_DOWN during HeadObject operation")


class Own(Store):
    def another_deed(self) -> None:
        self._inner()


def test_what_any_word_of_a_store_meets_has_a_name() -> None:
    store = Own()
    for deed in (store.deed, store.another_deed):
        with raises("StorageRefused", match="SLOW_DOWN"):
            deed()
    with raises("CatalogUnavailable", match="broke"):
        store.question()
    each = store.one_by_one()
    assert next(each) == 1
    with raises("StorageRefused", match="SLOW_DOWN"):
        next(each)
    with pytest.raises(OSError, match="SLOW_DOWN"):
        store._inner()


def test_every_store_of_tables_names_what_it_meets() -> None:
    ledger = open_ledger("sqlite://")
    made = wiring._iceberg({}, ledger, scratch=True)
    ledger.close()
    ports = [
        made.topics,
        made.reader,
        made.copier,
        made.documents,
        *(getattr(made.stores, one.name) for one in fields(made.stores) if one.name != "backend"),
    ]
    assert all(isinstance(port, WithNamedErrors) for port in ports)
