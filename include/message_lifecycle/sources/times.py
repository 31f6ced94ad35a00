"""Times of records: text, numbers and typed columns as microseconds since 1970 (MSG-1, CLK-4).

`TimeRule.read` is the rule for one text. `read_times` is the same rule over a column. PyArrow reads the usual forms at once, and each other
distinct text goes to the rule once. A missing, empty or zero time is unknown. So is a time on 0001-01-01 or 9999-12-31, which programs
write for a missing time. A time before 1970 is a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import ceil
from typing import Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.errors import BadInput, InvalidSetting
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, format_instant, from_datetime

Unit = Literal["iso", "s", "ms", "us", "ns"]
UNITS: tuple[Unit, ...] = ("iso", "s", "ms", "us", "ns")
PLAUSIBLE_FROM = from_datetime(datetime(1990, 1, 1, tzinfo=UTC))
PLAUSIBLE_TO = from_datetime(datetime(2100, 1, 1, tzinfo=UTC))
# Microseconds in one unit. Arrays divide nanoseconds instead, because their factors are whole numbers.
_FACTORS: dict[str, Decimal] = {"s": Decimal(1_000_000), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]+")
_ISO = re.compile(
    r"(?P<year>[0-9]{4})(?P<dash>-?)(?P<month>[0-9]{2})(?P=dash)(?P<day>[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2})(?::?(?P<minute>[0-9]{2})(?::?(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?)"
    r" ?(?P<zone>[Zz]|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?(?P<names>(?:\[[^\[\]]+\])*))?"
)
# The forms that PyArrow reads like the rule.
_USUAL = r"^[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
_WHOLE = r"^[+-]?[0-9]{1,18}$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
# The instants of these days in any zone: a clock is at most 14 hours ahead and 12 behind.
_FIRST_DAY = (
    (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) - timedelta(hours=14),
    (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) + timedelta(hours=12),
)
_LAST_DAY = (
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) - timedelta(hours=14),
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) + timedelta(hours=36),
)
_NEVER_SET = tuple((start // _MICROSECOND, end // _MICROSECOND) for start, end in (_FIRST_DAY, _LAST_DAY))
_NO_ZONE = "the time has no zone: say which one it is in with --time-zone, such as UTC or Europe/Berlin"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one text. `micros` None: unknown, or unreadable.

    Args:
        reason: Why the text is not a time. None if it is a time, or empty.
        is_suspect: The text is a time or a number, but of another unit than the named unit.
        lacks_zone: The text would be a time if its zone were known.
    """

    micros: int | None = None
    reason: str | None = None
    is_suspect: bool = False
    lacks_zone: bool = False


