"""The receipt of an erasure: what was searched, what went, and when. It tells the key by a keyed hash, and nothing else of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from message_lifecycle.model.errors import InvalidReceipt
from message_lifecycle.model.instants import Instant

RECEIPT_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReceipt:
    """`snapshots`: every one that was left and searched; `files_searched`: data files that they name; `gone`: names, relative to the
    table's location, of all files that went."""

    table: str
    table_uuid: str
    snapshots: tuple[int, ...]
    files_searched: int
    gone: tuple[str, ...]


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
                raise InvalidReceipt(f"its format is {told['format']}, this program knows {RECEIPT_FORMAT}")
            topics = tuple(
                TopicReceipt(**{**topic, "tables": tuple(_table(table) for table in topic["tables"])}) for topic in told["topics"]
            )
            return cls(**{**told, "topics": topics})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidReceipt(f"it cannot be read ({type(error).__name__})") from error


def _table(told: dict[str, Any]) -> TableReceipt:
    return TableReceipt(**{**told, "snapshots": tuple(told["snapshots"]), "gone": tuple(told["gone"])})
