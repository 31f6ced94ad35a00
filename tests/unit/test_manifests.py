"""Manifests as tuples of some of their fields, against PyIceberg's own reading of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro import reader as avro
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, write_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField

from message_lifecycle.stores.iceberg import manifests
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO

COLUMNS = Schema(NestedField(1, "partition", IntegerType()), NestedField(2, "segment", LongType()))
SPEC = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "partition"), PartitionField(2, 1001, IdentityTransform(), "segment"), spec_id=0
)
COUNTS = {1: 7, 2: 1_000_000}
FILES = (
    {"partition": Record(0, 300), "value_counts": COUNTS, "null_value_counts": COUNTS, "lower_bounds": {2: b"\x01"}, "sort_order_id": 3},
    {"partition": Record(None, -1), "value_counts": None, "null_value_counts": {}, "lower_bounds": None, "sort_order_id": None},
)


def test_each_entry_is_read_as_pyiceberg_reads_it(tmp_path: Path) -> None:
    io, path = LakeFileIO(), str(tmp_path / "manifest.avro")
    with write_manifest(2, SPEC, COLUMNS, io.new_output(path), 5, "deflate") as writer:
        for number, fields in enumerate(FILES):
            writer.add_entry(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=5, data_file=_file(f"{number}.parquet", fields))
            )
    manifest: Any = writer.to_manifest_file()
    names = ("file_path", "partition", "record_count", "null_value_counts", "lower_bounds", "sort_order_id", "referenced_data_file")
    found = list(manifests.entries(io, manifest, manifests.picking(*reversed(names))))
    theirs = [entry.data_file for entry in manifest.fetch_manifest_entry(io)]
    assert [(status, by) for status, by, _ in found] == [(ManifestEntryStatus.ADDED.value, 5)] * len(FILES)
    for (_, _, mine), their, given in zip(found, theirs, FILES, strict=True):
        fields = dict(zip(reversed(names), mine, strict=True))
        assert fields["partition"] == tuple(their.partition._data)
        assert fields["null_value_counts"] == given["null_value_counts"]
        assert fields["referenced_data_file"] is None  # that version has none
        assert all(fields[name] == getattr(their, name) for name in ("file_path", "record_count", "lower_bounds", "sort_order_id"))


@pytest.mark.parametrize(
    ("written", "means"),
    [
        pytest.param(b"\x00", {}, id="empty"),
        pytest.param(b"\x04\x02\x0e\x04\x10\x00", {1: 7, 2: 8}, id="a block"),
        pytest.param(b"\x03\x08\x02\x0e\x04\x10\x02\x06\x12\x00", {1: 7, 2: 8, 3: 9}, id="one that says its length, and another"),
    ],
)
def test_a_map_of_numbers_may_come_in_blocks_that_say_their_length(written: bytes, means: dict[int, int]) -> None:
    assert manifests._map_of_numbers(new_decoder(written)) == means


def test_a_field_that_is_there_by_no_positive_number_is_not_there() -> None:
    """As PyIceberg takes it, in a damaged file too."""
    optional = avro.OptionReader(avro.IntegerReader())
    struct = avro.StructReader(((0, optional), (1, avro.IntegerReader())), Record, manifests._ENTRY.as_struct())
    decoder = new_decoder(b"")
    reader = manifests._Tuples(struct, type(decoder), (0, 1))
    for written, means in ((b"\x01\x0e", (None, 7)), (b"\x00\x0e", (None, 7)), (b"\x02\x06\x0e", (3, 7))):
        assert reader.read(new_decoder(written)) == means


def _file(path: str, fields: dict[str, Any]) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, record_count=10, file_size_in_bytes=9, **fields
    )
