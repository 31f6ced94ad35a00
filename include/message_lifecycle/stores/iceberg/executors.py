"""Give the machines of a cluster the code for our tasks.

Every session sends the package itself. Other packages come from one archive of them all, or from an image.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import BadInput, storage_failure

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGE = Path(__file__).resolve().parents[2]
NEEDED = ("cachetools", "duckdb", "fsspec", "jsonpatch", "numpy", "orjson", "pyarrow", "pycrdt", "pyiceberg", "pyroaring")
"""Distributions that tasks import. Their dependencies come with them."""
# A zip file stores times. With one fixed time, equal code gives equal bytes. 1980 is the earliest year of the format.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_PYTHON = "spark.pyspark.python"
# Executors of a Standalone cluster arrive one by one. A count before the first one arrives would show too small a cluster.
_SETTLING_SECONDS, _STILL_SECONDS, _POLL_SECONDS = 10.0, 1.0, 0.1
# The result is a third larger than with the best level, in a fifth of the time.
_LEVEL = 3
# Starts an executor's own Python with the packages next to this file. Its minor version must be the minor version of the packages.
_LAUNCHER = """\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/packages" exec "${{LIFECYCLE_PYTHON:-python{version}}}" "$@"
"""


def unusable_archive(file: Path) -> BadInput:
    """Return the error for a file that cannot be the archive."""
    return BadInput(
        f"{file} cannot be the archive. Allowed: a name that ends in .tar.gz, in a folder that is there.", code="UnusableArchive"
    )


def give_package(context: SparkContext, settings: Mapping[str, str], *, submitted: bool) -> None:
    """Let the context's executors import `message_lifecycle` as it is here.

    Args:
        context: The running Spark context.
        settings: Spark's settings.
        submitted: `spark-submit` has already set the Python of the executors.
    """
    from pyspark import SparkFiles

    if not submitted and _PYTHON in settings:
        context.pythonExec = settings[_PYTHON]  # PySpark itself reads an environment variable only
    # Executors fetch the file from this folder while the context runs. The folder is deleted with the context.
    folder = Path(SparkFiles.getRootDirectory()) / "package"
    folder.mkdir(exist_ok=True)
    context.addPyFile(str(zip_package(folder)))


def registered(context: SparkContext) -> list[int]:
    """Return how many tasks each executor runs at once.

    The function waits until the number of executors has not changed for a second. Empty: no executor came within ten seconds, for example
    because Spark starts executors for tasks only.
    """
    found, since = _executors(context), time.monotonic()
    while time.time() - context.startTime / 1000 < _SETTLING_SECONDS and not (found and time.monotonic() - since >= _STILL_SECONDS):
        time.sleep(_POLL_SECONDS)  # Spark has no event for a new executor
        before, found = found, _executors(context)
        since = since if found == before else time.monotonic()
    return found


def _executors(context: SparkContext) -> list[int]:
    listed = context._jsc.sc().statusStore().executorList(True)
    every = [listed.apply(at) for at in range(listed.size())]
    return [int(one.maxTasks()) for one in every if str(one.id()) != "driver"]


def zip_package(folder: Path, package: Path = PACKAGE) -> Path:
    """Write the package, without caches, as the top level of a zip in the folder.

    The name contains a hash of the content, because Spark accepts no second file of the same name.
    """
    sources = sorted(one for one in package.rglob("*") if one.is_file() and "__pycache__" not in one.parts)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for one in sources:
            entry = zipfile.ZipInfo(str(Path(package.name) / one.relative_to(package)), FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, one.read_bytes())
    path = folder / f"{package.name}-{hashlib.sha256(content.getbuffer()).hexdigest()[:16]}.zip"
    path.write_bytes(content.getvalue())
    return path


def python_version() -> str:
    """Return the part of Python's version that compiled packages depend on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pack(target: Path, needed: Iterable[str] = NEEDED) -> list[str]:
    """Write an archive for `spark.archives`, and return the names of its packages with their versions.

    The archive has the packages that tasks need in addition to `message_lifecycle`, in the versions of this installation. Its `bin/python`
    starts an executor's own Python with these packages. The archive suits executors with this Python's minor version and this kind of
    machine.

    Raises:
        UnusableArchive: The target cannot be the archive.
        StorageFull: The disk is full.
        StorageRefused: The storage refused the file.
    """
    if not target.name.endswith((".tar.gz", ".tgz")) or not target.parent.is_dir() or target.is_dir():
        raise unusable_archive(target)
    found = _with_theirs(needed)
    part = target.with_name(f"{target.name}.part")
    try:
        # Not tarfile's own gzip, which writes the current time.
        with (
            part.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0, filename="") as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            _put(archive, "bin/python", _LAUNCHER.format(version=python_version()).encode(), mode=0o755)
            for name, path in chain.from_iterable(map(_files, found)):
                _put(archive, f"packages/{name}", path.read_bytes(), mode=0o644)
        part.replace(target)
    except OSError as error:
        raise storage_failure(error, str(target)) or error from error
    finally:
        part.unlink(missing_ok=True)
    return [f"{one.name} {one.version}" for one in found]


def _with_theirs(needed: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Return the distributions and their requirements on this machine, by name."""
    from packaging.requirements import Requirement  # executors import this module and lack this package
    from packaging.utils import canonicalize_name

    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(needed)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        required = map(Requirement, found[name].requires or ())
        waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [found[name] for name in sorted(found)]


def _files(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield each importable file: its name below the folder of packages, and its path. Scripts lie elsewhere."""
    for file in sorted(distribution.files or ()):
        if file.suffix != ".pyc" and ".." not in file.parts:
            yield str(file), Path(str(file.locate()))


def _put(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
