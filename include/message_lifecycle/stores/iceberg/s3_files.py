"""Objects of S3 for PyIceberg, by PyArrow's file system alone.

PyIceberg's own way there brings PyArrow's data sets, and pandas with them: half a second of CPU and 50 MB in each process, and in that of each
task. It opens what has settings that are not known here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EACCES, ENOENT
from typing import TYPE_CHECKING, cast
from urllib.parse import urlparse

from pyiceberg.io import (
    AWS_ACCESS_KEY_ID,
    AWS_REGION,
    AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN,
    S3_ACCESS_KEY_ID,
    S3_ENDPOINT,
    S3_REGION,
    S3_SECRET_ACCESS_KEY,
    S3_SESSION_TOKEN,
    FileIO,
    InputFile,
    InputStream,
    OutputFile,
    OutputStream,
)

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SCHEMES = ("s3", "s3a", "s3n")
# What each argument of PyArrow's is told by, the first before the second.
_TOLD_BY = {
    "endpoint_override": (S3_ENDPOINT,),
    "access_key": (S3_ACCESS_KEY_ID, AWS_ACCESS_KEY_ID),
    "secret_key": (S3_SECRET_ACCESS_KEY, AWS_SECRET_ACCESS_KEY),
    "session_token": (S3_SESSION_TOKEN, AWS_SESSION_TOKEN),
    "region": (S3_REGION, AWS_REGION),
}
# Java's alone, and ours: PyIceberg passes them over.
_PASSED_OVER = ("s3.path-style-access", "s3.session-token-expires-at-ms")
_KNOWN = {name for names in _TOLD_BY.values() for name in names} | set(_PASSED_OVER)
_OF_STORE = ("s3.", "client.")
_SUMS = "AWS_RESPONSE_CHECKSUM_VALIDATION"
# As PyIceberg's, by default.
_BUFFER_BYTES = 1 << 20


def files_of_s3(settings: Mapping[str, str]) -> FileIO | None:
    """None: the settings say more than is known here, or do not name the region, which PyIceberg then looks for."""
    told = {name for name in settings if name.startswith(_OF_STORE)}
    if told <= _KNOWN and told & {S3_REGION, AWS_REGION}:
        return _S3(dict(settings))
    return None


class _S3(FileIO):
    def __init__(self, properties: Mapping[str, str]) -> None:
        from pyarrow.fs import S3FileSystem

        super().__init__(dict(properties))
        given = {name: next((properties[one] for one in by if one in properties), None) for name, by in _TOLD_BY.items()}
        with _no_sums_of_parts():
            self._files = S3FileSystem(**given)

    def new_input(self, location: str) -> InputFile:
        return _Object(location, self._files)

    def new_output(self, location: str) -> OutputFile:
        return _Object(location, self._files)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        with _named(path):
            self._files.delete_file(_path(path))


class _Object(InputFile, OutputFile):
    def __init__(self, location: str, files: S3FileSystem) -> None:
        super().__init__(location)
        self._files, self._path = files, _path(location)

    def __len__(self) -> int:
        from pyarrow.fs import FileType

        with _named(self.location):
            found = self._files.get_file_info(self._path)
        if found.type == FileType.NotFound:
            raise FileNotFoundError(ENOENT, "it is not there", self.location)
        return cast(int, found.size)

    def exists(self) -> bool:
        try:
            len(self)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        with _named(self.location):
            if seekable:
                return cast(InputStream, self._files.open_input_file(self._path))
            return cast(InputStream, self._files.open_input_stream(self._path, buffer_size=_BUFFER_BYTES))

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} is there already")
        with _named(self.location):
            return cast(OutputStream, self._files.open_output_stream(self._path, buffer_size=_BUFFER_BYTES))

    def to_input_file(self) -> InputFile:
        return self


@contextmanager
def _no_sums_of_parts() -> Iterator[None]:
    """A client of AWS that is made in the block sums what it reads only where it must. By default it sums each answer five times over, for a
    checksum to come with it; but PyArrow reads parts of objects, of which a store has none. That is two fifths of what reading costs. PyArrow
    knows no other way to say it; what a person has set stands, and Java goes on as it is told."""
    if _SUMS in os.environ:
        yield
        return
    os.environ[_SUMS] = "when_required"
    try:
        yield
    finally:
        os.environ.pop(_SUMS, None)


def _path(location: str) -> str:
    """As PyIceberg has it: bucket and name."""
    found = urlparse(location)
    return f"{found.netloc}{found.path}"


@contextmanager
def _named(location: str) -> Iterator[None]:
    """PyArrow says some of it in words only. Raises FileNotFoundError, PermissionError."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        text = str(error)
        if error.errno == ENOENT or "Path does not exist" in text:
            raise FileNotFoundError(f"{location} is not there: {text}") from error
        if error.errno == EACCES or "AWS Error [code 15]" in text:
            raise PermissionError(f"{location} is refused: {text}") from error
        raise
