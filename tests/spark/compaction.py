"""A topic with its compacted table, compacted by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex

from message_lifecycle.model.names import TopicName
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg import new_table
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import CompactionJob, PartitionResult, kernel
from message_lifecycle.stores.iceberg.compaction.new_view import SHAPE, TABLE_PROPERTIES
from message_lifecycle.stores.iceberg.compaction.view_table import partition_job, sources
from message_lifecycle.stores.iceberg.data_files import commit
from message_lifecycle.stores.iceberg.engine import engine_of_process

KIND = "compacted"


def create_view(name: TopicName) -> None:
    """An empty compacted table beside the topic's."""
    assert new_table.create((name.namespace, name.table(KIND)), SHAPE, properties=TABLE_PROPERTIES, summary={})


def job_of(
    name: TopicName, rules: CompactionRules, *, after: Mapping[int, int], through: Mapping[int, int], rewrite: bool = False
) -> CompactionJob:
    """The work of every partition in `through`, on the newest snapshots."""
    tables = Tables()
    log, view = tables.load(name), tables.load(name, kind=KIND)
    of_log, of_view = sources(log, log.current_snapshot(), rules), sources(view, view.current_snapshot(), rules)
    partitions = (
        partition_job(partition, of_log, of_view, after=after.get(partition, -1), through=end, rewrite=rewrite)
        for partition, end in through.items()
    )
    return CompactionJob(run=token_hex(8), data_folder=f"{view.location()}/data", rules=rules, partitions=tuple(partitions))


def compact_topic(name: TopicName, job: CompactionJob) -> list[PartitionResult]:
    """Tasks and commit, on main."""
    results = kernel.run(engine_of_process(), job)
    commit(
        engine_of_process(),
        engine_of_process().table(name, kind=KIND),
        results,
        branch="main",
        properties={"lifecycle.operation": "compaction"},
    )
    engine_of_process().forget(name, kind=KIND)
    return results
