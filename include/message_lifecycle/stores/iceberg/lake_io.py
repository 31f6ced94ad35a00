"""Files for PyIceberg: the standard library reads files of this machine, PyIceberg's own I/O reads all others, by the scheme of each path.

PyIceberg's own I/O for local files imports PyArrow and pandas. That costs over a second of CPU, more than reading a log's metadata
otherwise costs. PyIceberg's I/O for S3 does so, too, so it is used only where nothing else works. Reading messages still uses PyArrow.

Manifests and their lists never change, and each question about a table reads them. So a copy of a remote one stays in memory after the
first read.
"""

from __future__ import annotations

import io
import json
import threading
import time
from functools import lru_cache
from urllib.parse import urlsplit

from cachetools import LRUCache
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.typedef import EMPTY_DICT, Properties

from message_lifecycle.model.errors import CatalogUnavailable
from message_lifecycle.stores.iceberg.layout import CATALOG, OF_TABLE
from message_lifecycle.stores.iceberg.s3_files import SCHEMES, files_of_s3
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path, on_disk


class _LocalFile(InputFile, OutputFile):
    def __len__(self) -> int:
        return local_path(self.location).stat().st_size

    def exists(self) -> bool:
        return local_path(self.location).exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002  # PyIceberg's signature
        # A table's metadata and manifests are small and read once, so read the whole file.
        return io.BytesIO(local_path(self.location).read_bytes())

    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _DurableFile(io.FileIO(path, "wb" if overwrite else "xb"), self.location)

    def to_input_file(self) -> InputFile:
        return self


class _DurableFile(io.BufferedWriter):
    """A file that is on disk after `close`: the catalog will point at it next."""

    def __init__(self, raw: io.FileIO, location: str) -> None:
        super().__init__(raw)
        self._location = location

    def close(self) -> None:
        if not self.closed:
            super().close()
            on_disk(self._location)


# A part of the names of settings for the end of storage keys, in milliseconds since 1970.
_ENDS, _EARLY_MS = "expires-at", 60_000
_KEPT_BYTES = 64 << 20
_kept: LRUCache[str, bytes] = LRUCache(_KEPT_BYTES, getsizeof=len)
_keeping = threading.Lock()


class _KeptFile(InputFile):
    """A file of a remote store that never changes."""

    def __init__(self, there: InputFile) -> None:
        super().__init__(there.location)
        self._there = there

    def __len__(self) -> int:
        return len(self._content())

    def exists(self) -> bool:
        return self._there.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002  # PyIceberg's signature
        return io.BytesIO(self._content())

    def _content(self) -> bytes:
        with _keeping:
            content = _kept.get(self.location)
        if content is None:
            with self._there.open(seekable=False) as file:
                content = file.read()
            if len(content) <= _KEPT_BYTES:
                with _keeping:
                    _kept[self.location] = content
        return content


class LakeFileIO(FileIO):
    """The catalog's `py-io-impl`, unless the configuration names another one.

    Args:
        properties: The catalog's properties, or a table's own, for example with keys for one table only.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        self._renewing = threading.Lock()
        super().__init__(properties)

    @property
    def properties(self) -> Properties:
        """Return the properties with valid keys. Keys with a limited time are renewed from the catalog before they end."""
        return self._renewed()[0]

    @properties.setter
    def properties(self, given: Properties) -> None:
        self._now: tuple[Properties, dict[str, FileIO]] = given, {}

    def _renewed(self) -> tuple[Properties, dict[str, FileIO]]:
        """Return the properties with valid keys, and the I/O of each scheme made from them."""
        with self._renewing:
            given = self._now[0]
            if OF_TABLE in given and _ending(given):
                self._now = _anew(given), {}
            return self._now

    def new_input(self, location: str) -> InputFile:
        if is_local(location):
            return _LocalFile(location)
        there = self._of(location).new_input(location)
        return _KeptFile(there) if location.endswith(".avro") else there

    def new_output(self, location: str) -> OutputFile:
        return _LocalFile(location) if is_local(location) else self._of(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        if is_local(path):
            local_path(path).unlink(missing_ok=True)
        else:
            self._of(path).delete(path)

    def _of(self, location: str) -> FileIO:
        scheme, (given, made) = urlsplit(location).scheme, self._renewed()
        if scheme not in made:
            settings = {key: value for key, value in given.items() if key != PY_IO_IMPL}
            quick = files_of_s3(settings) if scheme in SCHEMES else None
            made[scheme] = load_file_io(settings, location) if quick is None else quick
        return made[scheme]


def _ending(given: Properties, *, early_ms: int = _EARLY_MS) -> bool:
    ends = [int(value) for key, value in given.items() if _ENDS in key and str(value).isdigit()]
    return bool(ends) and min(ends) - early_ms < time.time() * 1000


def _anew(given: Properties) -> Properties:
    """Return new properties of the table from the catalog, or the given ones if the catalog has forgotten the table.

    A task on another machine can reach the catalog only with these settings.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError, RESTError

    place = given[OF_TABLE]
    own = {key: value for key, value in given.items() if isinstance(value, str) and key != OF_TABLE and _ENDS not in key}
    try:
        table = load_catalog(CATALOG, **own).load_table(tuple(json.loads(place)))
    except NoSuchTableError:
        return given
    except (RESTError, OSError) as error:
        if _ending(given, early_ms=0):
            raise CatalogUnavailable(str(error).partition("\n")[0]) from error
        return given  # the keys are still valid for a while, and the next call tries again
    return {**table.io.properties, OF_TABLE: place}


@lru_cache(maxsize=64)
def io_of(settings: tuple[tuple[str, str], ...]) -> LakeFileIO:
    """Return the I/O for the settings, the same object for equal settings."""
    return LakeFileIO(dict(settings))
