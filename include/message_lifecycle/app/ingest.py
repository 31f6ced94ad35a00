"""Ingest as a person or a program asks for it: a topic, a folder, which field is what; and the answer in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from message_lifecycle.app.config import load_config
from message_lifecycle.app.intake import IngestOptions, IngestResult, Intake, take_files
from message_lifecycle.app.replay import Replay, replay_batch
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.names import TopicName, meant, safe
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.operations.admission import span_doubled
from message_lifecycle.sources.selection import PassedOver, Patterns

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger


__all__ = ["IngestResult", "describe", "ingest", "passed_over_lines", "shortened"]

_NAMES_SHOWN = 10


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

    Fields are named by the arguments: `key`, `value` (default: the whole record as JSON), the two times with their units
    (iso, s, ms, us, ns) or formats (of `strptime`), `headers`, `partition` (default: chosen by the key). `shift_to` is a day, 2026-11-21.
    `time_zone`: of times that name none; without it such times are refused.
    `skip_changed`: a file that was taken before with other content is passed over and named, in place of refusing all of them.
    `include` and `exclude` are shell patterns of file names. `replay`: take refused rows again in place of the files at `path`.
    `remap`: takes the files in place of `take_files`.
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
        name = meant(str(TopicName.parse(topic)), lambda: map(str, intake.topics.list()))
        found = TopicName.parse(name)
        if replay is not None:
            return replay_batch(intake, found, replay, options)
        return (remap or take_files)(intake, found, path, options)


def lake_intake(ledger: Ledger, server: Mapping[str, Value]) -> Intake:
    """The Iceberg lake of this configuration."""
    from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
    from message_lifecycle.stores.iceberg.log_repair import IcebergWitnesses
    from message_lifecycle.stores.iceberg.read import newest_state
    from message_lifecycle.stores.iceberg.session import spark_session

    tables = Tables()
    return Intake(
        topics=IcebergTopics(tables, server=server),
        ledger=ledger,
        server=server,
        session=lambda: spark_session("ingest"),
        end_offsets=lambda name: newest_state(tables.load(name)).end_offsets,
        witnesses=IcebergWitnesses(tables, lambda: spark_session("ingest")),
    )


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(where="ingest", key="shift_to", value=text, allowed="a day, such as 2026-11-21") from None


def passed_over_lines(passed_over: Sequence[PassedOver]) -> list[str]:
    """Return one line for each reason, with the names of the first files that were passed over for it."""
    names: dict[str, list[str]] = {}
    for one in passed_over:
        names.setdefault(one.why, []).append(one.name)
    return [f"passed over, {why}: {shortened(some)}" for why, some in names.items()]


def shortened(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(map(safe, names[:_NAMES_SHOWN]))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"


def describe(result: IngestResult) -> str:
    """What was taken, in a line or a few."""
    from message_lifecycle.sources.file_times import going_back_line

    before = f"{result.files_before} taken before" if result.files_before else "none before"
    changed = [f"not taken, changed since they were taken: {', '.join(map(safe, result.changed))}"] if result.changed else []
    changed += passed_over_lines(result.passed_over)
    if not result.files:
        return "\n".join([f"{result.topic}: nothing new ({before}); the log is as it was", *changed])
    lines = [
        f"{result.topic}: {result.rows:,} messages of {len(result.files)} files ({before}) in {result.segments} segments",
        "end offsets: " + ", ".join(f"{partition}: {end}" for partition, end in sorted(result.end_offsets.items())),
    ]
    if result.quarantined:
        lines.append("refused, in quarantine: " + ", ".join(f"{count} {code}" for code, count in result.quarantined.items()))
        lines.append(f"to see them: lifecycle quarantine show {result.topic}")
    if result.refused_whole:
        lines.append(f"refused whole, and taken again when mended: {shortened(result.refused_whole)}")
    if result.erased:
        lines.append(f"not taken, erased: {result.erased} messages of keys that may not come in")
    if result.unknown_times:
        lines.append(f"{result.unknown_times} messages have no known time; they, and their segments, never expire")
    lines += [f"{count:,} records have no field {name!r}" for name, count in result.absent.items()]
    if result.going_back:
        lines.append(going_back_line(result.going_back))
    if result.span_seconds is not None:
        lines.append(span_doubled(result.span_seconds))
    if result.shift_days:
        lines.append(f"all times moved by {result.shift_days} days")
    return "\n".join([*lines, *changed])
