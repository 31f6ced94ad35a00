"""Files for PyIceberg by the scheme of each path: those of this machine by the standard library, all others by PyIceberg's own way.

PyIceberg's own way to local files imports PyArrow and pandas: over a second of CPU, more than all else that reading a log's
metadata costs. That to S3 does so, too, and is taken only where it must be. Reading messages still goes through PyArrow.

Lists of manifests and manifests never change, and each question about a table reads them: of a store elsewhere they are asked for once.
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
        # A table's metadata and manifests are small and read once: whole.
        return io.BytesIO(local_path(self.location).read_bytes())

    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _DurableFile(io.FileIO(path, "wb" if overwrite else "xb"), self.location)

    def to_input_file(self) -> InputFile:
        return self


class _DurableFile(io.BufferedWriter):
    """On disk when it is closed: the catalog is about to point at it."""

    def __init__(self, raw: io.FileIO, location: str) -> None:
        super().__init__(raw)
        self._location = location

    def close(self) -> None:
        if not self.closed:
            super().close()
            on_disk(self._location)


# Part of the name of each setting that tells when keys end, in milliseconds since 1970.
_ENDS, _EARLY_MS = "expires-at", 60_000
_KEPT_BYTES = 64 << 20
_kept: LRUCache[str, bytes] = LRUCache(_KEPT_BYTES, getsizeof=len)
_keeping = threading.Lock()


class _KeptFile(InputFile):
    """A file that never changes, of a store elsewhere."""

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
    """`py-io-impl` of the catalog, unless somebody has chosen another. `properties`: the catalog's, or the table's own, as of those who may
    reach one table alone."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        self._renewing = threading.Lock()
        super().__init__(properties)

    @property
    def properties(self) -> Properties:
        """With keys that are still good: where a catalog has given them out for a time, it is asked for others before that ends."""
        return self._renewed()[0]

    @properties.setter
    def properties(self, given: Properties) -> None:
        self._now: tuple[Properties, dict[str, FileIO]] = given, {}

    def _renewed(self) -> tuple[Properties, dict[str, FileIO]]:
        """And by scheme what was made of them."""
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
    """As the catalog answers for the table now; those given, where it has forgotten the table. A task far from here has nothing but these
    settings to ask it by."""
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
        return given  # good for a while, and the next question asks again
    return {**table.io.properties, OF_TABLE: place}


@lru_cache(maxsize=64)
def io_of(settings: tuple[tuple[str, str], ...]) -> LakeFileIO:
    """One for all who have the same settings."""
    return LakeFileIO(dict(settings))
