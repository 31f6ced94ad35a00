"""The settings of one topic together: how they are read and checked (NUM-1).

A topic's value wins over the server file's value, which wins over the built-in value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_duration, seconds
from message_lifecycle.model.phrases import amount, size
from message_lifecycle.model.rules import SCOPES, Limits
from message_lifecycle.model.setting_list import DOCUMENT_SETTINGS as DOCUMENT_SETTINGS
from message_lifecycle.model.setting_list import OWN_SETTINGS as OWN_SETTINGS
from message_lifecycle.model.setting_list import PROPERTY_PREFIX as PROPERTY_PREFIX
from message_lifecycle.model.setting_list import SETTINGS as SETTINGS
from message_lifecycle.model.setting_list import U32_MAX as U32_MAX
from message_lifecycle.model.setting_list import U63_MAX as U63_MAX
from message_lifecycle.model.setting_list import Setting as Setting
from message_lifecycle.model.setting_list import Value as Value
from message_lifecycle.model.setting_list import settings_have_documents

Origin = Literal["topic", "server file", "built in"]


ACTS_ON_VIEW = (
    "message_expiry", "allow_msg_ttl", "ttl_overrides_age", "max_age_seconds", "retain_null_key", "empty_is_value", "delete_retention",
)  # fmt: skip
"""Settings that decide what stays in a compacted view."""
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSetting:
    """One effective value and its origin, as `topic describe` shows it."""

    value: Value | None
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every effective setting of one topic. Frozen; its hash is a requirement of each plan."""

    settings: tuple[tuple[str, ResolvedSetting], ...]
    # Read several times for each of very many documents.
    _by_name: Mapping[str, ResolvedSetting] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", dict(self.settings))

    @classmethod
    def from_values(cls, values: Iterable[tuple[str, Value | None]]) -> Policy:
        """Rebuild the policy of a plan. A setting that was unknown then had its default."""
        return cls(settings=tuple((name, ResolvedSetting(value=value, origin="topic")) for name, value in values))

    def __getitem__(self, name: str) -> Value | None:
        known = self._by_name.get(name)
        return BY_NAME[name].default if known is None else known.value

    def text(self, name: str) -> str:
        """Return the value as a person types it; a duration as `1d12h`."""
        value = self[name]
        return "unset" if value is None else typed_text(value, BY_NAME[name].unit)

    def _int(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    @property
    def values(self) -> dict[str, Value | None]:
        return {name: resolved.value for name, resolved in self.settings}

    @property
    def cleaner_enabled(self) -> bool:
        return bool(self["enabled"])

    @property
    def message_expiry_us(self) -> int:
        """0 = never expires (EXP-1)."""
        return seconds(self._int("message_expiry"))

    @property
    def allow_msg_ttl(self) -> bool:
        """True if a message's own lifetime counts (TTL-6)."""
        return bool(self["allow_msg_ttl"])

    @property
    def marker_ttl_us(self) -> int | None:
        """Lifetime of limit markers. None: the topic makes no markers (MRK-1)."""
        value = self["subject_delete_marker_ttl"]
        return None if value is None else seconds(self._int("subject_delete_marker_ttl"))

    @property
    def reject_zero_ttl(self) -> bool:
        return self["zero_ttl"] == "reject"

    @property
    def ttl_overrides_age(self) -> bool:
        return bool(self["ttl_overrides_age"])

    @property
    def max_age_us(self) -> int | None:
        """None: no limit (RET-1)."""
        value = self["max_age_seconds"]
        assert value is None or isinstance(value, float)
        # A float of seconds is exact to the microsecond for ages below 140 years.
        return None if value is None else round(value * MICROS_PER_SECOND)

    @property
    def limits(self) -> Limits | None:
        """None: neither number nor size has a limit (RET-1)."""
        records, total = self["max_records"], self["max_total_bytes"]
        if records is None and total is None:
            return None
        scope = next(scope for scope in SCOPES if scope == self["retention_scope"])
        return Limits(
            max_records=None if records is None else self._int("max_records"),
            max_total_bytes=None if total is None else self._int("max_total_bytes"),
            min_keep=self._int("min_keep"),
            scope=scope,
        )

    @property
    def segment_size_bytes(self) -> int:
        return self._int("segment_size_bytes")

    @property
    def segment_max_us(self) -> int:
        """0 = a segment ends by its size alone (EXP-3)."""
        return seconds(self._int("segment_max_seconds"))

    @property
    def consumer_expiry_us(self) -> int:
        return seconds(self._int("consumer_expiry"))

    @property
    def clock_skew_us(self) -> int:
        return seconds(self._int("clock_skew"))

    def latest_allowed_time(self, at: Instant) -> Instant:
        """Return the last time that a clock at `at` may have written. A later time is a future time (CLK-4)."""
        return Instant(at + self.clock_skew_us)

    @property
    def max_removed_fraction(self) -> float:
        share = self["max_removed_fraction"]
        assert isinstance(share, float)
        return share

    @property
    def is_compacted(self) -> bool:
        """True if compaction runs by itself (CMP-10)."""
        return "compact" in str(self["cleanup_policy"]).split(",")

    @property
    def purges_compacted(self) -> bool:
        """True if the log drops messages that the view covers (CMP-9)."""
        return self["cleanup_policy"] == "compact"

    @property
    def delete_retention_us(self) -> int:
        kept = self["delete_retention"]
        assert isinstance(kept, float)
        return round(kept * MICROS_PER_SECOND)

    @property
    def retain_null_key(self) -> bool:
        return bool(self["retain_null_key"])

    @property
    def empty_is_value(self) -> bool:
        return bool(self["empty_is_value"])

    @property
    def by_event_time(self) -> bool:
        """CMP-12."""
        return self["winner"] == "event_time"

    @property
    def compaction_threshold_bytes(self) -> int:
        return self._int("compaction_threshold_bytes")

    @property
    def max_compaction_lag_us(self) -> int | None:
        """None: the log waits for compaction, however long (CMP-9)."""
        return None if self["max_compaction_lag"] is None else seconds(self._int("max_compaction_lag"))

    @property
    def compaction_rewrite_fraction(self) -> float:
        share = self["compaction_rewrite_fraction"]
        assert isinstance(share, float)
        return share

    @property
    def archive_to(self) -> str | None:
        """The folder that receives removed messages (RET-7). None: messages are deleted."""
        return str(self["archive_to"]) if self["on_remove"] == "archive" else None

    @property
    def has_documents(self) -> bool:
        """True if the topic holds documents, not messages."""
        return settings_have_documents(self.values)

    @property
    def fold(self) -> str | None:
        """None: the topic holds messages, not documents (SNP-10)."""
        fold = self["fold"]
        assert fold is None or isinstance(fold, str)
        return fold

    @property
    def yjs_roots(self) -> dict[str, str]:
        return {} if self["yjs_roots"] is None else dict(json.loads(str(self["yjs_roots"])))

    @property
    def snapshot_interval(self) -> int:
        return self._int("snapshot_interval")

    @property
    def snapshot_threshold(self) -> int:
        return self._int("snapshot_threshold")

    @property
    def purges_changes(self) -> bool:
        """SNP-4."""
        return bool(self["snapshot_with_purging_changes"])

    @property
    def client_deactivate_after_us(self) -> int:
        return seconds(self._int("client_deactivate_after"))

    @property
    def changes_max_age(self) -> int | str | None:
        """Seconds, or calendar units for `app.document_facts`. None: age keeps no change (SNP-9)."""
        period = self["changes_max_age"]
        assert period is None or isinstance(period, int | str)
        return period

    @property
    def changes_keep_last(self) -> int | None:
        return None if self["changes_keep_last"] is None else self._int("changes_keep_last")

    @property
    def snapshots_keep(self) -> int:
        return self._int("snapshots_keep")

    def with_narrower(self, *levels: Mapping[str, Value]) -> Policy:
        """Return the policy with the settings of narrower levels, the narrowest last (SNP-9)."""
        own = {name: value for level in levels for name, value in level.items()}
        if not own:
            return self
        return Policy(
            settings=tuple(
                (name, ResolvedSetting(value=own[name], origin="topic") if name in own else found) for name, found in self.settings
            )
        )

    @property
    def approver_is_not_requester(self) -> bool:
        return self["approver_is_not_requester"] is True

    @property
    def approval_ttl_us(self) -> int:
        return seconds(self._int("approval_ttl"))

    @property
    def undo_window_us(self) -> int:
        return seconds(self._int("undo_window"))

    @property
    def reclaim_max_files(self) -> int:
        return self._int("reclaim_max_files")

    @property
    def orphan_age_us(self) -> int:
        return seconds(self._int("orphan_age"))

    @property
    def max_overdue_us(self) -> int:
        return seconds(self._int("max_overdue"))

    @property
    def budget(self) -> tuple[int, int, int]:
        """(max_segments, max_rows, max_bytes) of one pass; 0 = no limit (EXP-7)."""
        return self._int("max_segments"), self._int("max_rows"), self._int("max_bytes")

    @property
    def hash(self) -> str:
        """A hash of the values alone. The origin of a value has no effect."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def view_hash(self) -> str:
        """A hash of the settings that decide what stays in a compacted view."""
        values = self.values
        return hashlib.sha256(json.dumps({name: values[name] for name in ACTS_ON_VIEW}).encode()).hexdigest()[:16]

    def changed_since(self, earlier: Mapping[str, Value | None]) -> tuple[str, ...]:
        """Return the settings that have another value than under `earlier`. A setting that was unknown then had its default."""
        changed = [name for name, value in self.values.items() if earlier.get(name, BY_NAME[name].default) != value]
        return (*changed, *sorted(earlier.keys() - self.values.keys()))

    def tightened_since(self, earlier: Mapping[str, Value | None]) -> tuple[str, ...]:
        """Return the settings that remove more now than under `earlier` (DEL-3)."""
        return tuple(
            name
            for name, resolved in self.settings
            if (tightness := BY_NAME[name].tightness) is not None
            # A setting that was unknown then had its default.
            and tightness(resolved.value) > tightness(earlier.get(name, BY_NAME[name].default))
        )


def changed_setting_text(name: str, before: Mapping[str, Value | None], after: Mapping[str, Value | None]) -> str:
    """Return a changed setting for people: `message_expiry from never (0 seconds) to 1d (86,400 s)`. A missing value is the default."""
    setting = BY_NAME.get(name)
    if setting is None:
        return name
    old, new = (_age_text(setting, values.get(name, setting.default)) for values in (before, after))
    return f"{name} from {old} to {new}"


def _age_text(setting: Setting, value: Value | None) -> str:
    text = value_text(value, setting.unit)
    return f"never ({text})" if setting.zero_is_never and value == 0 else text


_MINUTE = 60


def typed_text(value: Value, unit: str) -> str:
    """Return the value of a setting with this unit as a person types it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return format_duration(value) if unit == "seconds" else str(value)


def value_text(value: Value | None, unit: str) -> str:
    """Return a value for people, with a duration or a size next to the typed number."""
    if value is None:
        return "unset"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value) if isinstance(value, bool) else str(value)
    # A setting with decimals stores whole numbers as floats.
    value = int(value) if value == int(value) else value
    if unit == "seconds" and value:
        return f"{format_duration(value)} ({value:,} s)" if value >= _MINUTE else format_duration(value)
    if unit == "bytes" and value:
        return f"{value:,} B = {size(int(value))}"
    return amount(value, unit) if unit and isinstance(value, int) else f"{value:,}"


