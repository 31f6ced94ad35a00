"""Every setting with its section, its limits and the reason for its default (EXP-1, EXP-2).

One list serves `lifecycle.toml`, table properties, the command line, scenarios and the policy reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from message_lifecycle.model.errors import InvalidSetting, is_a_document_topic
from message_lifecycle.model.instants import DURATIONS, parse_duration
from message_lifecycle.model.names import TopicName, is_topic
from message_lifecycle.model.rules import SCOPES

# One setting: its kind, its limits, its section, and how a value is checked and read (NUM-1).


U32_MAX = 2**32 - 1
U63_MAX = 2**63 - 1
# The most decimals of a number of seconds, because times are whole microseconds.
_DECIMALS = 6
PROPERTY_PREFIX = "lifecycle."

Value = int | float | bool | str
# Months and years are calendar units: their length depends on the start.
# Iceberg's I/O cuts a name at ? and #.
_IN_A_STORE = re.compile(r"(s3|gs)://[a-z0-9][a-z0-9._-]+(/(?!\.{1,2}(/|$))[^/\s?#\\]+)*")
_PERIOD = re.compile(r"permanent|[1-9][0-9]{0,5} (second|minute|hour|day|week|month|year)s?")


def _is_object_of_texts(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(value, str) for value in found.values())


def _text_of(value: dict[object, object]) -> object:
    """Return a JSON object as its text, so that equal objects have equal texts. Return any other value unchanged, for `check` to refuse."""
    if not all(isinstance(part, str) for pair in value.items() for part in pair):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        section: None: a topic setting only.
        on_topic: False: a server setting only.
    """

    name: str
    section: str | None
    on_topic: bool
    kind: Literal["int", "float", "bool", "text", "name", "period", "object", "folder"]
    default: Value | None
    minimum: float = 0
    maximum: float = U63_MAX
    unit: str = ""
    choices: tuple[str, ...] = ()
    server_key: str = ""
    """Its key in the server file, if it differs from the name."""
    help: str
    reason: str
    when_made: bool = False
    """A new topic stores the server file's value. The value acts on no other topic."""
    # Bigger result = removes more. None: the setting cannot remove anything by itself.
    tightness: Callable[[Any], float] | None = None

    @property
    def key(self) -> str:
        return self.server_key or self.name

    @property
    def zero_is_never(self) -> bool:
        """True for an age whose value 0 switches it off, so that any other value is stricter."""
        return self.tightness is _shorter_is_tighter

    @property
    def allowed(self) -> str:
        if self.kind == "bool":
            return "true or false"
        if self.kind == "text":
            return "one of " + ", ".join(self.choices)
        if self.kind == "name":
            return "a topic as stream/topic"
        if self.kind == "period":
            return f"whole seconds from {self.minimum:g} to {int(self.maximum)}, or text such as 10 days, 1 month, 2 years, or permanent, or a duration {DURATIONS}"
        if self.kind == "folder":
            return "the absolute path of a folder, or s3://BUCKET/FOLDER or gs://BUCKET/FOLDER in an object store, without spaces, ? and #"
        if self.kind == "object":
            return 'a JSON object of texts, such as {"text": "Text"}'
        number = "a whole number" if self.kind == "int" else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        decimals = f" with at most {_DECIMALS} decimals" if self.kind == "float" and self.unit == "seconds" else ""
        limits = f"from {self.minimum:g} to {int(self.maximum) if self.kind == 'int' else self.maximum}"
        return f"{number}{unit} {limits}{decimals}{f', or a duration {DURATIONS}' if self.unit == 'seconds' else ''}"

    def check(self, value: object, *, where: str) -> Value:
        """Return the value if it is allowed, an object as its JSON text. Raises InvalidSetting."""
        ok, given = False, value
        if isinstance(value, str) and (self.unit == "seconds" or self.kind == "period") and (seconds := parse_duration(value)) is not None:
            value = seconds
        if self.kind == "object" and isinstance(value, dict):
            value = _text_of(value)
        if self.kind == "bool":
            ok = isinstance(value, bool)
        elif self.kind == "text":
            ok = isinstance(value, str) and value in self.choices
        elif self.kind == "name":
            ok = isinstance(value, str) and is_topic(value)
        elif self.kind == "folder":
            ok = isinstance(value, str) and ((value.startswith("/") and "\0" not in value) or _IN_A_STORE.fullmatch(value) is not None)
        elif self.kind == "object":
            ok = isinstance(value, str) and _is_object_of_texts(value)
        elif self.kind == "period" and isinstance(value, str):
            ok = _PERIOD.fullmatch(value) is not None
        elif self.kind in ("int", "period"):
            ok = isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum
        elif isinstance(value, int | float) and not isinstance(value, bool):
            ok = self.minimum <= value <= self.maximum  # NaN compares false
            # Rounding would turn an age below a microsecond into zero, and every message would be too old.
            ok = ok and (self.unit != "seconds" or round(value, _DECIMALS) == value)
        if not ok:
            raise InvalidSetting(where=where, key=self.name, value=given, allowed=self.allowed)
        assert isinstance(value, bool | int | float | str)
        return float(value) if self.kind == "float" else value

    def parse(self, text: str, *, where: str) -> Value:
        """Read the text of a table property or of the command line. Raises InvalidSetting."""
        try:
            value: object = text if self.kind in ("text", "name", "object", "folder") else json.loads(text)
        except ValueError:
            value = text
        return self.check(value, where=where)


