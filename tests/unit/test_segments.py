"""Segments off the metadata of files: what it does not say is unknown, and keeps the segment (EXP-4, CLK-4)."""

from __future__ import annotations

from typing import Any

import pytest

from message_lifecycle.stores.iceberg.segments import FileMetrics, newest_known


def file(**changes: Any) -> FileMetrics:
    """A file of three messages at 10 to 30."""
    known = FileMetrics(
        partition=0, segment=0, name="f", rows=3, deleted=0, size_bytes=1, first_offset=0, last_offset=2, oldest_at=10, newest_at=30,
        unknown_times=0, expires_from=None, expires_to=None, without_expiry=3, never=None, without_never=3,
    )  # fmt: skip
    return known._replace(**changes)


def test_the_newest_of_all_files_is_the_segments() -> None:
    assert newest_known([file(), file(newest_at=40), file(newest_at=20)]) == 40


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown_times": 1},
        {"unknown_times": None},
        {"newest_at": None, "oldest_at": None, "unknown_times": 3},
        {"last_offset": None},
        {"oldest_at": 0},
        {"newest_at": 0, "oldest_at": 0},
    ],
    ids=["one has none", "nobody counted", "none has any", "offsets unknown", "one is zero", "all are zero"],
)
def test_what_one_file_does_not_say_is_unknown_of_the_segment(changes: dict[str, int | None]) -> None:
    assert newest_known([file(**changes)]) is None
    assert newest_known([file(), file(**changes), file(newest_at=50)]) is None
