"""Local files are brought to disk with their names and with the folders that were made for them; what is not local is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from message_lifecycle.stores.iceberg import table_folder
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.table_folder import on_disk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """In order."""
    found: list[Path] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(table_folder, "_named", set())
    return found


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_comes_with_every_folder_that_was_made_for_it(tmp_path: Path, synced: list[Path], scheme: str) -> None:
    folder = tmp_path / "table" / "data"
    with LakeFileIO().new_output(f"{scheme}{folder / 'one.parquet'}").create() as stream:
        stream.write(b"content")
        assert synced == []
    assert synced[:4] == [folder / "one.parquet", folder, folder.parent, tmp_path]
    synced.clear()
    with LakeFileIO().new_output(f"{scheme}{folder / 'two.parquet'}").create() as stream:
        stream.write(b"content")
    assert synced == [folder / "two.parquet", folder], "the folders' own names are there already"


@pytest.mark.parametrize("location", ["s3://bucket/table/one.parquet", "abfss://lake@store/one.parquet", "gs://bucket/one"])
def test_what_is_not_local_is_left_alone(location: str, synced: list[Path]) -> None:
    on_disk(location)
    assert synced == []


def test_a_folder_above_that_nobody_may_read_is_not_ours(tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "one").write_bytes(b"content")
    real = os.open

    def refusing(path: os.PathLike[str] | str, flags: int, *more: int, **named: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    on_disk(str(tmp_path / "table" / "one"))
    assert synced == [tmp_path / "table" / "one", tmp_path / "table"]
