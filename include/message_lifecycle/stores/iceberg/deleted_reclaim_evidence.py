"""What the gate sees of a deleted topic that goes for good: a second look, by PyIceberg's own readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from message_lifecycle.model.change import MovedTable
from message_lifecycle.model.errors import UnsafePath
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import topic_tables
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.file_names import Within, is_absolute, location_prefix
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.reclaim_evidence import lies_below, named
from message_lifecycle.stores.iceberg.table_folder import listed
from message_lifecycle.stores.iceberg.topic_delete import place_of

_SHOWN = 100
_WRONG = ("outside", "unlisted", "fresh")


def drop_evidence(tables: Tables, plan: Plan, policy: Policy) -> Mapping[str, object]:
    """Frames `tables`, those of what is wrong, and `figures`."""
    import pyarrow as pa

    wrong: dict[str, list[str]] = {frame: [] for frame in _WRONG}
    figures = {"files": 0, "bytes": 0, "asks": len(plan.asks)}
    same = [_look(tables, plan, policy, action, wrong, figures) for action in plan.moved("gone")]
    return {
        **{frame: pa.table({"name": pa.array(names[:_SHOWN], pa.string())}) for frame, names in wrong.items()},
        "tables": pa.table({"same": pa.array(same, pa.bool_())}),
        "figures": pa.Table.from_pylist([figures]),
    }


def _look(tables: Tables, plan: Plan, policy: Policy, action: MovedTable, wrong: dict[str, list[str]], figures: dict[str, int]) -> bool:
    place = place_of(action.table_uuid)
    if tables.pointers.one(place) is None:
        return False
    with reaching_catalog():
        table = tables.catalog.load_table(place)
    mine = (change for change in plan.forgets if change.table_uuid == action.table_uuid)
    roles = {name: removal.role for change in mine for removal in change.files for name in removal.files}
    outside = wrong["outside"]
    outside += (name for name in roles if not lies_below(table, name))
    try:
        outside += (file.name for file in named(table, table.metadata.snapshots) if is_absolute(file.name))
        topic_tables.check_places_alone(tables, {place: Within(table.location())})
        for file in listed(table.io, table.location()):
            if file.name not in roles:
                wrong["unlisted"].append(file.name)
                continue
            figures["files"] += 1
            figures["bytes"] += file.size_bytes
            if roles[file.name] == "orphan" and file.changed_at_ms * 1_000 > plan.as_of - policy.orphan_age_us:
                wrong["fresh"].append(file.name)
    except UnsafePath as unsafe:
        outside.append(str(unsafe))
    found: tuple[Any, ...] = (str(table.metadata.table_uuid), table.metadata.current_snapshot_id, table.location(), table.metadata_location)
    return found == (action.table_uuid, action.snapshot_id, action.location, location_prefix(action.location) + action.metadata)
