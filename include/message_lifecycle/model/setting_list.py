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
        help="Age at which a segment's newest message makes the whole segment expire; 0 = never.",
        reason="nothing goes unless somebody said so", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="segment_size_bytes", server_key="size_bytes", section="system.segment", on_topic=True, kind="int", default=1_000_000_000, minimum=1, unit="bytes",
        help="A segment is sealed when the next message would take it past this size.",
        reason="one segment is then one well-sized data file or a few",
    ),
    Setting(
        name="segment_max_seconds", server_key="max_seconds", section="system.segment", on_topic=True, kind="int", default=0, maximum=U32_MAX, unit="seconds", when_made=True,
        help="A message whose append_time is later than its segment's first known one by more than this opens the next segment; 0 = size alone. "
        "It acts on messages that come: segments keep what they hold. The server file's value is given to topics when they are made.",
        reason="topics and scenarios from before it are cut as they were",
    ),
    Setting(
        name="enabled", section="message_cleaner", on_topic=False, kind="bool", default=True,
        help="Whether the message cleaner removes anything at all.", reason="an expiry that is set is meant",
        tightness=lambda on: float(on),
    ),
    Setting(
        name="interval", section="message_cleaner", on_topic=False, kind="int", default=60, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often the message cleaner looks.", reason="a look at idle topics costs well under a second",
    ),
    Setting(
        name="max_segments", section="message_cleaner", on_topic=False, kind="int", default=100_000, unit="segments",
        help="Segments that one pass removes from a topic at the most; 0 = no limit. What is left is reported as `more`.",
        reason="keeps one plan readable and one commit within a few seconds",
    ),
    Setting(
        name="max_rows", section="message_cleaner", on_topic=False, kind="int", default=0, unit="messages",
        help="Messages that one pass removes from a topic at the most (whole segments; at least one); 0 = no limit.",
        reason="a segment drop costs the same whatever its rows",
    ),
    Setting(
        name="max_bytes", section="message_cleaner", on_topic=False, kind="int", default=0, unit="bytes",
        help="Message bytes that one pass removes from a topic at the most (whole segments; at least one); 0 = no limit.",
        reason="a segment drop costs the same whatever its bytes",
    ),
    Setting(
        name="consumer_expiry", section="consumers", on_topic=True, kind="int", default=604_800, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A consumer silent for longer than this no longer keeps messages.",
        reason="a week covers an outage over a long weekend; for ever would let one dead consumer fill the disk",
        tightness=_shorter_is_tighter,
    ),
    Setting(
        name="allow_msg_ttl", section=None, on_topic=True, kind="bool", default=False,
        help="Whether messages may carry a lifetime of their own (header Nats-TTL). May be turned on later, never off again.",
        reason="off, the header has no effect at all, as on the server", tightness=lambda on: float(bool(on)),
    ),
    Setting(
        name="subject_delete_marker_ttl", section=None, on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="seconds",
        help="Lifetime of the marker that is left for a key when age or a request took its last message. Unset: no markers. Turns allow_msg_ttl on.",
        reason="who wants markers says for how long",
    ),
    Setting(
        name="zero_ttl", section=None, on_topic=True, kind="text", default="ignore", choices=("ignore", "reject"),
        help="A TTL of zero: no TTL, or an invalid one that is refused at ingest.", reason="the document says so; newer servers reject it",
    ),
    Setting(
        name="ttl_overrides_age", section=None, on_topic=True, kind="bool", default=False,
        help="Whether a message's own TTL, also a longer one, counts instead of message_expiry and max_age_seconds.",
        reason="the earliest wins, as on the server", tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="max_age_seconds", section=None, on_topic=True, kind="float", default=None, unit="seconds",
        help="Age beyond which single messages go; decimals down to 1 us. Unset: no limit.", reason="nothing goes unless somebody said so",
        tightness=_less_is_tighter,
    ),
    Setting(
        name="max_records", section=None, on_topic=True, kind="int", default=None, minimum=1, unit="messages",
        help="Only the newest messages of each group of retention_scope are kept, this many. Unset: no limit; to keep none, ask for a purge.",
        reason="nothing goes unless somebody said so", tightness=_less_is_tighter,
    ),
    Setting(
        name="max_total_bytes", section=None, on_topic=True, kind="int", default=None, minimum=1, unit="bytes",
        help="Only the newest messages of each group of retention_scope that together fit are kept (bytes of key, value and headers). "
        "Unset: no limit; to keep none, ask for a purge.",
        reason="nothing goes unless somebody said so", tightness=_less_is_tighter,
    ),
    Setting(
        name="min_keep", section=None, on_topic=True, kind="int", default=0, maximum=1, unit="messages",
        help="1: the newest message of each group of retention_scope stays, with a warning, also where it alone passes max_total_bytes.",
        reason="a limit that is set is meant, and a log emptied by it asks a person", tightness=lambda kept: -float(kept),
    ),
    Setting(
        name="retention_scope", section=None, on_topic=True, kind="text", default="topic", choices=SCOPES,
        help="Within what max_records and max_total_bytes count: the topic, each partition, or each key (messages without a key have then no such limit).",
        reason="who bounds a topic means all of it", tightness=lambda scope: -float(SCOPES.index(scope)),
    ),
    Setting(
        name="on_remove", section=None, on_topic=True, kind="text", default="delete", choices=("delete", "archive"),
        help="What becomes of messages that expiry, TTL or retention removes; archive: written to archive_to and compared before they go.",
        reason="what is to be kept is kept by its limits", tightness=lambda deed: float(deed == "delete"),
    ),
    Setting(
        name="archive_to", section=None, on_topic=True, kind="folder", default=None,
        help="The folder of Parquet files, of a disk or in an object store, that takes what goes, where on_remove is archive.", reason="no place is anybody's archive by chance",
    ),
    Setting(
        name="origin", section=None, on_topic=True, kind="name", default=None,
        help="The topic that this one copies (role source or mirror). Fixed when the topic is made.", reason="a topic is its own unless it says so",
    ),
    Setting(
        name="role", section=None, on_topic=True, kind="text", default="local", choices=("local", "source", "mirror"),
        help="local; source: copies with offsets of its own; mirror: copies with the origin's offsets. Fixed when the topic is made.",
        reason="a topic is its own unless it says so",
    ),
    Setting(
        name="counter", section=None, on_topic=True, kind="bool", default=False,
        help="The topic's messages are counters: none may vanish by itself, so TTL and markers are refused.", reason="as on the server",
    ),
    Setting(
        name="max_removed_fraction", section="limits", on_topic=True, kind="float", default=0.5, minimum=0, maximum=1,
        help="Share of a log's messages or bytes that may go in one run without a person's word.",
        reason="a wrong setting usually takes much, not little",
    ),
    Setting(
        name="approver_is_not_requester", section="limits", on_topic=True, kind="bool", default=False,
        help="If a person asks for a plan, another person approves it, however little the plan removes. Names are compared without regard to case, width, invisible characters and look-alike letters.",
        reason="whoever works alone could approve nothing",
    ),
    Setting(
        name="approval_ttl", section="limits", on_topic=True, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A plan that waits for a person lapses after this long.", reason="one day: the table has moved on by then",
    ),
    Setting(
        name="undo_window", section="limits", on_topic=True, kind="int", default=604_800, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How long a published deletion can be taken back; only then is its space reclaimed.", reason="a week: long enough to notice, short enough to free the disk",
    ),
    Setting(
        name="reclaim_interval", server_key="interval", section="reclaim", on_topic=False, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often tables are looked at for space that can come back.", reason="a day: the undo window is counted in days, too",
    ),
    Setting(
        name="reclaim_max_files", server_key="max_files", section="reclaim", on_topic=False, kind="int", default=100_000, minimum=1, maximum=10_000_000, unit="files",
        help="How many files one run removes from a topic's tables at the most; the next run goes on.", reason="a plan names each file: this many are some 15 MB of text",
    ),
    Setting(
        name="orphan_age", section="reclaim", on_topic=False, kind="int", default=259_200, minimum=259_200, maximum=U32_MAX, unit="seconds",
        help="How long a file that no snapshot names must have been unchanged before it is removed.", reason="three days: longer than any task may take to commit what it has written",
    ),
    Setting(
        name="clock_skew", section="limits", on_topic=False, kind="int", default=60, maximum=86_400, unit="seconds",
        help="How far clocks may differ before a time counts as lying in the future.", reason="as NTP allows, with room",
    ),
    Setting(
        name="max_overdue", section="status", on_topic=True, kind="int", default=86_400, maximum=U32_MAX, unit="seconds",
        help="`lifecycle status` fails when anything that the topic obliges is due for longer, unless a legal hold or an undone plan keeps all of it. At least the cleaner's interval and 300 s; what is looked at less often than that may be due for its own interval and 300 s.",
        reason="a day: a cleaner that is green and does nothing is then noticed",
    ),
    Setting(
        name="quarantine_max_age", section="quarantine", on_topic=True, kind="int", default=2_592_000, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How long refused rows are kept in the topic's quarantine table (QUA-1).", reason="30 days: time to mend the writer and replay",
        tightness=_shorter_is_tighter,
    ),
    Setting(
        name="cleanup_policy", section=None, on_topic=True, kind="text", default="delete", choices=("delete", "compact", "compact,delete"),
        help="delete: no compaction by itself; compact: keep a view of each key's latest message, and purge what it covers from the log; "
        "compact,delete: keep the view, the log goes by age alone.",
        reason="compaction is for topics with keys", tightness=lambda policy: float(policy == "compact"),
    ),
    Setting(
        name="compaction_interval", server_key="interval", section="compaction", on_topic=False, kind="int", default=3600, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often compaction looks at the topics that ask for it.", reason="a look at topics with nothing new costs well under a second",
    ),
    Setting(
        name="compaction_threshold_bytes", section="compaction", on_topic=True, kind="int", default=0, unit="bytes",
        help="A scheduled run compacts a topic only when more bytes than this lie past its horizon; 0 = whenever there is anything new.",
        reason="every message is worth its place in the view",
    ),
    Setting(
        name="compaction_read_bytes_per_second", section="compaction", on_topic=True, kind="int", default=0, unit="bytes per second",
        help="How fast compaction reads at the most, all partitions together; 0 = no limit.", reason="short is kinder than slow",
    ),
    Setting(
        name="compaction_write_bytes_per_second", section="compaction", on_topic=True, kind="int", default=0, unit="bytes per second",
        help="How fast compaction writes at the most, all partitions together; 0 = no limit.", reason="short is kinder than slow",
    ),
    Setting(
        name="compaction_rewrite_fraction", section="compaction", on_topic=True, kind="float", default=0.3, maximum=1,
        help="Share of superseded messages in the view's files from which on a run writes the view anew instead of marking more.",
        reason="reading past a third of dead rows costs about what it saves",
    ),
    Setting(
        name="max_compaction_lag", section=None, on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="seconds",
        help="Once the oldest message past the horizon of a compacted topic is older than this, what is dead past it goes nevertheless, and with "
        "it what is older of its keys in the view. Unset: the log waits for compaction, however long.",
        reason="compaction is to be mended, not passed over", tightness=_shorter_is_tighter,
    ),
    Setting(
        name="retain_null_key", section=None, on_topic=True, kind="bool", default=True,
        help="Whether the compacted view keeps messages without a key, all of them.", reason="a message without a key is superseded by none",
        tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="empty_is_value", section=None, on_topic=True, kind="bool", default=False,
        help="Whether a message with an empty value is a value to compaction; else it deletes its key, as one without a value does.",
        reason="the document says so", tightness=lambda on: -float(bool(on)),
    ),
    Setting(
        name="delete_retention", section=None, on_topic=True, kind="float", default=0.0, maximum=U32_MAX, unit="seconds",
        help="How long the compacted view keeps a deletion for those who have not read it; decimals down to 1 us; 0 = not at all.",
        reason="the document says so", tightness=lambda kept: -float(kept),
    ),
    Setting(
        name="winner", section=None, on_topic=True, kind="text", default="offset", choices=("offset", "event_time"),
        help="Which message of a key is its latest: that of the highest offset, or of the newest event time (then offset).",
        reason="the order of the log is the one everybody sees",
    ),
    Setting(
        name="fold", section=None, on_topic=True, kind="text", default=None, choices=FOLDS,
        help="Makes the topic one of documents, and says how their changes are applied. Fixed when the topic is made; any other setting of documents implies json_merge_patch.",
        reason="a topic holds messages unless it says so",
    ),
    Setting(
        name="yjs_roots", section=None, on_topic=True, kind="object", default=None,
        help='Names of the roots of a yjs document and their types, as JSON: {"text": "Text"}; types Text, Map, Array. Needed by the fold yjs, and by no other.',
        reason="an update does not name its roots' types",
    ),
    Setting(
        name="snapshots_interval", server_key="interval", section="documents", on_topic=False, kind="int", default=3600, minimum=1, maximum=U32_MAX, unit="seconds",
        help="How often documents are looked at for snapshots and purges.", reason="a look at topics with nothing new costs well under a second",
    ),
    Setting(
        name="snapshot_interval", section="documents", on_topic=True, kind="int", default=1000, minimum=1, maximum=U32_MAX, unit="changes",
        help="A snapshot of a document is made once this many changes came after its last one.", reason="the document says so",
    ),
    Setting(
        name="snapshot_threshold", section="documents", on_topic=True, kind="int", default=500, minimum=1, maximum=U32_MAX, unit="changes",
        help="A client that is this many changes behind gets the snapshot and what came after it, not the changes.", reason="the document says so",
    ),
    Setting(
        name="snapshot_with_purging_changes", section="documents", on_topic=True, kind="bool", default=False,
        help="Whether changes that every client has, and that a proved snapshot covers, are removed.",
        reason="nothing goes unless somebody said so", tightness=lambda on: float(bool(on)),
    ),
    Setting(
        name="client_deactivate_after", section="documents", on_topic=True, kind="int", default=86_400, minimum=1, maximum=U32_MAX, unit="seconds",
        help="A client silent for longer than this no longer keeps changes; it attaches again by the snapshot.", reason="a day, as the document's server does",
        tightness=_shorter_is_tighter,
    ),
    Setting(
        name="changes_max_age", section="documents", on_topic=True, kind="period", default=None, maximum=U32_MAX, unit="seconds",
        help="Changes younger than this stay in the history whatever clients have: seconds, or calendar units as in 1 month, or permanent. Unset: age keeps none.",
        reason="the history is for those who ask for it", tightness=_shorter_history_is_tighter,
    ),
    Setting(
        name="changes_keep_last", section="documents", on_topic=True, kind="int", default=None, minimum=1, maximum=U32_MAX, unit="changes",
        help="The last changes of a document that stay in the history whatever clients have. Unset: number keeps none.",
        reason="the history is for those who ask for it", tightness=lambda last: -float(last or 0),
    ),
    Setting(
        name="snapshots_keep", section="documents", on_topic=True, kind="int", default=3, minimum=1, maximum=U32_MAX, unit="snapshots",
        help="The newest snapshots of a document that are kept, beside those that its history needs.", reason="two earlier ones to look back at",
        tightness=lambda kept: -float(kept),
    ),
)  # fmt: skip


def of_documents(own: Mapping[str, object]) -> bool:
    """Return True if a topic with these own settings holds documents, not messages (SNP-10)."""
    return own.get("fold") is not None


def check_messages(own: Mapping[str, object], name: TopicName) -> None:
    """Raise IsADocumentTopic unless the topic holds messages (SNP-10)."""
    if of_documents(own):
        raise is_a_document_topic(str(name))


DOCUMENT_SETTINGS = tuple(
    setting.name for setting in SETTINGS if setting.on_topic and (setting.section == "documents" or setting.name in ("fold", "yjs_roots"))
)
"""Settings that only a topic of documents may have."""
OWN_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.on_topic and setting.section == "documents")
"""Settings of a document topic that a user or a single document may have, too (SNP-9)."""
