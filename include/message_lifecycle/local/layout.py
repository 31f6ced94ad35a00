"""Where everything of the embedded default lies: one state folder, named here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from message_lifecycle.local.errors import UnusablePlace

PRIVATE_FOLDER = 0o700
# As root, PostgreSQL's user must be able to walk through the state folder to its own; it can list or read nothing else there.
WALKABLE_FOLDER = 0o711


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths under the project root and the state folder; says where, creates only by `prepare`.

    `shared_tools` is where several state folders of one machine have their jars and class archive together; None: each has its own.
    """

    project: Path
    state: Path
    shared_tools: Path | None = None

    @property
    def tools(self) -> Path:
        return self.shared_tools or self.state

    @property
    def jars(self) -> Path:
        return self.tools / "jars"

    @property
    def ivy(self) -> Path:
        return self.state / "ivy"

    @property
    def java(self) -> Path:
        return self.state / "java"

    @property
    def class_archives(self) -> Path:
        return self.tools / "cds"

    @property
    def spark_conf(self) -> Path:
        return self.state / "spark"

    @property
    def warehouse(self) -> Path:
        return self.state / "warehouse"

    @property
    def postgres(self) -> Path:
        return self.state / "postgres"

    @property
    def redis(self) -> Path:
        return self.state / "redis"

    @property
    def secrets(self) -> Path:
        return self.state / "secrets"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def scratch(self) -> Path:
        return self.state / "scratch"

    @property
    def results(self) -> Path:
        return self.state / "results"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def ports_file(self) -> Path:
        return self.state / "ports.json"

    @property
    def environment_file(self) -> Path:
        return self.state / "environment.json"

    @property
    def lock_file(self) -> Path:
        return self.state / "lock"

    @property
    def py_files(self) -> Path:
        return self.state / "message_lifecycle.zip"

    def _check_moved(self) -> None:
        """Refuse a state folder that was moved or copied: tables name their files by full path."""
        record = self.state / "place"
        if not record.is_file():
            record.write_text(f"{self.state}\n", encoding="utf-8")
        elif (made_at := record.read_text(encoding="utf-8").strip()) != str(self.state):
            raise UnusablePlace(
                self.state,
                f"it was made at {made_at}, and the tables in it name their files there",
                "Move it back, or remove it to start anew",
            )

    def prepare(self) -> None:
        """Create the folders with their modes; harmless when they are there."""
        for place in (self.project, self.state, self.tools):
            # A class path, PATH and the JVM's archive option are lists separated by colons: no quoting gets one through.
            if ":" in str(place):
                raise UnusablePlace(place, "the path holds a colon, which Java cannot take", "Move the project to a path without one")
        self.state.mkdir(parents=True, exist_ok=True)
        owner = self.state.stat().st_uid
        if owner != os.geteuid():
            raise UnusablePlace(
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
    clone = Path(__file__).resolve().parents[3]
    return clone if (clone / "airflow.cfg").is_file() else Path.cwd()


def find_layout(environ: Mapping[str, str] = os.environ) -> Layout:
    """The layout for this clone; LIFECYCLE_HOME names another state folder, LIFECYCLE_TOOLS one for jars and class archive that others share."""
    project = project_root()
    state, tools = (
        Path(named).expanduser().absolute() if (named := environ.get(name)) else None for name in ("LIFECYCLE_HOME", "LIFECYCLE_TOOLS")
    )
    return Layout(project=project, state=state or project / ".lifecycle", shared_tools=tools)
