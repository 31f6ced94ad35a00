"""The folder of an archive's files (RET-7): on this machine's disk, or in an object store.

The lake's catalog has the keys of the object store. A plan has one file, `<stream>/<topic>/<plan>.parquet`. A file appears whole or not
at all, also in place of an older one.

After a crash, a disk keeps a half-written file next to the whole one, as `.new`. A store keeps uploads that have begun and are not
complete. No listing of objects shows such an upload, and it stays until a caller aborts it.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlsplit

from message_lifecycle.model.errors import LifecycleError, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.disk import (
    Disk,
    check_folder,
    make_folder,
    make_root,
    open_to_read,
    root_of,
    stream_folder,
    translate_disk_errors,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.tasks import Store

_KIND = ".parquet"
_NEW = ".new"
_AT_ONCE = 8 << 20
"""Bytes that are asked of a store at once."""

Fill = Callable[[IO[bytes]], None]
"""Writes a file's content."""


class Place(ABC):
    """The files of all topics of one archive; nothing is looked at, or made, before it is needed."""

    @abstractmethod
    def folder(self, name: TopicName) -> str:
        """The topic's own, which nobody has looked at."""

    @abstractmethod
    def path_text(self, name: TopicName, plan_id: str) -> str:
        """The plan's file: its path, or its URI. Raises UnsafePath."""

    @abstractmethod
    def write(self, name: TopicName, plan_id: str, fill: Fill) -> None:
        """Write the plan's file, in place of an older one. The file is whole and durable on return.

        After an error no new file has appeared.

        Raises:
            StorageFull: The disk is full.
            StorageRefused: The disk or the object store refuses the file.
            UnsafePath: A part of the path is a link, or no folder.
            Exception: Any error of `fill`.
        """

    @abstractmethod
    def open(self, name: TopicName, plan_id: str) -> BinaryIO:
        """To read here and there. Raises FileNotFoundError, StorageRefused, UnsafePath."""

    @abstractmethod
    def plans(self, name: TopicName) -> list[str]:
        """Those that have a file here, in order. Raises StorageRefused, UnsafePath."""

    @abstractmethod
    def list_half_written_plans(self, name: TopicName) -> list[str]:
        """Plans of which a crash has left some part, in order. Raises StorageRefused, UnsafePath."""

    @abstractmethod
    def drop(self, name: TopicName, plan_id: str) -> None:
        """The file, and what is half-written of it, durably. Nothing there is success. Raises StorageRefused, UnsafePath."""

    @abstractmethod
    def drop_half_written(self, name: TopicName) -> None:
        """Of every plan; none may be writing. Raises StorageRefused, UnsafePath."""

    @abstractmethod
    def is_there(self, name: TopicName) -> bool:
        """Whether it can be looked into for what it has of the topic, where it was written to."""

    @abstractmethod
    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        """Describe the old copies beneath the topic's files that were written until then. Empty: no copy.

        Raises CatalogUnavailable, StorageRefused, JavaEnded.
        """


def place_at(to: str, *, disk: Disk | None = None) -> Place:
    """`to`: as the setting `archive_to` has it."""
    return StorePlace(to) if "://" in to else DiskPlace(Path(to), disk=disk)


class DiskPlace(Place):
    """A folder of this machine, made at the first write."""

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self._folder, self._disk = folder, disk or Disk()

    @cached_property
    def _root(self) -> Path:
        return root_of(self._folder)

    def folder(self, name: TopicName) -> str:
        return str(self._folder / name.namespace / name.table())

    def path_text(self, name: TopicName, plan_id: str) -> str:
        return str(self._file(name, plan_id))

    def write(self, name: TopicName, plan_id: str, fill: Fill) -> None:
        file = self._file(name, plan_id)
        new = _half_written(file)
        make_root(self._root)
        with translate_disk_errors():
            make_folder(file.parent.parent, self._disk)
            make_folder(file.parent, self._disk)
            self._disk.unlink(new)
            into = self._disk.create(new)
            try:
                with os.fdopen(into, "wb", closefd=False) as sink:
                    fill(sink)
                self._disk.sync(into)
            finally:
                os.close(into)
            self._disk.replace(new, file)
            self._disk.sync_folder(file.parent)

    def open(self, name: TopicName, plan_id: str) -> BinaryIO:
        return open_to_read(self._file(name, plan_id))

    def plans(self, name: TopicName) -> list[str]:
        return self._plans(name, _KIND)

    def list_half_written_plans(self, name: TopicName) -> list[str]:
        return self._plans(name, f"{_KIND}{_NEW}")

    def drop(self, name: TopicName, plan_id: str) -> None:
        file = self._file(name, plan_id)
        self._unlink(_half_written(file), file)

    def drop_half_written(self, name: TopicName) -> None:
        self._unlink(*(_half_written(self._file(name, plan_id)) for plan_id in self.list_half_written_plans(name)))

    def is_there(self, name: TopicName) -> bool:
        """No erasure takes the topic's own folder away: where it is missing, a disk may not be mounted."""
        return os.path.isdir(self.folder(name))  # noqa: PTH112  # Path's raises where a mount does not answer

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:  # noqa: ARG002  # files are written over, or removed
        return ()

    def _file(self, name: TopicName, plan_id: str) -> Path:
        """Raises UnsafePath where the topic's folder leads elsewhere."""
        folder = stream_folder(self._root, name) / name.table()
        check_folder(folder)
        return folder / f"{plan_id}{_KIND}"

    def _plans(self, name: TopicName, ending: str) -> list[str]:
        return sorted(path.name.removesuffix(ending) for path in self._file(name, "any").parent.glob(f"*{ending}"))

    def _unlink(self, *files: Path) -> None:
        """Durably: what is told to be gone must not come back with the machine."""
        with translate_disk_errors():
            for file in files:
                self._disk.unlink(file)
            for folder in {file.parent for file in files}:
                if check_folder(folder):
                    self._disk.sync_folder(folder)


