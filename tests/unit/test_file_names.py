"""How plans name data files."""

from __future__ import annotations

import pytest

from message_lifecycle.stores.iceberg.table_folder import absolute, is_absolute


@pytest.mark.parametrize("name", ["/lake/t/data/f.parquet", "file:/lake/t/f.parquet", "file:///lake/f.parquet", "s3://bucket/f.parquet"])
def test_a_file_outside_of_its_table_keeps_its_whole_name(name: str) -> None:
    assert is_absolute(name)
    assert absolute("/elsewhere/", name) == name


@pytest.mark.parametrize("name", ["data/partition=0/segment=5/f.parquet", "data/a:b.parquet"])
def test_a_file_within_is_named_from_there(name: str) -> None:
    assert absolute("/lake/t/", name) == f"/lake/t/{name}"
