"""A table's metadata as the past that reclaiming judges: snapshots, whose word they carry, branches and tags (MSG-4, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.tables import RefFact, SnapshotFact, TableHistory
from message_lifecycle.stores.iceberg.document import TableDocument
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, LEDGER

_MICROS = 1_000
_OURS = (END_OFFSETS, LEDGER)
_KAFKA_CONNECT = "kafka.connect."
# Written anew with each commit, so that one is as good as any: what counts are the offsets, by control topic and group.
_OF_COMMIT = {f"{_KAFKA_CONNECT}{key}" for key in ("commit-id", "commitId", "task-id", "vtts", "valid-through-ts")}
_FLINK_CHECKPOINT, _FLINK_JOB, _FLINK_OPERATOR = "flink.max-committed-checkpoint-id", "flink.job-id", "flink.operator-id"
_SPARK_STREAM, _SPARK_EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_FOREIGN = ("flink.", _KAFKA_CONNECT, "spark.sql.streaming.")


def progress_in(summary: Mapping[str, str]) -> Iterator[str]:
    """Who keeps a word in this summary that it looks for in the newest ancestor which has it: readers of this table's state, and writers
    that commit exactly once by it. Other writers' keys are notes that nobody comes back for."""
    for key in _OURS:
        if key in summary:
            yield key
    connect = [key for key in summary if key.startswith(_KAFKA_CONNECT)]
    offsets = [key for key in connect if key not in _OF_COMMIT]
    if connect:
        yield from sorted(offsets) or ["kafka.connect"]
    if _FLINK_CHECKPOINT in summary:
        yield f"flink job {summary.get(_FLINK_JOB, '?')} operator {summary.get(_FLINK_OPERATOR, '?')}"
    if _SPARK_EPOCH in summary:
        yield f"spark stream {summary.get(_SPARK_STREAM, '?')}"


def words_in(summaries: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """What other writers would find by walking these summaries, newest first: of each that is the newest with the progress of one of them,
    the keys that other writers keep."""
    met, found = set(_OURS), list[dict[str, str]]()
    for summary in summaries:
        writers = set(progress_in(summary))
        if writers - met:
            found.append({key: value for key, value in summary.items() if key.startswith(_FOREIGN)})
        met |= writers
    return found


def history_of(document: TableDocument, table: str) -> TableHistory:
    """`table`: its kind, empty for the log itself."""
    content, properties = document.content, document.properties
    age, newest = properties.get("history.expire.max-snapshot-age-ms"), properties.get("history.expire.min-snapshots-to-keep")
    ref_age = properties.get("history.expire.max-ref-age-ms")
    left = _main_left(content.get("snapshot-log") or ())
    return TableHistory(
        table=table,
        table_uuid=document.uuid,
        snapshots=tuple(_snapshot(entry, left) for entry in content.get("snapshots") or ()),
        refs=tuple(
            RefFact(
                name=name,
                snapshot_id=int(ref["snapshot-id"]),
                is_branch=ref["type"] == "branch",
                max_ref_age_us=_micros(ref.get("max-ref-age-ms", ref_age)),
                max_snapshot_age_us=_micros(ref.get("max-snapshot-age-ms", age)),
                min_snapshots=max(1, int(ref.get("min-snapshots-to-keep", newest or 1))),
            )
            for name, ref in sorted(_refs(document).items())
        ),
    )


def _refs(document: TableDocument) -> Mapping[str, Mapping[str, Any]]:
    """Documents of older writers name main by its snapshot alone."""
    found = dict(document.content.get("refs") or {})
    if document.current_id is not None:
        found.setdefault("main", {"snapshot-id": document.current_id, "type": "branch"})
    return found


def _main_left(log: Sequence[Mapping[str, Any]]) -> dict[int, Instant]:
    """When main went on from a snapshot to another, which need not be one that followed it."""
    left: dict[int, Instant] = {}
    for entry, after in pairwise(log):
        snapshot_id, at = int(entry["snapshot-id"]), Instant(int(after["timestamp-ms"]) * _MICROS)
        left[snapshot_id] = max(left.get(snapshot_id, at), at)
    return left


def _snapshot(entry: Mapping[str, Any], left: Mapping[int, Instant]) -> SnapshotFact:
    parent = entry.get("parent-snapshot-id")
    return SnapshotFact(
        snapshot_id=int(entry["snapshot-id"]),
        parent_id=None if parent is None else int(parent),
        at=Instant(int(entry["timestamp-ms"]) * _MICROS),
        carries=tuple(progress_in(entry.get("summary") or {})),
        main_left_at=left.get(int(entry["snapshot-id"])),
    )


def _micros(milliseconds: object) -> int | None:
    return None if milliseconds is None else int(str(milliseconds)) * _MICROS
