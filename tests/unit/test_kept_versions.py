"""Earlier versions of objects that a bucket keeps: which count, and what is told where nobody can see them. And who else may lie in a topic's
folders, where a catalog cannot tell. By stubs of Java, of a store and of a catalog: real ones are the hunt's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.errors import IllegalArgumentException

from message_lifecycle.model.errors import storage_refused
from message_lifecycle.stores.iceberg import table_files, view_file
from message_lifecycle.stores.iceberg.catalog import check_places_not_shared
from message_lifecycle.stores.iceberg.pointers import UNREADABLE
from message_lifecycle.stores.iceberg.table_files import kept_of_removed, kept_versions
from message_lifecycle.stores.iceberg.table_folder import Within
from message_lifecycle.stores.iceberg.tasks import Store
from tests.errors import raises
from tests.java_errors import java_error, pyspark_error

UNTIL_MS = 1_000
MINE = ("lake", "mine")


def version(written_ms: int, *, is_latest: bool) -> SimpleNamespace:
    return SimpleNamespace(isLatest=lambda: is_latest, lastModified=lambda: SimpleNamespace(toEpochMilli=lambda: written_ms))


class Iterable:
    """As Java has it."""

    def __init__(self, *values: object) -> None:
        self.values = values

    def iterator(self) -> Iterator[object]:
        return iter(self.values)

    def stream(self) -> Iterable:
        return self

    def filter(self, wanted: Callable[[object], bool]) -> Iterable:
        return Iterable(*filter(wanted, self.values))

    def toList(self) -> list[object]:  # Java's name
        return list(self.values)


def bucket(
    monkeypatch: pytest.MonkeyPatch, versions: object, settings: Mapping[str, str] | None = None, *, until_ms: int | None = UNTIL_MS
) -> str:
    """What is told of a bucket with these versions, or whose answer is that error; empty: nothing."""
    java = MagicMock()
    java.settings_of = lambda given: {**given, **(settings or {})}

    @contextmanager
    def file_io(_: object) -> Iterator[MagicMock]:
        files = MagicMock()
        if isinstance(versions, Exception):
            files.client.side_effect = versions
        else:
            files.client().listObjectVersionsPaginator().versions.return_value = versions
        yield files

    java.file_io = file_io
    monkeypatch.setattr(table_files, "engine_of_process", lambda: java)
    monkeypatch.setattr(table_files, "_is_latest", lambda _: SimpleNamespace(negate=lambda: lambda one: not one.isLatest()))
    io: Any = SimpleNamespace(properties={})
    return "; ".join(kept_versions([(io, "s3://lake/t")], until_ms=until_ms))


def test_those_count_that_were_written_by_then_and_are_not_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    every = Iterable(
        version(UNTIL_MS, is_latest=False), version(1, is_latest=False), version(UNTIL_MS + 1, is_latest=False), version(1, is_latest=True)
    )
    assert bucket(monkeypatch, every).startswith("lake keeps 2 earlier versions of its objects")
    assert bucket(monkeypatch, Iterable(version(UNTIL_MS + 1, is_latest=False), version(1, is_latest=True))) == ""


def test_of_each_bucket_it_is_told_once_and_where_it_cannot_be_asked_why(monkeypatch: pytest.MonkeyPatch) -> None:
    io: Any = SimpleNamespace(properties={})
    places = [(io, f"s3://{place}") for place in ("lake/t", "lake/t__compacted", "other/t", "clean/t", "shut/t", "shut/u")]
    below: dict[str, int | str] = {
        "lake/t": 2,
        "lake/t__compacted": 1_000,
        "other/t": 1,
        "clean/t": 0,
        "shut/t": ": why",
        "shut/u": ": why",
    }
    monkeypatch.setattr(table_files, "_kept_below", lambda _, location, *__: below[location.removeprefix("s3://")])
    ends = "earlier versions of its objects, which nothing here reads or removes: let a rule of the bucket end them"
    told = ["whether shut keeps earlier versions of its objects cannot be seen: why", f"lake keeps 1,002 {ends}", f"other keeps 1 {ends}"]
    assert kept_versions(places) == told
    assert kept_of_removed(places) == tuple(told)
    monkeypatch.setattr(table_files, "_kept_below", MagicMock(side_effect=storage_refused("s3://lake/t", "in its words")))
    with raises("StorageRefused"):
        kept_versions(places)
    (told_of_removed,) = kept_of_removed(places)
    assert told_of_removed.startswith("StorageRefused: s3://lake/t: in its words")
    for error in (java_error("NullPointerException"), pyspark_error("IllegalArgumentException")):
        monkeypatch.setattr(table_files, "_kept_below", MagicMock(side_effect=error))
        (told_of_removed,) = kept_of_removed(places)
        assert told_of_removed.endswith("Exception: in its words")


def test_of_what_was_removed_all_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bucket(monkeypatch, Iterable(version(UNTIL_MS + 1, is_latest=False)), until_ms=None).startswith("lake keeps 1 earlier")


@pytest.mark.parametrize(
    ("status", "told"), [(403, "cannot be seen: let the keys list them (s3:ListBucketVersions)"), (405, ""), (501, "")]
)
def test_who_may_not_look_is_told_and_a_store_without_versions_has_none(monkeypatch: pytest.MonkeyPatch, status: int, told: str) -> None:
    assert bucket(monkeypatch, java_error("S3Exception", status)).endswith(told)
    assert bool(bucket(monkeypatch, java_error("S3Exception", status))) is bool(told)


def test_another_way_to_files_and_a_missing_class_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bucket(monkeypatch, Iterable(), {"io-impl": "org.HadoopFileIO"}).endswith("cannot be seen by org.HadoopFileIO")
    assert bucket(monkeypatch, TypeError("'JavaPackage' object is not callable")).endswith("'JavaPackage' object is not callable")


def test_what_the_store_cannot_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Py4JJavaError):
        bucket(monkeypatch, java_error("SomeException"))
    with pytest.raises(IllegalArgumentException):
        bucket(monkeypatch, pyspark_error("IllegalArgumentException"))


def test_a_place_without_versions_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "engine_of_process", MagicMock(side_effect=AssertionError("nobody is to be asked")))
    io: Any = SimpleNamespace(properties={})
    assert kept_versions((io, place) for place in ("/lake/t", "file:///lake/t", "gs://lake/t")) == []


def uploads(monkeypatch: pytest.MonkeyPatch, client: Any) -> list[str]:
    """Names of those that are unfinished below a folder of a bucket that answers so."""
    java = MagicMock()
    java.settings_of = dict

    @contextmanager
    def file_io(given: Mapping[str, str]) -> Iterator[MagicMock]:
        assert given["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
        yield MagicMock(**{"client.return_value": client})

    java.file_io = file_io
    monkeypatch.setattr(table_files, "engine_of_process", lambda: java)
    io: Any = SimpleNamespace(properties={})
    return [upload.name for upload in table_files.unfinished_uploads(io, "s3://lake/t")]


def test_uploads_of_another_folder_are_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores take the beginning of a name as they like."""
    client = MagicMock()
    found = [SimpleNamespace(key=lambda key=key: key, uploadId=lambda: "1") for key in ("t/a.parquet", "t2/b.parquet", "t/c/d.parquet")]
    client.listMultipartUploadsPaginator().uploads.return_value = Iterable(*found)
    assert uploads(monkeypatch, client) == ["a.parquet", "c/d.parquet"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (java_error("NoSuchBucketException", 404), "s3://lake/t: NoSuchBucketException: in its words"),
        (java_error("S3Exception", 403), "s3:ListBucketMultipartUploads"),
        (java_error("S3Exception", 501), "in its words"),
        (pyspark_error("IllegalArgumentException"), "s3://lake/t: IllegalArgumentException: in its words"),
        (TypeError("'JavaPackage' object is not callable"), "without iceberg-aws-bundle in Java"),
    ],
)
def test_where_uploads_cannot_be_seen_nobody_says_that_there_are_none(monkeypatch: pytest.MonkeyPatch, error: Exception, told: str) -> None:
    client = MagicMock()
    client.listMultipartUploadsPaginator.side_effect = error
    with raises("StorageRefused", match=told):
        uploads(monkeypatch, client)


