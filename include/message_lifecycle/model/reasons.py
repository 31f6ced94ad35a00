"""The reasons for removal: one declaration each (CNT-1).

Planning, the gate, markers, undo, `explain` and the obligations read this table. A rule of age is a line here and a function in
`operations.expiry.RULES`. docs/rules.md shows the table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Final, Literal, Protocol


@dataclass(frozen=True, slots=True)
class _KnownReason:
    """Marks a text that names a reason of the table. Pydantic calls the method below for each record that the ledger reads."""

    fits: Callable[[DeclaredReason], bool]

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], object]) -> dict[str, object]:
        # A schema of pydantic is a plain dictionary, so the model needs no import of pydantic.
        return {"type": "function-after", "function": {"type": "no-info", "function": self._check_reason}, "schema": handler(source)}

    def _check_reason(self, reason: str) -> str:
        if reason not in REASONS or not self.fits(REASONS[reason]):
            allowed = ", ".join(known for known, declared in REASONS.items() if self.fits(declared))
            raise ValueError(f"{reason!r} is no reason that this program knows here. Allowed: {allowed}")
        return reason


RemovalReason = Annotated[str, _KnownReason(lambda declared: declared.family not in ("view", "documents", "quarantine"))]
"""A name in `REASONS` for a removal from the log."""
AgeReason = Annotated[str, _KnownReason(lambda declared: declared.family == "age")]
"""A name in `REASONS`, of the family `age`."""
ViewReason = Annotated[str, _KnownReason(lambda declared: declared.of_view)]
"""A name in `REASONS` for a message that is not in the compacted view."""
LimitReason = Literal["retention_count", "retention_bytes"]
PurgeReason = Literal["purged_synced", "purged_age", "purged_count"]
MarkerReason = Literal["MaxAge", "Remove", "Purge"]
Family = Literal["request", "age", "limit", "marker", "compaction", "view", "undo", "documents", "quarantine"]
Obligation = Literal["expiry", "ttl", "limits", "purge", "compaction", "documents", "quarantine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredReason:
    """A reason for removal.

    Args:
        rules: Ids in docs/rules.md.
        text: The cause of the removal, with the settings in braces.
        due: Why the message can leave, while it is still in the log.
        settings: The settings that ask for the removal. Empty: a person or another removal asks for it.
        checks: Ids of the gate's checks that compare removals with the reason.
        obligation: The kind of obligation that the removal fulfils. None: it fulfils a person's request.
        undoable: An undo restores the messages (DEL-7).
        in_view: The compacted view may show the message. An undo must then check later compactions (CMP-8).
        of_view: The compacted view counts the reason, too.
        marker: The reason in the marker of an emptied key (MRK-3). None: no marker.
    """

    family: Family
    rules: tuple[str, ...]
    text: str
    checks: tuple[str, ...]
    due: str = ""
    settings: tuple[str, ...] = ()
    obligation: Obligation | None = None
    undoable: bool = True
    in_view: bool = True
    of_view: bool = False
    marker: MarkerReason | None = None


_OF_A_PERSON: Final = "a person's request"
_OF_DOCUMENTS: Final = ("unproved", "unsynced")
_OF_VIEW: Final = ("unwanted", "missing")

REASONS: Final[dict[str, DeclaredReason]] = {
    "erased": DeclaredReason(family="request", rules=("DEL-7",), text=_OF_A_PERSON, checks=("rewritten_rows",), undoable=False),
    "removed": DeclaredReason(
        family="request", rules=("MRK-2", "PRG-1"), text=_OF_A_PERSON, checks=("rows_justified",), of_view=True, marker="Remove"
    ),
    "purged": DeclaredReason(
        family="request", rules=("PRG-1",), text=_OF_A_PERSON, checks=("rows_justified", "purged_key"), of_view=True, marker="Purge"
    ),
    "expiry": DeclaredReason(
        family="age",
        rules=("EXP-4", "EXP-5"),
        text="message_expiry = {message_expiry}",
        due="it is past its message_expiry, and its segment is expired",
        settings=("message_expiry",),
        checks=("going_expired", "rows_justified"),
        obligation="expiry",
        in_view=False,
        of_view=True,
        marker="MaxAge",
    ),
    "ttl": DeclaredReason(
        family="age",
        rules=("TTL-5", "TTL-7"),
        text="the message's own TTL (header Nats-TTL)",
        due="it is past its own TTL",
        settings=("allow_msg_ttl",),
        checks=("rows_justified",),
        obligation="ttl",
        in_view=False,
        of_view=True,
        marker="MaxAge",
    ),
    "retention_age": DeclaredReason(
        family="age",
        rules=("RET-1", "RET-2"),
        text="max_age_seconds = {max_age_seconds}",
        due="it is older than max_age_seconds",
        settings=("max_age_seconds",),
        checks=("rows_justified",),
        obligation="limits",
        in_view=False,
        of_view=True,
        marker="MaxAge",
    ),
    "retention_count": DeclaredReason(
        family="limit",
        rules=("RET-1", "RET-4"),
        text="max_records = {max_records} of each {retention_scope}",
        due="max_records newer messages are kept",
        settings=("max_records",),
        checks=("rows_justified", "limits_records"),
        obligation="limits",
    ),
    "retention_bytes": DeclaredReason(
        family="limit",
        rules=("RET-1", "RET-4"),
        text="max_total_bytes = {max_total_bytes} of each {retention_scope}",
        due="it does not fit max_total_bytes with the newer messages",
        settings=("max_total_bytes",),
        checks=("rows_justified", "limits_bytes"),
        obligation="limits",
    ),
    "superseded": DeclaredReason(
        family="marker", rules=("MRK-5", "CMP-1"), text="a newer marker of its key", checks=("rows_justified", *_OF_VIEW), of_view=True
    ),
    "compacted": DeclaredReason(
        family="compaction",
        rules=("CMP-9",),
        text="the compacted view covers it (cleanup_policy = compact)",
        settings=("cleanup_policy",),
        checks=("going_compacted", "rows_justified"),
        obligation="purge",
        in_view=False,
    ),
    "undone": DeclaredReason(
        family="undo", rules=("DEL-7",), text="a person took back the plan that made it", checks=("rows_named",), undoable=False
    ),
    "tombstoned": DeclaredReason(
        family="view",
        rules=("CMP-7",),
        text="its key was deleted",
        settings=("delete_retention",),
        checks=_OF_VIEW,
        obligation="compaction",
        undoable=False,
        of_view=True,
    ),
    "null_key": DeclaredReason(
        family="view",
        rules=("CMP-3",),
        text="it has no key",
        settings=("retain_null_key",),
        checks=("null_keys_missing",),
        obligation="compaction",
        undoable=False,
        of_view=True,
    ),
    "purged_synced": DeclaredReason(
        family="documents",
        rules=("SNP-4",),
        text="every client has it",
        settings=("snapshot_with_purging_changes",),
        checks=_OF_DOCUMENTS,
        obligation="documents",
    ),
    "purged_age": DeclaredReason(
        family="documents",
        rules=("SNP-9",),
        text="changes_max_age = {changes_max_age}",
        settings=("changes_max_age",),
        checks=_OF_DOCUMENTS,
        obligation="documents",
    ),
    "purged_count": DeclaredReason(
        family="documents",
        rules=("SNP-9",),
        text="changes_keep_last = {changes_keep_last}",
        settings=("changes_keep_last",),
        checks=_OF_DOCUMENTS,
        obligation="documents",
    ),
    "quarantine_age": DeclaredReason(
        family="quarantine",
        rules=("QUA-1",),
        text="quarantine_max_age = {quarantine_max_age}",
        settings=("quarantine_max_age",),
        checks=("going_old",),
        obligation="quarantine",
    ),
    "quarantine_replayed": DeclaredReason(
        family="quarantine", rules=("QUA-2",), text="it was replayed", checks=("replayed_settled",), obligation="quarantine"
    ),
}
"""In order of priority: the first reason that applies counts (CNT-1)."""


def reasons_of_family(*families: Family) -> tuple[str, ...]:
    return tuple(name for name, declared in REASONS.items() if declared.family in families)


def reasons_of_obligation(kind: str) -> tuple[str, ...]:
    return tuple(name for name, declared in REASONS.items() if declared.obligation == kind)


def cleaner_reasons() -> tuple[str, ...]:
    """The reasons of the message cleaner."""
    return reasons_of_family("age", "limit")


def limit_reasons() -> tuple[str, ...]:
    """The reasons of the operation `retention`, and the cleaner's last (RET-5)."""
    return reasons_of_obligation("limits")


