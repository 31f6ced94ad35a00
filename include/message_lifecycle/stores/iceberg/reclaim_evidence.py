"""The evidence for a reclaim's gate: PyIceberg's own readers inspect snapshots and manifests again, independently of the planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from message_lifecycle.model.change import Forget
from message_lifecycle.model.errors import OutsideTable, PlanConflict, UnsafePath
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.history import NamedFile, inventory, progress_in
from message_lifecycle.stores.iceberg.layout import of_plan, summary_of
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.table_files import ListedFile, check_name, list_files
from message_lifecycle.stores.iceberg.table_folder import Within

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

WRONG = ("needed", "missing", "young", "pointed", "progress", "outside", "fresh")
"""Frames of what is wrong, named; each is to be empty."""
_SHOWN = 100
"""How many of them are named; one is enough to block."""
_MICROS = 1_000


@dataclass(slots=True)
class _Seen:
    """Sums over all tables of the topic. `wrong`: findings by frame."""

    reachable: dict[str, bool] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=lambda: {frame: [] for frame in WRONG})
    files: int = 0
    size_bytes: int = 0
    total_bytes: int = 0

    def add(self, frame: str, names: Iterable[object]) -> None:
        rows = self.wrong[frame]
        rows += map(str, islice(names, max(0, _SHOWN - len(rows))))


def reclaim_evidence(tables: Tables, plan: Plan, policy: Policy) -> Mapping[str, object]:
    """Return the gate's frames: `tables` (is any of its listed files reachable?), one frame for each name in `WRONG`, and `figures`."""
    import pyarrow as pa

    seen = _Seen()
    for action in plan.forgets:
        _look(tables, plan, policy, action, seen)
    figures = {
        "snapshots": sum(len(action.snapshots) for action in plan.forgets),
        "files": seen.files,
        "bytes": seen.size_bytes,
        "fraction_bytes": seen.size_bytes / seen.total_bytes if seen.total_bytes else 0.0,
        "asks": len(plan.asks),
    }
    return {
        **{frame: _names(names) for frame, names in seen.wrong.items()},
        "tables": pa.table({"name": pa.array(seen.reachable, pa.string()), "reachable": pa.array(seen.reachable.values(), pa.bool_())}),
        "figures": pa.Table.from_pylist([figures]),
    }


def _names(names: list[str]) -> pa.Table:
    import pyarrow as pa

    return pa.table({"name": pa.array(names, pa.string())})


def _look(tables: Tables, plan: Plan, policy: Policy, action: Forget, seen: _Seen) -> None:
    with reaching_catalog():
        table = tables.catalog.load_table((plan.topic.namespace, plan.topic.table(action.table)))
    if str(table.metadata.table_uuid) != action.table_uuid:
        raise PlanConflict(plan.plan_id, "a table of the topic is another than was planned for")
    roles = {name: removal.role for removal in action.files for name in removal.files}
    going = frozenset(action.snapshots)
    stays = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in going]
    seen.add("outside", (name for name in roles if not lies_below(table, name)))
    seen.reachable[action.table or "log"] = False
    with inventory() as lists:
        try:
            lists.add_named(_noting_needed(find_named_files(table, stays), roles, seen))
            seen.reachable[action.table or "log"] = lists.count_kept() > 0
            lists.add_listed(_counted(list_files(table.io, table.location()), roles, plan, policy, seen))
            seen.add("missing", lists.missing(_SHOWN))
        except UnsafePath as unsafe:
            seen.add("outside", [unsafe])
    refs = {name: ref.snapshot_id for name, ref in table.refs().items() if name not in action.refs}
    seen.add("pointed", (name for name, snapshot_id in refs.items() if snapshot_id in going))
    seen.add("young", find_young_snapshots(table, plan.as_of - policy.undo_window_us, going))
    seen.add("progress", _lost_progress(table, refs, going))


def lies_below(table: Table, name: str) -> bool:
    """True if the name is a plain name of a file below the table's location."""
    try:
        check_name(table.location(), name)
    except OutsideTable:
        return False
    return True


def find_named_files(table: Table, snapshots: Iterable[Snapshot]) -> Iterator[NamedFile]:
    """Yield every file that reading these snapshots by PyIceberg needs. Names are relative to the location, or whole paths outside it.

    Raises UnsafePath.
    """
    within, read = Within(table.location()), set[str]()
    yield NamedFile(within.name(table.metadata_location), "metadata")
    for snapshot in snapshots:
        yield NamedFile(within.name(snapshot.manifest_list), "list")
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            yield NamedFile(within.name(manifest.manifest_path), "manifest")
            for entry in manifest.fetch_manifest_entry(table.io):
                yield NamedFile(within.name(entry.data_file.file_path), "data")


def _noting_needed(files: Iterable[NamedFile], roles: Mapping[str, str], seen: _Seen) -> Iterator[NamedFile]:
    for file in files:
        if file.name in roles:
            seen.add("needed", [file.name])
        yield file


def _counted(files: Iterable[ListedFile], roles: Mapping[str, str], plan: Plan, policy: Policy, seen: _Seen) -> Iterator[ListedFile]:
    for file in files:
        seen.total_bytes += file.size_bytes
        role = roles.get(file.name)
        if role is not None:
            seen.files += 1
            seen.size_bytes += file.size_bytes
            if role == "orphan" and file.changed_at_ms * _MICROS > plan.as_of - policy.orphan_age_us:
                seen.add("fresh", [file.name])
        yield file


def find_young_snapshots(table: Table, began: int, going: frozenset[int]) -> Iterator[int]:
    """Yield the removed snapshots that are too young: made after the undo window `began`, or the head of main until later.

    The snapshot before a plan counts as old as the plan's commit, because the staged snapshot between the two may be older.
    """
    for snapshot in table.metadata.snapshots:
        if snapshot.timestamp_ms * _MICROS > began:
            before, own = of_plan(snapshot.snapshot_id, snapshot.parent_snapshot_id, summary_of(snapshot))
            yield from {*own, before or snapshot.snapshot_id} & going
    for left, after in pairwise(table.metadata.snapshot_log):
        if after.timestamp_ms * _MICROS > began and left.snapshot_id in going:
            yield left.snapshot_id


def _lost_progress(table: Table, refs: Mapping[str, int], going: frozenset[int]) -> Iterator[str]:
    """For each branch that stays, yield the writers whose newest progress a walk back would no longer find."""
    for name, snapshot_id in refs.items():
        snapshot, met, broken = table.snapshot_by_id(snapshot_id), set[str](), False
        while snapshot is not None:
            broken = broken or snapshot.snapshot_id in going
            for writer in progress_in(summary_of(snapshot)):
                if writer not in met and broken:
                    yield f"{writer} on {name}"
                met.add(writer)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
