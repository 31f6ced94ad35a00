"""Files that a table's history names, snapshots taken out of it, and files removed from its folder (DEL-7)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from message_lifecycle.model.errors import CommitUnknown, OutsideTable, PlanConflict, SnapshotInUse, UnsafePath
from message_lifecycle.stores.iceberg import table_metadata
from message_lifecycle.stores.iceberg.history import NamedFile, all_named, inventory, reachable, snapshot_ids
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.reclaiming import expire
from message_lifecycle.stores.iceberg.table_files import Deleted, ListedFile, delete_files, list_files, owner_of, with_checksums
from message_lifecycle.stores.iceberg.table_folder import Within, normalised
from message_lifecycle.stores.iceberg.table_metadata import change_metadata
from tests.errors import raises
from tests.histories import (
    ON_OWN_CATALOG,
    PLACE,
    append,
    catalog_in,
    document_of,
    folder_of,
    head,
    names_below,
    new_table,
    read_by_pyiceberg,
)

pytestmark = ON_OWN_CATALOG

IO = LakeFileIO()


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_in(tmp_path)


def expired(snapshots: Sequence[int], **options: Any) -> None:
    change = partial(expire, table="t", snapshot_ids=snapshots, **{"properties": {}, **options})
    change_metadata(PLACE, change, what="expiring")


def only_of(document: dict[str, Any], snapshots: Collection[int]) -> list[str]:
    """Names of the files that these snapshots are read through, and no other that the table remembers."""
    with inventory() as found:
        found.add_named(all_named(IO, document, kept=set(snapshot_ids(document)).difference(snapshots)))
        return [name for name, _ in found.unneeded()]


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """Three appends; then two rows of the second go, and with them its file, which is written anew."""
    made = new_table(catalog)
    for at in range(3):
        append(made, *range(at * 10, at * 10 + 10))
    made.delete("offset >= 12 and offset < 14")
    return made


def test_what_is_reachable_is_what_pyiceberg_reads(table: Table) -> None:
    document = document_of(table)
    ids = snapshot_ids(document)
    assert len(ids) >= 4
    for wanted in [ids, ids[:1], ids[-1:], ids[1:3]]:
        assert {file.name for file in reachable(IO, document, wanted)} == read_by_pyiceberg(table, wanted)


def test_each_manifest_is_read_once(table: Table) -> None:
    read: list[str] = []

    class Counting(LakeFileIO):
        def new_input(self, location: str) -> object:  # type: ignore[override]  # what it gives is handed on
            read.append(location)
            return super().new_input(location)

    document = document_of(table)
    assert list(reachable(Counting(), document, snapshot_ids(document)))
    assert len(read) == len(set(read))


def test_only_what_no_other_snapshot_names_may_go(table: Table) -> None:
    document = document_of(table)
    ids = snapshot_ids(document)
    going, kept = ids[:-1], ids[-1:]
    found = set(only_of(document, going))
    assert found == read_by_pyiceberg(table, going) - read_by_pyiceberg(table, kept)
    assert any(name.startswith("data/") for name in found)


def test_a_manifest_that_cannot_be_read_stops_the_question(table: Table) -> None:
    document = document_of(table)
    manifest = next(file.name for file in reachable(IO, document, snapshot_ids(document)) if file.kind == "manifest")
    (folder_of(table) / manifest).unlink()
    with pytest.raises(FileNotFoundError):
        only_of(document, snapshot_ids(document)[:1])


def test_expired_snapshots_are_gone_and_the_rest_reads_as_before(catalog: SqlCatalog, table: Table) -> None:
    ids = snapshot_ids(document_of(table))
    before = sorted(table.scan().to_arrow()["offset"].to_pylist())
    files = names_below(folder_of(table))
    expired(ids[:2], properties={"lifecycle.test": "1"})
    after = document_of(table)
    assert snapshot_ids(after) == ids[2:]
    assert {entry["snapshot-id"] for entry in after["snapshot-log"]} == set(ids[2:])
    assert after["properties"]["lifecycle.test"] == "1"
    assert sorted(catalog.load_table(PLACE).scan().to_arrow()["offset"].to_pylist()) == before
    assert names_below(folder_of(table)) >= files, "expiring removes no file"
    expired(ids[:2], properties={"lifecycle.test": "1"})
    assert document_of(table) == after, "a second time changes nothing"


@pytest.mark.parametrize("kind", ["main", "branch", "tag"])
def test_no_snapshot_goes_that_a_ref_points_at(catalog: SqlCatalog, table: Table, kind: str) -> None:
    first = snapshot_ids(document_of(table))[0]
    if kind == "branch":
        table.manage_snapshots().create_branch(first, "b").commit()
    if kind == "tag":
        table.manage_snapshots().create_tag(first, "b").commit()
    before = document_of(table)
    with pytest.raises(SnapshotInUse):
        expired([head(table) if kind == "main" else first])
    assert document_of(table) == before
    if kind != "main":
        expired([first], refs=["b"])
        assert "b" not in document_of(table)["refs"]


def test_the_log_of_snapshots_begins_after_the_newest_that_went(catalog: SqlCatalog, table: Table) -> None:
    ids = snapshot_ids(document_of(table))
    expired([ids[1]])
    assert [entry["snapshot-id"] for entry in document_of(table)["snapshot-log"]] == list(ids[2:])


def test_of_older_metadata_the_log_forgets_what_the_tables_own_setting_says(catalog: SqlCatalog, table: Table) -> None:
    log = [entry["metadata-file"] for entry in document_of(table)["metadata-log"]]
    last = table.metadata_location
    expired([], properties={"write.metadata.previous-versions-max": "2"})
    assert [entry["metadata-file"] for entry in document_of(table)["metadata-log"]] == [log[-1], last]


def test_an_expiry_looks_at_what_the_table_is_then(catalog: SqlCatalog, table: Table) -> None:
    ids, stale = snapshot_ids(document_of(table)), catalog.load_table(PLACE)
    late = append(stale, 99)
    seen: list[int] = []
    expired(ids[:1], check=lambda document: seen.append(document["current-snapshot-id"]))
    assert seen == [late]


class Lost:
    """A table's operations whose catalog falls silent in the commit, which it has `made` or not."""

    def __init__(self, operations: Any, *, made: bool) -> None:
        self._operations, self._made, self.commits = operations, made, 0

    def refresh(self) -> Any:
        return self._operations.refresh()

    def commit(self, base: Any, changed: Any) -> None:
        self.commits += 1
        if self._made:
            self._operations.commit(base, changed)
        raise Py4JNetworkError("no answer")


