"""The state that every commit of ours repeats: read back as it was written, whatever of it there is (MSG-4)."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.iceberg.layout import ACTIVE_SEGMENTS, STATE_KEYS, LogSummary

FULL = LogSummary(
    end_offsets={0: 7, 1: 12},
    active={
        0: ActiveSegment(base_offset=5, size_bytes=20, rows=2, newest_at=Instant(9), first_at=Instant(4)),
        1: ActiveSegment(base_offset=12, any_unknown=True),
    },
    copied={0: 6, 1: 11},
    copied_from="7d1c6f0e",
    purged_through={1: 3},
)


def read_back(state: LogSummary) -> LogSummary | None:
    """By the keys that are read of a commit, and no others."""
    written = state.to_properties()
    return LogSummary.from_properties({key: written[key] for key in STATE_KEYS if key in written})


def test_all_of_it_is_read_back() -> None:
    assert read_back(FULL) == FULL
    assert read_back(LogSummary()) == LogSummary()
    assert len(FULL.to_properties()) == len(STATE_KEYS) == len(fields(LogSummary)), "a new part of it is written and read as well"
    assert LogSummary.from_properties({"added-records": "3"}) is None, "another writer's commit carries none"


def test_a_segment_from_before_its_first_time_was_kept_starts_at_its_newest() -> None:
    written = FULL.to_properties()
    active = {
        place: {name: value for name, value in one.items() if name != "first_at"}
        for place, one in json.loads(written[ACTIVE_SEGMENTS]).items()
    }
    found = LogSummary.from_properties({**written, ACTIVE_SEGMENTS: json.dumps(active)})
    assert found is not None
    assert [found.active[partition].first_at for partition in (0, 1)] == [9, None]


@pytest.mark.parametrize("part", [field.name for field in fields(LogSummary)])
def test_each_part_of_it_makes_another_commit(part: str) -> None:
    empty = LogSummary()
    assert replace(FULL, **{part: getattr(empty, part)}).to_properties() != FULL.to_properties()


@pytest.mark.parametrize(
    ("base", "end", "closed"), [(5, 7, True), (5, 6, False), (4, 7, False)], ids=["as planned", "messages came", "closed before"]
)
def test_a_segment_is_closed_only_as_it_was_planned(base: int, end: int, closed: bool) -> None:
    after = FULL.sealed_at(0, base, end)
    assert after == (replace(FULL, active={**FULL.active, 0: ActiveSegment(base_offset=7)}) if closed else FULL)
    assert after.is_sealed(0, 5) is closed


def test_a_purge_is_added_to_those_before() -> None:
    assert FULL.purged({0: 2}).purged_through == {0: 2, 1: 3}
    assert FULL.purged({1: 5}).purged_through == {1: 5}
