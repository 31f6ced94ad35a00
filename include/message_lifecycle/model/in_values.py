"""Search for erased keys inside the values and headers of other messages.

An erasure removes the messages of its keys. A search in values removes nothing and names the places, so that a person can act.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from message_lifecycle.model.erasure import BASE64, TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, ranges_text

SHORT_BYTES = 4
"""Many values contain a shorter key by chance. A shorter key counts as found only as a separate word."""
MOST_PLACES = 100
"""The most named places of one topic."""
MOST_RANGES = 50
MOST_NAMES = 20
_WORD = rb"[0-9A-Za-z_\x80-\xff]"


@dataclass(frozen=True)
class Needle:
    """Keys to search for inside values: their bytes, and their text in JSON, hex and base64."""

    keys: frozenset[bytes] = field(repr=False)

    @cached_property
    def forms(self) -> Mapping[bytes, bool]:
        """The byte strings that count as a key. True: only as a separate word, because all keys with this form are short."""
        found: dict[bytes, bool] = {}
        for key in sorted(self.keys):
            for form in _forms(key):
                found[form] = found.get(form, True) and len(key) < SHORT_BYTES
        return found

    def is_found_in(self, content: bytes | None) -> bool:
        """True if the content holds a key in one of its forms."""
        if content is None:
            return False
        return any(form in content and (not as_word or _is_word(form, content)) for form, as_word in self.forms.items())

    def is_in_text(self, text: str | None) -> bool:
        """Do as `is_found_in` for a text of the quarantine, which may be bytes in base64."""
        if text is None:
            return False
        if self.is_found_in(text.encode("utf-8", "surrogateescape")):
            return True
        try:
            return text.startswith(BASE64) and self.is_found_in(base64.b64decode(text.removeprefix(BASE64)))
        except ValueError:
            return False

    def is_in_message(self, message: Message) -> bool:
        """Return True if the value or a header of the message holds a key. A message under one of the keys never counts."""
        if message.key in self.keys:
            return False
        return self.is_found_in(message.value) or any(
            self.is_found_in(name.encode()) or self.is_found_in(content) for name, content in message.headers
        )


def _forms(key: bytes) -> Iterator[bytes]:
    """Yield the byte strings that count as the key, the key first."""
    yield from (key, key.hex().encode(), key.hex().upper().encode())
    yield from (encode(key).rstrip(b"=") for encode in (base64.b64encode, base64.urlsafe_b64encode))
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return
    yield from (json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False))


def _is_word(form: bytes, content: bytes) -> bool:
    return re.search(rb"(?<!" + _WORD + rb")" + re.escape(form) + rb"(?!" + _WORD + rb")", content) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePlace:
    """A place of keys in values: one table and partition, or one file next to the log.

    Attributes:
        partition: None: the table's rows have no partition of a log.
        file: A file of an archive. Empty otherwise.
        rows: Rows whose value or headers hold a key.
        live: Rows among them that readers see. The other rows are removed, but the table's files or history still hold them.
        offsets: The first ranges, as `ranges_text`. Empty if rows have no offsets.
        is_cut: The search found more rows than `offsets` and `names` list.
        names: The first rows as people know them: `document:server_seq`, or `file:line` of refused rows. No record keeps the names.
    """

    table: TableKind
    partition: int | None = None
    file: str = ""
    rows: int
    live: int
    offsets: str = ""
    is_cut: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicValues:
    """The search of one topic.

    Attributes:
        error: Why the topic could not be searched. The result is then unknown.
    """

    topic: str
    places: tuple[ValuePlace, ...] = ()
    more: int = 0
    """The number of places that `places` leaves out."""
    error: str = ""

    @property
    def rows(self) -> int:
        return sum(place.rows for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class InValues:
    """A search of values for the keys of a request."""

    searched_at: Instant
    topics: tuple[TopicValues, ...]

    def without_names(self) -> InValues:
        """Return the search without names of documents and files. A name may be erased later, and records stay."""
        topics = (replace(topic, places=tuple(replace(place, names=()) for place in topic.places)) for topic in self.topics)
        return replace(self, topics=tuple(topics))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> InValues:
        return cls.from_view(json.loads(text))

    @classmethod
    def from_view(cls, found: dict[str, object]) -> InValues:
        topics: list[dict[str, object]] = found["topics"]  # type: ignore[assignment]  # as `to_json` writes it
        return cls(searched_at=Instant(int(str(found["searched_at"]))), topics=tuple(map(_topic, topics)))


def _topic(found: dict[str, object]) -> TopicValues:
    places: list[dict[str, object]] = found["places"]  # type: ignore[assignment]  # as `to_json` writes it
    return TopicValues(**{**found, "places": tuple(_read_place(place) for place in places)})  # type: ignore[arg-type]  # as above


def _read_place(found: dict[str, object]) -> ValuePlace:
    names: list[str] = found["names"]  # type: ignore[assignment]  # as above
    return ValuePlace(**{**found, "names": tuple(names)})  # type: ignore[arg-type]  # as above


def value_place(table: TableKind, partition: int | None, offsets: Iterable[int], *, live: int) -> ValuePlace:
    """Return the place of these offsets, one row for each offset."""
    found = sorted(set(offsets))
    text = ranges_text(found)
    ranges = text.split(",")
    return ValuePlace(
        table=table,
        partition=partition,
        rows=len(found),
        live=live,
        offsets=",".join(ranges[:MOST_RANGES]),
        is_cut=len(ranges) > MOST_RANGES,
    )


def places_of_messages(table: TableKind, found: Iterable[Message], *, is_live: bool = True) -> list[ValuePlace]:
    """Return the places of messages, by partition."""
    offsets: dict[int, list[int]] = {}
    for message in found:
        offsets.setdefault(message.partition, []).append(message.offset)
    return [value_place(table, partition, some, live=len(some) if is_live else 0) for partition, some in sorted(offsets.items())]


def topic_values(topic: str, places: Sequence[ValuePlace]) -> TopicValues:
    """Return the search of one topic with at most `MOST_PLACES` places."""
    return TopicValues(topic=topic, places=tuple(places[:MOST_PLACES]), more=max(0, len(places) - MOST_PLACES))
