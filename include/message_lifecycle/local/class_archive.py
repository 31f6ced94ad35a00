"""The JVM's class archive: recorded once per Java and jars, it halves a driver's start. Without one everything is slow, nothing is wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event

from message_lifecycle.local.errors import StackBusy
from message_lifecycle.local.java import Java, ensure_base_archive, starts
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.lock import only_one
from message_lifecycle.local.postgres import Address
from message_lifecycle.local.private_files import write_private
from message_lifecycle.local.processes import end, find_process
from message_lifecycle.local.python_home import spark_home
from message_lifecycle.local.spark_conf import JVM_OPTIONS, training_conf

APPLICATION = Path(__file__).with_name("warm_up.py")
RECORD_SECONDS = 600.0
POLL_SECONDS = 0.2


def archive_path(layout: Layout, java: Java, jars: tuple[Path, ...]) -> Path:
    """Where the archive for this combination is; its name is a hash of all that an archive is tied to."""
    identity = "\n".join(
        [java.version, str(java.runtime), str(spark_home()), *map(str, jars), *JVM_OPTIONS, APPLICATION.read_text(encoding="utf-8")]
    )
    return layout.class_archives / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def find_archive(layout: Layout, java: Java, jars: tuple[Path, ...]) -> Path | None:
    """The archive, if it has been recorded."""
    path = archive_path(layout, java, jars)
    return path if path.is_file() else None


def record_archive(
    layout: Layout, java: Java, jars: tuple[Path, ...], address: Address, environment: Mapping[str, str], cancelled: Event
) -> Path | None:
    """Run the warm-up application and keep what it loaded, in place of older archives; or take what another process has recorded meanwhile.

    None when this JVM will not, when `cancelled` was set meanwhile, or when it takes longer than any machine should; a log says why.
    """
    try:
        with only_one(layout.class_archives / "lock", wait_seconds=RECORD_SECONDS, cancelled=cancelled):
            return find_archive(layout, java, jars) or _recorded(layout, java, jars, address, environment, cancelled)
    except StackBusy:
        return None


def _recorded(
    layout: Layout, java: Java, jars: tuple[Path, ...], address: Address, environment: Mapping[str, str], cancelled: Event
) -> Path | None:
    if not ensure_base_archive(java):
        return None
    with tempfile.TemporaryDirectory(dir=layout.class_archives) as folder:
        recording = Path(folder) / "recording.jsa"
        settings = Path(folder) / "training.conf"
        write_private(settings, training_conf(layout, address, jars, recording, Path(folder) / "warehouse"))
        command = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(settings), str(APPLICATION)]
        if not _ran(command, environment, layout.logs / "record-class-archive.log", cancelled) or not _is_whole(java, recording):
            return None
        for old in layout.class_archives.glob("*.jsa"):
            old.unlink()
        return recording.replace(archive_path(layout, java, jars))


def _is_whole(java: Java, recording: Path) -> bool:
    """Whether a JVM starts with it, now and after a loss of power: with one that was cut off, each would crash."""
    if not recording.is_file():
        return False
    with recording.open("rb") as file:
        os.fsync(file.fileno())
    crash = (f"-XX:ErrorFile={recording.with_suffix('.log')}", "-XX:-CreateCoredumpOnCrash")
    return starts(java, *JVM_OPTIONS, *crash, f"-XX:SharedArchiveFile={recording}")


def _ran(command: list[str], environment: Mapping[str, str], log: Path, cancelled: Event) -> bool:
    """Whether the command came to a good end. In its own session: a Ctrl-C would make the JVM write an archive of half the classes."""
    deadline = time.monotonic() + RECORD_SECONDS
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        while child.poll() is None and not cancelled.is_set() and time.monotonic() < deadline:
            cancelled.wait(POLL_SECONDS)
    finally:
        if child.poll() is None and (process := find_process(child.pid)):
            end([process], polite_seconds=0.0)
    return child.wait() == 0
