"""Spans of history in words: seconds, or calendar units counted back from `as_of` (SNP-9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from message_lifecycle.model.instants import INT64_MIN, Instant, of_datetime, seconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def older_than(period: int | str | None, as_of: Instant) -> Instant | None:
    """The time before which changes may go by their age; None: age lets none go (`permanent`), or is not asked (unset).

    A month before the 31st of March is the last of February, as pendulum has it. Before the calendar's first year nothing can go."""
    if period is None or period == "permanent":
        return None
    if isinstance(period, int):
        return Instant(max(as_of - seconds(period), INT64_MIN))
    import pendulum  # only where a calendar is asked: every command comes by here

    count, unit = period.split(" ")
    units = f"{unit.removesuffix('s')}s"
    try:
        moment = _EPOCH + timedelta(microseconds=as_of)
        back = pendulum.instance(moment).subtract(**{units: int(count)})
    except (ValueError, OverflowError):
        return Instant(INT64_MIN)
    return of_datetime(datetime.combine(back.date(), back.time(), UTC))
