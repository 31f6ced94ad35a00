"""Whether a record that is no message (any more) tells an erased key: a damaged line, or the raw text of a refused row.

The key is known by its keyed hash alone, so every part of the record that can be a key by itself is hashed: what the record is, if it is
JSON; else each of its strings, fields and words, and of a short one every part there is.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator

from message_lifecycle.model.erasure import Matches

WHOLE_SEARCH_BYTES = 256
"""Of a record that is not JSON and not longer than this, every part is tried: 33,000 of them, 30 ms."""
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)(?:"|$)')
_FIELD = re.compile(rb"[^,;\t|]+")
_STANDARD = bytes.maketrans(b"-_", b"+/")
"""From the letters of base64 that addresses take."""
_WORD = re.compile(rb"[^\s\"'`,;:|=\[\](){}<>]+")


def tells_key(record: bytes, matches: Matches) -> bool:
    """Whether any part of the record is one of the keys looked for, plainly or in base64."""
    seen = set[bytes]()
    for part in _parts(record):
        if part not in seen:
            seen.add(part)
            if matches(part):
                return True
    return False


def _parts(record: bytes) -> Iterator[bytes]:
    try:
        # A field that comes twice counts twice, and a number is what is written.
        found = json.loads(record, object_pairs_hook=list, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        yield from _of_text(record)
    else:
        yield from _of_json(found)


def _of_json(value: object) -> Iterator[bytes]:
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield from _spelled(text.encode("utf-8", "surrogatepass"))
            case list(contents) | tuple(contents):
                left += contents
            case _:
                pass  # true, false and null


def _of_text(record: bytes) -> Iterator[bytes]:
    yield from _spelled(record)
    yield from _spelled(record.strip())
    for quoted in _QUOTED.findall(record):
        yield from _spelled(quoted)
        try:
            yield from _spelled(json.loads(b'"' + quoted + b'"').encode("utf-8", "surrogatepass"))
        except ValueError:
            continue  # torn within an escape: as it stands it was tried above
    for field in _FIELD.findall(record):
        yield from _spelled(field)
        yield from _spelled(field.strip())
        yield from _spelled(field.strip().strip(b"\"'"))
    for word in _WORD.findall(record):
        yield from _spelled(word)
    if len(record) <= WHOLE_SEARCH_BYTES:
        for start in range(len(record)):
            for end in range(start + 1, len(record) + 1):
                yield record[start:end]


def _spelled(text: bytes) -> Iterator[bytes]:
    """As it stands, and what it is where it is base64 of any form: a line may be damaged for its form alone, or torn before the padding."""
    yield text
    plain = b"".join(text.split()).rstrip(b"=").translate(_STANDARD)
    if not plain:
        return  # white space tells no key, not the empty one either
    try:
        yield base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return
