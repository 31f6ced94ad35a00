"""Which fields of a record make a message, and what the times among them may be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import of_datetime
from message_lifecycle.sources.files import UTF_8

Unit = Literal["iso", "s", "ms", "us", "ns"]
UNITS: tuple[Unit, ...] = ("iso", "s", "ms", "us", "ns")
PLAUSIBLE_FROM = of_datetime(datetime(1990, 1, 1, tzinfo=UTC))
PLAUSIBLE_TO = of_datetime(datetime(2100, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """Which fields of a record make the message; None: the source has none.

    `value` None: the whole record, as JSON (a line of JSON stays as it is). A message without a partition of its own goes
    where its key sends it. `headers`: a list of {name, value}, an object or map, or the JSON text of either.
    """

    key: str | None = None
    value: str | None = None
    append_time: str | None = None
    append_time_unit: Unit = "iso"
    event_time: str | None = None
    event_time_unit: Unit = "iso"
    headers: str | None = None
    partition: str | None = None
    delimiter: str = ","
    encoding: str = UTF_8
    """Of text files."""

    @property
    def fields(self) -> tuple[str, ...]:
        named = (self.key, self.value, self.append_time, self.event_time, self.headers, self.partition)
        return tuple(dict.fromkeys(name for name in named if name is not None))


def check_unit(name: str) -> Unit:
    """Raises InvalidSetting."""
    for unit in UNITS:
        if unit == name:
            return unit
    raise InvalidSetting(where="ingest", key="unit of a time", value=name, allowed=", ".join(UNITS))
