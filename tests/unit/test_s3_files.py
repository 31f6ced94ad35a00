"""Objects of S3 for PyIceberg: as its own way has them, without what that imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from lifecycle_local.cluster import store_settings
from lifecycle_local.s3_server import Refused, S3Request, S3Server, Start, s3_server
from message_lifecycle.stores.iceberg.s3_files import files_of_s3

BUCKET = "lake"
SUMS = "AWS_RESPONSE_CHECKSUM_VALIDATION"
MINE = f"s3://{BUCKET}/mine"


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        made.files.create_dir(BUCKET)
        yield made


@pytest.fixture
def settings(store: S3Server) -> dict[str, str]:
    """By a key for one table."""
    return store_settings(store.uri, store.create_access_key(f"/{BUCKET}/mine/"))


def ours(settings: Mapping[str, str]) -> FileIO:
    found = files_of_s3(settings)
    assert found is not None
    return found


WAYS = pytest.mark.parametrize("way", [ours, lambda settings: PyArrowFileIO(dict(settings))], ids=["ours", "PyIceberg's"])
Way = Callable[[Mapping[str, str]], FileIO]


@WAYS
def test_what_is_written_is_read(way: Way, settings: dict[str, str]) -> None:
    io, path, content = way(settings), f"{MINE}/a b+c=d/{way}", bytes(range(256)) * 10_000
    with io.new_output(path).create() as file:
        file.write(content[:7])
        file.write(content[7:])
    there = io.new_input(path)
    assert (there.exists(), len(there)) == (True, len(content))
    with there.open() as file:
        file.seek(1_000_000)
        assert file.read(300) == content[1_000_000:1_000_300]
    with there.open(seekable=False) as file:
        assert file.read() == content
    with pytest.raises(FileExistsError):
        io.new_output(path).create()
    with io.new_output(path).create(overwrite=True) as file:
        file.write(b"another")
    assert len(io.new_input(path)) == 7
    io.delete(path)
    assert not io.new_input(path).exists()


@WAYS
def test_what_is_not_there_is_named(way: Way, settings: dict[str, str]) -> None:
    file = way(settings).new_input(f"{MINE}/none")
    for ask in (lambda: len(file), file.open, lambda: file.open(seekable=False)):
        with pytest.raises(FileNotFoundError):
            ask()


@WAYS
def test_what_a_key_does_not_open_is_refused(way: Way, settings: dict[str, str]) -> None:
    io = way(settings)
    for ask in (
        io.new_input(f"s3://{BUCKET}/others/a").open,
        lambda: io.new_output(f"s3://{BUCKET}/others/a").create(overwrite=True).close(),
    ):
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            ask()


@pytest.mark.parametrize("more", ["s3.signer", "s3.proxy-uri", "client.role-arn", "s3.what-comes-next"])
def test_settings_that_are_not_known_are_left_to_pyiceberg(more: str, settings: dict[str, str]) -> None:
    """They may say how a store is reached, or who asks it."""
    assert files_of_s3({**settings, more: "x"}) is None


def test_a_region_that_is_not_told_is_looked_for_by_pyiceberg(settings: dict[str, str]) -> None:
    assert files_of_s3({name: value for name, value in settings.items() if "region" not in name}) is None


@pytest.mark.parametrize(("says", "asked"), [(None, set()), ("when_supported", {"enabled"})], ids=["of nobody", "of a person"])
def test_no_sums_are_asked_for_that_parts_of_objects_do_not_have(
    says: str | None, asked: set[str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it asks, the client of AWS also makes them, five of each part."""
    heard: set[str] = set()
    answer = S3Server._answer

    def listening(store: S3Server, given: S3Request, environ: dict[str, Any], start: Start) -> Iterable[bytes] | Refused | None:
        heard.update(filter(None, [environ.get("HTTP_X_AMZ_CHECKSUM_MODE")]))
        return answer(store, given, environ, start)

    monkeypatch.setattr(S3Server, "_answer", listening)
    if says is None:
        monkeypatch.delenv(SUMS, raising=False)
    else:
        monkeypatch.setenv(SUMS, says)
    with ours(settings).new_output(f"{MINE}/parts").create(overwrite=True) as file:
        file.write(b"content")
    with ours(settings).new_input(f"{MINE}/parts").open() as file:
        assert file.read(3) == b"con"
    assert heard == asked
    assert os.environ.get(SUMS) == says


def test_it_imports_no_pandas() -> None:
    """Half a second of CPU in each process, and in that of each task."""
    told = "{'s3.endpoint': 'http://127.0.0.1:1', 's3.region': 'here', 's3.access-key-id': 'a', 's3.secret-access-key': 'b'}"
    code = f"""
import sys
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
LakeFileIO({told}).new_input("s3://lake/file")
print([name for name in ("pandas", "pyarrow.dataset", "pyiceberg.io.pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
