"""Records of one file as columns, a block at a time: what each format's reader gives, and which fields its records have."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa

from message_lifecycle.model.erasure import BASE64
from message_lifecycle.sources.arrow_text import Shape
from message_lifecycle.sources.files import UTF_8

ROWS = 10_000
"""Records of one block, at the most."""
BLOCK_BYTES = 8 << 20
"""A block ends with the record that takes it past this."""
MESSAGE_BYTES = 16 << 20
"""Size of the largest message, and of the longest line or CSV record. Memory of tasks limits both: a task holds a block of records several times."""
_FOLDER = re.compile(r"([^=/]+)=([^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(slots=True, kw_only=True)
class Block:
    """Records that follow each other in one file.

    Args:
        at: Each record's place in its file as a number that ascends (int64): the byte at which a line of JSON begins, the line of a CSV
            record, the row of a Parquet file from 1.
        positions: The line, or row, from 1, at which a person finds the record; None where the reader began inside the file.
        fields: The wanted fields: text (string), or as Parquet has them.
        shapes: The shapes of fields that Parquet gave.
        whole: The records as JSON (binary); None: nobody asked for it.
        raw: The record at a row as it stands in its file, for the quarantine.
        broken: Why a row is no record. Such a row has no fields.
        too_large: Rows of records, or values, that are larger than MESSAGE_BYTES, with their size. What was too large is left out.
        absent: For each wanted field, the rows of records that do not have it.
        nested: Rows whose headers have values that are not text: the headers' own text.
    """

    at: pa.Array
    positions: Sequence[int] | None
    fields: Mapping[str, pa.Array]
    whole: pa.Array | None
    raw: Callable[[int], str | None]
    broken: Mapping[int, str] = field(default_factory=dict)
    too_large: Mapping[int, int] = field(default_factory=dict)
    absent: Mapping[str, set[int]] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


def folder_values(name: str) -> dict[str, str | None]:
    """Fields that the folders of a file name, as `dt=2026-11-20/` does: the last folder of a name counts."""
    return {unquote(key): None if value == _NO_VALUE else unquote(value) for key, value in _FOLDER.findall(name)}


def raw_text(content: bytes, encoding: str) -> str:
    """Bytes as the quarantine keeps them: text, or of UTF-8 base64, and of another encoding its letters with the others as `\\x81` (MSG-1)."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        # Keys of other encodings are text here, by which an erasure must find them in the quarantine.
        return BASE64 + base64.b64encode(content).decode() if encoding == UTF_8 else content.decode(encoding, "backslashreplace")
