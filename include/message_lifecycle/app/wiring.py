"""The one composition root: it decides which store, gate and ledger the verbs get. Engines and connections start at their first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from secrets import token_bytes, token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from message_lifecycle.app.config import CATALOG_HOME, load_config, named_redis
from message_lifecycle.app.embedded import embedded_default
from message_lifecycle.app.parts import Later, with_parts
from message_lifecycle.app.services import Services, Stores
from message_lifecycle.model.erasure import MIN_SECRET_BYTES, KeySecret
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import NO_OPTIONS, Backend, StoreOptions

if TYPE_CHECKING:
    from message_lifecycle.app.scenario import MakeWorld, World  # its import loads pydantic, which only scenarios need
    from message_lifecycle.gates.runner import GreatExpectationsGate
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ports import Groups
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals, IcebergViewReturns, IcebergViewStore
    from message_lifecycle.stores.iceberg.copying import IcebergCopier
    from message_lifecycle.stores.iceberg.deleted_reclaim import IcebergDeletedReclaimer
    from message_lifecycle.stores.iceberg.documents.store import (
        IcebergChangeReturns,
        IcebergChanges,
        IcebergDocuments,
        IcebergSnapshotReturns,
        IcebergSnapshots,
    )
    from message_lifecycle.stores.iceberg.engine import Engine
    from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
    from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
    from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine, IcebergQuarantineReturns
    from message_lifecycle.stores.iceberg.reclaiming import IcebergReclaimer
    from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
    from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter, IcebergRestorer
    from message_lifecycle.stores.record_log import RecordLogs
    from message_lifecycle.stores.redis_streams.log import Server


def lake() -> Services:
    """Return the Iceberg lake of this configuration. Staging, gating and publishing start Java at their first need."""
    config = load_config()
    ledger = _ledger(config.ledger_url, resolve(topic={}, server=config.server).clock_skew_us)
    found = _iceberg(config.server, ledger, scratch=False)
    if not config.backends:
        return found
    from message_lifecycle.app.backends import with_backends

    return with_backends(found, config.backends)


def _iceberg(server: Mapping[str, Value], ledger: Ledger, *, scratch: bool) -> Services:
    from message_lifecycle.stores.iceberg.catalog import IcebergTopics
    from message_lifecycle.stores.iceberg.read import IcebergReader

    tables = _tables(os.environ.get(CATALOG_HOME))

    def log() -> IcebergStore:
        from message_lifecycle.stores.iceberg.store import IcebergStore

        return IcebergStore(_engine, tables=tables)

    def log_return() -> IcebergLogReturns:
        from message_lifecycle.stores.iceberg.store import IcebergLogReturns

        return IcebergLogReturns(_engine, tables=tables)

    def view() -> IcebergViewStore:
        from message_lifecycle.stores.iceberg.compaction.store import IcebergViewStore

        return IcebergViewStore(_engine, tables=tables)

    def view_removal() -> IcebergViewRemovals:
        from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals

        return IcebergViewRemovals(_engine, tables=tables)

    def view_return() -> IcebergViewReturns:
        from message_lifecycle.stores.iceberg.compaction.store import IcebergViewReturns

        return IcebergViewReturns(_engine, tables=tables)

    def snapshots() -> IcebergSnapshots:
        from message_lifecycle.stores.iceberg.documents.store import IcebergSnapshots

        return IcebergSnapshots(_engine, tables=tables)

    def snapshots_return() -> IcebergSnapshotReturns:
        from message_lifecycle.stores.iceberg.documents.store import IcebergSnapshotReturns

        return IcebergSnapshotReturns(_engine, tables=tables)

    def changes() -> IcebergChanges:
        from message_lifecycle.stores.iceberg.documents.store import IcebergChanges

        return IcebergChanges(_engine, tables=tables)

    def changes_return() -> IcebergChangeReturns:
        from message_lifecycle.stores.iceberg.documents.store import IcebergChangeReturns

        return IcebergChangeReturns(_engine, tables=tables)

    def quarantine() -> IcebergQuarantine:
        from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine

        return IcebergQuarantine(_engine, tables=tables)

    def quarantine_return() -> IcebergQuarantineReturns:
        from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantineReturns

        return IcebergQuarantineReturns(_engine, tables=tables)

    def rewrite() -> IcebergEraser:
        from message_lifecycle.app.operations.registry import undoable_operations
        from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser

        return IcebergEraser(tables, undoable=undoable_operations)

    def forget() -> IcebergReclaimer:
        from message_lifecycle.stores.iceberg.reclaiming import IcebergReclaimer

        return IcebergReclaimer(tables)

    def delete() -> IcebergDeleter:
        from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter

        return IcebergDeleter(tables, scratch=scratch)

    def restore() -> IcebergRestorer:
        from message_lifecycle.stores.iceberg.topic_delete import IcebergRestorer

        return IcebergRestorer(tables, scratch=scratch)

    def drop() -> IcebergDeletedReclaimer:
        from message_lifecycle.stores.iceberg.deleted_reclaim import IcebergDeletedReclaimer

        return IcebergDeletedReclaimer(tables, scratch=scratch)

    def copier() -> IcebergCopier:
        from message_lifecycle.sources.lifetimes import with_own_lifetimes
        from message_lifecycle.stores.iceberg.copying import IcebergCopier

        return IcebergCopier(_engine, own_lifetimes=with_own_lifetimes, tables=tables)

    def documents() -> IcebergDocuments:
        from message_lifecycle.stores.iceberg.documents.store import IcebergDocuments

        return IcebergDocuments(_engine, tables=tables)

    def gate() -> GreatExpectationsGate:
        from message_lifecycle.gates.runner import GreatExpectationsGate

        return GreatExpectationsGate()

    def witnesses() -> IcebergLogIntegrity:
        from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity

        return IcebergLogIntegrity(tables, _engine)

    return Services(
        topics=IcebergTopics(tables, server=server, scratch=scratch),
        reader=IcebergReader(tables, engine=_engine_at_hand),
        stores=Stores(
            backend="iceberg",
            log=Later(log),
            log_return=Later(log_return),
            view=Later(view),
            view_removal=Later(view_removal),
            view_return=Later(view_return),
            snapshots=Later(snapshots),
            snapshots_return=Later(snapshots_return),
            changes=Later(changes),
            changes_return=Later(changes_return),
            quarantine=Later(quarantine),
            quarantine_return=Later(quarantine_return),
            rewrite=Later(rewrite),
            forget=Later(forget),
            delete_tables=Later(delete),
            restore_tables=Later(restore),
            drop_tables=Later(drop),
        ),
        witnesses=Later(witnesses),
        copier=Later(copier),
        documents=Later(documents),
        gate=Later(gate),
        ledger=ledger,
        server=server,
    )


def _engine() -> Engine:
    """Return the engine of this process. Few commands ask for it, so it is imported then."""
    from message_lifecycle.stores.iceberg.engine import engine_of_process

    return engine_of_process()


def _engine_at_hand() -> Engine | None:
    from message_lifecycle.stores.iceberg.engine import engine_at_hand

    return engine_at_hand()


# A process has one ledger and one set of tables, because they hold connections, and a server's pages need them for every request.
@cache
def _ledger(url: str, skew_us: int) -> Ledger:
    from message_lifecycle.ledger import open_ledger

    return open_ledger(url, skew_us=skew_us)


@cache
def _tables(_home: str | None) -> Tables:
    """Return the catalog's tables. The cache key is the folder of the catalog's configuration."""
    from message_lifecycle.stores.iceberg.catalog import Tables

    return Tables()


def memory_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:  # noqa: ARG001  # it has no options
    """A scratch log in memory, with a scratch ledger: the reference for every scenario."""
    from message_lifecycle.app.scenario import World
    from message_lifecycle.gates.plain import PlainGate
    from message_lifecycle.ledger import open_ledger
    from message_lifecycle.stores.memory import MemoryLogReturns, MemoryStore
    from message_lifecycle.stores.memory.documents import (
        MemoryChangeReturns,
        MemoryChanges,
        MemoryDocuments,
        MemorySnapshotReturns,
        MemorySnapshots,
    )
    from message_lifecycle.stores.memory.eraser import MemoryEraser
    from message_lifecycle.stores.memory.topic_delete import MemoryDeletedReclaimer, MemoryDeleter, MemoryReclaimer, MemoryRestorer
    from message_lifecycle.stores.memory.views import MemoryViewRemovals, MemoryViewReturns, MemoryViews

    clock = _Clock()
    store = MemoryStore()
    documents = MemoryDocuments(store)
    deleter = MemoryDeleter(store)
    services = Services(
        topics=store,
        reader=store,
        stores=Stores(
            backend="memory",
            log=store,
            log_return=MemoryLogReturns(store),
            view=MemoryViews(store),
            view_removal=MemoryViewRemovals(store),
            view_return=MemoryViewReturns(store),
            snapshots=MemorySnapshots(documents),
            snapshots_return=MemorySnapshotReturns(documents),
            changes=MemoryChanges(documents),
            changes_return=MemoryChangeReturns(documents),
            rewrite=MemoryEraser(store, server=server),
            forget=MemoryReclaimer(store),
            delete_tables=deleter,
            restore_tables=MemoryRestorer(store, deleter),
            drop_tables=MemoryDeletedReclaimer(deleter),
        ),
        copier=store,
        documents=documents,
        gate=PlainGate(),
        ledger=open_ledger("sqlite://", clock=clock),
        server=server,
        key_secret=_scratch_secret(),
    )
    return World(services=services, writer=store, set_now=clock.set)


def iceberg_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:  # noqa: ARG001  # it has no options
    """Scratch tables in the configured lake, with a scratch ledger. One engine serves all scenarios of a process."""
    from message_lifecycle.app.scenario import World
    from message_lifecycle.ledger import open_ledger
    from message_lifecycle.stores.iceberg.engine import engine_of_process
    from message_lifecycle.stores.iceberg.view_file import drop_deleted, drop_stream
    from message_lifecycle.stores.iceberg.writer import IcebergWriter

    load_config()
    clock = _Clock()
    ledger = open_ledger("sqlite://", clock=clock)
    services = with_parts(_iceberg(server, ledger, scratch=True), key_secret=_scratch_secret())
    writer = IcebergWriter(engine_of_process)
    scratch = f"scenario-{token_hex(6)}"

    def close() -> None:
        catalog, streams = _tables(os.environ.get(CATALOG_HOME)).catalog, TopicName(stream=scratch, topic="any").namespace
        # Also drop streams without a topic, because a deleted topic's stream stays.
        for namespace in [name for (name, *_) in catalog.list_namespaces() if name.startswith(streams)]:
            drop_stream(catalog, namespace)
        drop_deleted(_tables(os.environ.get(CATALOG_HOME)), f"{scratch}.")
        ledger.close()

    return World(services=services, writer=writer, set_now=clock.set, scratch=scratch, close=close)


def record_log_world(logs: RecordLogs, server: Mapping[str, Value], close: Callable[[], None], *, groups: Groups | None = None) -> World:
    """Scratch logs of single records, with a scratch ledger."""
    from message_lifecycle.app.backends import record_log
    from message_lifecycle.app.operations.registry import operations_on_records
    from message_lifecycle.app.scenario import World
    from message_lifecycle.gates.plain import PlainGate
    from message_lifecycle.ledger import open_ledger
    from message_lifecycle.stores.record_log.eraser import RecordLogEraser
    from message_lifecycle.stores.record_log.store import RecordLogStore

    clock = _Clock()
    log = RecordLogStore(logs, server=server, operations=operations_on_records)
    ledger, eraser = open_ledger("sqlite://", clock=clock), RecordLogEraser(logs, server=server)
    services = record_log(log, logs, server, ledger=ledger, gate=PlainGate(), eraser=eraser, groups=groups)
    services = with_parts(services, key_secret=_scratch_secret())
    return World(services=services, writer=log, set_now=clock.set, close=close, quarantined=log.quarantined)


def json_file_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:  # noqa: ARG001  # it has no options
    """Scratch files in a folder of their own."""
    from message_lifecycle.app.scenario import corrupt_line
    from message_lifecycle.stores.json_file import JsonFiles

    folder = TemporaryDirectory(prefix="lifecycle-")
    logs = JsonFiles(Path(folder.name))
    made = record_log_world(logs, server, folder.cleanup)

    def damage(name: TopicName, line: int, text: str) -> None:
        corrupt_line([logs.file(name)], line + 1, text)  # the first line is the log's head

    return replace(made, damage=damage)


def redis_streams_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:  # noqa: ARG001  # it has no options
    """Scratch streams on the Redis server that the environment names. Raises BackendUnavailable."""
    return scratch_streams(named_redis("scenario"), server)


def scratch_streams(redis: Server, server: Mapping[str, Value]) -> World:
    """Scratch streams on a Redis server, under a prefix of their own."""
    from message_lifecycle.stores.redis_streams.log import RedisLogs

    logs = RedisLogs(redis, prefix=f"scenario-{token_hex(6)}")

    def close() -> None:
        for name in logs.names():
            logs.drop(name)
        logs.close()

    return record_log_world(logs, server, close, groups=logs)


def _scratch_secret() -> Callable[[bool], KeySecret]:
    """Return a new secret, which lives as long as the scratch ledger."""
    secret = KeySecret(token_bytes(MIN_SECRET_BYTES))
    return lambda _: secret


class _Clock:
    """A scenario's own clock, set by the running step."""

    def __init__(self) -> None:
        self._now = Instant(0)

    def __call__(self) -> Instant:
        return self._now

    def set(self, now: Instant) -> None:
        self._now = now


