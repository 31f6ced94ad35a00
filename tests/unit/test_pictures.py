"""Pictures are pure text: whole, escaped, described, and right in their figures."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from message_lifecycle.app import pages
from message_lifecycle.app.pages import pictures
from message_lifecycle.app.views import over_time
from message_lifecycle.app.views.over_time import (
    DAY,
    AgePeriod,
    Ages,
    Growth,
    Period,
    SizeAt,
    ages,
    ages_table,
    compute_growth,
    expiries,
    topic_growth,
)
from message_lifecycle.model.facts import Segment
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import LogSize
from tests.worlds import HOUR, NOW, make_lake

TOPIC = TopicName(stream="shop", topic="orders")
TODAY = NOW - NOW % DAY
MINUTE = 60_000_000


def segment(age_us: int | None, rows: int = 1, *, base: int = 0) -> Segment:
    at = None if age_us is None else Instant(NOW - age_us)
    return Segment(
        partition=0, base_offset=base, last_offset=base + rows - 1, newest_at=at, oldest_at=at, rows=rows, size_bytes=10 * rows, sealed=True, files=()
    )  # fmt: skip


def policy(**settings: float) -> Policy:
    return resolve(topic=settings, server={})


def parsed(picture: str) -> ElementTree.Element:
    """The picture as XML, which nothing may leave open."""
    return ElementTree.fromstring(picture)


def classes(picture: str, name: str) -> int:
    return sum(rect.get("class") == name for rect in parsed(picture).iter("rect"))


def published(
    at: int, *, operation: Operation = "message_cleaner", restored: int = 0, snapshot_id: int | None = None, **removed: int
) -> tuple[Instant, Outcome]:
    outcome = Outcome(
        name="published",
        operation=operation,
        topic=TOPIC,
        as_of=NOW,
        removed=tuple(removed.items()),
        restored=restored,
        snapshot_id=snapshot_id,
    )
    return Instant(at), outcome


def test_expiries_count_each_segment_on_the_day_when_its_newest_message_is_past_its_age() -> None:
    found = expiries(
        [segment(20 * DAY, 1), segment(10 * DAY, 2), segment(9 * DAY, 4), segment(0, 8), segment(-60 * DAY, 16), segment(None, 32)],
        policy(message_expiry=10 * 86_400),
        now=NOW,
    )
    assert found is not None
    counts = {(one.day - TODAY) // DAY: one.amount.messages for one in found.days if one.amount.messages}
    assert (found.due.messages, counts, found.later.messages, found.never.messages) == (3, {1: 4, 10: 8}, 16, 32)
    assert (len(found.days), found.days[0].day) == (30, TODAY)
    assert found.days[10].amount.bytes == 80


def test_the_shorter_of_two_ages_counts_and_without_any_there_is_no_picture() -> None:
    both = expiries([segment(0)], policy(message_expiry=20 * 86_400, max_age_seconds=2 * 86_400.0), now=NOW)
    assert both is not None
    assert [at for at, one in enumerate(both.days) if one.amount.messages] == [2]
    assert expiries([segment(0)], policy(message_expiry=0), now=NOW) is None


@pytest.mark.parametrize(("allowed", "overrides", "never"), [(True, True, 6), (True, False, 2), (False, True, 0)])
def test_a_segment_with_a_message_that_its_own_ttl_keeps_has_no_day(allowed: bool, overrides: bool, never: int) -> None:
    segments = [segment(0, 1), replace(segment(0, 2), never=True), replace(segment(0, 4), own_ttl=True)]
    found = expiries(segments, policy(message_expiry=86_400, allow_msg_ttl=allowed, ttl_overrides_age=overrides), now=NOW)
    assert found is not None
    assert (found.never.messages, sum(one.amount.messages for one in found.days)) == (never, 7 - never)


def test_expiries_are_drawn_with_a_column_and_its_figures_for_each_day() -> None:
    found = expiries([segment(9 * DAY, 4_000), segment(0, 8_000)], policy(message_expiry=10 * 86_400), now=NOW)
    assert found is not None
    picture = pictures.expiries(found)
    assert classes(picture, "none") == 30
    assert classes(picture, "gone") == 2
    assert "<title>2026-12-01: 8,000 messages, 80 kB</title>" in picture
    assert "12,000 messages expire in 30 days, at most 8,000 on one day." in picture
    heights = [float(rect.get("height") or 0) for rect in parsed(picture).iter("rect") if rect.get("class") == "gone"]
    assert heights == [55.0, 110.0]


def test_growth_goes_back_beyond_the_oldest_snapshot_by_the_counts_of_the_ledger() -> None:
    sizes = [LogSize(snapshot_id=7, at=Instant(NOW), messages=60, bytes=600, added=0)]
    ended = [published(NOW + MINUTE, snapshot_id=7, expiry=40), published(NOW + 3 * MINUTE, operation="compaction", superseded=9)]
    last = SizeAt(at=Instant(NOW + 5 * MINUTE), messages=60, bytes=600)
    found = compute_growth(sizes, [(Instant(NOW - 9 * MINUTE), 100)], ended, last)
    assert [(one.at - NOW, one.messages, one.bytes) for one in found.sizes] == [
        (-9 * MINUTE, 100, None),
        (0, 60, 600),
        (5 * MINUTE, 60, 600),
    ]
    assert [(one.since - NOW, one.added, one.removed) for one in found.periods if one.changes] == [
        (-9 * MINUTE, 100, {}),
        (0, 0, {"expiry": 40}),
    ]
    assert (found.reasons, found.period_us) == (("expiry",), MINUTE)
    assert {one.messages for one in found.periods} == {100, 60}


def test_growth_counts_batches_of_the_ledger_only_before_the_oldest_snapshot() -> None:
    sizes = [LogSize(snapshot_id=at, at=Instant(NOW + at * HOUR), messages=10 * at, bytes=0, added=10) for at in (1, 2)]
    found = compute_growth(
        sizes, [(Instant(NOW + HOUR), 10), (Instant(NOW + 2 * HOUR), 10)], [], SizeAt(at=Instant(NOW + 3 * HOUR), messages=20, bytes=0)
    )
    assert sum(one.added for one in found.periods) == 20


def test_an_undo_restores_and_is_drawn_above_the_line() -> None:
    ended = [published(NOW, ttl=5), published(NOW + MINUTE, operation="undo", restored=5, undone=2)]
    found = compute_growth([], [(Instant(NOW - MINUTE), 9)], ended, SizeAt(at=Instant(NOW + 2 * MINUTE), messages=9, bytes=90))
    assert [(one.added, one.removed, one.restored) for one in found.periods] == [(9, {}, 0), (0, {"ttl": 5}, 0), (0, {}, 5), (0, {}, 0)]
    assert [one.messages for one in found.sizes] == [9, 4, 9, 9]
    picture = pictures.growth(found)
    assert (classes(picture, "kept"), classes(picture, "r0"), classes(picture, "back")) == (1, 1, 1)
    assert "0 added; 5 removed by ttl</title>" in picture
    assert "9 messages were added and 5 removed. Now there are 9." in picture


def test_growth_of_a_long_history_begins_at_the_oldest_outcome_that_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(capsys)
    s, name = lake.services, lake.topic(str(TOPIC))
    for hour in range(4):
        lake.world.set_now(Instant(NOW + hour * HOUR))
        s.ledger.record_run_outcome(None, published(NOW, expiry=10)[1])
    batches = [(Instant(NOW + hour * HOUR - MINUTE), 10) for hour in range(5)]
    monkeypatch.setattr(type(s.ledger), "ingested", lambda *_: batches)
    last = SizeAt(at=Instant(NOW + 4 * HOUR), messages=10, bytes=100)
    for limit, added, removed in ((5, 50, 40), (2, 20, 20)):
        monkeypatch.setattr(over_time, "_OUTCOMES_READ", limit)
        found = topic_growth(s, name, last)
        assert found is not None
        assert sum(one.added for one in found.periods) == added
        assert sum(one.removed.get("expiry", 0) for one in found.periods) == removed


@pytest.mark.parametrize("days", [0, 3, 30, 400, 9_000])
def test_a_long_history_has_few_columns(days: int) -> None:
    found = compute_growth([], [(Instant(NOW - days * DAY), 1)], [], SizeAt(at=Instant(NOW), messages=1, bytes=1))
    assert len(found.periods) <= 40
    assert parsed(pictures.growth(found)) is not None


def test_ages_divide_each_period_into_what_leaves_and_what_stays() -> None:
    segments = [segment(20 * DAY, 10, base=0), segment(20 * DAY, 10, base=10), segment(1 * DAY, 5, base=20), segment(None, 3, base=25)]
    found = ages(segments, lambda one: {0: 10, 10: 4}.get(one.base_offset, 0))
    assert found is not None
    assert [(one.leaves, one.stays) for one in found.periods if one.leaves or one.stays] == [(14, 6), (0, 5)]
    assert found.unknown is not None and (found.unknown.leaves, found.unknown.stays) == (0, 3)
    picture = pictures.ages(found)
    assert (classes(picture, "gone"), classes(picture, "size")) == (1, 2)
    assert "14 messages leave, 11 stay." in picture
    assert ages([], lambda _: 0) is None


@pytest.mark.parametrize("most", [12, 40])
@pytest.mark.parametrize("far", [(INT64_MAX,), (-INT64_MAX,), (INT64_MAX, -INT64_MAX), (0,)])
def test_a_time_that_no_calendar_has_makes_no_endless_picture(far: tuple[int, ...], most: int) -> None:
    """A writer may set any time. A person must still be able to answer the question about the plan."""
    segments = [segment(0, 10, base=0), *(segment(NOW - at, 1, base=10 + place) for place, at in enumerate(far))]
    found = ages(segments, lambda one: one.rows, most=most)
    assert found is not None
    assert len(found.periods) <= most
    assert sum(one.leaves for one in found.periods) == 10 + len(far)
    assert parsed(pictures.ages(found)) is not None
    assert len(ages_table(found)) == 2 + len({one.since for one in found.periods if one.leaves})


def test_a_question_shows_ages_as_a_table_with_bars() -> None:
    unknown = AgePeriod(since=Instant(0), leaves=1, stays=2)
    periods = (AgePeriod(since=Instant(NOW), leaves=30, stays=10), AgePeriod(since=Instant(NOW + 7 * DAY), leaves=0, stays=20))
    assert ages_table(Ages(periods=periods, period_us=7 * DAY, unknown=unknown)) == [
        "| 7d from | leave █ | stay ░ | |",
        "|---|--:|--:|---|",
        f"| 2026-11-21 | 30 | 10 | {'█' * 15}{'░' * 5} |",
        f"| 2026-11-28 | 0 | 20 | {'░' * 10} |",
        "| unknown | 1 | 2 |  |",
    ]


def test_a_reason_stays_text() -> None:
    period = Period(since=Instant(NOW), messages=1, added=0, removed={"<b>&": 1}, restored=0)
    last = SizeAt(at=Instant(NOW), messages=1, bytes=None)
    picture = pictures.growth(Growth(sizes=(last,), periods=(period,), period_us=DAY, reasons=("<b>&",)))
    assert "1 removed by &lt;b&gt;&amp;</title>" in picture
    assert parsed(picture) is not None


def test_each_picture_has_a_title_and_a_description_for_those_who_do_not_see_it() -> None:
    found = expiries([segment(0)], policy(message_expiry=86_400), now=NOW)
    assert found is not None
    top = parsed(pictures.expiries(found))
    assert top.get("role") == "img"
    assert [one.get("id") for one in list(top)[:2]] == (top.get("aria-labelledby") or "").split()
    assert [re.sub(r"\d", "", one.text or "")[:4] for one in list(top)[:2]] == ["Expi", " mes"]
    assert "<script" not in pages.HEADERS["Content-Security-Policy"]
