"""List the files below a table's location, and delete files by name. No function touches a file outside, or follows a link.

Hadoop keeps a checksum next to each local file, `.NAME.crc`. Hadoop's own deletion removes both files, so lists of files here may name
both.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from message_lifecycle.model.errors import LifecycleError, OutsideTable, UnsafePath, code_of, storage_refused
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import (
    ANY_IO,
    Java,
    Jvm,
    call_if_present,
    each,
    is_connection_broken,
    java_class,
    java_exception,
    java_message,
    thrown,
)
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_folder import is_absolute, is_local, local_path, location_prefix, normalised

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_CHECKSUM = ".crc"
_DELETES = "s3.delete-enabled"
_CUT = re.compile("[#?]")
_OF_S3 = "org.apache.iceberg.aws.s3.S3FileIO"
_S3 = ("s3", "s3a", "s3n")
_RIGHTS = "uploads are asked for by s3:ListBucketMultipartUploads, and ended by s3:AbortMultipartUpload"
CLOCKS_DIFFER_MS = 3_600_000
"""A store's clock may be that far from the ledger's: more may count, and nothing is missed."""
# The answers of a store without versions of objects to a request for versions.
_NO_VERSIONS = (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


class ListedFile(NamedTuple):
    """`name` relative to the table's location; `changed_at_ms` since 1970, by the file system's clock."""

    name: str
    size_bytes: int
    changed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """`size_bytes`: as the file system reported just before. `missing`: files that were gone already, which is success (EXP-8)."""

    files: int = 0
    missing: int = 0
    size_bytes: int = 0

    def __add__(self, other: Deleted) -> Deleted:
        return Deleted(files=self.files + other.files, missing=self.missing + other.missing, size_bytes=self.size_bytes + other.size_bytes)


def owner_of(name: str) -> str:
    """The file that a checksum is about; any other file is its own."""
    folder, _, file = name.rpartition("/")
    if not (file.startswith(".") and file.endswith(_CHECKSUM)):
        return name
    owner = file.removeprefix(".").removesuffix(_CHECKSUM)
    return f"{folder}/{owner}" if folder else owner


def with_checksums(names: Iterable[str]) -> Iterator[str]:
    """Yield each name, and the name of its possible checksum file."""
    for name in names:
        folder, _, file = name.rpartition("/")
        yield name
        yield f"{folder}/.{file}{_CHECKSUM}" if folder else f".{file}{_CHECKSUM}"


def list_files(io: FileIO, location: str) -> Iterator[ListedFile]:
    """Every file below the location. Raises UnsafePath at a link or a name that is no text, StorageRefused."""
    return _list_local_files(local_path(location)) if is_local(location) else _list_remote_files(io, location)


def delete_files(io: FileIO, location: str, names: Iterable[str]) -> Deleted:
    """Remove exactly these, named relative to the location. A file that is not there is success; any other error stops the work.

    Raises OutsideTable for a name that is no relative path, UnsafePath where a link or no plain file is in the way, StorageRefused.
    """
    wanted = sorted(check_name(location, name) for name in names)
    return _delete_local_files(local_path(location), wanted) if is_local(location) else _delete_remote_files(io, location, wanted)


def check_name(location: str, name: str) -> str:
    """Return the name. Raises OutsideTable unless it is a plain relative path."""
    if is_absolute(name) or not name:
        raise OutsideTable(location, name)
    try:
        normalised(f"/{name}")
    except UnsafePath as unsafe:
        raise OutsideTable(location, name) from unsafe
    return name


def _list_local_files(root: Path) -> Iterator[ListedFile]:
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = f"{prefix}{entry.name}"
                    if entry.is_symlink():
                        raise UnsafePath(_printable(entry.path), "a symbolic link")
                    if _printable(entry.name) != entry.name:
                        raise UnsafePath(_printable(entry.path), "a name that is not UTF-8, which no plan can tell")
                    if entry.is_dir():
                        folders.append((folder / entry.name, f"{name}/"))
                        continue
                    try:
                        about = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # another process has removed it since the folder was read
                    yield ListedFile(name, about.st_size, about.st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise storage_refused(str(folder), str(error.strerror)) from error


def _printable(path: str) -> str:
    """As text that can be printed and stored; bytes that are no UTF-8 by their numbers."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _delete_local_files(root: Path, names: list[str]) -> Deleted:
    files = missing = size_bytes = 0
    opened: tuple[str, int | None] | None = None
    with ExitStack() as held:
        for name in names:
            folder, _, file = name.rpartition("/")
            if opened is None or opened[0] != folder:
                held.close()
                opened = folder, _open_folder(held, root, folder)
            at = opened[1]
            size = None if at is None else _unlink(root / name, file, at)
            if size is None:
                missing += 1
            else:
                files, size_bytes = files + 1, size_bytes + size
    return Deleted(files=files, missing=missing, size_bytes=size_bytes)


