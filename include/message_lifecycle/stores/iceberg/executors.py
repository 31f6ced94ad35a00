"""What the machines of a cluster need to run our tasks: the package itself, which each session gives them, and packages of others, which come
by an archive of them all or by an image."""

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
"""Distributions that tasks import; others come with them."""
# A zip holds times of day; with one fixed time equal code gives equal bytes. It is the earliest that the format knows.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_PYTHON = "spark.pyspark.python"
# Executors of a Standalone cluster come one by one, and what is asked before the first has come takes the cluster for a small one.
_SETTLING_SECONDS, _STILL_SECONDS, _POLL_SECONDS = 10.0, 1.0, 0.1
# A third larger than by the best one, and made in a fifth of the time.
_LEVEL = 3
# Of an executor: its own Python, whose minor version is that of the packages, and beside this file what it lacks.
_LAUNCHER = """\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/packages" exec "${{LIFECYCLE_PYTHON:-python{version}}}" "$@"
"""


def unusable_archive(file: Path) -> BadInput:
    """Packages cannot be written there."""
    return BadInput(
        f"{file} cannot be the archive. Allowed: a name that ends in .tar.gz, in a folder that is there.", code="UnusableArchive"
    )


def give_package(context: SparkContext, settings: Mapping[str, str], *, submitted: bool) -> None:
    """Let the context's executors import `message_lifecycle` as it is here. `submitted`: Spark has told PySpark which Python they take."""
    from pyspark import SparkFiles

    if not submitted and _PYTHON in settings:
        context.pythonExec = settings[_PYTHON]  # PySpark looks at a variable alone
    # Executors fetch it from where it lies, as long as the context is; this folder goes with it.
    folder = Path(SparkFiles.getRootDirectory()) / "package"
    folder.mkdir(exist_ok=True)
    context.addPyFile(str(zip_package(folder)))


def registered(context: SparkContext) -> list[int]:
    """How many tasks each executor runs at once; asked soon after the start, when their number has stood still for a second. Empty: none has
    come within ten seconds, as where Spark starts them for tasks alone."""
    found, since = _executors(context), time.monotonic()
    while time.time() - context.startTime / 1000 < _SETTLING_SECONDS and not (found and time.monotonic() - since >= _STILL_SECONDS):
        time.sleep(_POLL_SECONDS)  # Spark tells nobody when an executor comes
        before, found = found, _executors(context)
        since = since if found == before else time.monotonic()
    return found


def _executors(context: SparkContext) -> list[int]:
    told = context._jsc.sc().statusStore().executorList(True)
    every = [told.apply(at) for at in range(told.size())]
    return [int(one.maxTasks()) for one in every if str(one.id()) != "driver"]


def zip_package(folder: Path, package: Path = PACKAGE) -> Path:
    """Write the package, without caches, as the top level of a zip in the folder. Its name tells its content: Spark takes no second file
    of one name."""
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
    """The part of it that compiled packages are tied to."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pack(target: Path, needed: Iterable[str] = NEEDED) -> list[str]:
    """Write an archive for `spark.archives`: what tasks need beside `message_lifecycle`, in the versions of this installation, and `bin/python`,
    by which an executor's own Python finds them. Returns names with versions.

    It is for executors of this Python's minor version and this kind of machine. Raises UnusableArchive where it cannot lie, StorageFull and
    StorageRefused."""
    if not target.name.endswith((".tar.gz", ".tgz")) or not target.parent.is_dir() or target.is_dir():
        raise unusable_archive(target)
    found = _with_theirs(needed)
    part = target.with_name(f"{target.name}.part")
    try:
        # Not tarfile's own way to gzip: it writes the time of day.
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
    """The distributions, and what they need on this machine, by name."""
    from packaging.requirements import Requirement  # this module is imported on executors, which lack it
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
    """Of what is imported: its name below the folder of packages, and where it is. Scripts lie elsewhere."""
    for file in sorted(distribution.files or ()):
        if file.suffix != ".pyc" and ".." not in file.parts:
            yield str(file), Path(str(file.locate()))


def _put(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
