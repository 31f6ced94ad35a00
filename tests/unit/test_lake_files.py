"""Files of a store as DuckDB reads them: several threads at a time on one open file, and all that was asked for."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pytest

from message_lifecycle.stores.iceberg.lake_files import LakeFiles
from message_lifecycle.stores.iceberg.tasks import Store

CONTENT = bytes(range(256))


class Slow(io.BytesIO):
    """Hands out a few bytes at a time, as a store may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size, 7) if size is not None and size > 0 else size)


class AtOnce(Slow):
    """As PyArrow's files: by place, too."""

    def read_at(self, size: int, place: int) -> bytes:
        return CONTENT[place : place + min(size, 7)]


class Cut(Slow):
    """It says that it is longer than it is."""

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset, whence) + (10 if whence == io.SEEK_END else 0)


def opened(file: io.BytesIO, **rates: int) -> Any:
    return LakeFiles(Mock(spec=Store, open=lambda _: file), **rates).open("s3://lake/file")


@pytest.mark.parametrize("kind", [Slow, AtOnce])
def test_a_seek_of_another_thread_between_a_seek_and_its_read_does_not_matter(kind: type[io.BytesIO]) -> None:
    """As DuckDB reads parts of one file in parallel: each part by a seek and a read."""
    file = opened(kind(CONTENT))
    with ThreadPoolExecutor(1) as other:
        file.seek(10)
        other.submit(file.seek, 100).result()
        assert file.read(20) == CONTENT[10:30]
        assert other.submit(file.read, 20).result() == CONTENT[100:120]
    assert (file.tell(), file.read(5)) == (30, CONTENT[30:35])


@pytest.mark.parametrize("kind", [Slow, AtOnce])
def test_all_is_read_that_is_asked_for_or_there(kind: type[io.BytesIO]) -> None:
    file = opened(kind(CONTENT))
    assert file.read(50) == CONTENT[:50]
    assert file.seek(-6, io.SEEK_END) == 250
    assert file.read(50) == CONTENT[250:]
    assert file.read(50) == b""
    assert file.seek(0) == 0
    assert file.seek(4, io.SEEK_CUR) == 4
    assert file.read() == CONTENT[4:]


def test_of_a_file_that_is_known_the_store_is_asked_for_what_lies_before_its_end() -> None:
    """Each question opens a file and reads its end. Keys may have ended since the one before: what is fetched is fetched by an opening of its own."""
    places, openings = list[tuple[int, int]](), list[AtOnce]()

    class Counted(AtOnce):
        def read_at(self, size: int, place: int) -> bytes:
            places.append((place, size))
            return CONTENT[place : place + size]

    def open_file(_: str) -> Counted:
        openings.append(Counted(CONTENT))
        return openings[-1]

    files = LakeFiles(Mock(spec=Store, open=open_file, size=Mock(side_effect=AssertionError("its size is known"))))
    for question in range(2):
        with closing(files.open("s3://lake/file")) as file:
            assert files.info("s3://lake/file")["size"] == len(CONTENT)
            file.seek(200)
            assert file.read() == CONTENT[200:]
            assert (file.seek(-8, io.SEEK_END), file.read(4)) == (248, CONTENT[248:252])
        assert (len(openings), places, openings[0].closed) == (1, [(200, 56)], True), question
    with closing(files.open("s3://lake/file")) as file:
        file.seek(190)
        assert file.read(20) == CONTENT[190:210]
    assert (len(openings), places[1:], openings[1].closed) == (2, [(190, 20)], True)


def test_a_file_that_is_not_there_is_not_known() -> None:
    files = LakeFiles(Mock(spec=Store, open=Mock(side_effect=[FileNotFoundError("gone"), AtOnce(CONTENT)])))
    with pytest.raises(OSError, match="a file of the lake failed"):
        files.open("s3://lake/file")
    assert files.open("s3://lake/file").read() == CONTENT


def test_fewer_bytes_are_never_taken_for_as_many() -> None:
    file = opened(Cut(CONTENT))
    file.seek(250)
    with pytest.raises(OSError, match="of 10 bytes from 250 on came 6"):
        file.read(10)
