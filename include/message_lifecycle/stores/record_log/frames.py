"""Evidence as Arrow tables, which Great Expectations is given."""

from __future__ import annotations

from collections.abc import Mapping


def as_tables(evidence: Mapping[str, object]) -> Mapping[str, object]:
    """Each list of rows as a table; of no rows, one without columns: how many there are is all that is asked of it then."""
    import pyarrow as pa

    return {name: pa.Table.from_pylist(rows) if isinstance(rows, list) else rows for name, rows in evidence.items()}
