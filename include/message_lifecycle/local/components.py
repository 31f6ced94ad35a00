"""Long-lived processes of ours: each leads a session, writes its own log, and is on file by identity until it has ended."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.private_files import write_private
from message_lifecycle.local.processes import Process, end, end_all, find_process, marked

# Inherited by whatever a component starts: finds a Spark driver whose parents are gone.
MARK = "LIFECYCLE_PROCESS_OF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A process on file; `environment` is a digest of what it was started with, to tell when that has changed."""

    name: str
    process: Process
    environment: str
    started_at: datetime


def _file(layout: Layout, name: str) -> Path:
    return layout.processes / f"{name}.json"


def _mark(layout: Layout, name: str) -> str:
    return f"{name} {layout.state}"


def log_file(layout: Layout, name: str) -> Path:
    """Where the component's output goes; the run before is kept beside it."""
    return layout.logs / f"{name}.log"


def digest(environment: Mapping[str, str]) -> str:
    """A fingerprint of variables; it lets nobody guess a password among them back."""
    return hashlib.sha256(json.dumps(sorted(environment.items())).encode()).hexdigest()


def find(layout: Layout, name: str) -> Component | None:
    """The component if it runs; a number on file that another process has by now is not it."""
    file = _file(layout, name)
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    process = Process(**kept["process"])
    if not process.alive():
        return None
    return Component(name=name, process=process, environment=kept["environment"], started_at=datetime.fromisoformat(kept["started_at"]))


def launch(layout: Layout, name: str, command: Sequence[str | Path], environment: Mapping[str, str], *, identity: str) -> Component:
    """Start it in its own session, so that a Ctrl-C at our terminal does not reach it before we stop it in order."""
    log = log_file(layout, name)
    if log.is_file():
        log.replace(log.with_suffix(".log.previous"))
    started_at = datetime.now(UTC)
    with log.open("w", encoding="utf-8") as output:
        log.chmod(0o600)
        child = subprocess.Popen(
            list(map(str, command)), env=dict(environment) | {MARK: _mark(layout, name)}, cwd=layout.project,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    process = find_process(child.pid) or Process(pid=child.pid, started=0, boot="")
    write_private(
        _file(layout, name),
        json.dumps({"process": asdict(process), "environment": identity, "started_at": started_at.isoformat()}) + "\n",
    )
    return Component(name=name, process=process, environment=identity, started_at=started_at)


def stop(layout: Layout, names: Sequence[str], *, polite_seconds: float) -> None:
    """Ask all of them to end, give them that time together, then kill what is left, tasks and Spark drivers included."""
    end([component.process for name in names if (component := find(layout, name))], polite_seconds=polite_seconds)
    for name in names:
        end_all(marked(MARK, _mark(layout, name)), polite_seconds=2.0)
        _file(layout, name).unlink(missing_ok=True)
