"""The choice and the order of a folder's files for an ingest, by their names alone (P12)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

Kind = Literal["json lines", "csv", "parquet"]

KINDS: dict[str, Kind] = {
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".json": "json lines",
    ".csv": "csv",
    ".parquet": "parquet",
}
GZIP = ".gz"
ALLOWED_KINDS = ", ".join(KINDS) + "; text also with .gz"
_DIGITS = re.compile("([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A skipped file, by its path below the folder, and the reason."""

    file: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Shell patterns of file names (`*`, `?`, `[a-z]`).

    A pattern with a `/` must match the path below the folder. Any other pattern must match the file's own name.

    Args:
        include: Ingest a file only if one of these patterns matches. Empty: every file.
        exclude: Skip a file if one of these patterns matches.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def why_not(self, name: str) -> str | None:
        """Return why these patterns skip the file. None if they do not."""
        if (excluded := _first_match(self.exclude, name)) is not None:
            return f"excluded by {excluded}"
        return "not included" if self.include and _first_match(self.include, name) is None else None


EVERY_FILE = Patterns()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFiles:
    """The names to ingest and the skipped files, each in natural order."""

    names: tuple[str, ...]
    passed_over: tuple[PassedOver, ...]


def choose(names: Iterable[str], patterns: Patterns) -> ChosenFiles:
    """Divide the names below a folder into the files to ingest and the files to skip."""
    taken, passed = [], []
    for name in sorted(names, key=natural_order):
        why = _why_not(name, patterns)
        if why is None:
            taken.append(name)
        else:
            passed.append(PassedOver(file=name, why=why))
    return ChosenFiles(names=tuple(taken), passed_over=tuple(passed))


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that puts `app-2` before `app-10`: runs of digits compare as numbers.

    Two names that differ only in leading zeros compare as text.
    """
    parts = _DIGITS.split(name)
    # A number compares with text by its digits: `a.csv` stays before `a1.csv`.
    return [int(part) if at % 2 else part if at == len(parts) - 1 else part + "0" for at, part in enumerate(parts)], name


def source_kind(path: str) -> Kind | None:
    """Return the kind in the file's name. None: unknown kind."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    packed = suffixes[-1:] == [GZIP]
    kind = KINDS.get(suffixes[-2] if packed and len(suffixes) > 1 else suffixes[-1] if suffixes else "")
    return None if packed and kind == "parquet" else kind


def _why_not(name: str, patterns: Patterns) -> str | None:
    if any(part.startswith((".", "_")) for part in name.split("/")):
        return "hidden: its name or its folder's begins with . or _"
    if (why := patterns.why_not(name)) is not None:
        return why
    return f"its kind is not known by its name; allowed: {ALLOWED_KINDS}" if source_kind(name) is None else None


def _first_match(patterns: Iterable[str], name: str) -> str | None:
    own = name.rpartition("/")[2]
    return next((pattern for pattern in patterns if fnmatchcase(name if "/" in pattern else own, pattern)), None)
