"""Counts and bounds of a data file, out of its footer, as the table's properties ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from message_lifecycle.stores.iceberg.erasure.held_rows import opened

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


def metrics_of(io: FileIO, document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Fields of a manifest's entry, by the specification's names."""
    from pyiceberg.io.pyarrow import compute_statistics_plan, data_file_statistics_from_parquet_metadata, parquet_path_to_id_mapping
    from pyiceberg.schema import Schema

    of_table = next(schema for schema in document["schemas"] if schema["schema-id"] == document["current-schema-id"])
    schema = Schema.model_validate(of_table)
    with opened(io, path) as file:
        found = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.metadata,
            stats_columns=compute_statistics_plan(schema, dict(document.get("properties", {}))),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        ).to_serialized_dict()
    found.pop("record_count")
    return {**found, "split_offsets": found["split_offsets"] or None}
