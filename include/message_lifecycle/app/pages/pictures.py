"""Pictures as SVG text: one function for each kind of picture. Data in, text out; the pages need no script for them.

A picture is as wide as its place. Positions along the time are shares of the width, so texts keep their size in a narrow window. Colours
are classes of the style sheet, so a picture follows the page's colour scheme. A picture has a title and a description for a person who
does not see it. A column names its figures when the pointer is on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from message_lifecycle.app.wording import count
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant
from message_lifecycle.model.phrases import size

if TYPE_CHECKING:
    from message_lifecycle.app.views.over_time import Ages, Expiries, Growth

_DAY = 86_400 * MICROS_PER_SECOND
_TOP = 18
"""The height above the columns. The label of the largest value is there."""
_FOOT = 20
"""The height below the columns. The labels of the time are there."""
_PLOT = 110
_LABELS = 4
_POINTS_MOST = 400
REASON_COLOURS = 6


def expiries(found: Expiries) -> Markup:
    """Draw what expires on each of the next days: a column for each day."""
    most = max((one.amount.messages for one in found.days), default=0)
    bars = []
    for at, one in enumerate(found.days):
        text = f"{day(one.day)}: {count(one.amount.messages)} messages, {size(one.amount.bytes)}"
        bars.append(_column(at, len(found.days), [("gone", one.amount.messages)], _PLOT / (most or 1), text))
    total = sum(one.amount.messages for one in found.days)
    text = f"{count(total)} messages expire in {len(found.days)} days, at most {count(most)} on one day."
    return _picture("expiries", "Expiry by day", text, [*_scale(most, "messages"), *bars, *_labels([one.day for one in found.days], day)])


def ages(found: Ages) -> Markup:
    """Draw what leaves and what stays, by age: a column for each period, what leaves at its foot."""
    most = max((one.leaves + one.stays for one in found.periods), default=0)
    bars = []
    for at, one in enumerate(found.periods):
        text = f"{day(one.since)}: {count(one.leaves)} leave, {count(one.stays)} stay"
        bars.append(_column(at, len(found.periods), [("gone", one.leaves), ("size", one.stays)], _PLOT / (most or 1), text))
    leave, stay = sum(one.leaves for one in found.periods), sum(one.stays for one in found.periods)
    text = f"{count(leave)} messages leave, {count(stay)} stay."
    labels = _labels([one.since for one in found.periods], day)
    return _picture("ages", "Messages that leave and stay, by age", text, [*_scale(most, "messages"), *bars, *labels])


def growth(found: Growth) -> Markup:
    """Draw the messages and the bytes of a log over time, and below them what was added and removed in each period."""
    start = found.periods[0].since
    end = found.periods[-1].since + found.period_us
    parts: list[str] = []
    y = 0
    for title, values, write in (
        ("messages", [(one.at, one.messages) for one in found.sizes], count),
        ("bytes", [(one.at, one.bytes) for one in found.sizes if one.bytes is not None], size),
    ):
        most = max((value for _, value in values), default=0)
        label = f"{write(most)} {title}" if title == "messages" else write(most)
        parts += [_line(y + _TOP), _text(0, y + _TOP - 5, label), *_steps(values, start, end, most, y + _TOP)]
        parts += [_line(y + _TOP + _PLOT)]
        y += _TOP + _PLOT + 12
    up = max((one.added + one.restored for one in found.periods), default=0)
    down = max((sum(one.removed.values()) for one in found.periods), default=0)
    scale = (_PLOT + 30) / (up + down) if up + down else 0.0
    base = y + _TOP + up * scale
    parts += [_text(0, y + _TOP - 5, f"{count(up)} added"), _line(base)]
    parts += [_text(0, y + _TOP + _PLOT + 30 + 13, f"{count(down)} removed")] if down else []
    places = {reason: at for at, reason in enumerate(found.reasons)}
    for at, one in enumerate(found.periods):
        above = [("kept", one.added), ("back", one.restored)]
        below = [(reason_class(places[reason]), rows) for reason, rows in sorted(one.removed.items(), key=lambda item: places[item[0]])]
        text = "; ".join(
            [
                f"{moment(one.since)}: {count(one.added)} added",
                *(f"{count(rows)} removed by {reason}" for reason, rows in one.removed.items()),
            ]
        )
        text += f"; {count(one.restored)} restored" if one.restored else ""
        rects = [
            *_stack(at, len(found.periods), above, scale, base, up=True),
            *_stack(at, len(found.periods), below, scale, base, up=False),
        ]
        parts += [f"<g><title>{escape(text)}</title>{''.join(rects)}</g>"] if rects else []
    foot = y + _TOP + _PLOT + 30 + (16 if down else 0)
    starts = [one.since for one in found.periods]
    parts += _labels(starts, day if found.period_us >= _DAY else _minute, at=foot + 14)
    last = found.sizes[-1]
    text = (
        f"From {moment(starts[0])} to {moment(last.at)}: {count(sum(one.added for one in found.periods))} messages were added and "
        f"{count(sum(sum(one.removed.values()) for one in found.periods))} removed. Now there are {count(last.messages)}."
    )
    return _picture("growth", "Messages and bytes over time", text, parts, height=round(foot) + _FOOT)


def reason_class(place: int) -> str:
    """Return the class of colour of a reason, by its place among the reasons."""
    return f"r{min(place, REASON_COLOURS - 1)}"


def day(at: Instant) -> str:
    """Return the day of an instant: `2026-11-21`."""
    return _written(at, "%Y-%m-%d")


def moment(at: Instant) -> str:
    """Return an instant to the minute: `2026-11-21 15:00`."""
    return _written(at, "%Y-%m-%d %H:%M")


def _minute(at: Instant) -> str:
    return _written(at, "%m-%d %H:%M")


def _written(at: Instant, form: str) -> str:
    """Return the instant in this form. No calendar has every time that fits into 64 bits."""
    try:
        return datetime.fromtimestamp(at // MICROS_PER_SECOND, tz=UTC).strftime(form)
    except (ValueError, OverflowError):
        return format_instant(at)


def _picture(name: str, title: str, text: str, parts: Iterable[str], *, height: int = _TOP + _PLOT + _FOOT) -> Markup:
    ids = f"{name}-title {name}-desc"
    head = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(text)}</desc>'
    return Markup(f'<svg class="picture" width="100%" height="{height}" role="img" aria-labelledby="{ids}">{head}{"".join(parts)}</svg>')


def _scale(most: int, unit: str) -> Iterator[str]:
    """Yield the line of the largest value with its label, and the base line."""
    yield from (_line(_TOP), _text(0, _TOP - 5, f"{count(most)} {unit}"), _line(_TOP + _PLOT))


def _column(at: int, of: int, values: Sequence[tuple[str, int]], scale: float, text: str) -> str:
    """Return one column with the figures that the pointer shows. An empty column shows its figures, too."""
    area = f'<rect class="none" x="{100 * at / of:.3f}%" y="{_TOP}" width="{100 / of:.3f}%" height="{_PLOT}"/>'
    return f"<g><title>{escape(text)}</title>{area}{''.join(_stack(at, of, values, scale, _TOP + _PLOT, up=True))}</g>"


def _stack(at: int, of: int, values: Sequence[tuple[str, int]], scale: float, base: float, *, up: bool) -> list[str]:
    """Return the rectangles of one column, from its base. A value above zero is at least one pixel high."""
    found, y = [], base
    for name, value in values:
        if value:
            height = max(1.0, value * scale)
            y = y - height if up else y
            found.append(
                f'<rect class="{name}" x="{100 * (at + 0.08) / of:.3f}%" y="{y:.1f}" width="{100 * 0.84 / of:.3f}%" height="{height:.1f}"/>'
            )
            y = y if up else y + height
    return found


def _steps(values: Sequence[tuple[Instant, int]], start: int, end: int, most: int, top: float) -> Iterator[str]:
    """Yield an area whose height changes at each instant."""
    if not values or not most:
        return
    thinned = {(at - start) * _POINTS_MOST // (end - start): (at, value) for at, value in values}
    points = [*thinned.values(), (Instant(end), 0)]
    for (at, value), (until, _) in pairwise(points):
        x, width, height = 100 * (at - start) / (end - start), 100 * (until - at) / (end - start), _PLOT * value / most
        yield f'<rect class="size" x="{x:.3f}%" y="{top + _PLOT - height:.1f}" width="{width:.3f}%" height="{height:.1f}"/>'


def _line(y: float) -> str:
    return f'<line class="rule" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.3f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _labels(starts: Sequence[Instant], write: Callable[[Instant], str], at: float = _TOP + _PLOT + 14) -> Iterator[str]:
    """Yield the labels of some columns, evenly spread, the first and the last among them."""
    of = len(starts)
    shown = sorted({round(place * (of - 1) / (_LABELS - 1)) for place in range(_LABELS)}) if of else []
    for place in shown:
        anchor = "start" if place == 0 else "end" if place == of - 1 else "middle"
        x = 100 * (place if place == 0 else place + 1 if place == of - 1 else place + 0.5) / of
        yield _text(x, at, write(starts[place]), anchor)