@pytest.mark.parametrize("made", [True, False])
def test_an_expiry_of_unknown_result_is_looked_up_and_not_repeated(  # DEL-4
    table: Table, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    ids, real = snapshot_ids(document_of(table)), table_metadata._table_operations
    lost = Lost(real(PLACE), made=made)
    monkeypatch.setattr(table_metadata, "_table_operations", lambda _: lost)
    with nullcontext() if made else pytest.raises(CommitUnknown):
        expired(ids[:1])
    assert lost.commits == 1
    assert snapshot_ids(document_of(table)) == (ids[1:] if made else ids)


def test_what_goes_wrong_in_the_look_for_an_unknown_result_leaves_it_unknown(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(table_metadata._table_operations(PLACE), made=False)
    monkeypatch.setattr(table_metadata, "_table_operations", lambda _: lost)

    def change(_base: Any, builder: Any) -> None:
        if lost.commits:
            raise PlanConflict("p", "another one came first")
        builder.setProperties({"a": "b"})

    with pytest.raises(CommitUnknown):
        table_metadata.change_metadata(PLACE, change, what="a deed")
    assert lost.commits == 1


def test_a_commit_that_was_made_is_no_error_where_the_catalog_has_gone_since(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, committed = table_metadata._table_operations(PLACE), []

    class Gone:
        def refresh(self) -> Any:
            if committed:
                raise Py4JNetworkError("no answer")
            return operations.refresh()

        current = refresh

        def commit(self, base: Any, changed: Any) -> None:
            operations.commit(base, changed)
            committed.append(changed)

    monkeypatch.setattr(table_metadata, "_table_operations", lambda _: Gone())
    table_metadata.change_metadata(PLACE, lambda _, builder: builder.setProperties({"a": "b"}), what="a deed")
    assert len(committed) == 1


def test_exactly_the_named_files_go_and_a_missing_one_is_success(table: Table) -> None:
    folder, document = folder_of(table), document_of(table)
    names = only_of(document, snapshot_ids(document)[:-1])
    size = sum((folder / name).stat().st_size for name in names)
    before = names_below(folder)
    assert delete_files(IO, str(folder), names) == Deleted(files=len(names), size_bytes=size)
    assert names_below(folder) == before - set(names)
    assert delete_files(IO, f"file:{folder}", [*names, "no/such/folder/f"]) == Deleted(missing=len(names) + 1)


@pytest.mark.parametrize("name", ["/etc/passwd", "file:/etc/passwd", "../other", "data/../../other", "data//x", "./x", "", "s3://b/x"])
def test_nothing_outside_the_location_is_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_text("x")
    (tmp_path / "other").write_text("x")
    with pytest.raises(OutsideTable):
        delete_files(IO, str(tmp_path / "t"), ["a", name])
    assert (tmp_path / "other").exists()
    assert (tmp_path / "t" / "a").exists(), "one wrong name stops all of them"


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_is_an_error_and_not_followed(tmp_path: Path, link: str) -> None:
    inside, outside = tmp_path / "t", tmp_path / "outside"
    for made in (inside, outside):
        made.mkdir()
    (outside / "f").write_text("x")
    if link == "file":
        (inside / "f").symlink_to(outside / "f")
    else:
        (inside / "d").symlink_to(outside)
    with pytest.raises(UnsafePath):
        delete_files(IO, str(inside), ["f" if link == "file" else "d/f"])
    with pytest.raises(UnsafePath):
        list(list_files(IO, str(inside)))
    assert (outside / "f").exists()


def test_any_other_failure_stops_the_removal(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")
    with pytest.raises(UnsafePath):
        delete_files(IO, str(tmp_path), ["a"])
    with raises("StorageRefused"):
        delete_files(IO, str(tmp_path), ["x" * 300])
    assert (tmp_path / "a" / "f").exists()


def test_what_lies_there_is_listed_with_its_size_and_age(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("four")
    os.utime(tmp_path / "data" / "f", ns=(0, 7_000_000_000))
    assert list(list_files(IO, tmp_path.as_uri())) == [ListedFile("data/f", 4, 7_000)]
    assert list(list_files(IO, str(tmp_path / "nowhere"))) == []


def test_the_store_of_objects_is_asked_through_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from message_lifecycle.stores.iceberg import table_folder

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("four")
    monkeypatch.setattr(table_folder, "is_local", lambda _: False)
    io = load_file_io({"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}, str(tmp_path))
    (found,) = list_files(io, f"file://{tmp_path}")
    assert (found.name, found.size_bytes) == ("data/f", 4)
    assert delete_files(io, f"file://{tmp_path}", ["data/f", "data/g"]) == Deleted(files=1, missing=1, size_bytes=4)
    assert names_below(tmp_path) == set()


def test_a_checksum_belongs_to_its_file() -> None:
    assert [owner_of(name) for name in ("data/.f.parquet.crc", ".a.crc", "data/f.crc", "data/.f")] == [
        "data/f.parquet",
        "a",
        "data/f.crc",
        "data/.f",
    ]
    assert list(with_checksums(["data/f", "a"])) == ["data/f", "data/.f.crc", "a", ".a.crc"]
    with inventory() as found:
        found.add_listed([ListedFile("d/f", 5, 1), ListedFile("d/.f.crc", 1, 1), ListedFile("x", 7, 1), ListedFile(".x.crc", 1, 1)])
        found.add_named(_named(("d/f", False)))
        assert found.going(10) == [("d/.f.crc", "data", 1), ("d/f", "data", 5)]
        assert found.orphans(before_ms=2, limit=10) == [(".x.crc", "orphan", 1), ("x", "orphan", 7)]
        assert found.orphans(before_ms=1, limit=10) == []


def test_what_is_kept_is_kept_however_often_it_is_named_otherwise() -> None:
    with inventory() as found:
        found.add_named(_named(("a", False), ("a", True), ("b", False), ("b", False), ("c", True), ("/other/d", True)))
        found.add_listed([ListedFile("a", 1, 1), ListedFile("b", 2, 1)])
        assert [name for name, _ in found.unneeded()] == ["b"]
        assert found.going(10) == [("b", "data", 2)]
        assert found.missing(10) == ["c"]
        assert found.count_kept() == 3
        assert found.totals() == (2, 3)


def _named(*files: tuple[str, bool]) -> list[NamedFile]:
    return [NamedFile(name, "data", kept) for name, kept in files]


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("file:/x/y", "/x/y"),
        ("file:///x/y", "/x/y"),
        ("file://localhost/x/y", "/x/y"),
        ("FILE:/x/y/", "/x/y"),
        ("/x/y/", "/x/y"),
        ("s3a://b/x", "s3://b/x"),
        ("s3n://b/x", "s3://b/x"),
        ("s3://b/x", "s3://b/x"),
        ("/x/k=a%2Fb/y", "/x/k=a%2Fb/y"),
    ],
)
def test_one_file_has_one_name(path: str, same: str) -> None:
    assert normalised(path) == same


def test_another_bucket_or_machine_is_another_place() -> None:
    assert Within("s3a://b/t").name("s3://b/t/data/f") == "data/f"
    assert Within("file:/lake/t").name("/lake/t/data/f") == "data/f"
    assert Within("/lake/t").name("file:///lake/t/data/f") == "data/f"
    assert Within("s3://b/t").name("s3://c/t/data/f") == "s3://c/t/data/f"
    assert Within("/lake/t").name("file://far/lake/t/f") == "file://far/lake/t/f"
    assert Within("/lake/t").name("/lake/t2/f") == "/lake/t2/f"


@pytest.mark.parametrize(
    "path",
    ["/lake/t/../u/f", "/lake/t/./f", "/lake/t//f", "file:/lake/t/../u/f", "s3://b/t/../f", "/lake/t/data/..", "/lake/t/..", "/lake/t/."],
)
def test_a_step_that_leads_elsewhere_is_an_error(path: str) -> None:
    with pytest.raises(UnsafePath):
        Within("/lake/t").name(path)
