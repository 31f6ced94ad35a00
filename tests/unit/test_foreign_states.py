"""What another program writes into one topic's tables is named by that topic, and hides no other topic (OBL-1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from message_lifecycle.app import pages, steps
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.metrics import exposition
from message_lifecycle.app.views.status import StatusView, status
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import lake_io, layout
from message_lifecycle.stores.iceberg.compaction.view_table import DUE_AT, HORIZONS, MEMORIES
from tests.effort import hunting
from tests.foreign_states import BROKEN, FILES, NO_NUMBERS, NOW, STRUCTURES, Lake, lake_in, summary_with, values
from tests.ledgers import StandingClock

BAD, GOOD = TopicName(stream="shop", topic="bad"), TopicName(stream="shop", topic="good")


@dataclass(slots=True)
class Seen:
    """What the looks over both topics said of the bad one."""

    ok: bool
    codes: set[str]


def look(lake: Lake, works: Sequence[Scheduled] = get_args(Scheduled)) -> Seen:
    """Every look over all topics; the good one is as ever in each."""
    s = lake.services
    lake_io._kept.clear()  # as in a process that has not read the files yet
    found = {str(entry.topic): entry for entry in status(s)}
    assert found[str(GOOD)].ok, found[str(GOOD)].problems
    page = pages.overview(base="", status=list(found.values()), runs=[])
    assert str(GOOD) in page
    assert f'lifecycle_topic_ok{{topic="{GOOD}"}} 1.0' in exposition(list(found.values()))
    bad = found.get(str(BAD), StatusView(topic=BAD, ok=False, problems=["TopicMissing: "]))
    codes = {problem.rpartition(" is unknown: ")[2].partition(":")[0] for problem in bad.problems}
    for work in works:
        answers = {one.topic: one for one in due(s, [BAD, GOOD], as_of=NOW, work=work)}
        assert GOOD not in answers or answers[GOOD].error is None, work
        if BAD in answers and (error := answers[BAD].error) is not None:
            codes.add(error.code)
    for name in (BAD, GOOD):
        try:
            steps.preview(s, name, as_of=NOW, work="message_cleaner")
        except LifecycleError as error:
            assert name == BAD
            codes.add(error.code)
    return Seen(bad.ok, codes)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = lake_in(tmp_path, open_ledger("sqlite://", clock=StandingClock(NOW)))
    made.topic(GOOD)
    made.topic(BAD)
    return made


def changed(lake: Lake, kind: str = "") -> Callable[[Any], Seen]:
    """Looks at the bad topic with its metadata changed, from what it was before each time."""
    pointer = lake.table(BAD, kind).metadata_location

    def one(change: Any) -> Seen:
        lake.rewrite(BAD, change, kind=kind)
        try:
            return look(lake, ("message_cleaner", "compaction", "reclaim"))
        finally:
            now = dict(lake.services.topics._tables.pointers.all(None))  # type: ignore[attr-defined]
            _point(lake, now[BAD.namespace, BAD.table(kind)], pointer)

    return one


def _point(lake: Lake, old: str, new: str) -> None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import update

    with lake.catalog.engine.begin() as connection:
        connection.execute(update(IcebergTables).where(IcebergTables.metadata_location == old).values(metadata_location=new))


def faults(found: Mapping[str, Seen]) -> list[str]:
    """States that were met as a fault of the program."""
    return [
        state
        for state, seen in found.items()
        if "InternalError" in seen.codes or not seen.codes <= {""} | {c for c in seen.codes if c.isidentifier()}
    ]


def test_each_key_of_ours_with_each_value_that_is_none_of_ours(lake: Lake) -> None:
    assert look(lake) == Seen(True, set())
    one = changed(lake)
    # Neighbours differ by their value: every fifth has each key with several kinds of values.
    found = {state: one(change) for state, change in islice(values(), 0, None, 1 if hunting() else 5)}
    assert faults(found) == []
    kept = [state for state, seen in found.items() if state.startswith(("lifecycle.end-offsets", "lifecycle.active")) and seen.ok]
    assert kept == [], "a state of the log that nobody can read is never well"
    assert {code for seen in found.values() for code in seen.codes} >= {"DamagedProperty", "InvalidSetting", "ForeignTable"}


@pytest.mark.parametrize("state", STRUCTURES)
def test_metadata_that_no_writer_of_tables_leaves(lake: Lake, state: str) -> None:
    lake.rewrite(BAD, STRUCTURES[state])
    assert faults({state: look(lake)}) == []


@pytest.mark.parametrize("state", FILES)
def test_files_that_are_lost_or_listed_twice(lake: Lake, state: str) -> None:
    FILES[state](lake, BAD)
    seen = look(lake)
    assert (faults({state: seen}), seen.ok) == ([], False)
    if "twice" in state:
        assert seen.codes == {"FileListedTwice"}


def test_each_key_of_a_compacted_view(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, open_ledger("sqlite://", clock=StandingClock(NOW)))
    lake.topic(GOOD)
    lake.view(BAD, lake.topic(BAD, cleanup_policy="compact,delete", message_expiry=5))
    one = changed(lake, layout.COMPACTED)
    cases = [(HORIZONS, value) for value in BROKEN] + [(key, value) for key in (DUE_AT, MEMORIES) for value in NO_NUMBERS[:3]]
    found = {f"{key} {value[:20]}": one(summary_with(key, value)) for key, value in (cases if hunting() else cases[::3])}
    assert faults(found) == []
    assert [state for state, seen in found.items() if seen.ok] == []


class Faulty:
    """A part of the services that has a defect for one topic."""

    def __init__(self, part: object) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        word = getattr(self._part, name)

        def call(*given: Any, **by_name: Any) -> Any:
            if given and given[0] == BAD:
                raise ZeroDivisionError("nobody foresaw it")
            return word(*given, **by_name)

        return call


@pytest.mark.parametrize("part", ["reader", "topics"])
def test_a_defect_that_one_topic_meets_is_logged_with_its_trace_and_hides_no_other(part: str, caplog: pytest.LogCaptureFixture) -> None:
    from dataclasses import replace

    from message_lifecycle.app.topics import create_topic

    world = memory_world({})
    world.set_now(NOW)
    for name in (BAD, GOOD):
        create_topic(world.services, name, settings={"message_expiry": 5})
    s = cast(Services, replace(world.services, **{part: Faulty(getattr(world.services, part))}))
    with caplog.at_level(logging.ERROR, "lifecycle"):
        found = {str(entry.topic): entry for entry in status(s)}
    assert (found[str(BAD)].ok, found[str(GOOD)].ok) == (False, True)
    assert "InternalError: topic shop/bad: ZeroDivisionError: nobody foresaw it" in found[str(BAD)].problems[0]
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
    answers = {one.topic: one for one in due(s, [BAD, GOOD], as_of=NOW)}
    assert answers[GOOD].error is None
    assert answers[BAD].error is not None
    assert answers[BAD].error.code == "InternalError"
    request = ask(s, [b"customer 17"], topics=[], forbid=False, by="ada", why="a letter").request_id
    ended = {one.topic: one.is_done for one in carry_out(s, request, approver=lambda *_: (True, "ada", "a letter"))}
    assert ended == {BAD: False, GOOD: True}
    assert s.ledger.erasure(request).state == "requested"
