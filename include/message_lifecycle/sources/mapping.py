"""The mapping from a record's fields to a message."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.sources.files import UTF_8
from message_lifecycle.sources.times import TimeRule, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """The fields of a record that make the message. None: the source has no such field.

    Without a partition field, the key decides the partition.

    Attributes:
        value: None: the whole record, as JSON (a line of JSON stays unchanged).
        headers: A list of {name, value} or {key, value}, an object or map, or the JSON text of either.
    """

    key: str | None = None
    value: str | None = None
    append_time: str | None = None
    append_time_unit: Unit = "iso"
    event_time: str | None = None
    event_time_unit: Unit = "iso"
    headers: str | None = None
    partition: str | None = None
    append_time_format: str | None = None
    """A format of `strptime` for the append time's text. None: ISO 8601."""
    event_time_format: str | None = None
    time_zone: str | None = None
    """The zone of times without a zone. None: such times are refused."""
    delimiter: str = ","
    encoding: str = UTF_8
    """The encoding of text files."""

    @property
    def fields(self) -> tuple[str, ...]:
        named = (self.key, self.value, self.append_time, self.event_time, self.headers, self.partition)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def append_rule(self) -> TimeRule:
        return TimeRule(unit=self.append_time_unit, form=self.append_time_format, zone=self.time_zone)

    @property
    def event_rule(self) -> TimeRule:
        return TimeRule(unit=self.event_time_unit, form=self.event_time_format, zone=self.time_zone)
