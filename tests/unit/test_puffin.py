"""Deletion vectors that we write, read back by PyIceberg's reader (Java's reads them in tests/spark)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from message_lifecycle.stores.iceberg.puffin import puffin_file

POSITIONS = st.one_of(
    st.sets(st.integers(0, 70_000), min_size=1, max_size=50),
    st.sets(st.integers(0, 3 * 2**32), min_size=1, max_size=20),
    st.builds(lambda start, length: set(range(start, start + length)), st.integers(0, 2**33), st.integers(1, 10_000)),
)


@settings(deadline=None, max_examples=50)
@given(vectors=st.lists(POSITIONS, min_size=1, max_size=4))
def test_what_is_written_is_read_back(vectors: list[set[int]]) -> None:
    given_vectors = [(f"/lake/{at}.parquet", np.array(sorted(positions), np.int64)) for at, positions in enumerate(vectors)]
    content, blobs = puffin_file(given_vectors)
    read = deletion_vectors_from_puffin_file(PuffinFile(content))
    # Its bitmaps, for what it makes of them fails where the first positions lie beyond 2^32.
    marked = {v.referenced_data_file: [(key << 32) + low for key, bitmap in enumerate(v._bitmaps) for low in bitmap] for v in read}
    assert marked == {path: found.tolist() for path, found in given_vectors}
    assert [(blob.data_file, blob.rows) for blob in blobs] == [(path, len(found)) for path, found in given_vectors]
    assert [(blob.offset, blob.length) for blob in blobs] == [(b.offset, b.length) for b in PuffinFile(content).footer.blobs]


@pytest.mark.parametrize("position", [0, 2**32])
def test_a_blob_is_framed_as_specified(position: int) -> None:
    import zlib

    content, (blob,) = puffin_file([("f", np.array([position], np.int64))])
    raw = content[blob.offset : blob.offset + blob.length]
    assert int.from_bytes(raw[:4], "big") == len(raw) - 8
    assert raw[4:8] == bytes.fromhex("d1d33964")
    assert int.from_bytes(raw[-4:], "big") == zlib.crc32(raw[4:-4])
