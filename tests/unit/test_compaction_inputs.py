"""What a partition's work is, told from the bounds of its files (CMP-1, CMP-5)."""

from __future__ import annotations

import pytest

from message_lifecycle.stores.iceberg.compaction.view_table import Source, partition_job
from message_lifecycle.stores.iceberg.tasks import InputFile


def source(first: int | None, last: int | None) -> Source:
    return Source(file=InputFile(path=f"/{first}"), first_offset=first, last_offset=last)


@pytest.mark.parametrize(
    ("bounds", "files", "whole"),
    [
        ([(10, 19), (20, 29)], 2, True),
        ([(0, 9), (10, 19)], 1, True),
        ([(9, 19)], 1, False),  # begins before what is new
        ([(20, 31)], 1, False),  # ends after the end point
        ([(10, None)], 1, False),
        ([(None, 19)], 1, False),
        ([(30, 39)], 0, True),
    ],
)
def test_files_count_as_whole_only_where_their_bounds_say_so(bounds: list[tuple[int | None, int | None]], files: int, whole: bool) -> None:
    job = partition_job(0, {0: [source(*each) for each in bounds]}, {}, after=9, through=29, rewrite=True)
    assert (len(job.tail), job.whole_tail) == (files, whole)
