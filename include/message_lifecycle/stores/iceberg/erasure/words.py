"""What other writers find by walking back from a branch, kept by an erasure that ends the branch's history.

A writer that commits exactly once (Flink, Kafka Connect, a Spark stream) asks the newest ancestor with its own word how far it came; where
it finds none, it writes again what is in the table, the erased key among it. One summary has room for one word of each kind, so
what does not stand in the head's own summary stands in snapshots before it, which read no file: nothing comes back by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from message_lifecycle.stores.iceberg.erasure.manifest_files import write_list

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """`snapshots`: those that carry words, oldest first; `head`: the branch's own, with them before it."""

    head: Snapshot
    snapshots: tuple[Snapshot, ...] = ()


def before_head(io: FileIO, head: Snapshot, words: Sequence[Mapping[str, str]], *, lists: Mapping[int, str]) -> Words:
    """`words`: newest first; those in the head's own summary need no snapshot. `lists`: for each id that one may take, its list's path.

    They are as old as the head, and no newer than it by number, so whatever ages the head ages them."""
    left = [word for word in words if not word.items() <= head["summary"].items()]
    made: list[Snapshot] = []
    for word, (snapshot_id, path) in zip(reversed(left), lists.items(), strict=False):
        sequence_number, first_row_id = int(head["sequence-number"]), int(head.get("first-row-id", 0))
        write_list(io, path, (), snapshot_id=snapshot_id, sequence_number=sequence_number, first_row_id=first_row_id)
        made.append(
            {
                "sequence-number": sequence_number,
                "snapshot-id": snapshot_id,
                **({"parent-snapshot-id": made[-1]["snapshot-id"]} if made else {}),
                "timestamp-ms": head["timestamp-ms"],
                # Readers of changes pass by what replaces nothing.
                "summary": {"operation": "replace", **word},
                "manifest-list": path,
                **({"schema-id": head["schema-id"]} if "schema-id" in head else {}),
                "first-row-id": first_row_id,
                "added-rows": 0,
            }
        )
    return Words(head={**head, "parent-snapshot-id": made[-1]["snapshot-id"]} if made else head, snapshots=tuple(made))
