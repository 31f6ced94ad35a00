"""Ingest into scratch topics of the lake, with a scratch ledger, and what came of it read by the second implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from secrets import token_hex

from tests.spark.lake import LEDGER, Lake

from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, Intake, take_files
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.selection import EVERY_FILE, Patterns
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import Engine, engine_of_process
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.session import sql_table

KEYED = FieldMapping(key="k", value="v", append_time="at")


class Landing:
    """Topics that take files. `server`: the server's settings. `engine`: runs the tasks."""

    def __init__(
        self, lake: Lake, folder: Path, server: Mapping[str, Value] | None = None, *, engine: Callable[[], Engine] = engine_of_process
    ) -> None:
        self.lake, self.folder = lake, folder
        self.url = url = f"sqlite:///{folder / 'ledger.db'}"
        migrate_ledger(url)
        self.ledger: Ledger = open_ledger(url)
        self.intake = Intake(
            topics=lake.topics,
            ledger=self.ledger,
            server=server or {},
            engine=engine,
            end_offsets=lambda name: newest_state(Tables().load(name)).end_offsets,
            witnesses=IcebergLogIntegrity(Tables(), engine_of_process),
        )

    def topic(self, *, partitions: int = 1, **settings: Value) -> TopicName:
        name = TopicName.parse(f"{self.lake.stream}/in {token_hex(4)}")
        self.lake.topics.create(name, partitions=partitions, settings=settings, ledger=self.ledger.next_identity(name))
        # What the lake itself appends carries a ledger of its own.
        self.ledger.accept(name, LEDGER)
        return name

    def source(self, **files: str | bytes) -> Path:
        """A folder of files; `a_jsonl="..."` becomes a.jsonl."""
        made = self.folder / f"source-{token_hex(4)}"
        made.mkdir()
        for name, content in files.items():
            self.put(made, name, content)
        return made

    def put(self, folder: Path, name: str, content: str | bytes) -> Path:
        path = folder / ".".join(name.rsplit("_", 1))
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def take(
        self,
        name: TopicName,
        folder: Path | str,
        mapping: FieldMapping = KEYED,
        *,
        shift_to: date | None = None,
        allow_implausible_times: bool = False,
        skip_changed: bool = False,
        patterns: Patterns = EVERY_FILE,
    ) -> IngestResult:
        options = IngestOptions(
            mapping=mapping,
            shift_to=shift_to,
            allow_implausible_times=allow_implausible_times,
            skip_changed=skip_changed,
            patterns=patterns,
        )
        return take_files(self.intake, name, str(folder), options)

    def messages(self, name: TopicName) -> list[Message]:
        return list(self.lake.reader.messages(name))

    def state(self, name: TopicName) -> LogSummary:
        return newest_state(Tables().load(name))

    def branches(self, name: TopicName) -> list[str]:
        return [str(ref) for ref in engine_of_process().table(name).refs() if str(ref) != "main"]

    def quarantine(self, name: TopicName) -> list[tuple[str, int, str, str | None]]:
        rows = self.lake.session.table(sql_table(name, kind="quarantine"))
        return [tuple(row) for row in rows.select("file", "position", "code", "raw").orderBy("file", "position").collect()]


def json_lines(*rows: tuple[str | None, str, object]) -> str:
    """One line per (key, value, time)."""
    import json

    return "".join(json.dumps({"k": key, "v": value, "at": at}) + "\n" for key, value, at in rows)


def by_the_rule(messages: list[Message], *, limit_bytes: int, expiry_us: int, max_us: int = 0) -> tuple[list[int], LogSummary]:
    """Segments and final state as `ActiveSegment.add_message` gives them, message by message."""
    ends: dict[int, int] = {}
    active: dict[int, ActiveSegment] = {}
    segments = []
    for message in messages:
        state = active.setdefault(message.partition, ActiveSegment(base_offset=0))
        time = None if message.append_time is None else Instant(message.append_time)
        offset, size = message.offset, message.size_bytes
        segments.append(
            state.add_message(offset=offset, size=size, append_time=time, limit_bytes=limit_bytes, expiry_us=expiry_us, max_us=max_us)
        )
        ends[message.partition] = offset + 1
    return segments, LogSummary(end_offsets=ends, active={p: replace(state) for p, state in active.items()})
