"""Local files for PyIceberg by the standard library.

PyIceberg's own way to local files imports PyArrow and pandas: over a second of CPU, more than all else that reading a log's
metadata costs. Reading messages still goes through PyArrow.
"""

from __future__ import annotations

import io

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from message_lifecycle.stores.iceberg.table_folder import local_path, on_disk


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


class LocalFileIO(FileIO):
    """`py-io-impl` of catalogs whose warehouse is a local folder."""

    def new_input(self, location: str) -> InputFile:
        return _LocalFile(location)

    def new_output(self, location: str) -> OutputFile:
        return _LocalFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        local_path(location if isinstance(location, str) else location.location).unlink(missing_ok=True)
