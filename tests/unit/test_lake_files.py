"""Files of a store as DuckDB reads them: several threads at a time on one open file, and all that was asked for."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from message_lifecycle.stores.iceberg.relations import LakeFiles
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


def test_fewer_bytes_are_never_taken_for_as_many() -> None:
    file = opened(Cut(CONTENT))
    file.seek(250)
    with pytest.raises(OSError, match="of 10 bytes from 250 on came 6"):
        file.read(10)
