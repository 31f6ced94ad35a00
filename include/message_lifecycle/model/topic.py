"""Rules for combinations of a topic's settings, and the settings that each backend supports."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from message_lifecycle.model.errors import InvalidSetting, unsupported_limit
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import DOCUMENT_SETTINGS, Value, settings_have_documents
from message_lifecycle.model.settings import BY_NAME, Policy, resolve, topic_changes, topic_settings

# Rules for a topic's settings, when the topic is made and when it is altered (MRK-6, MSG-5).


Role = Literal["local", "source", "mirror"]
YJS_TYPES = ("Text", "Map", "Array")
_FIXED = {"role": "MSG-5", "origin": "MSG-5", "fold": "SNP-10"}
_OF_MESSAGES = (
    "message_expiry",
    "segment_max_seconds",
    "allow_msg_ttl",
    "subject_delete_marker_ttl",
    "max_age_seconds",
    "max_records",
    "max_total_bytes",
    "min_keep",
    "retention_scope",
    "on_remove",
    "archive_to",
    "cleanup_policy",
    "max_compaction_lag",
    "origin",
    "role",
    "counter",
)
"""Settings that have no effect on a topic of documents."""


def new_topic_settings(given: Mapping[str, object], *, where: str) -> dict[str, Value]:
    """Return the settings of a new topic, with implied settings. Raises InvalidSetting."""
    settings = _with_implied(topic_settings(given, where=where), where)
    _check(settings, where)
    return settings


def values_stored_at_creation(server: Mapping[str, Value], own: Mapping[str, Value]) -> dict[str, Value]:
    """Return the server's values that a new topic with these own settings stores (`Setting.when_made`).

    A mirror gets none, because it has its origin's segments. A topic of documents gets none either.
    """
    if settings_have_documents(own) or role_of(own) == "mirror":
        return {}
    return {name: value for name, value in server.items() if BY_NAME[name].when_made and name not in own}


def altered_settings(before: Mapping[str, Value], given: Mapping[str, object], *, where: str) -> dict[str, Value]:
    """Return the settings of a topic after an alteration. None unsets. Raises InvalidSetting."""
    changes = topic_changes(given, where=where)
    for name, rule in _FIXED.items():
        if name in changes and changes[name] != before.get(name):
            raise InvalidSetting(where=where, key=name, value=changes[name], allowed=f"as the topic was made: it is fixed then ({rule})")
    if not settings_have_documents(before) and (
        found := [name for name in changes if name in DOCUMENT_SETTINGS and changes[name] is not None]
    ):
        allowed = "unset: the topic was made for messages (SNP-10)"
        raise InvalidSetting(where=where, key=found[0], value=changes[found[0]], allowed=allowed)
    if before.get("allow_msg_ttl") and "allow_msg_ttl" in changes and not changes["allow_msg_ttl"]:
        raise InvalidSetting(
            where=where, key="allow_msg_ttl", value=changes["allow_msg_ttl"], allowed="true: once on it cannot be turned off (MRK-6)"
        )
    settings = {name: value for name, value in {**before, **changes}.items() if value is not None}
    settings = _with_implied(settings, where)
    _check(settings, where)
    return settings


def role_of(settings: Mapping[str, Value]) -> Role:
    """Return the role of the topic (MSG-5)."""
    match settings.get("role", "local"):
        case "source":
            return "source"
        case "mirror":
            return "mirror"
        case _:
            return "local"


def origin_of(name: TopicName, settings: Mapping[str, Value]) -> TopicName | None:
    """Return the topic that this one copies: `stream/topic`, or a topic of its own stream (MSG-5). None for a local topic."""
    origin = settings.get("origin")
    return None if origin is None else TopicName.parse(str(origin), default_stream=name.stream)


def api_level(settings: Mapping[str, Value]) -> int:
    """Return 1 if the configuration needs per-message TTL, else 0 (MRK-6)."""
    return int(bool(settings.get("allow_msg_ttl")))


def _with_implied(settings: dict[str, Value], where: str) -> dict[str, Value]:
    """Return the settings with implied settings.

    Markers carry a TTL of their own, so their setting turns `allow_msg_ttl` on for good: it stays on if the setting is unset later. A
    setting of documents makes a topic of documents.
    """
    if any(name in settings for name in DOCUMENT_SETTINGS):
        return {"fold": "json_merge_patch", **settings}
    if "subject_delete_marker_ttl" not in settings:
        return settings
    if settings.get("allow_msg_ttl") is False:
        raise InvalidSetting(
            where=where,
            key="allow_msg_ttl",
            value=False,
            allowed="true or unset while subject_delete_marker_ttl is set: markers carry a TTL (MRK-6)",
        )
    return {**settings, "allow_msg_ttl": True}


def check_documents(effective: Policy, *, where: str) -> None:
    """Check the combination of document settings at any level (SNP-5). A topic of messages passes. Raises InvalidSetting."""
    if effective.has_documents and effective.purges_changes and effective.snapshot_interval < effective.snapshot_threshold:
        raise InvalidSetting(
            where=where,
            key="snapshot_interval",
            value=effective.snapshot_interval,
            allowed=f"at least snapshot_threshold = {effective.snapshot_threshold} while changes are purged: who is behind gets the "
            "snapshot (SNP-5)",
        )


SCHEDULER_LATENCY_SECONDS = 300
"""How long after its interval a run may begin and end."""


def check_overdue(given: Mapping[str, Value | None], server: Mapping[str, Value], *, where: str) -> None:
    """Refuse a `max_overdue` that is too short for any run (OBL-1). Raises InvalidSetting."""
    bound, interval = given.get("max_overdue"), server.get("interval", BY_NAME["interval"].default)
    assert isinstance(interval, int), "the interval has a default"
    least = interval + SCHEDULER_LATENCY_SECONDS
    if isinstance(bound, int) and bound < least:
        allowed = f"at least {least}: the cleaner looks every {interval} s, and a run may begin and end {SCHEDULER_LATENCY_SECONDS} s later"
        raise InvalidSetting(where=where, key="max_overdue", value=bound, allowed=allowed)


def _check_documents(settings: Mapping[str, Value], where: str) -> None:
    for name in _OF_MESSAGES:
        if name in settings:
            raise InvalidSetting(where=where, key=name, value=settings[name], allowed="unset: the topic holds documents (SNP-10)")
    roots = resolve(topic=settings, server={}).yjs_roots
    # A document without roots always shows the same content.
    if (settings["fold"] == "yjs") is not bool(roots) or ("yjs_roots" in settings and not roots):
        allowed = "the roots and their types, one at least, where fold is yjs; unset for any other fold (SNP-10)"
        raise InvalidSetting(where=where, key="yjs_roots", value=settings.get("yjs_roots"), allowed=allowed)
    for root, kind in roots.items():
        if kind not in YJS_TYPES:
            raise InvalidSetting(where=where, key="yjs_roots", value=f"{root}: {kind}", allowed=f"types {', '.join(YJS_TYPES)} (SNP-10)")


def _check(settings: Mapping[str, Value], where: str) -> None:
    if settings_have_documents(settings):
        _check_documents(settings, where)
        return
    if (settings.get("on_remove") == "archive") is not ("archive_to" in settings):
        allowed = "a folder where on_remove is archive, else unset (RET-7)"
        raise InvalidSetting(where=where, key="archive_to", value=settings.get("archive_to"), allowed=allowed)
    role = role_of(settings)
    if (role == "local") is ("origin" in settings):
        allowed = "source or mirror where origin is set" if role == "local" else f"local, or set the origin of the {role}"
        raise InvalidSetting(where=where, key="role", value=role, allowed=f"{allowed} (MSG-5)")
    if role == "mirror" and "subject_delete_marker_ttl" in settings:
        raise InvalidSetting(
            where=where,
            key="subject_delete_marker_ttl",
            value=settings["subject_delete_marker_ttl"],
            allowed="unset on a mirror: nothing of its own may be inserted there (MRK-6)",
        )
    if settings.get("winner") == "event_time" and not settings.get("delete_retention"):
        raise InvalidSetting(
            where=where,
            key="winner",
            value="event_time",
            allowed="offset, or set delete_retention above 0: it says how late an event may be (CMP-12)",
        )
    if settings.get("winner") == "event_time" and "max_compaction_lag" in settings:
        raise InvalidSetting(
            where=where,
            key="max_compaction_lag",
            value=settings["max_compaction_lag"],
            allowed="unset while winner is event_time: what goes before it is compacted is not remembered, so that a late event could bring "
            "its key back (CMP-9, CMP-12)",
        )
    if settings.get("counter") and settings.get("allow_msg_ttl"):
        raise InvalidSetting(
            where=where, key="allow_msg_ttl", value=True, allowed="false on a topic with counter = true, and no marker TTL (MRK-6)"
        )


# The settings that each backend supports, as data (RET-6). `lifecycle backends` prints them, and loading a policy checks them.


Backend = Literal["iceberg", "memory", "json_file", "rotating_file", "redis_streams"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
SECTION = "backends"
"""The only table of the server's file without settings."""
RECORD_LOGS: tuple[Backend, ...] = ("json_file", "rotating_file", "redis_streams")
"""Backends that keep single records and support retention only (RET-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One line of the matrix. If a limit is neither logical nor physical, loading refuses a policy with it.

    Attributes:
        logical: True if a read hides the limited messages at once.
        physical: How a run removes the messages.
    """

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
        ("max_age_seconds", "max_records", "max_total_bytes"), "the file is rewritten next to the old one, fsync, atomic replace"
    ),
    "rotating_file": dict.fromkeys(
        ("max_age_seconds", "max_records", "max_total_bytes"),
        "files that lose all messages are dropped, other files are rewritten; one manifest switches",
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
"""Features that only stores of whole logs have, by their setting: whether a read applies it, and the work of a run."""


def matrix() -> Iterator[Support]:
    """Yield every backend with every limit."""
    for backend in BACKENDS:
        for limit, how in _RETENTION[backend].items():
            yield Support(backend=backend, limit=limit, logical=True, physical=how)
        archives = None if backend == "iceberg" else "removed messages are written to Parquet and compared first"
        yield Support(backend=backend, limit="on_remove", logical=False, physical=archives)
        whole = backend not in RECORD_LOGS
        for limit, (logical, does) in _OF_WHOLE_LOGS.items():
            yield Support(backend=backend, limit=limit, logical=whole and logical, physical=does if whole else None)


def check_policy(backend: Backend, policy: Policy, own: Mapping[str, Value], *, where: str) -> None:
    """Check the policy against the backend, wherever a setting comes from.

    Args:
        backend: The topic's backend.
        policy: The policy to check.
        own: The topic's own settings.
        where: The place of the settings, for errors.

    Raises:
        UnsupportedLimit: The backend does not support a setting. The error names the first.
    """
    refused = [support.limit for support in matrix() if support.backend == backend and support.refused]
    asked = [name for name in refused if policy[name] != BY_NAME[name].default]
    if "fold" in refused:
        asked += [name for name in DOCUMENT_SETTINGS if name in own]
    if asked:
        # First the topic's own settings, then implied and server settings.
        asked.sort(key=lambda name: name not in own)
        allowed = ", ".join(_RETENTION[backend])
        raise unsupported_limit(backend=backend, limit=f"{asked[0]} = {policy[asked[0]]!r}", where=where, allowed=allowed)


def check_operation(backend: Backend, operation: str, on_records: Collection[str], *, where: str) -> None:
    """Check the operation against the backend.

    Args:
        backend: The topic's backend.
        operation: The name of the operation.
        on_records: Operations that logs of single records support.
        where: The topic, for errors.

    Raises:
        UnsupportedLimit: The backend keeps single records and does not support the operation.
    """
    if backend in RECORD_LOGS and operation not in on_records:
        raise unsupported_limit(backend=backend, limit=f"the operation {operation}", where=where, allowed=", ".join(on_records))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of stores, as scenarios and the configuration name them. A store ignores the options of other stores.

    Attributes:
        max_bytes: The size at which a rotating file is closed and the next one begins.
    """

    max_bytes: int | None = None


NO_OPTIONS = StoreOptions()


def store_options(given: Mapping[str, object], *, where: str) -> StoreOptions:
    """Check and return the options. Raises InvalidSetting."""
    for name, value in given.items():
        if name != "max_bytes":
            raise InvalidSetting(where=where, key=name, value=value, allowed="max_bytes, of rotating files")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidSetting(where=where, key=name, value=value, allowed="a whole number of bytes from 1")
    found = given.get("max_bytes")
    return StoreOptions(max_bytes=found if isinstance(found, int) else None)