def _open_folder(held: ExitStack, root: Path, folder: str) -> int | None:
    """Step by step, so that no link on the way is followed, also one put there just now. None: it is gone."""
    at = root
    try:
        number = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, number)
        for step in folder.split("/") if folder else ():
            at = at / step
            number = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
            held.callback(os.close, number)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise UnsafePath(str(at), "a symbolic link, or no folder") from error
        raise storage_refused(str(at), str(error.strerror)) from error
    return number


def _unlink(path: Path, file: str, folder: int) -> int | None:
    try:
        about = os.stat(file, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode):
            raise UnsafePath(str(path), "a symbolic link, or no plain file")
        os.unlink(file, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_refused(str(path), str(error.strerror)) from error
    return about.st_size


def _list_remote_files(io: FileIO, location: str) -> Iterator[ListedFile]:
    """By PyArrow: a thousand a request."""
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, authority, path = PyArrowFileIO.parse_location(location, io.properties)
    root = path.rstrip("/")
    prefix = f"{root}/"
    try:
        every = (
            PyArrowFileIO(io.properties)
            .fs_by_scheme(scheme, authority)
            .get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        )
    except (OSError, ValueError) as error:  # PyArrow's own, of a place that cannot be
        raise storage_refused(location, str(error)) from error
    for found in every:
        if found.type == FileType.File:
            changed = found.mtime_ns
            # An unknown time is no age: the file counts as new.
            yield ListedFile(found.path.removeprefix(prefix), found.size or 0, 2**62 if changed is None else changed // 1_000_000)


def remote_size(io: FileIO, path: str) -> int | None:
    """Return the size of a file in a store, or None if the store has no file of that name. Raises StorageRefused."""
    from pyarrow.fs import FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, authority, place = PyArrowFileIO.parse_location(path, io.properties)
    try:
        found = PyArrowFileIO(io.properties).fs_by_scheme(scheme, authority).get_file_info(place)
    except (OSError, ValueError) as error:
        raise storage_refused(path, str(error)) from error
    return int(found.size) if found.type == FileType.File else None


def check_bucket(io: FileIO, location: str) -> None:
    """Raise StorageRefused if the bucket does not exist. A listing of such a bucket would have no files and raise no error."""
    from pyarrow.fs import FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, authority, _ = PyArrowFileIO.parse_location(location, io.properties)
    try:
        found = PyArrowFileIO(io.properties).fs_by_scheme(scheme, authority).get_file_info(authority)
    except (OSError, ValueError) as error:
        raise storage_refused(location, str(error)) from error
    if found.type == FileType.NotFound:
        raise storage_refused(location, f"there is no bucket {authority}")


def _delete_remote_files(io: FileIO, location: str, names: list[str]) -> Deleted:
    """By Iceberg's own I/O, hundreds a request: PyArrow asks for each by itself, and leaves an empty object for each folder that it empties."""
    misleading = next((name for name in names if _CUT.search(name)), None)
    if misleading is not None:
        raise UnsafePath(
            f"{location_prefix(location)}{misleading}", "a name with # or ?, at which Iceberg's I/O cuts it: it would be another file's"
        )
    wanted = set(names)
    there = {file.name: file.size_bytes for file in _list_remote_files(io, location) if file.name in wanted}
    if there:
        jvm, prefix = engine_of_process(), location_prefix(location)
        given = jvm.settings_of(io.properties)
        if given.get(_DELETES, "true").lower() != "true":  # Iceberg's I/O would do nothing, and say nothing
            raise storage_refused(location, f"its clients are to delete nothing there ({_DELETES} = {given[_DELETES]})")
        with engine_failures():
            try:
                with jvm.file_io(given) as files:
                    files.deleteFiles(jvm.list_of([f"{prefix}{name}" for name in there]))
            except thrown() as error:
                if not java_class(error):
                    raise
                raise storage_refused(location, f"{java_class(error)}: {java_message(error)}") from error
        left = next((file.name for file in _list_remote_files(io, location) if file.name in there), None)
        if left is not None:  # of a part that failed Iceberg's I/O only writes a line
            raise storage_refused(f"{location_prefix(location)}{left}", "it is still there after it was deleted")
    return Deleted(files=len(there), missing=len(names) - len(there), size_bytes=sum(there.values()))


# The versions that a bucket with versioning keeps of deleted or replaced objects. Our code never reads or removes them.


def kept_versions(places: Iterable[tuple[FileIO, str]], *, until_ms: int | None = None) -> list[str]:
    """Describe the versions of objects that buckets keep below the locations, one text for each bucket.

    Only S3 has a request for versions. If a store does not answer it, the text says so.

    Args:
        places: The locations, each with the access to its files.
        until_ms: Count objects that were written until then (milliseconds since 1970). None: count all.

    Raises:
        CatalogUnavailable, StorageRefused, JavaEnded: The request failed.
    """
    kept, unseen = Counter[str](), dict[str, None]()
    for io, location in places:
        place = urlsplit(location)
        if place.scheme in _S3:
            found = _kept_below(io, location, place, until_ms)
            if isinstance(found, int):
                kept[place.netloc] += found
            else:
                unseen[f"whether {place.netloc} keeps earlier versions of its objects cannot be seen{found}"] = None
    advice = "earlier versions of its objects, which nothing here reads or removes: let a rule of the bucket end them"
    return [*unseen, *(f"{bucket} keeps {number:,} {advice}" for bucket, number in kept.items() if number)]


def kept_of_removed(places: Iterable[tuple[FileIO, str]]) -> tuple[str, ...]:
    """Describe the kept versions after a deletion. If the request fails, return the error as text: the deletion itself succeeded."""
    try:
        return tuple(kept_versions(places))
    except LifecycleError as error:
        return (f"{code_of(error)}: {error}",)
    except thrown() as error:
        return (f"whether earlier versions of objects are kept cannot be seen: {java_class(error)}: {java_message(error)}",)


def _kept_below(io: FileIO, location: str, place: SplitResult, until_ms: int | None) -> int | str:
    """Return the number of kept versions, or the reason why it cannot be seen, as the end of a sentence."""
    with engine_failures():
        jvm = engine_of_process()
        given = jvm.settings_of(io.properties)
        if given.get("io-impl", _OF_S3) not in (_OF_S3, ANY_IO):
            return f" by {given['io-impl']}"
        try:
            with jvm.file_io({**given, "io-impl": _OF_S3}) as files:
                wanted = jvm.jvm.software.amazon.awssdk.services.s3.model.ListObjectVersionsRequest.builder()
                wanted = wanted.bucket(place.netloc).prefix(location_prefix(place.path.lstrip("/"))).build()
                every = files.client(location).listObjectVersionsPaginator(wanted).versions()
                return sum(_is_until(one, until_ms) for one in every.stream().filter(_is_latest(jvm).negate()).toList())
        except thrown(TypeError) as error:
            if _knows_no_store(error):
                return f": {error}"
            status = _http_status(error)
            if status in _NO_VERSIONS:
                return 0
            if status == HTTPStatus.FORBIDDEN:
                return ": let the keys list them (s3:ListBucketVersions)"
            raise


def _is_latest(jvm: Jvm) -> Java:
    """Return a Java predicate on versions of objects. The same check from Python would cost two calls for each object of the bucket."""
    lang = jvm.jvm.java.lang
    method_type = lang.invoke.MethodType.methodType(lang.Class.forName("java.lang.Boolean"))
    of_version = lang.Class.forName("software.amazon.awssdk.services.s3.model.ObjectVersion")
    handle = lang.invoke.MethodHandles.publicLookup().findVirtual(of_version, "isLatest", method_type)
    return lang.invoke.MethodHandleProxies.asInterfaceInstance(lang.Class.forName("java.util.function.Predicate"), handle)


def _is_until(version: Java, until_ms: int | None) -> bool:
    return until_ms is None or int(version.lastModified().toEpochMilli()) <= until_ms


# Uploads to a bucket that were begun in parts and never completed: no listing of its objects shows them.


class Upload(NamedTuple):
    """`name` relative to the location that it was looked for at; `upload_id`: the store's."""

    name: str
    upload_id: str


def unfinished_uploads(io: FileIO, location: str) -> list[Upload]:
    """Return the uploads below a location in S3. Raises StorageRefused (also for a missing bucket), CatalogUnavailable, JavaEnded."""
    with _bucket_of(io, location) as bucket:
        return _uploads(bucket)


def abort_uploads(io: FileIO, location: str, wanted: Callable[[str], bool]) -> None:
    """Abort the uploads below a location in S3 whose relative names are `wanted`. An upload that is gone already is no error.

    Raises as `unfinished_uploads`, and StorageRefused if such an upload is still there afterwards.
    """
    with _bucket_of(io, location) as bucket:
        found = [upload for upload in _uploads(bucket) if wanted(upload.name)]
        for upload in found:
            asked = bucket.model.AbortMultipartUploadRequest.builder().bucket(bucket.name)
            try:
                bucket.client.abortMultipartUpload(asked.key(f"{bucket.prefix}{upload.name}").uploadId(upload.upload_id).build())
            except thrown() as error:
                if _http_status(error) != HTTPStatus.NOT_FOUND:
                    raise
        # A part of an upload may have arrived after the abort.
        if found and (left := next((upload.name for upload in _uploads(bucket) if wanted(upload.name)), None)):
            raise storage_refused(f"{location_prefix(location)}{left}", "an upload that was begun is still there after it was aborted")


class _Bucket(NamedTuple):
    """`client`: the client of Iceberg's I/O. `model`: the Java package of its requests. `prefix`: of the keys below the location."""

    client: Java
    model: Java
    name: str
    prefix: str


@contextmanager
def _bucket_of(io: FileIO, location: str) -> Iterator[_Bucket]:
    place = urlsplit(location)
    with engine_failures():
        jvm = engine_of_process()
        try:
            with jvm.file_io({**jvm.settings_of(io.properties), "io-impl": _OF_S3}) as files:
                model = jvm.jvm.software.amazon.awssdk.services.s3.model
                yield _Bucket(files.client(location), model, place.netloc, location_prefix(place.path.lstrip("/")))
        except thrown(TypeError) as error:
            if _knows_no_store(error):
                cannot = "its unfinished uploads cannot be seen without iceberg-aws-bundle in Java"
                raise storage_refused(location, f"{cannot}: {error}") from error
            if not java_class(error):
                raise
            may = "" if _http_status(error) != HTTPStatus.FORBIDDEN else f" ({_RIGHTS})"
            raise storage_refused(location, f"{java_class(error)}: {java_message(error)}{may}") from error


def _uploads(bucket: _Bucket) -> list[Upload]:
    wanted = bucket.model.ListMultipartUploadsRequest.builder().bucket(bucket.name).prefix(bucket.prefix).build()
    every = each(bucket.client.listMultipartUploadsPaginator(wanted).uploads())
    return [
        Upload(str(one.key()).removeprefix(bucket.prefix), str(one.uploadId())) for one in every if str(one.key()).startswith(bucket.prefix)
    ]


def _knows_no_store(error: Exception) -> bool:
    """True if the classes of the store's own client are missing on Java's class path."""
    return java_exception(error) is None and not is_connection_broken(error)


def _http_status(error: Exception) -> int | None:
    """Return the HTTP status if the error is an answer of the store, or None."""
    cause = java_exception(error)
    status = None if cause is None else call_if_present(cause, "statusCode")
    return None if status is None else int(status)
