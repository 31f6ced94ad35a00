"""PyIceberg's access to objects of S3, through PyArrow's file system alone.

PyIceberg's own access loads PyArrow's data sets, and pandas with them: half a second of CPU and 50 MB in each process, and in the process
of each task. We use PyIceberg's own access only for settings that this module does not know.
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
# The settings that give each argument of PyArrow's file system. The first one wins.
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
    """Return the file access, or None if PyIceberg's own is needed: for an unknown setting, or to find the region."""
    given = {name for name in settings if name.startswith(_OF_STORE)}
    if given <= _KNOWN and given & {S3_REGION, AWS_REGION}:
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
    """Let a client of AWS that is created in the block verify checksums only if it must.

    By default the client computes five checksums of each answer, because the store may send one of them. PyArrow reads parts of objects,
    and a store has no checksums of parts. The needless sums cost two fifths of the time of reading. PyArrow has no other way to turn them
    off. A value that the user has set stays, and Java's own clients are not affected.
    """
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
