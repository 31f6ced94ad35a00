"""The jars Spark needs, exactly the pinned ones: resolved once by Spark's own resolver, checked, and from then on files in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from message_lifecycle.local.errors import JarMismatch, jars_unavailable
from message_lifecycle.local.java import Java, proxy_options, trust_options
from message_lifecycle.local.layout import Layout, last_lines, spark_home, venv_python

RESOLVE_SECONDS = 600
# How Java says that it does not trust a certificate.
DISTRUST = "PKIX path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A coordinate and the SHA-256 of the only file we accept for it."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


JARS = (
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-spark-runtime-4.1_2.13",
        version="1.12.0",
        sha256="3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        group="org.postgresql",
        artifact="postgresql",
        version="42.7.14",
        sha256="73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(jar: Jar, path: Path) -> None:
    """Raise `JarMismatch` unless the file is the pinned one."""
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarMismatch(path, jar.sha256, found)


def _take(jar: Jar, source: Path, folder: Path) -> Path:
    """Copy a jar in; it gets its name only after it was checked."""
    part = folder / f"{jar.file_name}.{os.getpid()}.part"
    shutil.copyfile(source, part)
    try:
        check(jar, part)
    except JarMismatch:
        part.unlink()
        raise JarMismatch(source, jar.sha256, sha256_of(source)) from None
    return part.replace(folder / jar.file_name)


def _offered(jar: Jar, environ: Mapping[str, str]) -> Path | None:
    """The jar in the folder a user brought along, for machines without a network."""
    folder = environ.get("LIFECYCLE_JARS")
    path = Path(folder).expanduser() / jar.file_name if folder else None
    return path if path and path.is_file() else None


def _ask_spark(layout: Layout, java: Java, wanted: Iterable[Jar], environ: Mapping[str, str], log: Path, options: Iterable[str]) -> bool:
    """Run Spark's resolver into our Ivy folder, as the user has configured Ivy and Spark; nothing is said about where from."""
    application = layout.ivy / "resolved.py"
    application.write_text(
        "# spark-submit resolves packages before it runs an application; this one has nothing to do.\n", encoding="utf-8"
    )
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        "--master", "local[1]",
        "--conf", f"spark.jars.ivy={layout.ivy}",
        "--conf", f"spark.driver.extraJavaOptions={' '.join(['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', *options])}",
        "--packages", ",".join(jar.coordinate for jar in wanted),
        # We copy the named jars and nothing else; what they name in turn is not needed at run time.
        "--exclude-packages", "org.checkerframework:checker-qual",
        str(application),
    ]  # fmt: skip
    settings = dict(environ) | {"JAVA_HOME": str(java.home), "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": str(venv_python())}
    with log.open("a", encoding="utf-8") as output:
        try:
            return subprocess.run(command, env=settings, stdout=output, stderr=output, timeout=RESOLVE_SECONDS, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def _resolve(layout: Layout, java: Java, wanted: tuple[Jar, ...], environ: Mapping[str, str]) -> None:
    """Bring the jars into our folder."""
    log = layout.logs / "resolve-jars.log"
    log.unlink(missing_ok=True)
    layout.ivy.mkdir(mode=0o700, exist_ok=True)
    resolved = _ask_spark(layout, java, wanted, environ, log, proxy_options())
    if not resolved and DISTRUST in log.read_text(encoding="utf-8", errors="replace"):
        # A Java that brings its own certificates knows none that the machine's owner has added: ask again with the machine's.
        resolved = _ask_spark(layout, java, wanted, environ, log, [*proxy_options(), *trust_options(layout.ivy, environ)])
    found = {jar: next(layout.ivy.rglob(f"*{jar.file_name}"), None) for jar in wanted}
    if not resolved or None in found.values():
        raise jars_unavailable(tuple(jar.coordinate for jar in wanted), layout.jars, log, _reason(log))
    for jar, path in found.items():
        if path is not None:
            _take(jar, path, layout.jars)
    # The files are in our folder now; a second copy of 50 MB helps nobody.
    shutil.rmtree(layout.ivy)


def _reason(log: Path) -> str:
    """The line that says why, out of the resolver's long report."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines()]
    # What went wrong with the connection says more than that nothing was found, which is then true everywhere.
    telling = [line for sign in ("Server access error", "Host ", "not found", "Exception:") for line in lines if sign in line]
    return telling[0] if telling else last_lines(log, 2) or "no answer"


def ensure_jars(layout: Layout, java: Java, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Every pinned jar as a checked file of our folder, in class path order; asks a repository only for those not there yet."""
    missing: list[Jar] = []
    for jar in JARS:
        place = layout.jars / jar.file_name
        if place.is_file():
            check(jar, place)
        elif offered := _offered(jar, environ):
            _take(jar, offered, layout.jars)
        else:
            missing.append(jar)
    if missing:
        _resolve(layout, java, tuple(missing), environ)
    return tuple(layout.jars / jar.file_name for jar in JARS)