def rotating_file_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
    """Scratch files in a folder of their own."""
    from message_lifecycle.app.scenario import corrupt_line
    from message_lifecycle.stores.rotating_file import MAX_BYTES, RotatingFiles
    from message_lifecycle.stores.rotating_manifest import read_manifest

    folder = TemporaryDirectory(prefix="lifecycle-")
    logs = RotatingFiles(Path(folder.name), max_bytes=options.max_bytes or MAX_BYTES)
    made = record_log_world(logs, server, folder.cleanup)

    def damage(name: TopicName, line: int, text: str) -> None:
        of_topic = logs.folder(name)
        corrupt_line([of_topic / file for file in read_manifest(of_topic).files], line, text)

    return replace(made, damage=damage)


WORLDS: Mapping[Backend, MakeWorld] = {
    "memory": memory_world,
    "iceberg": iceberg_world,
    "json_file": json_file_world,
    "redis_streams": redis_streams_world,
    "rotating_file": rotating_file_world,
}
"""By backend; `iceberg`: in the lake that is configured."""


def scratch_worlds() -> Mapping[Backend, MakeWorld]:
    """Return the worlds for `--store`. The embedded default replaces the configured servers, because it needs no running server."""
    embedded = embedded_default()
    return {**WORLDS, **embedded.scratch_worlds()} if embedded else WORLDS
