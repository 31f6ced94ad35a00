"""Times as they stand in a source, read as microseconds since 1970; and whether the unit can be right (CLK-4).

A missing, empty or zero time is unknown: null. A time before 1970 is a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, format_instant, of_datetime

Unit = Literal["iso", "s", "ms", "us", "ns"]

# Microseconds in one; nanoseconds are divided.
_FACTORS: dict[str, Decimal] = {"s": Decimal(1_000_000), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
UNITS: tuple[Unit, ...] = ("iso", "s", "ms", "us", "ns")
PLAUSIBLE_FROM = of_datetime(datetime(1990, 1, 1, tzinfo=UTC))
PLAUSIBLE_TO = of_datetime(datetime(2100, 1, 1, tzinfo=UTC))
_NUMBER = "decimal(38,9)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One time field. `micros`: null where missing or unreadable. `suspect`: set, but not at all where a date should be."""

    micros: Column
    unreadable: Column
    suspect: Column
    text: Column


def check_unit(name: str) -> Unit:
    """Raises InvalidSetting."""
    for unit in UNITS:
        if unit == name:
            return unit
    raise InvalidSetting(where="ingest", key="unit of a time", value=name, allowed=", ".join(UNITS))


def time_columns(source: Column, kind: T.DataType, unit: Unit) -> TimeColumns:
    """Read a field of the given type; a typed timestamp needs no unit."""
    text = F.trim(F.decode(source, "UTF-8") if isinstance(kind, T.BinaryType) else source.cast("string"))
    is_text = isinstance(kind, T.StringType | T.BinaryType)
    number = F.lit(False)
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        read = F.unix_micros(source.cast("timestamp"))
    elif unit == "iso":
        # Spark would read "10:00" as a time of today, which is no property of the message.
        read = F.when(text.substr(5, 1) == "-", F.unix_micros(F.try_to_timestamp(text)))
        number = text.try_cast(_NUMBER).isNotNull()
    elif is_text:
        # Most are whole numbers, and those are read much faster.
        read = F.coalesce(F.when(text.rlike(r"^[+-]?\d+$"), _whole(text, unit)), _exact(text, unit))
    elif isinstance(kind, T.IntegralType):
        read = _whole(source, unit)
    else:
        read = _exact(source, unit)
    missing = (source.isNull() | (text == "")) if is_text else source.isNull()
    micros = F.nullif(read, F.lit(0))
    return TimeColumns(
        micros=micros,
        unreadable=~missing & read.isNull(),
        suspect=(micros < F.lit(PLAUSIBLE_FROM)) | (micros >= F.lit(PLAUSIBLE_TO)) | (read.isNull() & number),
        text=text,
    )


def _whole(number: Column, unit: Unit) -> Column:
    factor = _FACTORS[unit]
    return F.try_multiply(number.try_cast("bigint"), F.lit(int(factor))) if factor >= 1 else _exact(number, unit)


def _exact(number: Column, unit: Unit) -> Column:
    """A deadline may only ever be rounded later, so a part of a microsecond counts as a whole one (TTL-3)."""
    return F.ceil(number.try_cast(_NUMBER) * F.lit(_FACTORS[unit])).try_cast("bigint")


def read_number(value: str, unit: str) -> Instant | None:
    """A number of the unit as an instant; None where it is none or beyond int64."""
    try:
        micros = int(Decimal(value) * _FACTORS[unit])
    except (InvalidOperation, KeyError, ValueError, OverflowError):
        return None
    return Instant(micros) if INT64_MIN <= micros <= INT64_MAX else None


def likely_unit(value: str) -> str | None:
    """The unit in which the number is a date between 1990 and 2100; the spans of the units do not overlap."""
    for unit in _FACTORS:
        instant = read_number(value, unit)
        if instant is not None and PLAUSIBLE_FROM <= instant < PLAUSIBLE_TO:
            return unit
    return None


def reading(value: str, unit: str) -> str | None:
    """How the value reads in the unit, as ISO 8601; None where it does not."""
    instant = read_number(value, unit)
    return None if instant is None else format_instant(instant)
