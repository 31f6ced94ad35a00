"""Topics with a key that is to be erased, for tests on tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from secrets import token_bytes, token_hex
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.lake import SECOND, Lake, tables

from message_lifecycle.app import steps
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, RemoveMessages
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter

AS_OF = Instant(1000 * SECOND)
Approver = Callable[..., tuple[bool, str, str]]
Row = tuple[Any, ...]


def grant(*_: object) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


@dataclass
class Topic:
    """A topic with a ledger of its own, and a key that is to be erased."""

    s: Services
    session: SparkSession
    name: TopicName
    writer: IcebergWriter
    key: bytes

    def append(self, *messages: tuple[bytes | None, bytes | None], partition: int = 0) -> list[Any]:
        """One data file for each call."""
        policy = policy_of(self.s, self.name)
        new = [
            NewMessage(partition=partition, append_time=Instant((10 + at) * SECOND), key=key, value=value, headers=(("h", b"x"),))
            for at, (key, value) in enumerate(messages)
        ]
        return list(self.writer.append(self.name, new, policy))

    def remove(self, *positions: tuple[int, int]) -> Outcome:
        return steps.run(self.s, self.name, as_of=AS_OF, approver=grant, work=RemoveMessages(positions=positions))

    def compact(self) -> Outcome:
        return steps.run(self.s, self.name, as_of=AS_OF, approver=grant, work="compaction")

    def request(self) -> str:
        request_id = token_hex(8)
        digests = self.s.key_secret(True).digests([self.key])
        self.s.ledger.add_erasure(request_id, digests, topics=[self.name], forbid=False, requested_by="tester", why="test")
        return request_id

    def erase(self, request_id: str | None = None, approver: Approver | None = grant) -> Outcome:
        work = EraseKey(request_id=request_id or self.request())
        return steps.run(self.s, self.name, as_of=AS_OF, approver=approver, work=work)

    def sql(self, statement: str) -> None:
        self.session.sql(statement.format(t=sql_table(self.name)))
        engine_of_process().forget(self.name)

    def location(self, kind: str = "") -> str:
        return tables().load(self.name, kind=kind).location()

    def rows(self, ref: str | None = None, kind: str = "") -> list[Row]:
        """As Spark reads them."""
        engine_of_process().forget(self.name, kind=kind)
        place = sql_table(self.name, kind=kind)
        self.session.sql(f"REFRESH TABLE {place}")
        frame = self.session.sql(f"SELECT * FROM {place}" + (f" VERSION AS OF '{ref}'" if ref else ""))
        return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[0], row[1]))

    def without_key(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row[4] is None or bytes(row[4]) != self.key]

    def files(self, kind: str = "") -> dict[str, tuple[int, int]]:
        """Inode and time of every data file that is there, by name."""
        root = local_path(self.location(kind))
        return {str(p.relative_to(root)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in root.rglob("*.parquet")}


def topics_of(lake: Lake, spark: SparkSession) -> Callable[..., Topic]:
    """Makes topics whose keys are hashed with one secret."""
    secret = KeySecret(token_bytes(32))

    def made(*, partitions: int = 1, **settings: Value) -> Topic:
        s = replace(lake.services(), key_secret=lambda _: secret)
        name = TopicName.parse(f"{lake.stream}/e {token_hex(4)}")
        s.topics.create(name, partitions=partitions, settings=settings, ledger=s.ledger.next_identity(name))
        return Topic(s=s, session=spark, name=name, writer=IcebergWriter(engine_of_process), key=token_bytes(32))

    return made