def server_settings(document: Mapping[str, object], *, where: str) -> dict[str, Value]:
    """Check a parsed `lifecycle.toml` (or a scenario's `server`). Unknown sections and keys are errors (NUM-1)."""
    found: dict[str, Value] = {}
    sections = {setting.section for setting in SETTINGS if setting.section}
    for path, content in _sections(document):
        if path not in sections:
            known = ", ".join(f"[{name}]" for name in sorted(sections))
            raise InvalidSetting(where=where, key=path, value=content, allowed=f"the sections {known}")
        assert isinstance(content, Mapping)
        for key, value in content.items():
            setting = next((s for s in SETTINGS if s.section == path and s.key == key), None)
            if setting is None:
                keys = ", ".join(s.key for s in SETTINGS if s.section == path)
                raise InvalidSetting(where=where, key=f"{path}.{key}", value=value, allowed=f"in [{path}]: {keys}")
            found[setting.name] = setting.check(value, where=f"{where} [{path}]")
    return found


def _sections(document: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return the dotted path of every innermost table. A value outside any table has its own name."""
    found: list[tuple[str, object]] = []
    for key, content in document.items():
        path = f"{prefix}{key}"
        if isinstance(content, Mapping) and content and all(isinstance(inner, Mapping) for inner in content.values()):
            found += _sections(content, f"{path}.")
        elif isinstance(content, Mapping):
            found.append((path, content))
        else:
            found.append((path, content))
    return found


def topic_settings(given: Mapping[str, object], *, where: str) -> dict[str, Value]:
    """Check the given settings of one topic and return their values. Raises InvalidSetting for unknown names and wrong values."""
    found: dict[str, Value] = {}
    for name, value in given.items():
        found[name] = _topic_setting(name, value, where).check(value, where=where)
    return found


def topic_changes(given: Mapping[str, object], *, where: str) -> dict[str, Value | None]:
    """Do as `topic_settings` for an alteration. None unsets."""
    changes: dict[str, Value | None] = {}
    for name, value in given.items():
        setting = _topic_setting(name, value, where)
        changes[name] = None if value is None else setting.check(value, where=where)
    return changes


def parse_topic_settings(given: Mapping[str, str], *, where: str) -> dict[str, Value]:
    """Do as `topic_settings` for texts of the command line or of table properties (without their prefix)."""
    return {name: _topic_setting(name, text, where).parse(text, where=where) for name, text in given.items()}


def _topic_setting(name: str, value: object, where: str) -> Setting:
    setting = BY_NAME.get(name)
    if setting is None or not setting.on_topic:
        names = ", ".join(s.name for s in SETTINGS if s.on_topic)
        raise InvalidSetting(where=where, key=name, value=value, allowed=f"the topic settings {names}")
    return setting


def property_text(value: Value) -> str:
    """Return a value as the text of a table property. `Setting.parse` reads it back."""
    return value if isinstance(value, str) else json.dumps(value)


def resolve(*, topic: Mapping[str, Value], server: Mapping[str, Value]) -> Policy:
    """Resolve each setting: topic over server file over built in.

    `Setting.when_made` settings ignore the server file here, because a topic stores its own value when it is made.
    """
    found = dict(_default_settings())
    for name in server.keys() & found.keys():
        if not BY_NAME[name].when_made:
            found[name] = ResolvedSetting(value=server[name], origin="server file")
    for name in topic.keys() & found.keys():
        if BY_NAME[name].on_topic:
            found[name] = ResolvedSetting(value=topic[name], origin="topic")
    return Policy(settings=tuple(found.items()))


@cache
def _default_settings() -> tuple[tuple[str, ResolvedSetting], ...]:
    return tuple((setting.name, ResolvedSetting(value=setting.default, origin="built in")) for setting in SETTINGS)
