"""Frames of evidence that are found above the stores, of the kind that the store's own are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_figures(frames: Mapping[str, object], more: Mapping[str, int]) -> Mapping[str, object]:
    """The store's frames, with more in the one row of its figures."""
    found: Any = frames["figures"]
    (row,) = found if isinstance(found, list) else found.to_pylist()
    return with_frame(frames, "figures", [{**row, **more}])


def with_frame(frames: Mapping[str, object], name: str, rows: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """The store's frames and one more: lists of rows beside lists, else Arrow tables."""
    if isinstance(frames.get("figures"), list):
        return {**frames, name: list(rows)}
    import pyarrow as pa

    return {**frames, name: pa.Table.from_pylist([dict(row) for row in rows])}