def request_reasons() -> tuple[str, ...]:
    """The reasons of messages that a person named. A plan of their own removes them (PRG-1)."""
    return tuple(name for name in reasons_of_family("request") if REASONS[name].marker is not None)


def view_reasons() -> tuple[str, ...]:
    """The reasons that the compacted view counts."""
    return tuple(name for name, declared in REASONS.items() if declared.of_view)


def marker_of(reason: str) -> MarkerReason | None:
    """Return the reason in the marker of an emptied key. None: the reason makes no marker (DEL-9, MRK-5)."""
    return REASONS[reason].marker


def marker_reasons() -> tuple[str, ...]:
    return tuple(name for name, declared in REASONS.items() if declared.marker is not None)


def is_age(reason: str) -> bool:
    return REASONS[reason].family == "age"


def is_limit(reason: str) -> bool:
    return REASONS[reason].family == "limit"


def is_request(reason: str) -> bool:
    """Return True if a person named the messages."""
    return reason in request_reasons()


class Settings(Protocol):
    """The settings that a reason's text names."""

    def text(self, name: str, /) -> str: ...


def reason_text(reason: str, settings: Settings) -> str:
    """Return the cause of a removal, with the values of the settings."""
    declared = REASONS[reason].text
    return declared.format_map({name: settings.text(name) for _, name, _, _ in Formatter().parse(declared) if name})
