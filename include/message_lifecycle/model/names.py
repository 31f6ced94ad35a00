"""Names of streams, topics, consumers and documents (NAME-1), how they are shown, and the catalog identifiers made from them."""

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
# Catalog tables keep names in columns of 255 characters; a longer encoding is cut and closed with its digest.
_MAX_IDENTIFIER = 180
_ESCAPED = re.compile(r"_([0-9a-f]{2})")
_WHITE_SPACE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_JOIN_CONTROLS = frozenset("\u200c\u200d")
# UTS 18's \w takes the Alphabetic property: beside letters and marks it has letter numbers and the circled letters.
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
    """Return the form in which a name is stored and compared (NAME-1): `  My Topic  ` becomes `my.topic`, in Unicode's NFC. Idempotent.

    Raises:
        InvalidName: A character is not allowed, or stands at a wrong place; or the name is empty, a path or too long.
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
    """A mark is part of its letter."""
    return unicodedata.category(text[-1])[0] in "LM" if text else False


def spellings(name: str) -> frozenset[str]:
    """Return the spellings of a name that another program may use: as it is, and with every accent part of its letter or apart from it."""
    return frozenset({name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)})


def words_of(text: str) -> Iterator[tuple[str, bool]]:
    """The text in parts, in order, each with whether a normalised name may stand there: the longest runs of characters that names are of."""
    for is_name, run in groupby(text, key=_in_a_name):
        yield "".join(run), is_name


@lru_cache(maxsize=4096)
def _in_a_name(char: str) -> bool:
    return char not in _WHITE_SPACE and _allowed(char)


def safe(text: str) -> str:
    """Control characters and those that turn the direction of writing are written out, wherever a person reads: what a name, a message or
    another person's text holds must steer no terminal, and let nothing on a page look like what it is not."""
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
    """The name that `catalog_identifier` has encoded; None: it has a digest in its place, or is none of ours."""
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
        """Catalog namespace of the stream."""
        return catalog_identifier(self.stream)

    def table(self, kind: str = "") -> str:
        """Catalog table of the topic; `kind` names one of the tables beside it (`quarantine`)."""
        base = catalog_identifier(self.topic)
        return f"{base}__{kind}" if kind else base


def reader_name(text: str) -> str:
    """The name under which a reader of a topic is registered: a consumer's own, or a replica's `stream/topic`. Raises InvalidName."""
    return str(TopicName.parse(text)) if "/" in text else normalise_name(text)


def is_topic(text: str) -> bool:
    """Whether `TopicName.parse` reads it."""
    try:
        TopicName.parse(text)
    except InvalidName:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUri:
    """A topic as Pulsar names it, `persistent://tenant/namespace/topic`, read as ours; and the partition that the name spoke of, or None
    (CMP-10).

    Tenant and namespace together are the stream, `tenant.namespace`. A tenant has no dot, so that the first dot of the stream parts the
    two again, and no two URIs name one topic that NAME-1 does not hold for one. Every stream with a dot inside thus has a URI.
    """

    name: TopicName
    partition: int | None

    @classmethod
    def parse(cls, text: str) -> TopicUri:
        """Read a URI, or `stream/topic` as `TopicName.parse` does, where a suffix is part of the name.

        Raises InvalidTopicUri, InvalidName."""
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
