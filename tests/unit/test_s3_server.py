"""What a key of the object store of this machine opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyarrow.fs import S3FileSystem

from lifecycle_local.cluster import REGION
from lifecycle_local.s3_server import S3Server, s3_server

BUCKET = "lake"


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        made.files.create_dir(BUCKET)
        yield made


@pytest.fixture
def files(store: S3Server) -> S3FileSystem:
    """By a key for one table."""
    key = store.create_access_key(f"/{BUCKET}/mine/")
    return S3FileSystem(access_key=key.name, secret_key=key.secret, session_token=key.token, endpoint_override=store.uri, region=REGION)


def write(store: S3Server, path: str) -> None:
    with store.files.open_output_stream(path) as stream:
        stream.write(b"x")


def test_a_key_copies_what_lies_below_its_path(store: S3Server, files: S3FileSystem) -> None:
    write(store, f"{BUCKET}/mine/a b+c")
    files.copy_file(f"{BUCKET}/mine/a b+c", f"{BUCKET}/mine/copy")
    assert store.content(f"{BUCKET}/mine/copy") == b"x"


@pytest.mark.parametrize(("source", "target"), [("others/a", "mine/b"), ("mine/a", "others/b")])
def test_a_key_copies_nothing_from_or_to_elsewhere(store: S3Server, files: S3FileSystem, source: str, target: str) -> None:
    write(store, f"{BUCKET}/{source}")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        files.copy_file(f"{BUCKET}/{source}", f"{BUCKET}/{target}")
    assert f"{BUCKET}/{target}" not in store.objects(BUCKET)
