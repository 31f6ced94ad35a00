"""Names of streams, topics, consumers and documents (NAME-1), how people see them, and the catalog identifiers made from them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from message_lifecycle.model.errors import InvalidName, invalid_topic_uri

MAX_NAME_BYTES = 255
# Catalogs keep names in columns of 255 characters. A longer encoding is cut and ends with its digest.
_MAX_IDENTIFIER = 180
_ESCAPED = re.compile(r"_([0-9a-f]{2})")
_WHITE_SPACE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_JOIN_CONTROLS = frozenset("\u200c\u200d")
# The class \w of UTS 18 includes the Alphabetic property, so letter numbers and the circled letters count as letters, too.
_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Mn", "Mc", "Me", "Nd", "Pc"})
_CIRCLED = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
PULSAR_SCHEME = "persistent"
_URI_PARTS = 3
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,9})$")


def _allowed(char: str) -> bool:
    return (
        char in ".-"
        or char in _WHITE_SPACE
        or char in _JOIN_CONTROLS
        or unicodedata.category(char) in _WORD_CATEGORIES
        or any(first <= ord(char) <= last for first, last in _CIRCLED)
    )


def normalise_name(name: str) -> str:
    """Normalise a name for storage and comparison (NAME-1): `  My Topic  ` becomes `my.topic`, in Unicode's NFC. Idempotent.

    Raises:
        InvalidName: A character is not allowed, or not allowed at its place. Or the name is empty, a path or too long.
    """
    if not isinstance(name, str):
        raise InvalidName(str(name), "not text")
    for position, char in enumerate(name):
        if not _allowed(char):
            raise InvalidName(name, f"character {char!r} at position {position}")
    words = ("".join(run) for is_space, run in groupby(name.lower(), key=_WHITE_SPACE.__contains__) if not is_space)
    normal = unicodedata.normalize("NFC", ".".join(words))
    if not normal:
        raise InvalidName(name, "empty")
    if normal in (".", ".."):
        raise InvalidName(name, "it would be a path, not a name")
    if normal.startswith("-"):
        raise InvalidName(name, "it begins with '-', as options of commands do")
    for position, char in enumerate(normal):
        if char in _JOIN_CONTROLS and not (_ends_a_letter(normal[:position]) and _ends_a_letter(normal[: position + 2])):
            raise InvalidName(name, f"character {char!r} at position {position}, which joins letters or parts them, is not between two")
    if len(normal.encode()) > MAX_NAME_BYTES:
        raise InvalidName(name, f"{len(normal.encode())} bytes of UTF-8 after normalising, over {MAX_NAME_BYTES}")
    return normal


def _ends_a_letter(text: str) -> bool:
    """Return True if the text ends with a letter or with a mark, which is part of its letter."""
    return unicodedata.category(text[-1])[0] in "LM" if text else False


def spellings(name: str) -> frozenset[str]:
    """Return the spellings of a name in other programs: unchanged, composed (NFC) and decomposed (NFD)."""
    return frozenset({name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)})


def words_of(text: str) -> Iterator[tuple[str, bool]]:
    """Split the text into the longest runs of characters that names may and may not have.

    Yields:
        Each run in order, with True if a normalised name may contain it.
    """
    for is_name, run in groupby(text, key=_is_allowed_cached):
        yield "".join(run), is_name


@lru_cache(maxsize=4096)
def _is_allowed_cached(char: str) -> bool:
    return char not in _WHITE_SPACE and _allowed(char)


def safe(text: str) -> str:
    """Escape control characters and characters that turn the direction of writing.

    A name, a message or another person's text must not steer a terminal, nor disguise anything on a page.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def catalog_identifier(name: str) -> str:
    """Encode a normalised name in [a-z0-9_], injectively: every other byte becomes `_` and two hex digits.

    `__` never occurs in the encoding of a name, so a kind (`__compacted`) can follow it without a clash.
    """
    encoded = "".join(
        char if char in "abcdefghijklmnopqrstuvwxyz0123456789" else "".join(f"_{b:02x}" for b in char.encode()) for char in name
    )
    if len(encoded) <= _MAX_IDENTIFIER:
        return encoded
    return f"{encoded[:64].rstrip('_')}__d{hashlib.sha256(name.encode()).hexdigest()}"


def name_of_identifier(identifier: str) -> str | None:
    """Return the name that `catalog_identifier` has encoded. None if the identifier holds a digest instead, or is not ours."""
    try:
        raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1]).decode("latin-1"), identifier)
        name = normalise_name(raw.encode("latin-1").decode())
    except (InvalidName, UnicodeError):
        return None
    return name if catalog_identifier(name) == identifier else None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicName:
    """A topic within its stream, both normalised."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}"

    @classmethod
    def parse(cls, text: str, *, default_stream: str = "default") -> TopicName:
        """Read `stream/topic`, or `topic` alone in the default stream. Raises InvalidName."""
        stream, slash, topic = text.partition("/")
        if not slash:
            return cls(stream=normalise_name(default_stream), topic=normalise_name(text))
        return cls(stream=normalise_name(stream), topic=normalise_name(topic))

    @property
    def namespace(self) -> str:
        """The catalog namespace of the stream."""
        return catalog_identifier(self.stream)

    def table(self, kind: str = "") -> str:
        """Return the catalog table of the topic. `kind` names one of the tables next to it (`quarantine`)."""
        base = catalog_identifier(self.topic)
        return f"{base}__{kind}" if kind else base


def reader_name(text: str) -> str:
    """Return the registered name of a reader: a consumer's name, or a replica's `stream/topic`. Raises InvalidName."""
    return str(TopicName.parse(text)) if "/" in text else normalise_name(text)


def is_topic(text: str) -> bool:
    """Return True if `TopicName.parse` accepts the text."""
    try:
        TopicName.parse(text)
    except InvalidName:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUri:
    """A topic by its Pulsar name, `persistent://tenant/namespace/topic` (CMP-10).

    The stream is `tenant.namespace`. A tenant has no dot, so the first dot of the stream separates the two again. Two URIs therefore name
    one topic only if NAME-1 gives them one name. Every stream with a dot inside has a URI.

    Attributes:
        partition: The partition in the name. None: the name has no partition.
    """

    name: TopicName
    partition: int | None

    @classmethod
    def parse(cls, text: str) -> TopicUri:
        """Read a URI, or `stream/topic` like `TopicName.parse`. In `stream/topic` a partition suffix is part of the name.

        Raises InvalidTopicUri, InvalidName.
        """
        scheme, is_uri, rest = text.strip().partition("://")
        if not is_uri:
            return cls(name=TopicName.parse(text), partition=None)
        if scheme != PULSAR_SCHEME:
            raise invalid_topic_uri(text, f"its scheme is {scheme!r}, and only {PULSAR_SCHEME!r} topics are kept")
        parts = rest.split("/")
        if len(parts) != _URI_PARTS:
            raise invalid_topic_uri(text, f"after the scheme it has {len(parts)} part(s) between slashes, not {_URI_PARTS}")
        tenant, namespace = normalise_name(parts[0]), normalise_name(parts[1])
        if "." in tenant:
            raise invalid_topic_uri(text, f"its tenant is {tenant!r}, with a dot")
        suffix = _PARTITION.search(parts[2])
        topic = parts[2] if suffix is None else parts[2][: suffix.start()]
        return cls(
            name=TopicName(stream=normalise_name(f"{tenant}.{namespace}"), topic=normalise_name(topic)),
            partition=None if suffix is None else int(suffix[1]),
        )
