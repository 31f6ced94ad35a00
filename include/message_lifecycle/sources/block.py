"""Records of one file as columns, a block at a time. The readers of all formats return blocks."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa

from message_lifecycle.model.erasure import BASE64
from message_lifecycle.sources.arrow_text import ColumnShape
from message_lifecycle.sources.files import UTF_8

ROWS = 10_000
"""The most records of one block."""
BLOCK_BYTES = 8 << 20
"""A block ends with the record that exceeds this size."""
MESSAGE_BYTES = 16 << 20
"""Size of the largest message, and of the longest line or CSV record. The memory of tasks limits both: a task holds a block of records
several times.
"""
_FOLDER = re.compile(r"([^=/]+)=([^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(slots=True, kw_only=True)
class Block:
    """Consecutive records of one file.

    Args:
        at: Each record's place in its file as an ascending number (int64). The place is the first byte of a JSON line, the line of a CSV
            record, or the row of a Parquet file from 1.
        positions: The line, or row, of each record for people, from 1. None if the reader began inside the file.
        fields: The wanted fields as text (string), or with Parquet's types.
        shapes: The shapes of fields that Parquet gave.
        whole: The records as JSON (binary). None: the caller does not need them.
        raw: Returns the original text of the record at a row. The quarantine keeps this text.
        broken: Why a row is not a record. Such a row has no fields.
        too_large: Rows of records or values that are larger than MESSAGE_BYTES, with their size. The block leaves out their content.
        absent: For each wanted field, the rows of records that do not have it.
    """

    at: pa.Array
    positions: Sequence[int] | None
    fields: Mapping[str, pa.Array]
    whole: pa.Array | None
    raw: Callable[[int], str | None]
    broken: Mapping[int, str] = field(default_factory=dict)
    too_large: Mapping[int, int] = field(default_factory=dict)
    absent: Mapping[str, set[int]] = field(default_factory=dict)
    shapes: Mapping[str, ColumnShape] = field(default_factory=dict)


def folder_values(name: str) -> dict[str, str | None]:
    """Return the fields that a file's folders name, like `dt=2026-11-20/`. The last folder of a name counts."""
    return {unquote(key): None if value == _NO_VALUE else unquote(value) for key, value in _FOLDER.findall(name)}


def raw_text(content: bytes, encoding: str) -> str:
    r"""Return bytes in the form of the quarantine (MSG-1).

    The form is text. Invalid UTF-8 becomes base64. In another encoding, invalid bytes become escapes like `\x81`.
    """
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        # Other encodings stay text, because an erasure finds their keys in the quarantine as text.
        return BASE64 + base64.b64encode(content).decode() if encoding == UTF_8 else content.decode(encoding, "backslashreplace")
