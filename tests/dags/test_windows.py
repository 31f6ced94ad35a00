"""The time a run judges by (CLK-1): every way to start a run, one table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.windows import Window, resolve
from message_lifecycle.model.errors import InvalidInstant
from message_lifecycle.model.instants import format_instant, from_datetime
from tests.errors import raises

START, END = datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def resolved(run_type: str = "scheduled", start: datetime | None = START, end: datetime | None = END, **given: Any) -> Window:
    return resolve(run_type=run_type, interval_start=start, interval_end=end, **given)


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "backfill"])
def test_the_end_of_the_data_interval(run_type: str) -> None:
    window = resolved(run_type)
    assert format_instant(window.as_of) == "2026-11-21T00:00:00Z"
    assert window.origin == "the end of the data interval"
    assert str(window) == "as_of 2026-11-21T00:00:00Z: the end of the data interval, which began 2026-11-20T00:00:00Z"


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "backfill", "asset_triggered", "whatever comes next"])
def test_a_given_as_of_wins(run_type: str) -> None:
    window = resolved(run_type, as_of="2026-11-01T12:00:00Z", asset_extras=[{"as_of": "2026-11-02T00:00:00Z"}])
    assert format_instant(window.as_of) == "2026-11-01T12:00:00Z"
    assert window.origin == "the parameter as_of"


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "backfill", "whatever comes next"])
def test_no_interval_and_no_parameter_is_refused(run_type: str) -> None:
    with raises("NoWindow", match=f"this {run_type} run has no data interval.*as_of"):
        resolved(run_type, None, None)


def test_a_manual_run_without_a_logical_date_needs_as_of() -> None:
    assert format_instant(resolved("manual", None, None, as_of="2026-11-21").as_of) == "2026-11-21T00:00:00Z"


def test_an_interval_of_no_length_has_an_end() -> None:
    assert resolved(start=END).as_of == from_datetime(END)


def test_an_interval_that_ends_before_it_begins_is_refused() -> None:
    with raises("NoWindow", match="before it begins"):
        resolved(start=END, end=START)


class TestAssets:
    def test_the_newest_event_counts(self) -> None:
        extras = [{"as_of": "2026-11-20T00:00:00Z"}, {"as_of": "2026-11-21T06:00:00Z", "topics": ["a/b"]}]
        window = resolved("asset_triggered", None, None, asset_extras=extras)
        assert format_instant(window.as_of) == "2026-11-21T06:00:00Z"
        assert window.origin == "the newest triggering asset event"

    @pytest.mark.parametrize(
        ("extras", "told"),
        [([], "no asset event"), ([{}], "1 of the 1"), ([{"as_of": "2026-11-20T00:00:00Z"}, {"topics": []}], "1 of the 2")],
    )
    def test_not_knowing_is_no_time(self, extras: list[dict[str, object]], told: str) -> None:
        with raises("NoWindow", match=told):
            resolved("asset_triggered", None, None, asset_extras=extras)

    @pytest.mark.parametrize("value", [None, 5, "yesterday"])
    def test_a_time_that_is_none_is_refused(self, value: object) -> None:
        with pytest.raises(InvalidInstant):
            resolved("asset_triggered", None, None, asset_extras=[{"as_of": value}])


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-21T00:00:00Z", "2026-11-21T00:00:00Z"),
        ("2026-11-21T00:00:00+00:00", "2026-11-21T00:00:00Z"),
        (" 2026-11-21 06:30 ", "2026-11-21T06:30:00Z"),
        ("2026-11-21T06:30:00", "2026-11-21T06:30:00Z"),
        ("2026-11-21", "2026-11-21T00:00:00Z"),
        ("2026-11-21T00:00:00.000001Z", "2026-11-21T00:00:00.000001Z"),
        # A microsecond is cut, not rounded: never later than was said.
        ("2026-11-21T00:00:00.0000019Z", "2026-11-21T00:00:00.000001Z"),
        ("2026-03-29T03:30:00+02:00", "2026-03-29T01:30:00Z"),
        ("2026-11-21T01:00:00-05:30", "2026-11-21T06:30:00Z"),
    ],
)
def test_times_without_a_zone_are_utc_and_others_are_taken_there(text: str, instant: str) -> None:
    assert format_instant(resolved(as_of=text).as_of) == instant


@pytest.mark.parametrize(
    "text",
    # What pendulum would read by its own clock, as a week, a month, a span, or not at all.
    [
        "now",
        "12:30",
        "2026-W47-6",
        "2026-W47",
        "2026-325",
        "2026-11",
        "P1D",
        "2026-11-21T00:00:00Z/P1D",
        "",
        "21.11.2026",
        "2026-02-30",
        "1700000000",
    ],
)
def test_what_is_no_one_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidInstant):
        resolved(as_of=text)


@pytest.mark.parametrize("fold", [0, 1])
def test_the_hour_that_comes_twice_is_two_instants(fold: int) -> None:
    end = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
    assert format_instant(resolved(start=None, end=end).as_of) == ("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z")[fold]


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001 - the naive ones are the point
def test_a_zone_changes_the_text_and_not_the_time(moment: datetime, offset: int) -> None:
    aware = moment.replace(tzinfo=UTC)
    elsewhere = aware.astimezone(timezone(timedelta(minutes=offset)))
    assert resolved(start=None, end=elsewhere).as_of == resolved(start=None, end=moment).as_of == from_datetime(aware)
    assert resolved(as_of=elsewhere.isoformat()).as_of == from_datetime(aware)
