"""Erasure of keys everywhere: the request, the files that hold a key, the evidence, and the receipt.

A request names one key or several, which share each search. The request stores only a keyed hash of each key. No value in this module holds a key. A plain hash would reveal keys, because keys are often
numbers or addresses: anyone can hash all of them and compare.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from message_lifecycle.model.errors import erasure_secret_changed, invalid_erasure_secret, invalid_receipt, too_many_keys
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.model.in_values import InValues

MIN_SECRET_BYTES = 32
MOST_KEYS = 1_000
"""The most keys of one request: each plan and each receipt of the request lists their keyed hashes."""
_FINGERPRINT = b"message_lifecycle erasure secret\x00"
_MARK_SALT = b"message_lifecycle erasure mark\x00"
MARK_DIGITS = 3

BASE64 = "base64:"
"""The prefix of a refused line that is not text."""

ErasureState = Literal["requested", "erased", "not_found", "refused"]
"""The state of an erasure request.

`requested`: not finished, also after a legal hold refused a topic. `not_found`: the search covered every topic, and no topic held a key of
the request (DEL-7). `refused`: a person refused; nothing was removed, and no key is forbidden."""
Matches = Callable[[bytes], bool]
"""Returns True for a key that somebody searches for."""
TableKind = Literal["log", "view", "snapshots", "quarantine", "archive"]
"""The places of a topic that hold keys. The key of a change or a snapshot is the name of its document."""


@dataclass(frozen=True, slots=True)
class TableTraits:
    """The properties of a kind of table."""

    kind: TableKind
    words: str
    """The name for people."""
    beside: str = ""
    """The suffix of its name in the catalog. Empty for the topic's own table."""
    of_text: bool = False
    """Its rows are text, and one row may hold several keys."""
    by_setting: bool = False
    """The table exists while a setting names it, and no catalog lists it."""
    of_log: bool = False
    """The table is derived from the log. A plan that changes the table names the snapshot that it builds on."""
    remains: str | None = None
    """The place that keeps bytes of a key where no search can find them."""


