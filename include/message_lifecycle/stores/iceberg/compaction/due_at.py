"""When the first message of a view may go by its age or its delete horizon: never later than the truth (CMP-5, CMP-7, CMP-8).

By the bounds of its files, where those lie after the run. A file whose bounds do not holds messages that the run has marked, or
the metadata do not say: its columns are read, or else every later run would find something due and do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.manifest import ManifestContent

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.iceberg import rule_bounds, rule_columns
from message_lifecycle.stores.iceberg.compaction.columns import DELETE_HORIZON
from message_lifecycle.stores.iceberg.data_rows import Vectors, read_rows
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.manifests import DELETED, entries, files_of, picking

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_HORIZON = "delete_horizon"


def due_at(table: Table, snapshot: Snapshot, policy: Policy, *, as_of: Instant) -> Instant | None:
    """None: never. `as_of`: of the run that made the snapshot, which has taken what was due then."""
    rule = age_rules.hidden(policy)
    prefix, horizons, vectors = location_prefix(table.location()), dict(_delete_horizons(table, snapshot)), Vectors(table, snapshot)
    columns = {*rule_columns.columns_of(rule), _HORIZON}
    times = []
    for file in files_of(table, snapshot):
        if file.deleted >= file.rows:
            continue
        path = absolute(prefix, file.name)
        earliest = min(rule_bounds.begins(rule, file).some, horizons.get(path, INT64_MAX))
        if earliest <= as_of:
            found = read_rows(table.io, path, vectors[path], columns)
            until = np.asarray(found.columns[_HORIZON], np.int64)
            until = np.where(until == rule_columns.UNKNOWN, INT64_MAX, until)
            each = np.minimum(rule_columns.begins(rule, found.columns, len(found.offsets)), until)
            earliest = int(each[found.alive].min(initial=INT64_MAX))
        times.append(earliest)
    return min((Instant(time) for time in times if time < INT64_MAX), default=None)


def _delete_horizons(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """The earliest delete horizon of each file that has one."""
    for manifest in snapshot.manifests(table.io):
        if manifest.content != ManifestContent.DATA:
            continue
        for status, _, (path, lower) in entries(table.io, manifest, picking("file_path", "lower_bounds")):
            bound = (lower or {}).get(DELETE_HORIZON)
            if bound is not None and status != DELETED:
                yield path, int.from_bytes(bound, "little", signed=True)
