"""The time that a run judges by: one function for every way to start a run (CLK-1).

A run without a known time is refused, because taking "now" instead would give another result on every retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import pendulum
from pendulum.parsing.exceptions import ParserError

from message_lifecycle.model.errors import BadInput, InvalidInstant
from message_lifecycle.model.instants import Instant, format_instant, from_datetime

Origin = Literal["the parameter as_of", "the end of the data interval", "the newest triggering asset event"]
AS_OF = "as_of"
_BEGINS_WITH_A_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]|$)")


def no_window(reason: str) -> BadInput:
    """The run has no data interval, and nobody named a time for it."""
    return BadInput(
        f"{reason}, so there is no time to judge by. Give the run a logical date, or the parameter as_of: "
        '--conf \'{"as_of": "2026-11-21T00:00:00Z"}\'.',
        code="NoWindow",
    )


def backfill_window(interval: timedelta) -> timedelta:
    """Return a window of about a day for a backfill.

    The window is a whole number of intervals, so that it ends with an interval and gives the same result as that interval (P6).
    """
    return interval * max(1, round(timedelta(days=1) / interval))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The resolved `as_of` and its origin. `start` is only information for the log; no judgement uses it."""

    as_of: Instant
    start: Instant | None
    origin: Origin

    def __str__(self) -> str:
        since = f", which began {format_instant(self.start)}" if self.start is not None else ""
        return f"as_of {format_instant(self.as_of)}: {self.origin}{since}"


def resolve(
    *,
    run_type: str,
    interval_start: datetime | None,
    interval_end: datetime | None,
    as_of: str | None = None,
    asset_extras: Sequence[Mapping[str, object]] = (),
) -> Window:
    """A given `as_of` wins; else the end of the data interval; a run started by assets takes the newest `as_of` of their events.

    Times without a zone are UTC. Raises NoWindow, InvalidInstant.
    """
    if as_of is not None:
        return Window(as_of=_read(as_of), start=None, origin="the parameter as_of")
    if run_type.startswith("asset"):
        return Window(as_of=_newest(asset_extras), start=None, origin="the newest triggering asset event")
    if interval_end is None:
        raise no_window(f"this {run_type} run has no data interval")
    start = None if interval_start is None else _instant(interval_start)
    end = _instant(interval_end)
    if start is not None and start > end:
        raise no_window(f"the data interval ends ({format_instant(end)}) before it begins ({format_instant(start)})")
    return Window(as_of=end, start=start, origin="the end of the data interval")


def _newest(extras: Sequence[Mapping[str, object]]) -> Instant:
    if not extras:
        raise no_window("this run was started by assets, but no asset event is attached to it")
    # One event without a time might be the newest: not knowing is no reason to take the others' word.
    missing = sum(AS_OF not in extra for extra in extras)
    if missing:
        raise no_window(f"{missing} of the {len(extras)} triggering asset events carry no {AS_OF}")
    return max(_read(extra[AS_OF]) for extra in extras)


def _read(text: object) -> Instant:
    # The pattern first: pendulum also reads "now" and "12:30" (by its own clock), weeks, and "2026-11" as a first of the month.
    if not isinstance(text, str) or not _BEGINS_WITH_A_DATE.match(text.strip()):
        raise InvalidInstant(text)
    try:
        found = pendulum.parse(text.strip(), exact=True, tz=pendulum.UTC)
        if isinstance(found, pendulum.DateTime):
            return _instant(found)
        if isinstance(found, pendulum.Date):
            return from_datetime(datetime(found.year, found.month, found.day, tzinfo=UTC))
    except (ParserError, ValueError, OverflowError) as error:
        raise InvalidInstant(text) from error
    raise InvalidInstant(text)


def _instant(moment: datetime) -> Instant:
    """Return the exact instant. Convert to a plain datetime first, because differences of pendulum's datetimes cannot give microseconds."""
    utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return from_datetime(datetime.combine(utc.date(), utc.time(), UTC))