FOLDS = ("json_merge_patch", "json_patch", "last_write", "text_splice", "yjs")


def _shorter_is_tighter(value: float | None) -> float:
    """0 and None mean never."""
    return -(value or float("inf"))


def _less_is_tighter(value: float | None) -> float:
    """The least is the tightest, 0 included. None: no limit."""
    return float("-inf") if value is None else -value


# The shortest months and years, so that a period never counts as long as days or weeks that may be longer.
_PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_419_200, "year": 31_536_000}


def _shorter_history_is_tighter(period: int | str | None) -> float:
    """The shorter, the tighter. Lengths are rough, because only comparisons use them. None: age keeps nothing."""
    if period == "permanent":
        return float("-inf")
    if isinstance(period, str):
        count, unit = period.split(" ")
        return -float(int(count) * _PERIODS[unit.removesuffix("s")])
    return -float(period or 0)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="message_expiry", section="system.segment", on_topic=True, kind="int", default=0, maximum=U32_MAX, unit="seconds",
        help="Age of a segment's newest message at which the whole segment expires; 0 = never.",
        reason="no message leaves unless a setting asks for it", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="segment_size_bytes", server_key="size_bytes", section="system.segment", on_topic=True, kind="int", default=1_000_000_000, minimum=1, unit="bytes",
        help="A segment is sealed when the next message would take it past this size.",
        reason="a segment is then one data file of a good size, or a few",
    ),
    Setting(
        name="segment_max_seconds", server_key="max_seconds", section="system.segment", on_topic=True, kind="int", default=0, maximum=U32_MAX, unit="seconds", when_made=True,
        help="A message opens the next segment if its append_time is later than the segment's first known one by more than this. 0 = only "
        "size cuts segments. The setting acts on new messages; existing segments keep their messages. A new topic stores the value of "
        "the server file.",
        reason="topics from before this setting keep their way of cutting segments",
    ),
    Setting(
        name="enabled", section="message_cleaner", on_topic=False, kind="bool", default=True,
        help="If false, the message cleaner removes nothing.",
        reason="an expiry that is set should take effect", tightness=lambda on: float(on),
    ),
    Setting(
        name="interval", section="message_cleaner", on_topic=False, kind="int", default=60, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often the message cleaner checks the topics.",
        reason="a check of idle topics takes well under a second",
    ),
    Setting(
        name="max_segments", section="message_cleaner", on_topic=False, kind="int", default=100_000, unit="segments",
        help="The most segments that one run removes from a topic; 0 = no limit. The run reports the rest as `more`.",
        reason="one plan stays readable, and one commit takes a few seconds at most",
    ),
    Setting(
        name="max_rows", section="message_cleaner", on_topic=False, kind="int", default=0, unit="messages",
        help="The most messages that one run removes from a topic (whole segments, at least one); 0 = no limit.",
        reason="the removal of a segment costs the same for any number of messages",
    ),
    Setting(
        name="max_bytes", section="message_cleaner", on_topic=False, kind="int", default=0, unit="bytes",
        help="The most bytes that one run removes from a topic (whole segments, at least one), on tables the bytes of files; 0 = no limit.",
        reason="the removal of a segment costs the same for any number of bytes",
    ),
    Setting(
        name="consumer_expiry", section="consumers", on_topic=True, kind="int", default=604_800, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A consumer that is silent for longer than this no longer keeps messages.",
        reason="a week covers an outage over a long weekend; with no limit, one dead consumer could fill the disk", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="allow_msg_ttl", section=None, on_topic=True, kind="bool", default=False,
        help="If true, messages may have a TTL of their own (header Nats-TTL). You can turn it on later, but never off again.",
        reason="as on a NATS server; while it is off, the header has no effect", tightness=lambda on: float(bool(on)),
    ),
    Setting(
        name="subject_delete_marker_ttl", section=None, on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="seconds",
        help="TTL of the marker that a run writes for a key after age or a request removed its last message. Unset: no markers. Turns "
        "allow_msg_ttl on.",
        reason="a topic that needs markers sets their TTL",
    ),
    Setting(
        name="zero_ttl", section=None, on_topic=True, kind="text", default="ignore", choices=("ignore", "reject"),
        help="The meaning of a TTL of zero. ignore: the message has no TTL; reject: the TTL is invalid, and the ingest refuses the message.",
        reason="as in ADR-43; newer NATS servers reject it",
    ),
    Setting(
        name="ttl_overrides_age", section=None, on_topic=True, kind="bool", default=False,
        help="If true, a message's own TTL counts instead of message_expiry and max_age_seconds, even if it is longer.",
        reason="the earliest deadline wins, as on a NATS server", tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="max_age_seconds", section=None, on_topic=True, kind="float", default=None, unit="seconds",
        help="A run removes each message that is older than this; decimals down to 1 us. Unset: no limit.",
        reason="no message leaves unless a setting asks for it", tightness=_less_is_tighter,
    ),
    Setting(
        name="max_records", section=None, on_topic=True, kind="int", default=None, minimum=1, unit="messages",
        help="Each group of retention_scope keeps only this many of its newest messages. Unset: no limit. To keep none, request a purge.",
        reason="no message leaves unless a setting asks for it", tightness=_less_is_tighter,
    ),
    Setting(
        name="max_total_bytes", section=None, on_topic=True, kind="int", default=None, minimum=1, unit="bytes",
        help="Each group of retention_scope keeps only its newest messages that together fit into this size (bytes of key, value and "
        "headers). Unset: no limit. To keep none, request a purge.",
        reason="no message leaves unless a setting asks for it", tightness=_less_is_tighter,
    ),
    Setting(
        name="min_keep", section=None, on_topic=True, kind="int", default=0, maximum=1, unit="messages",
        help="1: the newest message of each group of retention_scope stays, with a warning, even if this message alone is larger than "
        "max_total_bytes.",
        reason="a limit that is set should take effect; a plan that empties a log needs an approval", tightness=lambda kept: -float(kept),
    ),
    Setting(
        name="retention_scope", section=None, on_topic=True, kind="text", default="topic", choices=SCOPES,
        help="The groups that max_records and max_total_bytes count: the whole topic, each partition, or each key. With key, messages "
        "without a key have no such limit.",
        reason="a limit on a topic usually means the whole topic", tightness=lambda scope: -float(SCOPES.index(scope)),
    ),
    Setting(
        name="on_remove", section=None, on_topic=True, kind="text", default="delete", choices=("delete", "archive"),
        help="The action for messages that expiry, TTL or retention removes. archive: the run first writes them to archive_to and compares the "
        "copy. Topics in tables (backend iceberg) refuse archive.",
        reason="the limits themselves keep the messages that you need", tightness=lambda deed: float(deed == "delete"),
    ),
    Setting(
        name="archive_to", section=None, on_topic=True, kind="folder", default=None,
        help="The folder for Parquet files of removed messages, on a disk or in an object store. It belongs to on_remove = archive.",
        reason="only you can choose the place of an archive",
    ),
    Setting(
        name="origin", section=None, on_topic=True, kind="name", default=None,
        help="The topic that this topic copies (role source or mirror). Fixed when the topic is created.",
        reason="a topic copies no other topic unless a setting asks for it",
    ),
    Setting(
        name="role", section=None, on_topic=True, kind="text", default="local", choices=("local", "source", "mirror"),
        help="local: no copy; source: a copy with offsets of its own; mirror: a copy with the origin's offsets. Fixed when the topic is created.",
        reason="a topic copies no other topic unless a setting asks for it",
    ),
    Setting(
        name="counter", section=None, on_topic=True, kind="bool", default=False,
        help="The topic's messages are counters. No message may disappear by itself, so TTL and markers are refused.",
        reason="as on a NATS server",
    ),
    Setting(
        name="max_removed_fraction", section="limits", on_topic=True, kind="float", default=0.5, minimum=0, maximum=1,
        help="The largest share of a log's messages or bytes that one run may remove without an approval.",
        reason="a wrong setting usually removes much, not little",
    ),
    Setting(
        name="approver_is_not_requester", section="limits", on_topic=True, kind="bool", default=False,
        help="If a person requests a plan, another person must approve it, even if the plan removes little. The comparison of names ignores "
        "case, width, invisible characters and look-alike letters.",
        reason="a person who works alone could not approve any plan",
    ),
    Setting(
        name="approval_ttl", section="limits", on_topic=True, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A plan that waits for an approval lapses after this time.",
        reason="one day; the table has changed by then",
    ),
    Setting(
        name="undo_window", section="limits", on_topic=True, kind="int", default=604_800, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How long an undo of a published plan is possible. Reclaim frees its space only after this time.",
        reason="a week is long enough to notice a mistake, and short enough to free the disk",
    ),
    Setting(
        name="reclaim_interval", server_key="interval", section="reclaim", on_topic=False, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often reclaim checks the tables for space that it can free.",
        reason="a day, because the undo window is counted in days, too",
    ),
    Setting(
        name="reclaim_max_files", server_key="max_files", section="reclaim", on_topic=False, kind="int", default=100_000, minimum=1, maximum=10_000_000, unit="files",
        help="The most files that one run removes from a topic's tables. The next run continues.",
        reason="a plan names each file, and this many names are about 15 MB of text",
    ),
    Setting(
        name="orphan_age", section="reclaim", on_topic=False, kind="int", default=259_200, minimum=259_200, maximum=U32_MAX, unit="seconds",
        help="How long a file that no snapshot names must be unchanged before reclaim removes it.",
        reason="three days are longer than any task needs to commit the files that it has written",
    ),
    Setting(
        name="clock_skew", section="limits", on_topic=False, kind="int", default=60, maximum=86_400, unit="seconds",
        help="How far clocks may differ before a time counts as a future time.",
        reason="NTP keeps clocks well within a minute",
    ),
    Setting(
        name="max_overdue", section="status", on_topic=True, kind="int", default=86_400, maximum=U32_MAX, unit="seconds",
        help="`lifecycle status` fails if an obligation of the topic is due for longer than this, unless a legal hold or an undone plan "
        "keeps all of it. The value must be at least the cleaner's interval plus 300 s. Work that is checked less often may be due for "
        "its own interval plus 300 s.",
        reason="a day; `status` then notices a cleaner that runs but does nothing",
    ),
    Setting(
        name="quarantine_max_age", section="quarantine", on_topic=True, kind="int", default=2_592_000, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How long the topic's quarantine table keeps refused rows (QUA-1).",
        reason="30 days are enough to fix the writer and replay the rows", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="cleanup_policy", section=None, on_topic=True, kind="text", default="delete", choices=("delete", "compact", "compact,delete"),
        help="delete: no scheduled compaction. compact: keep a view with the latest message of each key, and purge the messages that it "
        "covers from the log. compact,delete: keep the view, and do not purge the log.",
        reason="compaction is for topics with keys", tightness=lambda policy: float(policy == "compact"),
    ),
    Setting(
        name="compaction_interval", server_key="interval", section="compaction", on_topic=False, kind="int", default=3600, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often compaction checks the topics that ask for it.",
        reason="a check of topics without new messages takes well under a second",
    ),
    Setting(
        name="compaction_threshold_bytes", section="compaction", on_topic=True, kind="int", default=0, unit="bytes",
        help="A scheduled run compacts a topic only if more bytes than this are past its horizon; 0 = any new message is enough.",
        reason="the view should soon have every message",
    ),
    Setting(
        name="compaction_read_bytes_per_second", section="compaction", on_topic=True, kind="int", default=0, unit="bytes per second",
        help="How fast compaction may read, all partitions together; 0 = no limit.",
        reason="a short run disturbs others less than a slow one",
    ),
    Setting(
        name="compaction_write_bytes_per_second", section="compaction", on_topic=True, kind="int", default=0, unit="bytes per second",
        help="How fast compaction may write, all partitions together; 0 = no limit.",
        reason="a short run disturbs others less than a slow one",
    ),
    Setting(
        name="compaction_rewrite_fraction", section="compaction", on_topic=True, kind="float", default=0.3, maximum=1,
        help="If the share of superseded messages in the view's files is larger than this, a run rewrites the view. Otherwise it marks more "
        "messages.",
        reason="above a third of dead rows, slower reads cost about as much as a rewrite",
    ),
    Setting(
        name="max_compaction_lag", section=None, on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="seconds",
        help="The greatest allowed age of a message past the horizon of a compacted topic. Beyond it the cleaner also removes dead messages past the "
        "horizon, and older messages of their keys in the view. Unset: the log waits for compaction without limit.",
        reason="a compaction that fails should be fixed, not skipped", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="retain_null_key", section=None, on_topic=True, kind="bool", default=True,
        help="If true, the compacted view keeps all messages without a key.",
        reason="no newer message replaces a message without a key", tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="empty_is_value", section=None, on_topic=True, kind="bool", default=False,
        help="If true, a message with an empty value is a value for compaction. If false, it deletes its key, as a message without a value does.",
        reason="as in PIP-14", tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="delete_retention", section=None, on_topic=True, kind="float", default=0.0, maximum=U32_MAX, unit="seconds",
        help="How long the compacted view keeps a deletion for readers that have not read it; decimals down to 1 us; 0 = not at all.",
        reason="as in PIP-14", tightness=lambda kept: -float(kept),
    ),
    Setting(
        name="winner", section=None, on_topic=True, kind="text", default="offset", choices=("offset", "event_time"),
        help="Which message of a key is the latest: the one with the highest offset, or the one with the newest event time (then offset).",
        reason="every reader sees the order of the log",
    ),
    Setting(
        name="fold", section=None, on_topic=True, kind="text", default=None, choices=FOLDS,
        help="Makes the topic a topic of documents, and says how their changes are applied. Fixed when the topic is created. Any other "
        "setting of documents implies json_merge_patch.",
        reason="a topic holds messages unless a setting asks for documents",
    ),
    Setting(
        name="yjs_roots", section=None, on_topic=True, kind="object", default=None,
        help='The names of the roots of a yjs document and their types, as JSON: {"text": "Text"}. The types are Text, Map and Array. The '
        "fold yjs needs this setting, and no other fold allows it.",
        reason="an update does not name the types of its roots",
    ),
    Setting(
        name="snapshots_interval", server_key="interval", section="documents", on_topic=False, kind="int", default=3600, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often a run checks documents for snapshots and purges.",
        reason="a check of topics without new changes takes well under a second",
    ),
    Setting(
        name="snapshot_interval", section="documents", on_topic=True, kind="int", default=1000, minimum=1, maximum=U32_MAX, unit="changes",
        help="A document gets a snapshot when it has this many changes since its last snapshot.",
        reason="as in Yorkie",
    ),
    Setting(
        name="snapshot_threshold", section="documents", on_topic=True, kind="int", default=500, minimum=1, maximum=U32_MAX, unit="changes",
        help="A client that is this many changes behind gets the snapshot and the changes after it, not all changes.",
        reason="as in Yorkie",
    ),
    Setting(
        name="snapshot_with_purging_changes", section="documents", on_topic=True, kind="bool", default=False,
        help="If true, a run removes the changes that every client has and that a proved snapshot covers.",
        reason="no change leaves unless a setting asks for it", tightness=lambda on: float(bool(on)),
    ),
    Setting(
        name="client_deactivate_after", section="documents", on_topic=True, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A client that is silent for longer than this no longer keeps changes. It attaches again by the snapshot.",
        reason="a day, as in Yorkie", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="changes_max_age", section="documents", on_topic=True, kind="period", default=None, maximum=U32_MAX, unit="seconds",
        help="Changes younger than this stay in the history, even if every client has them. Seconds, calendar units such as 1 month, or "
        "permanent. Unset: age keeps no change.",
        reason="a topic that needs a history asks for it", tightness=_shorter_history_is_tighter,
    ),
    Setting(
        name="changes_keep_last", section="documents", on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="changes",
        help="This many last changes of a document stay in the history, even if every client has them. Unset: their number keeps no change.",
        reason="a topic that needs a history asks for it", tightness=lambda last: -float(last or 0),
    ),
    Setting(
        name="snapshots_keep", section="documents", on_topic=True, kind="int", default=3, minimum=1, maximum=U32_MAX, unit="snapshots",
        help="This many newest snapshots of a document stay, together with the snapshots that its history needs.",
        reason="the newest one, and two earlier ones to compare", tightness=lambda kept: -float(kept),
    ),
)  # fmt: skip


def settings_have_documents(own: Mapping[str, object]) -> bool:
    """Return True if a topic with these own settings holds documents, not messages (SNP-10)."""
    return own.get("fold") is not None


def check_messages(own: Mapping[str, object], name: TopicName) -> None:
    """Raise IsADocumentTopic unless the topic holds messages (SNP-10)."""
    if settings_have_documents(own):
        raise is_a_document_topic(str(name))


DOCUMENT_SETTINGS = tuple(
    setting.name for setting in SETTINGS if setting.on_topic and (setting.section == "documents" or setting.name in ("fold", "yjs_roots"))
)
"""Settings that only a topic of documents may have."""
OWN_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.on_topic and setting.section == "documents")
"""Settings of a document topic that a user or a single document may have, too (SNP-9)."""
