"""What each backend can hold of a policy, as data (RET-6): printed by `lifecycle backends`, and asked when a policy is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from message_lifecycle.model.errors import InvalidSetting, unsupported_limit
from message_lifecycle.model.setting_list import DOCUMENT_SETTINGS
from message_lifecycle.model.settings import BY_NAME, Policy, Value

Backend = Literal["iceberg", "memory", "json_file", "rotating_file", "redis_streams"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
SECTION = "backends"
"""The one table of the server's file that holds no settings."""
RECORD_LOGS: tuple[Backend, ...] = ("json_file", "rotating_file", "redis_streams")
"""Backends that keep single records and have retention alone (RET-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One line of the matrix. `logical`: whether a read hides what the limit takes, at once; `physical`: how a run removes it.

    Neither: a policy with this limit is refused when it is loaded."""

    backend: Backend
    limit: str
    logical: bool
    physical: str | None

    @property
    def refused(self) -> bool:
        return not self.logical and self.physical is None


_RETENTION: Mapping[Backend, Mapping[str, str]] = {
    "iceberg": dict.fromkeys(
        ("max_age_seconds", "max_records", "max_total_bytes"), "whole files by metadata, the rest by deletion vectors; then reclaim"
    ),
    "memory": dict.fromkeys(("max_age_seconds", "max_records", "max_total_bytes"), "one commit"),
    "json_file": dict.fromkeys(
        ("max_age_seconds", "max_records", "max_total_bytes"), "the file written anew beside the old one, fsync, atomic replace"
    ),
    "rotating_file": dict.fromkeys(
        ("max_age_seconds", "max_records", "max_total_bytes"),
        "files that lose all messages dropped, those that lose some written anew; one manifest switches",
    ),
    "redis_streams": {
        "max_age_seconds": "XTRIM MINID, exact",
        "max_records": "XTRIM MAXLEN, exact",
        "max_total_bytes": "the cut's id found first, then XTRIM MINID, exact",
    },
}
_OF_WHOLE_LOGS: Mapping[str, tuple[bool, str]] = {
    "message_expiry": (True, "whole segments"),
    "allow_msg_ttl": (True, "single messages"),
    "subject_delete_marker_ttl": (False, "a marker for each emptied key"),
    "cleanup_policy": (True, "a compacted view"),
    "origin": (False, "copies of another log"),
    "fold": (False, "documents with snapshots"),
}
"""What only stores of whole logs do, by the setting that asks for it: whether a read heeds it, and what a run does."""


def matrix() -> Iterator[Support]:
    """Every backend and limit."""
    for backend in BACKENDS:
        for limit, how in _RETENTION[backend].items():
            yield Support(backend=backend, limit=limit, logical=True, physical=how)
        archives = None if backend == "iceberg" else "what goes written to Parquet and compared before it goes"
        yield Support(backend=backend, limit="on_remove", logical=False, physical=archives)
        whole = backend not in RECORD_LOGS
        for limit, (logical, does) in _OF_WHOLE_LOGS.items():
            yield Support(backend=backend, limit=limit, logical=whole and logical, physical=does if whole else None)


def check_policy(backend: Backend, policy: Policy, own: Mapping[str, Value], *, where: str) -> None:
    """`own`: the topic's own settings. Raises UnsupportedLimit for the first that the backend cannot hold, wherever it was set."""
    refused = [support.limit for support in matrix() if support.backend == backend and support.refused]
    asked = [name for name in refused if policy[name] != BY_NAME[name].default]
    if "fold" in refused:
        asked += [name for name in DOCUMENT_SETTINGS if name in own]
    if asked:
        # What the topic itself asks for before what that implies, or the server asks for.
        asked.sort(key=lambda name: name not in own)
        allowed = ", ".join(_RETENTION[backend])
        raise unsupported_limit(backend=backend, limit=f"{asked[0]} = {policy[asked[0]]!r}", where=where, allowed=allowed)


def check_operation(backend: Backend, operation: str, on_records: Collection[str], *, where: str) -> None:
    """`on_records`: what logs of single records can do. Raises UnsupportedLimit."""
    if backend in RECORD_LOGS and operation not in on_records:
        raise unsupported_limit(backend=backend, limit=f"the operation {operation}", where=where, allowed=", ".join(on_records))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of stores, as scenarios and the configuration name them; each is for the stores that have it.

    `max_bytes`: of rotating files, at which a file is closed and the next begun."""

    max_bytes: int | None = None


NO_OPTIONS = StoreOptions()


def store_options(given: Mapping[str, object], *, where: str) -> StoreOptions:
    """Raises InvalidSetting."""
    for name, value in given.items():
        if name != "max_bytes":
            raise InvalidSetting(where=where, key=name, value=value, allowed="max_bytes, of rotating files")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidSetting(where=where, key=name, value=value, allowed="a whole number of bytes from 1")
    found = given.get("max_bytes")
    return StoreOptions(max_bytes=found if isinstance(found, int) else None)
