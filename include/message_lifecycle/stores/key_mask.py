"""Keys in Arrow columns, looked up by their keyed hash: each distinct key is hashed once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import KeyMatch

Column = Any
"""A `pyarrow.Array` or `ChunkedArray`: pyarrow says nothing of its types."""


def key_mask(keys: Column, match: KeyMatch) -> Column:
    """True where the key is one of those looked for, never null: a null key is no key. `keys`: binary or text, of any width."""
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    distinct = pc.unique(keys)
    found = [key for key in distinct.to_pylist() if key is not None and match.matches(key if isinstance(key, bytes) else key.encode())]
    return pc.is_in(keys, value_set=pa.array(found, type=distinct.type))
