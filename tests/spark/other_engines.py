"""A topic on tables, and another engine that works on them: Spark's own SQL."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
from tests.errors import raises
from tests.spark.lake import Lake, tables
from tests.spark.landing import Landing

from message_lifecycle.app import steps
from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, take_files
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.app.views.topics import consumers_view
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Published
from message_lifecycle.model.request import EraseKey, PurgeKey, RemoveMessages
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.writer import write_rows

MAPPING = FieldMapping(key="key", value="value", append_time="at", append_time_unit="s")
WORDS = {"by": "ada", "text": "checked with the other team"}
LONG_AGO = 1_600_000_000
"""Seconds; older than any expiry of these tests."""
FAR_MS = 4_000_000_000_000
"""Milliseconds since 1970; later than any snapshot."""
Engine = Literal["spark", "java"]
"""Spark's SQL, or Iceberg's Java library alone. PyIceberg reads tables of format 3 and cannot write them."""


class Topic(Landing):
    """One topic, a ledger of its own, and another engine: Spark's own SQL."""

    def __init__(self, lake: Lake, folder: Path, name: TopicName, **settings: Any) -> None:
        super().__init__(lake, folder)
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.s: Services = replace(lake.services(), ledger=self.ledger)
        self.name = create_topic(self.s, name, settings=settings).name
        self._file = 0
        self.first = 0

    def ingest(self, *keys: str, at: int = LONG_AGO) -> IngestResult:
        self._file += 1
        (self.inbox / f"{self._file}.jsonl").write_text(
            "".join(json.dumps({"key": key, "at": at + n, "value": f"{self._file}"}) + "\n" for n, key in enumerate(keys))
        )
        return self.take()

    def take(self) -> IngestResult:
        return take_files(self.intake, self.name, str(self.inbox), IngestOptions(mapping=MAPPING))

    def sql(self, text: str, kind: str = "") -> list[Any]:
        """Run a statement of another engine; `{t}` is the table with its catalog, `{p}` without."""
        table = sql_table(self.name, kind=kind)
        found = self.lake.session.sql(text.format(t=table, p=table.removeprefix("`lake`."))).collect()
        engine_of_process().forget(self.name, kind=kind)
        return list(found)

    def rewrite(self, kind: str = "") -> None:
        options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
        self.sql("CALL lake.system.rewrite_data_files(table => '{p}', options => " + options + ")", kind)

    def expire(self, kind: str = "") -> None:
        """Keep one snapshot. Spark's procedure ends in this commit, and searches for files by jobs that take ten times as long."""
        engine_of_process().table(self.name, kind=kind).expireSnapshots().expireOlderThan(FAR_MS).retainLast(1).commit()
        engine_of_process().forget(self.name, kind=kind)

    def head(self) -> int:
        snapshot = tables().load(self.name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def roll_back(self, snapshot_id: int) -> None:
        self.sql("CALL lake.system.rollback_to_snapshot('{p}', " + str(snapshot_id) + ")")

    def places(self) -> list[int]:
        return [message.offset for message in self.s.reader.messages(self.name)]

    def run(self, work: Any = "message_cleaner") -> Outcome:
        return steps.run(self.s, self.name, as_of=self.ledger.now(), work=work, approver=lambda *_: (True, "ada", "as planned"))

    def remove(self, *offsets: int) -> Outcome:
        return self.run(RemoveMessages(positions=tuple((0, offset) for offset in offsets)))

    @property
    def secret_services(self) -> Services:
        """The services with a secret for the keyed hash."""
        secret = KeySecret(b"a secret of more than thirty-two bytes")
        return replace(self.s, key_secret=lambda _: secret)

    def ask(self) -> str:
        """Ask that key a be erased. Return the id of the request."""
        return ask(self.secret_services, [b"a"], topics=[self.name], forbid=False, by="ada", why="a letter").request_id

    def published(self, work: str) -> str:
        """Publish a plan of an erasure of key a, or of this work, and do not verify it. Return the plan's id."""
        s, named = self.secret_services, EraseKey(request_id=self.ask()) if work == "erasure" else cast(Work, work)
        plan_id = steps.plan(s, self.name, as_of=self.ledger.now(), work=named).plan.plan_id
        steps.stage(s, plan_id)
        steps.mark(s, plan_id)
        if steps.gate(s, plan_id).judgement == "needs_approval":
            steps.approve(s, plan_id, granted=True, by="ada", text="as planned")
        assert isinstance(steps.publish(s, plan_id), Published)
        return plan_id

    def erase(self, request_id: str = "") -> str:
        """Carry out this request, or a new one to erase key a. Return the code of the error that stops it, or an empty text."""
        request_id = request_id or self.ask()
        (found,) = carry_out(self.secret_services, request_id, approver=lambda *_: (True, "ada", "a letter"))
        return "" if found.error is None else code_of(found.error)

    def say(self, *arguments: str) -> int:
        """Run the `lifecycle` command on this lake; its exit status."""
        return main(arguments, wiring=Wiring(lake=lambda: self.s))

    def lags(self) -> dict[str, int | None]:
        """How far each consumer is behind."""
        return {entry.consumer: entry.partitions[0].lag for entry in consumers_view(self.s, self.name)}

    def status(self) -> dict[str, Any]:
        return dict(as_json(status(self.s, [self.name])[0]))

    def stops(self, code: str) -> None:
        """Everything that writes or removes refuses by this name, and status is not ok."""
        before = self.places()
        with raises(code):
            self.ingest("later")
        with raises(code):
            self.run()
        with raises(code):
            self.remove(0)
        with raises(code):
            self.run(PurgeKey(key=b"a"))
        assert self.erase() == code, "an erasure waits"
        told = self.status()
        assert not told["ok"]
        assert code in " ".join(told["problems"])
        assert self.places() == before

    def raw(self, text: str) -> None:
        """Run a statement of another engine as it stands."""
        self.lake.session.sql(text)
        engine_of_process().forget(self.name)

    @property
    def place(self) -> str:
        return sql_table(self.name)

    @property
    def aside(self) -> str:
        return f"`lake`.`{self.name.namespace}`.`{self.name.table()}_aside`"

    def rename_away(self) -> None:
        self.raw(f"ALTER TABLE {self.place} RENAME TO {self.aside.removeprefix('`lake`.')}")

    def rename_back(self) -> None:
        self.raw(f"ALTER TABLE {self.aside} RENAME TO {self.place.removeprefix('`lake`.')}")

    def come_back(self) -> None:
        """Bring the table back if it was renamed."""
        if not self.lake.session.catalog.tableExists(self.place):
            self.rename_back()

    def offsets_by_sql(self) -> list[int]:
        return sorted(row[0] for row in self.sql("SELECT offset FROM {t}"))

    def status_codes(self) -> set[str]:
        return {problem.partition(":")[0] for problem in self.status().get("problems", ())}

    def append_by(
        self, engine: Engine, *offsets: int, partition: int = 0, segment: int = 0, key: str = "theirs", at: int = LONG_AGO
    ) -> None:
        """Append messages as another engine does, with nothing of ours in the summary."""
        if engine == "spark":
            rows = ", ".join(
                f"({partition}, {offset}L, timestamp_seconds({at}), null, X'{key.encode().hex()}', X'76', array(), 2L, {segment}L, null, null, "
                "null)"
                for offset in offsets
            )
            self.sql("INSERT INTO {t} VALUES " + rows)
            return
        row = {"partition": partition, "append_time": at * 1_000_000, "key": key.encode(), "value": b"v", "headers": [], "size_bytes": 2}
        rows_of = [{**row, "segment": segment, "offset": offset} for offset in offsets]
        table = engine_of_process().table(self.name)
        append = table.newAppend()
        for file in write_rows(engine_of_process(), table, pa.Table.from_pylist(rows_of, schema=SCHEMA.as_arrow())):
            append.appendFile(file)
        append.commit()
        engine_of_process().forget(self.name)

    def clear_inbox(self) -> None:
        for file in self.inbox.iterdir():
            file.unlink()
