"""Archives for tests: below a folder of this machine, or in an object store of this machine.

In the store, the catalog's configuration has keys for one folder only. The classes also read and change the archives' files for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any

import boto3
import pytest

from lifecycle_local.cluster import REGION, store_settings
from lifecycle_local.s3_server import Refused, S3Request, S3Server, Serve

BUCKET = "lake"


class Archived(ABC):
    """`to`: the value of the setting `archive_to`. Names of files are as in the archive's own messages."""

    to: str

    @abstractmethod
    def below(self, name: str) -> Archived:
        """Return another archive next to this one."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return all complete files of the archive."""

    @abstractmethod
    def content(self, file: str) -> bytes: ...

    @abstractmethod
    def put(self, file: str, content: bytes) -> None: ...

    @abstractmethod
    def remove(self, file: str) -> None: ...

    @abstractmethod
    def leave_half_written(self, file: str, content: bytes) -> None:
        """As a crash does."""

    @abstractmethod
    def half_written(self) -> int: ...

    @abstractmethod
    @contextmanager
    def away(self) -> Iterator[None]:
        """Unmount or disconnect the archive during the block, in a way that its place still seems to exist."""

    def holds(self, key: bytes) -> bool:
        return any(key in self.content(file) for file in self.files())


class OnDisk(Archived):
    def __init__(self, folder: Path) -> None:
        self.folder, self.to = folder, str(folder)

    def below(self, name: str) -> OnDisk:
        return OnDisk(self.folder / name)

    def files(self) -> list[str]:
        return sorted(str(path) for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".new")

    def content(self, file: str) -> bytes:
        return Path(file).read_bytes()

    def put(self, file: str, content: bytes) -> None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_bytes(content)

    def remove(self, file: str) -> None:
        Path(file).unlink()

    def leave_half_written(self, file: str, content: bytes) -> None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{file}.new").write_bytes(content)

    def half_written(self) -> int:
        return len(list(self.folder.rglob("*.new")))

    @contextmanager
    def away(self) -> Iterator[None]:
        away = self.folder.with_name(f"{self.folder.name} away")
        self.folder.rename(away)
        self.folder.mkdir()
        yield
        self.folder.rmdir()
        away.rename(self.folder)


class InStore(Archived):
    def __init__(self, store: S3Server, to: str) -> None:
        self.store, self.to = store, to

    @property
    def _client(self) -> Any:
        key = self.store.root
        return boto3.client(
            "s3", endpoint_url=self.store.uri, aws_access_key_id=key.name, aws_secret_access_key=key.secret, region_name=REGION
        )

    def below(self, name: str) -> InStore:
        return InStore(self.store, f"{self.to}/{name}")

    def files(self) -> list[str]:
        return [f"s3://{path}" for path in self.store.objects(self.to.removeprefix("s3://"))]

    def content(self, file: str) -> bytes:
        return self.store.content(file.removeprefix("s3://"))

    def put(self, file: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=_key(file), Body=content)

    def remove(self, file: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=_key(file))

    def leave_half_written(self, file: str, content: bytes) -> None:
        begun = self._client.create_multipart_upload(Bucket=BUCKET, Key=_key(file))
        self._client.upload_part(Bucket=BUCKET, Key=_key(file), UploadId=begun["UploadId"], PartNumber=1, Body=content)

    def half_written(self) -> int:
        found = self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return sum(upload["Key"].startswith(f"{_key(self.to)}/") for upload in found)

    @contextmanager
    def away(self) -> Iterator[None]:
        with self.answering(
            lambda asked, serve: Refused(HTTPStatus.NOT_FOUND, "NoSuchBucket") if f"{asked.path}/".startswith(f"/{BUCKET}/") else serve()
        ):
            yield

    @contextmanager
    def answering(self, around: Callable[[S3Request, Serve], Any]) -> Iterator[None]:
        before = self.store.around
        self.store.around = around
        try:
            yield
        finally:
            self.store.around = before


def _key(file: str) -> str:
    return file.removeprefix(f"s3://{BUCKET}/")


@contextmanager
def archive_of(kind: str, request: pytest.FixtureRequest) -> Iterator[Archived]:
    """Yield the archive for the fixture `archive`. `kind`: disk or object_store.

    In the object store, the catalog's settings give any opener of the archive only the key of the archive's folder."""
    if kind == "disk":
        yield OnDisk(request.getfixturevalue("tmp_path"))
        return
    lake = request.getfixturevalue("rest_s3")
    below = f"{BUCKET}/archives-{token_hex(4)}"
    with lake.entered(), pytest.MonkeyPatch.context() as patched:
        for name, value in store_settings(lake.s3.uri, lake.s3.create_access_key(f"/{below}/")).items():
            patched.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('.', '__').replace('-', '_')}", value)
        yield InStore(lake.s3, f"s3://{below}")