_UNKNOWN = Reading()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRule:
    """The rule for the texts of one field.

    Args:
        unit: `iso`, or the unit of numbers.
        form: A format of `strptime`. None: ISO 8601.
        zone: The zone of times without a zone. None: such a time is refused.
    """

    unit: Unit = "iso"
    form: str | None = None
    zone: str | None = None

    def read(self, text: str) -> Reading:
        """Read one text (CLK-4)."""
        text = text.strip(" ")
        if not text:
            return _UNKNOWN
        try:
            if self.unit != "iso":
                return self._number(text)
            return self._formatted(text) if self.form is not None else self._iso(text)
        except (ValueError, OverflowError) as error:
            return Reading(reason=f"no such time: {error}")

    def _number(self, text: str) -> Reading:
        if not _NUMBER.fullmatch(text):
            return Reading(reason=f"not a number of unit {self.unit!r}")
        # Rounded up, because rounding may only make a deadline later (TTL-3).
        return _judged(ceil(Fraction(text) * Fraction(_FACTORS[self.unit])))

    def _iso(self, text: str) -> Reading:
        found = _ISO.fullmatch(text)
        if found is None:
            return Reading(reason="not ISO 8601, such as 2026-11-20T10:00:00Z", is_suspect=bool(_NUMBER.fullmatch(text)))
        part = found.groupdict()
        if part["dash"] == "" and part["hour"] is None:
            return Reading(reason="not ISO 8601, such as 2026-11-20T10:00:00Z", is_suspect=True)
        date = int(part["year"]), int(part["month"]), int(part["day"])
        if date in ((1, 1, 1), (9999, 12, 31)):
            return _UNKNOWN
        hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
        next_day = hour == 24
        if next_day and (minute or second or int(part["fraction"] or 0)):
            raise ValueError("24 hours are the end of a day")
        moment = datetime(*date, 0 if next_day else hour, minute, second, tzinfo=UTC) + (_DAY if next_day else timedelta())
        # A part of a microsecond counts as a whole microsecond (TTL-3).
        fraction = part["fraction"] or ""
        micros = int(fraction[:6].ljust(6, "0") or 0) + (1 if fraction[6:].strip("0") else 0)
        return self._in_zone(moment.replace(tzinfo=None), micros, part["zone"], part["names"] or "")

    def _in_zone(self, moment: datetime, micros: int, offset: str | None, names: str) -> Reading:
        named = next((name for name in names[1:-1].split("][") if name and "=" not in name), None)
        named = named and named.removeprefix("!")
        if offset is None:
            zone = named or self.zone
            return Reading(reason=_NO_ZONE, lacks_zone=True) if zone is None else _judged(_latest(moment, zone_of(zone)) + micros)
        behind = timedelta() if offset.upper() in ("Z", "UTC", "GMT") else _offset(offset)
        utc = moment - behind
        if named is not None and offset not in ("Z", "z") and utc.replace(tzinfo=UTC).astimezone(zone_of(named)).utcoffset() != behind:
            raise ValueError(f"{offset} is not the offset of {named} at that time")
        return _judged((utc.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND + micros)

    def _formatted(self, text: str) -> Reading:
        assert self.form is not None
        try:
            moment = datetime.strptime(text, self.form)  # noqa: DTZ007  # below a missing zone is refused, or comes from the rule
        except ValueError:
            return Reading(reason=f"not of the format {self.form}")
        if (moment.year, moment.month, moment.day) in ((1, 1, 1), (9999, 12, 31)):
            return _UNKNOWN
        if moment.tzinfo is not None:
            return _judged((moment - _EPOCH) // _MICROSECOND)
        if self.zone is None:
            return Reading(reason=_NO_ZONE, lacks_zone=True)
        return _judged(_latest(moment, zone_of(self.zone)))


def _offset(text: str) -> timedelta:
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is no offset from UTC")
    return timedelta(hours=hours, minutes=minutes) * (-1 if text[0] == "-" else 1)


def _latest(moment: datetime, zone: tzinfo) -> int:
    """Return the later instant of an hour that a clock shows twice, because rounding may only make a deadline later."""
    return max((moment.replace(tzinfo=zone, fold=fold) - _EPOCH) // _MICROSECOND for fold in (0, 1))


def _judged(micros: int) -> Reading:
    if micros == 0 or any(start <= micros < end for start, end in _NEVER_SET):
        return _UNKNOWN
    if not INT64_MIN <= micros <= INT64_MAX:
        return Reading(reason="beyond the times that can be stored", is_suspect=True)
    return Reading(micros=micros, is_suspect=not PLAUSIBLE_FROM <= micros < PLAUSIBLE_TO)


def zone_of(name: str) -> tzinfo:
    """Return the zone of that name. Raises ValueError."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    if re.fullmatch(r"[+-][0-9]{2}:?[0-9]{2}", name):
        return timezone(_offset(name))
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(f"no zone is named {name}") from error


def check_unit(name: str) -> Unit:
    """Raises InvalidSetting."""
    for unit in UNITS:
        if unit == name:
            return unit
    raise InvalidSetting(where="ingest", key="unit of a time", value=name, allowed=", ".join(UNITS))


def check_zone(name: str | None) -> str | None:
    """Raise InvalidSetting for an unknown zone."""
    if name is not None:
        try:
            zone_of(name)
        except ValueError:
            allowed = "UTC, an offset such as +02:00, or a name such as Europe/Berlin"
            raise InvalidSetting(where="ingest", key="--time-zone", value=name, allowed=allowed) from None
    return name


def check_format(form: str | None, unit: str, key: str) -> str | None:
    """Raise InvalidSetting for an unknown format, a format without a date, or a format with a unit of numbers."""
    if form is None:
        return None
    allowed = "a format of strptime with a date, such as '%d.%m.%Y %H:%M:%S', for a time that is text (unit iso)"
    sample = datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)
    try:
        found = datetime.strptime(sample.strftime(form), form)  # noqa: DTZ007  # its date alone is compared
    except ValueError:
        raise InvalidSetting(where="ingest", key=key, value=form, allowed=allowed) from None
    if unit != "iso" or (found.year, found.month, found.day) != (2026, 11, 20):
        raise InvalidSetting(where="ingest", key=key, value=form, allowed=allowed)
    return form


@dataclass(slots=True, kw_only=True)
class Times:
    """A column of read times. A row without `micros` is unknown unless `refused` names it.

    Args:
        micros: int64, null if unknown or refused.
        refused: Why a row's time cannot be read.
        suspects: The text of a time that probably has another unit.
        zoneless: Refused rows whose time has no zone.
    """

    micros: pa.Array
    refused: dict[int, str] = field(default_factory=dict)
    suspects: dict[int, str] = field(default_factory=dict)
    zoneless: set[int] = field(default_factory=set)


def read_times(texts: pa.Array, rule: TimeRule) -> Times:
    """Read a column of texts (string). Null: the row has no text."""
    usual = _usual(texts, rule)
    if usual is not None:
        return _screened(usual, texts)
    known: dict[str, Reading] = {}
    micros: list[int | None] = []
    found = Times(micros=None)
    for row, text in enumerate(texts.to_pylist()):
        if text is None:
            micros.append(None)
            continue
        reading = known.get(text)
        if reading is None:
            reading = known[text] = rule.read(text)
        micros.append(reading.micros)
        if reading.reason is not None:
            found.refused[row] = reading.reason
        if reading.is_suspect:
            found.suspects[row] = text
        if reading.lacks_zone:
            found.zoneless.add(row)
    found.micros = pa.array(micros, pa.int64())
    return found


def read_typed_times(column: pa.Array, rule: TimeRule, *, is_utc: bool = False) -> Times:
    """Read a column of timestamps or dates of Parquet. A time without a zone is local to the rule's zone, unless `is_utc`."""
    kind = column.type
    if pa.types.is_date(kind):
        whole = column.cast(pa.timestamp("s")).cast(pa.int64()) if pa.types.is_date32(kind) else column.cast(pa.int64())
        unit = "s" if pa.types.is_date32(kind) else "ms"
    else:
        whole, unit = column.cast(pa.int64()), kind.unit
    if unit == "ns":
        # Rounded up (TTL-3).
        micros = pc.add(pc.divide(whole, 1000), pc.if_else(pc.greater(_rest(whole), 0), 1, 0))
    else:
        micros = _times(whole, int(_FACTORS[unit]))
    if getattr(kind, "tz", None) or is_utc:
        return _screened(micros)
    if rule.zone is None:
        rows = {row for row, is_there in enumerate(micros.is_valid().to_pylist()) if is_there}
        return Times(micros=pa.nulls(len(micros), pa.int64()), refused=dict.fromkeys(rows, _NO_ZONE), zoneless=rows)
    if zone_of(rule.zone) is not UTC:
        zone = zone_of(rule.zone)
        micros = pa.array([None if local is None else _local(local, zone) for local in micros.to_pylist()], pa.int64())
    return _screened(micros)


def _local(micros: int, zone: tzinfo) -> int:
    try:
        moment = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None)
        return _latest(moment, zone)
    except OverflowError:
        return micros


def _rest(whole: pa.Array) -> pa.Array:
    return pc.subtract(whole, pc.multiply(pc.divide(whole, 1000), 1000))


def _times(whole: pa.Array, factor: int) -> pa.Array:
    try:
        return pc.multiply_checked(whole, factor)
    except pa.ArrowInvalid:
        # Beyond int64: too far to be meant.
        return pa.array([None if one is None else max(INT64_MIN, min(INT64_MAX, one * factor)) for one in whole.to_pylist()], pa.int64())


def _usual(texts: pa.Array, rule: TimeRule) -> pa.Array | None:
    """Return the microseconds of a column if every text has the usual form. None if some text has another."""
    if rule.form is not None or rule.unit == "ns":
        return None
    form = _USUAL if rule.unit == "iso" else _WHOLE
    if pc.all(pc.match_substring_regex(texts, form), min_count=0).as_py() is False:
        return None
    try:
        if rule.unit == "iso":
            return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return pc.multiply_checked(pc.utf8_ltrim(texts, "+").cast(pa.int64()), int(_FACTORS[rule.unit]))
    except pa.ArrowInvalid:
        return None


def _screened(micros: pa.Array, texts: pa.Array | None = None) -> Times:
    """Make never-set times unknown, and name suspect times by their text."""
    never = [pc.and_(pc.greater_equal(micros, start), pc.less(micros, end)) for start, end in _NEVER_SET]
    unknown = pc.or_(pc.equal(micros, 0), pc.or_(*never))
    micros = pc.if_else(pc.fill_null(unknown, True), pa.scalar(None, pa.int64()), micros)
    suspect = pc.or_(pc.less(micros, PLAUSIBLE_FROM), pc.greater_equal(micros, PLAUSIBLE_TO))
    found = Times(micros=micros)
    if pc.any(suspect).as_py():
        rows = pc.indices_nonzero(pc.fill_null(suspect, False)).to_pylist()
        found.suspects = {row: format_instant(micros[row].as_py()) if texts is None else texts[row].as_py() for row in rows}
    return found


def read_number(value: str, unit: str) -> Instant | None:
    """Return a number of the unit as an instant. None for other text, or beyond int64."""
    try:
        micros = int(Decimal(value) * _FACTORS[unit])
    except (InvalidOperation, KeyError, ValueError, OverflowError):
        return None
    return Instant(micros) if INT64_MIN <= micros <= INT64_MAX else None


def likely_unit(value: str) -> str | None:
    """Return the unit that makes the number a date between 1990 and 2100. The spans of the units do not overlap."""
    for unit in _FACTORS:
        instant = read_number(value, unit)
        if instant is not None and PLAUSIBLE_FROM <= instant < PLAUSIBLE_TO:
            return unit
    return None


def reading(value: str, unit: str) -> str | None:
    """Return the value, read in the unit, as ISO 8601. None if the unit does not fit."""
    instant = read_number(value, unit)
    return None if instant is None else format_instant(instant)


def missing_time_zone(field: str, value: str, rows: int) -> BadInput:
    """No time of a batch has a zone, and the caller gave none."""
    return BadInput(
        f"field {field!r}: no time has a zone ({rows:,} rows; for example {value!r}). Nothing was taken. "
        "Say which zone they are in: --time-zone UTC, or --time-zone Europe/Berlin.",
        code="MissingTimeZone",
    )