def test_a_bucket_of_another_store_that_is_not_there_is_no_empty_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    there = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    monkeypatch.setattr(PyArrowFileIO, "_initialize_fs", lambda *_: there)
    io: Any = SimpleNamespace(properties={})
    table_files.check_bucket(io, "gs://there/a")
    with raises("StorageRefused", match="gs://away/a: there is no bucket away"):
        table_files.check_bucket(io, "gs://away/a")


def test_an_upload_that_stays_though_it_was_aborted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MagicMock()
    found = SimpleNamespace(key=lambda: "t/a.parquet", uploadId=lambda: "1")
    client.listMultipartUploadsPaginator().uploads.return_value = Iterable(found)
    client.abortMultipartUpload.side_effect = java_error("NoSuchUploadException", 404)
    assert uploads(monkeypatch, client) == ["a.parquet"]
    io: Any = SimpleNamespace(properties={})
    with raises("StorageRefused", match=r"s3://lake/t/a\.parquet: an upload that was begun is still there"):
        table_files.abort_uploads(io, "s3://lake/t", lambda name: name == "a.parquet")


@pytest.mark.parametrize("error", [java_error("IllegalArgumentException"), pyspark_error("IllegalArgumentException")])
def test_an_io_that_refuses_to_delete_is_a_store_that_refuses(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    java = MagicMock()
    java.settings_of = dict
    java.file_io().__enter__().deleteFiles.side_effect = error
    monkeypatch.setattr(table_files, "engine_of_process", lambda: java)
    monkeypatch.setattr(table_files, "_list_remote_files", lambda *_: iter([table_files.ListedFile("a.parquet", 1, 1)]))
    io: Any = SimpleNamespace(properties={})
    with raises("StorageRefused", match="s3://lake/t: IllegalArgumentException: in its words"):
        table_files.delete_files(io, "s3://lake/t", ["a.parquet"])


def test_a_task_gets_what_opens_files_and_not_what_opens_the_catalog() -> None:
    given = {"uri": "postgresql://u:secret@h/d", "token": "t", "s3.access-key-id": "k", "client.region": "r", "warehouse": "w"}
    catalog: Any = SimpleNamespace(properties=given)
    assert Store.of_catalog(catalog).settings == (("client.region", "r"), ("s3.access-key-id", "k"))


@pytest.mark.parametrize("name", ["AlreadyExistsException", "CommitFailedException"])
def test_a_view_that_another_is_at_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    java = MagicMock()
    java.lake.dropView.side_effect = java_error(name)
    monkeypatch.setattr(view_file, "engine_of_process", lambda: java)
    monkeypatch.setattr(view_file, "identifier", lambda *_: None)
    with raises("CatalogUnavailable", match="in its words"):
        view_file.drop(("lake", "t__live"))


def _tables(*others: tuple[tuple[str, str], str]) -> Any:
    return SimpleNamespace(pointers=SimpleNamespace(all=lambda _: others))


def test_where_a_catalog_cannot_tell_of_a_table_nobody_guesses_but_by_names_of_metadata() -> None:
    tables, mine = _tables((("lake", "other"), f"{UNREADABLE}lake.other")), {MINE: Within("s3://lake/mine")}
    with raises("TableNotTold", match="location of table lake.other.* Try again"):
        check_places_not_shared(tables, mine)
    own = ["metadata/1.metadata.json", "data/a.parquet", "metadata/2.gz.metadata.json"]
    check_places_not_shared(tables, mine, lambda _: own)
    with raises("UnsafePath", match="may be those of lake.other"):
        check_places_not_shared(tables, mine, lambda _: [*own, "other/metadata/1.metadata.json"])