_LEDGER_FILES = "the ledger's database keeps deleted rows with the document's name in its files until VACUUM, and in its write-ahead log"
_KINDS = (
    TableTraits("log", "the log"),
    TableTraits("view", "the compacted view", beside="compacted", of_log=True),
    TableTraits("snapshots", "the documents' snapshots", beside="snapshots", remains=_LEDGER_FILES),
    TableTraits("quarantine", "the quarantine", beside="quarantine", of_text=True),
    TableTraits("archive", "the archive", by_setting=True),
)
TABLE_KINDS: Mapping[TableKind, TableTraits] = {traits.kind: traits for traits in _KINDS}
"""The traits of each kind of table. No other module compares the names of kinds."""
RECEIPT_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDigest:
    """A key's keyed hash (HMAC-SHA256, hex).

    Attributes:
        mark: Three hex digits of another hash, which is quicker (`KeySecret.mark`). One key in 4,096 has the same mark, so a search compares
            the keyed hashes of few keys, and the mark alone reveals little.
    """

    digest: str
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDigests:
    """The keyed hashes of a request's keys, each key once, and the fingerprint of the secret that made them."""

    secret: str
    each: tuple[KeyDigest, ...]

    def __len__(self) -> int:
        return len(self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOf:
    """The request that an erasure carries out: its id in the ledger and the keyed hashes of its keys. Never a key."""

    request_id: str
    digests: tuple[str, ...]
    secret: str


def the_keys(number: int) -> str:
    """Return the words for a request's keys: `the key` or `the 3 keys`."""
    return "the key" if number == 1 else f"the {number:,} keys"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """The secret of keyed hashes. Raises InvalidErasureSecret if it is too short to hide a key."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < MIN_SECRET_BYTES:
            raise invalid_erasure_secret(len(self.value), MIN_SECRET_BYTES)

    @property
    def fingerprint(self) -> str:
        """A name for the secret that reveals nothing of it, because secrets are random."""
        return hashlib.sha256(_FINGERPRINT + self.value).hexdigest()[:16]

    @property
    def salt(self) -> bytes:
        """The prefix of a key when its mark is made. Only a holder of the secret can make marks."""
        return hashlib.sha256(_MARK_SALT + self.value).digest()[:16]

    def digests(self, keys: Iterable[bytes]) -> KeyDigests:
        """Raises TooManyKeys. A key that is given twice counts once. The order of the result reveals nothing of the given order."""
        distinct = set(keys)
        if len(distinct) > MOST_KEYS:
            raise too_many_keys(len(distinct), MOST_KEYS)
        each = (KeyDigest(digest=self.hash(key).hex(), mark=self.mark(key)) for key in distinct)
        return KeyDigests(secret=self.fingerprint, each=tuple(sorted(each, key=lambda one: one.digest)))

    def hash(self, key: bytes) -> bytes:
        return hmac.digest(self.value, key, "sha256")

    def mark(self, key: bytes) -> str:
        """Return the first digits of MD5 of salt and key, which a database computes for a whole column. A mark alone protects nothing."""
        return hashlib.md5(self.salt + key, usedforsecurity=False).hexdigest()[:MARK_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """Matches keys against keyed hashes. A match can travel to a worker and prints neither secret nor key."""

    secret: KeySecret
    digests: frozenset[bytes]
    marks: frozenset[str]

    @classmethod
    def for_requests(cls, secret: KeySecret, requested: Iterable[KeyDigests]) -> KeyMatch:
        """Return a match of all keys of all requests.

        Raises ErasureSecretChanged if another secret made a digest: such a digest would silently match nothing.
        """
        found: list[KeyDigest] = []
        for keys in requested:
            if keys.secret != secret.fingerprint:
                raise erasure_secret_changed(found=secret.fingerprint, needed=keys.secret)
            found += keys.each
        hashes = frozenset(bytes.fromhex(one.digest) for one in found)
        return cls(secret=secret, digests=hashes, marks=frozenset(one.mark for one in found))

    def for_key(self, key: bytes) -> KeyMatch:
        """Return a match of this key alone, by the same secret."""
        return KeyMatch.for_requests(self.secret, [self.secret.digests([key])])

    def __call__(self, key: bytes | None) -> bool:
        """Return True if the key has one of the digests. A null key never matches."""
        return key is not None and bool(self.digests) and self.secret.hash(key) in self.digests

    def __bool__(self) -> bool:
        """True if there is a key to search for."""
        return bool(self.digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A person's permission that a forbidden key may come in again."""

    by: str
    why: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """A person's request to erase keys everywhere."""

    request_id: str
    keys: KeyDigests
    topics: tuple[TopicName, ...]
    """Empty: all topics."""
    forbid: bool
    """Ingest refuses messages with one of the keys from now on."""
    requested_by: str
    why: str
    requested_at: Instant
    state: ErasureState = "requested"
    detail: str = ""
    """Why the request was refused, or which work is missing."""
    lifted: Lifted | None = None
    in_values: InValues | None = None
    """Where a search found a key inside values, without names. None: nobody searched."""

    def covers(self, topic: TopicName) -> bool:
        return not self.topics or topic in self.topics

    def forbids(self, topic: TopicName) -> bool:
        """Return True from the request on, so that no message comes in between the search and the removal."""
        return self.forbid and self.state != "refused" and self.lifted is None and self.covers(topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A data file whose bytes hold a key."""

    name: str
    partition: int
    base_offset: int
    offsets: str
    """Offsets of all its rows of the keys as `ranges_text`, removed rows included."""
    rows: int
    live: int
    """Rows of the keys that readers of main still see."""
    size_bytes: int
    needed: bool
    """A ref or an open undo reads the file, so it is rewritten. Otherwise it leaves with the history that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearchResult:
    """The files of one table that hold a key, by its newest metadata."""

    table: TableKind
    table_uuid: str
    snapshot_id: int | None
    files: tuple[HeldFile, ...]
    refs: tuple[tuple[str, int], ...]
    """Every branch and tag with its snapshot, main included."""
    undo: tuple[tuple[str, int], ...]
    """Plans that an undo can still take back, each with the snapshot before its commit."""
    snapshots: tuple[int, ...]
    """Every snapshot of the table."""
    rows: int
    size_bytes: int
    searched: int
    """Data files that the search has read."""
    clean: bool
    """Neither a data file nor the metadata hold a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTable:
    """A table after an erasure."""

    table: TableKind
    table_uuid: str
    snapshots: tuple[int, ...]
    files_searched: int
    files_found: int
    gone: tuple[str, ...]
    """Names of the removed files."""
    committed_at: int | None
    there: tuple[str, ...] = ()
    """Files that should be gone but still exist."""
    remains: str | None = None
    """The place that keeps bytes of deleted messages where no search can find them. None: no such place is known."""

    @classmethod
    def searched(cls, found: KeySearchResult) -> ErasedTable:
        """Return the evidence of a search that removed nothing."""
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
    """The part of a receipt about one table."""

    table: str
    table_uuid: str
    snapshots: tuple[int, ...]
    """The remaining snapshots, all searched."""
    files_searched: int
    """Data files of the remaining snapshots."""
    gone: tuple[str, ...]
    """Names of all removed files, relative to the table's location."""
    rows: int | None = None
    """Removed rows of the keys, refused rows of the quarantine included. None: the erasure only searched the table."""
    remains: str | None = None
    """The place that may still keep bytes of a key, and how to remove them. None: no such place is known, or nothing was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReceipt:
    """The part of a receipt about one topic. Times come from the ledger's clock or from the table's commit."""

    topic: str
    plan_id: str
    rows: int
    """Removed messages that readers could see before."""
    tables: tuple[TableReceipt, ...]
    hidden_at: Instant
    """From now on no reader of main sees a key."""
    rewritten_at: Instant
    """From now on no branch, tag or open undo reaches a key. Equal to `hidden_at` if one commit does both."""
    unreachable_at: Instant
    """The files are gone, and a second search has found nothing."""
    code_version: str
    found_nowhere: bool = False
    """The topic held no key, so nothing was removed. `tables` lists the searched tables."""

    def tells_more(self, later: TopicReceipt) -> bool:
        """Return True if this receipt lists removed files of a table that the later one only searched."""
        return not self.found_nowhere and not {table.table_uuid for table in self.tables}.isdisjoint(
            table.table_uuid for table in later.tables
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of an erasure's results, by topic."""

    request_id: str
    digests: tuple[str, ...]
    secret: str
    topics: tuple[TopicReceipt, ...]
    format: int = RECEIPT_FORMAT

    def with_topic(self, found: TopicReceipt) -> Receipt:
        """Return the receipt with a topic's newest erasure, which replaces an earlier one.

        For one plan the first entry stays: a second verification may no longer find the names of the removed files.
        """
        if any((one.topic, one.plan_id) == (found.topic, found.plan_id) for one in self.topics):
            return self
        # A search that found nothing says less than the earlier erasure of the same tables, which lists the removed files.
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
            content: dict[str, Any] = json.loads(text)
            if content["format"] != RECEIPT_FORMAT:
                raise invalid_receipt(f"its format is {content['format']}, this program knows {RECEIPT_FORMAT}")
            topics = tuple(
                TopicReceipt(**{**topic, "tables": tuple(_table_receipt(table) for table in topic["tables"])})
                for topic in content["topics"]
            )
            return cls(**{**content, "digests": tuple(content["digests"]), "topics": topics})
        except (KeyError, TypeError, ValueError) as error:
            raise invalid_receipt(f"it cannot be read ({type(error).__name__})") from error


def _table_receipt(content: dict[str, Any]) -> TableReceipt:
    return TableReceipt(**{**content, "snapshots": tuple(content["snapshots"]), "gone": tuple(content["gone"])})