def _half_written(file: Path) -> Path:
    return file.with_name(f"{file.name}{_NEW}")


class StorePlace(Place):
    """A folder of an object store, as `s3://BUCKET/FOLDER`.

    The keys come from the catalog's settings in `.pyiceberg.yaml`, or from the machine. Iceberg's own I/O removes objects and finds
    unfinished uploads.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    @cached_property
    def _store(self) -> Store:
        from message_lifecycle.stores.iceberg.catalog import Tables
        from message_lifecycle.stores.iceberg.java import ANY_IO
        from message_lifecycle.stores.iceberg.tasks import Store

        found = Store.of_catalog(Tables().catalog)
        # The lake's tables may lie in another store, or on a disk.
        return replace(found, settings=(*found.settings, ("io-impl", ANY_IO)))

    @property
    def _io(self) -> FileIO:
        return self._store.io

    def folder(self, name: TopicName) -> str:
        return f"{self._root}/{name.namespace}/{name.table()}"

    def path_text(self, name: TopicName, plan_id: str) -> str:
        return f"{self.folder(name)}/{plan_id}{_KIND}"

    def write(self, name: TopicName, plan_id: str, fill: Fill) -> None:
        """A file of this machine without a name takes the content first, so that what is uploaded is whole before the first byte goes."""
        with TemporaryFile() as content:
            with translate_disk_errors():
                fill(content)
                content.flush()
            self._abort(name, lambda plan: plan == plan_id)  # what an earlier attempt has left
            whole = memoryview(mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ))
        with ThreadPoolExecutor(1) as beside:
            # In a thread, for signals go to the main one: PyArrow completes an upload when it closes it, whatever it has got until then.
            beside.submit(self._upload, self.path_text(name, plan_id), whole).result()

    def _upload(self, path: str, whole: memoryview) -> None:
        with _reaching(path), self._store.create(path) as out:
            out.write(whole)

    def open(self, name: TopicName, plan_id: str) -> BinaryIO:
        """A copy without a name on this machine: what fails on the way is the store's failure, and what is read then is the content."""
        path = self.path_text(name, plan_id)
        with ExitStack() as failed:
            copy = failed.enter_context(TemporaryFile())
            with _reaching(path):
                source = failed.enter_context(self._store.open(path))
            while chunk := _next(path, source):
                with translate_disk_errors():
                    copy.write(chunk)
            with translate_disk_errors():
                copy.seek(0)
            failed.pop_all()
        source.close()
        return cast("BinaryIO", copy)

    def plans(self, name: TopicName) -> list[str]:
        from message_lifecycle.stores.iceberg.table_files import list_files

        return sorted(_plans_of(file.name for file in list_files(self._io, self.folder(name))))

    def list_half_written_plans(self, name: TopicName) -> list[str]:
        from message_lifecycle.stores.iceberg.table_files import check_bucket, unfinished_uploads

        if not self._lists_uploads:
            check_bucket(self._io, self.folder(name))
            return []
        return sorted(set(_plans_of(upload.name for upload in unfinished_uploads(self._io, self.folder(name)))))

    def drop(self, name: TopicName, plan_id: str) -> None:
        from message_lifecycle.stores.iceberg.table_files import delete_files

        # First the upload: who completes one after the object went would bring it back.
        self._abort(name, lambda plan: plan == plan_id)
        delete_files(self._io, self.folder(name), [f"{plan_id}{_KIND}"])

    def drop_half_written(self, name: TopicName) -> None:
        self._abort(name, lambda _: True)

    def is_there(self, name: TopicName) -> bool:
        """A bucket has no folders that could be missing: it answers, or it does not."""
        try:
            self.list_half_written_plans(name)
            self.plans(name)
        except LifecycleError:
            return False
        return True

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        from message_lifecycle.stores.iceberg.table_files import CLOCKS_DIFFER_MS, kept_versions

        return kept_versions([(self._io, self.folder(name))], until_ms=until // 1000 + CLOCKS_DIFFER_MS)

    @property
    def _lists_uploads(self) -> bool:
        """In Google's store there is nobody to ask, and what is not completed ends by itself within a week."""
        return urlsplit(self._root).scheme == "s3"

    def _abort(self, name: TopicName, wanted: Callable[[str], bool]) -> None:
        if not self._lists_uploads:
            return
        from message_lifecycle.stores.iceberg.table_files import abort_uploads

        abort_uploads(self._io, self.folder(name), lambda file: any(map(wanted, _plans_of([file]))))


def _plans_of(files: Iterator[str] | list[str]) -> Iterator[str]:
    """Of names below a topic's folder those that are ours."""
    return (file.removesuffix(_KIND) for file in files if file.endswith(_KIND) and "/" not in file)


def _next(path: str, source: IO[bytes]) -> bytes:
    with _reaching(path):
        return source.read(_AT_ONCE)


@contextmanager
def _reaching(path: str) -> Iterator[None]:
    """What a store answers in PyArrow's words. Raises StorageRefused, FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise storage_refused(path, str(error).partition("\n")[0]) from error
