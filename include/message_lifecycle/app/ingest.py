"""Ingest as a person or a program requests it: a topic, a folder, and the meaning of the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from message_lifecycle.app.config import load_config
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, Intake, take_files
from message_lifecycle.app.replay import Replay, replay_batch
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.sources.selection import Patterns

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger


def ingest(
    topic: str,
    path: str,
    *,
    key: str | None = None,
    value: str | None = None,
    append_time: str | None = None,
    append_time_unit: str = "iso",
    event_time: str | None = None,
    event_time_unit: str = "iso",
    append_time_format: str | None = None,
    event_time_format: str | None = None,
    time_zone: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    shift_to: str | None = None,
    allow_implausible_times: bool = False,
    skip_changed: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    replay: Replay | None = None,
    remap: Callable[[Intake, TopicName, str, IngestOptions], IngestResult] | None = None,
) -> IngestResult:
    """Take every file of the folder (or the one file) that the topic has not taken yet; see IngestResult.

    Args:
        topic: The name of the topic that takes the messages.
        path: The folder, or the single file, to take.
        key: The name of the field with the key.
        value: The name of the field with the value. None: the value is the whole record as JSON.
        append_time: The name of the field with the append time.
        append_time_unit: iso, s, ms, us or ns.
        event_time: The name of the field with the event time.
        event_time_unit: iso, s, ms, us or ns.
        append_time_format: A format of `strptime`, instead of a unit.
        event_time_format: A format of `strptime`, instead of a unit.
        time_zone: The zone of times that name no zone. Without it, such times are refused.
        headers: The name of the field with the headers.
        partition: The name of the field with the partition. None: the key chooses the partition.
        delimiter: The character between the columns of CSV files.
        encoding: The encoding of text files.
        shift_to: A day, for example 2026-11-21.
        allow_implausible_times: Take times far from now, which mostly mean a wrong unit.
        skip_changed: Skip and name a file that was taken before with other content. Otherwise such a file refuses the whole ingest.
        include: Take only files whose names match one of these shell patterns.
        exclude: Leave out files whose names match one of these shell patterns.
        replay: Take refused rows again instead of the files at `path`.
        remap: Takes the files instead of `take_files`.
    """
    from message_lifecycle.sources.files import check_delimiter, check_encoding
    from message_lifecycle.sources.mapping import FieldMapping
    from message_lifecycle.sources.times import check_format, check_unit, check_zone

    mapping = FieldMapping(
        key=key,
        value=value,
        append_time=append_time,
        append_time_unit=check_unit(append_time_unit),
        event_time=event_time,
        event_time_unit=check_unit(event_time_unit),
        append_time_format=check_format(append_time_format, append_time_unit, "--time-format"),
        event_time_format=check_format(event_time_format, event_time_unit, "--event-time-format"),
        time_zone=check_zone(time_zone),
        headers=headers,
        partition=partition,
        delimiter=check_delimiter(delimiter),
        encoding=check_encoding(encoding),
    )
    options = IngestOptions(
        mapping=mapping,
        shift_to=_day(shift_to),
        allow_implausible_times=allow_implausible_times,
        skip_changed=skip_changed,
        patterns=Patterns(include=tuple(include), exclude=tuple(exclude)),
    )
    config = load_config()
    from message_lifecycle.ledger import open_ledger

    with open_ledger(config.ledger_url, skew_us=resolve(topic={}, server=config.server).clock_skew_us) as ledger:
        intake = lake_intake(ledger, config.server)
        found = TopicName.parse(topic)
        if replay is not None:
            return replay_batch(intake, found, replay, options)
        return (remap or take_files)(intake, found, path, options)


def lake_intake(ledger: Ledger, server: Mapping[str, Value]) -> Intake:
    """The Iceberg lake of this configuration."""
    from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
    from message_lifecycle.stores.iceberg.engine import engine_of_process
    from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
    from message_lifecycle.stores.iceberg.read import newest_state

    tables = Tables()
    return Intake(
        topics=IcebergTopics(tables, server=server),
        ledger=ledger,
        server=server,
        engine=engine_of_process,
        end_offsets=lambda name: newest_state(tables.load(name)).end_offsets,
        witnesses=IcebergLogIntegrity(tables, engine_of_process),
    )


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(where="ingest", key="shift_to", value=text, allowed="a day, such as 2026-11-21") from None
