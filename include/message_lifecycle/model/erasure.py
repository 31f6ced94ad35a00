"""Erasure of a key everywhere: the request, what a table holds of the key, what is left behind as evidence, and the receipt.

The request knows the key by a keyed hash alone, and no value here holds a key or tells one. A plain hash of a key would not do: keys are often
numbers or addresses, and whoever has the hashes of all of them has the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from message_lifecycle.model.errors import erasure_secret_changed, invalid_erasure_secret, invalid_receipt
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.model.in_values import InValues

MIN_SECRET_BYTES = 32
_MARK = b"message_lifecycle erasure secret\x00"

BASE64 = "base64:"
"""Before the bytes of a refused line that is no text."""

ErasureState = Literal["requested", "erased", "not_found", "refused"]
"""`requested`: to be carried out, or on the way. `not_found`: every topic was searched, and none held the key (DEL-7). `refused`: by a hold or a person; nothing of it went, and it forbids nothing."""
Matches = Callable[[bytes], bool]
"""Whether a key is the one that is to be erased; knows it by a keyed hash alone."""
TableKind = Literal["log", "view", "snapshots", "quarantine", "archive"]
"""What of a topic holds keys: its messages or changes, its compacted view, its documents' snapshots, and where messages are kept as records:
what was refused, what has gone. The key of a change and of a snapshot is the name of its document."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is true of a kind of table.

    `beside`: what tells it from the topic's own table in a catalog. `of_text`: its rows are no messages but text, each of which may tell
    several keys. `by_setting`: it is there while a setting names it, and in no catalog. `of_log`: it is made of the log, and a plan that
    changes it says on which snapshot of it it builds. `remains`: the place that keeps bytes of the key beneath every search."""

    kind: TableKind
    words: str
    beside: str = ""
    of_text: bool = False
    by_setting: bool = False
    of_log: bool = False
    remains: str | None = None


_LEDGER_FILES = "the ledger's database keeps deleted rows with the document's name in its files until VACUUM, and in its write-ahead log"
_KINDS = (
    Traits("log", "the log"),
    Traits("view", "the compacted view", beside="compacted", of_log=True),
    Traits("snapshots", "the documents' snapshots", beside="snapshots", remains=_LEDGER_FILES),
    Traits("quarantine", "the quarantine", beside="quarantine", of_text=True),
    Traits("archive", "the archive", by_setting=True),
)
TABLE_KINDS: Mapping[TableKind, Traits] = {traits.kind: traits for traits in _KINDS}
"""All kinds of tables: nobody else needs to know one from another by its name."""
RECEIPT_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDigest:
    """A key's keyed hash (HMAC-SHA256, hex), and the fingerprint of the secret that it was made with."""

    digest: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOf:
    """What an erasure was asked for: the ledger's request, and the key's keyed hash with the fingerprint of its secret. Never the key."""

    request_id: str
    digest: str
    secret: str


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What keyed hashes are made with. Raises InvalidErasureSecret where it is too short to keep a key hidden."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < MIN_SECRET_BYTES:
            raise invalid_erasure_secret(len(self.value), MIN_SECRET_BYTES)

    @property
    def fingerprint(self) -> str:
        """Tells one secret from another and says nothing about either: they are random."""
        return hashlib.sha256(_MARK + self.value).hexdigest()[:16]

    def digest(self, key: bytes) -> KeyDigest:
        return KeyDigest(digest=self.hash(key).hex(), secret=self.fingerprint)

    def hash(self, key: bytes) -> bytes:
        return hmac.digest(self.value, key, "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """Tells whether a key is one of those that digests were made of. May travel to a worker; prints neither secret nor key."""

    secret: KeySecret
    digests: frozenset[bytes]

    @classmethod
    def of(cls, secret: KeySecret, digests: Iterable[KeyDigest]) -> KeyMatch:
        """Raises ErasureSecretChanged where a digest was made with another secret: it would silently match nothing."""
        found = tuple(digests)
        for one in found:
            if one.secret != secret.fingerprint:
                raise erasure_secret_changed(found=secret.fingerprint, needed=one.secret)
        return cls(secret=secret, digests=frozenset(bytes.fromhex(one.digest) for one in found))

    def matches(self, key: bytes | None) -> bool:
        """A null key is no key and never matches."""
        return key is not None and bool(self.digests) and self.secret.hash(key) in self.digests

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self.digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A person's word that a forbidden key may come in again."""

    by: str
    why: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """A person's request that a key be gone everywhere. `topics` empty: all. `forbid`: what comes in with the key is not taken.

    `detail`: why it was refused, or what is missing yet."""

    request_id: str
    key: KeyDigest
    topics: tuple[TopicName, ...]
    forbid: bool
    requested_by: str
    why: str
    requested_at: Instant
    state: ErasureState = "requested"
    detail: str = ""
    lifted: Lifted | None = None
    in_values: InValues | None = None
    """Where the key was found inside values, without names; None: nobody searched."""

    def covers(self, topic: TopicName) -> bool:
        return not self.topics or topic in self.topics

    def forbids(self, topic: TopicName) -> bool:
        """From the request on, so that nothing comes in between the search and the deed."""
        return self.forbid and self.state != "refused" and self.lifted is None and self.covers(topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A data file that holds the key in its bytes. `offsets`: of all its rows of the key, as `rows.ranges_text`, marked as removed or
    not; `live`: those that readers of main still see. `needed`: a ref or an open undo reads it, so it is written again; else it goes
    with the history that alone names it."""

    name: str
    partition: int
    base_offset: int
    offsets: str
    rows: int
    live: int
    size_bytes: int
    needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInTable:
    """Where a key lies in one table, at its newest metadata.

    `refs`: every branch and tag with the snapshot it names, main among them; `undo`: plans whose undo is open, with the snapshot before
    each one's commit; `snapshots`: all that the table remembers. `searched`: data files that were looked into. `clean`: nothing of the key
    is to be found, nor in metadata."""

    table: TableKind
    table_uuid: str
    snapshot_id: int | None
    files: tuple[HeldFile, ...]
    refs: tuple[tuple[str, int], ...]
    undo: tuple[tuple[str, int], ...]
    snapshots: tuple[int, ...]
    rows: int
    size_bytes: int
    searched: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTable:
    """What is true of a table after an erasure: nothing found in `files_searched` data files. `gone`: names of the files that went; `there`:
    of those that were said to have gone, the ones that are there."""

    table: TableKind
    table_uuid: str
    snapshots: tuple[int, ...]
    files_searched: int
    files_found: int
    gone: tuple[str, ...]
    committed_at: int | None
    there: tuple[str, ...] = ()
    remains: str | None = None
    """The place that keeps bytes of deleted messages where no search and no reader sees them; None: no such place is known."""

    @classmethod
    def searched(cls, found: KeyInTable) -> ErasedTable:
        """By a search alone: nothing went."""
        return cls(
            table=found.table,
            table_uuid=found.table_uuid,
            snapshots=found.snapshots,
            files_searched=found.searched,
            files_found=max(len(found.files), int(not found.clean)),
            gone=(),
            committed_at=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReceipt:
    """`snapshots`: every one that was left and searched; `files_searched`: data files that they name; `gone`: names, relative to the
    table's location, of all files that went."""

    table: str
    table_uuid: str
    snapshots: tuple[int, ...]
    files_searched: int
    gone: tuple[str, ...]
    rows: int | None = None
    """Rows of the key that were removed, refused rows of the quarantine among them. None: the table was only searched."""
    remains: str | None = None
    """The place that may still keep bytes of the key, and how they go. None: no such place is known, or nothing was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReceipt:
    """`rows`: messages that readers saw and that went. Times, by the ledger's clock or the table's commit: `hidden_at`, no reader of main
    sees the key any more; `rewritten_at`, no branch, tag or open undo reaches it; `unreachable_at`, the files are gone and a new
    search has found nothing. The first two are one where one commit does both."""

    topic: str
    plan_id: str
    rows: int
    tables: tuple[TableReceipt, ...]
    hidden_at: Instant
    rewritten_at: Instant
    unreachable_at: Instant
    code_version: str
    found_nowhere: bool = False
    """Nothing of the topic held the key, so nothing went: `tables` says what was searched."""

    def tells_more(self, later: TopicReceipt) -> bool:
        """Of any of the same tables it tells what went."""
        return not self.found_nowhere and not {table.table_uuid for table in self.tables}.isdisjoint(
            table.table_uuid for table in later.tables
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    request_id: str
    digest: str
    secret: str
    topics: tuple[TopicReceipt, ...]
    format: int = RECEIPT_FORMAT

    def with_topic(self, found: TopicReceipt) -> Receipt:
        """An erasure of the topic after an earlier one takes its place: it says what is true now. Of one plan the first stands: who verifies
        it again, beside another run, may find that nothing tells any more what files went."""
        if any((one.topic, one.plan_id) == (found.topic, found.plan_id) for one in self.topics):
            return self
        # A search that found nothing says less than the erasure of the same tables before it, which tells what went.
        if found.found_nowhere and any(one.topic == found.topic and one.tells_more(found) for one in self.topics):
            return self
        others = (one for one in self.topics if one.topic != found.topic)
        return replace(self, topics=tuple(sorted((*others, found), key=lambda one: one.topic)))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Raises InvalidReceipt."""
        try:
            told: dict[str, Any] = json.loads(text)
            if told["format"] != RECEIPT_FORMAT:
                raise invalid_receipt(f"its format is {told['format']}, this program knows {RECEIPT_FORMAT}")
            topics = tuple(
                TopicReceipt(**{**topic, "tables": tuple(_table_receipt(table) for table in topic["tables"])}) for topic in told["topics"]
            )
            return cls(**{**told, "topics": topics})
        except (KeyError, TypeError, ValueError) as error:
            raise invalid_receipt(f"it cannot be read ({type(error).__name__})") from error


def _table_receipt(told: dict[str, Any]) -> TableReceipt:
    return TableReceipt(**{**told, "snapshots": tuple(told["snapshots"]), "gone": tuple(told["gone"])})
