"""What the gate judges of limits by number and by size: counted anew on the plan's snapshot, and looked for in the staged one (P5).

The settings alone say what is asked; neither the plan's bounds nor its own counts are used. Read is what the limits themselves need: the
sizes of what they keep, and the files in which they cut. What lies beyond is of the plan's snapshot alone: in the staged one what is held
may fit again, where a larger message before it has gone (RET-4, DEL-9).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import Beyond, DueRows, Place, Reason, RowQuestion
from message_lifecycle.model.rules import Either
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NOTHING
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.iceberg.data_rows import Positions, Vectors, read_rows
from message_lifecycle.stores.iceberg.due_rows import due_rows
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.row_deletes import within

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

LIMITS = pa.schema([(name, pa.int64()) for name in ("most_records", "most_bytes", "within", "beyond")])
BY_LIMIT = ("retention_count", "retention_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """`beyond`: offsets as `ranges_text` by file (relative to the table's location) and reason, in the plan's snapshot; `left`: those that
    are still there in the staged one, by segment: the last offset, and how many. Empty where no limit acts."""

    frame: pa.Table = field(default_factory=LIMITS.empty_table)
    beyond: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left: Mapping[Place, tuple[int, int]] = field(default_factory=dict)


def limit_evidence(
    table: Table,
    plan: Plan,
    policy: Policy,
    expired: Iterable[Place],
    *,
    before: Vectors,
    after: Vectors,
    stays: Container[str],
    renewed: Iterable[tuple[int, int]],
) -> LimitEvidence:
    """`expired`: segments that have expired; `before` and `after`: of the plan's snapshot and of the staged one; `stays`: the paths of the
    latter's data files. `renewed`: places of older markers that go because their key has a new one (MRK-5)."""
    if policy.limits is None or "retention_count" not in plan.reasons:
        return LimitEvidence()
    question = _question(plan, policy, frozenset(expired))
    was = due_rows(table, before.snapshot_id, question)
    same = before.snapshot_id == after.snapshot_id
    now = was if same else due_rows(table, after.snapshot_id, question, ends=dict(plan.requirements.end_offsets))
    beyond = [entry for entry in was.due if entry.reason in BY_LIMIT]
    left: dict[Place, tuple[int, int]] = {}
    prefix = location_prefix(table.location())
    for entry in beyond:
        path = absolute(prefix, entry.file)
        last, rows = _still(table.io, path, entry, before[path], after[path]) if path in stays else (NOTHING, 0)
        if rows:
            known = left.get((entry.partition, entry.base_offset), (NOTHING, 0))
            left[entry.partition, entry.base_offset] = max(last, known[0]), known[1] + rows
    count, stay = sum(entry.rows for entry in beyond), sum(rows for _, rows in left.values())
    held = sum(entry.rows for entry in plan.held if entry.reason in BY_LIMIT)
    row = {
        # What stays beyond the limits without a holder is kept against them.
        "most_records": now.limited.most_records + max(0, stay - held),
        "most_bytes": now.limited.most_bytes,
        # All that rules of age take is apart from this; what is left of the rest is what the limits keep, but for the renewed markers.
        "within": (was.limited.left - count) - (now.limited.left - stay) - _within(renewed, beyond),
        "beyond": count,
    }
    offsets: dict[tuple[str, str], str] = {(entry.file, entry.reason): entry.taken for entry in beyond}
    return LimitEvidence(frame=pa.Table.from_pylist([row], schema=LIMITS), beyond=offsets, left=left)


def _within(places: Iterable[tuple[int, int]], beyond: Sequence[DueRows]) -> int:
    """How many of the places lie within the limits."""
    found = 0
    for partition, group in groupby(sorted(places), key=itemgetter(0)):
        offsets = np.array([offset for _, offset in group], dtype=np.int64)
        for entry in beyond:
            if entry.partition == partition:
                offsets = offsets[~within(offsets, entry.taken)]
        found += len(offsets)
    return found


def _still(io: FileIO, path: str, entry: DueRows, was: Positions, now: Positions) -> tuple[int, int]:
    """Of the messages that lay beyond in a file that stays: the last that is there, and how many. `was` and `now`: what is removed of it;
    it is read where they differ."""
    if np.array_equal(was, now):
        return entry.last_offset, entry.rows
    rows = read_rows(io, path, now, ())
    left = rows.offsets[rows.alive & within(rows.offsets, entry.taken)]
    return int(left.max(initial=NOTHING)), len(left)


def _question(plan: Plan, policy: Policy, expired: frozenset[Place]) -> RowQuestion:
    """As the settings read, without anybody's bounds: what is held counts neither as left nor twice (DEL-9)."""
    assert policy.limits is not None
    expiry, ttl, age = age_rules.expiry(policy), age_rules.ttl(policy), age_rules.retention_age(policy)
    reasons = [Reason(name="retention_age", rule=age)] if age is not None else []
    lapsed = [rule for rule in (expiry, ttl) if rule is not None]
    if "expiry" in plan.reasons:
        reasons = [Reason(name="ttl", rule=ttl), *reasons] if ttl is not None else reasons
        reasons = [Reason(name="expiry", rule=expiry, segments=expired), *reasons] if expiry is not None else reasons
        lapsed = [expiry] if expiry is not None else []
    beyond = Beyond(limits=policy.limits, lapsed=Either(tuple(lapsed)) if lapsed else None)
    return RowQuestion(as_of=plan.as_of, reasons=tuple(reasons), beyond=beyond)
