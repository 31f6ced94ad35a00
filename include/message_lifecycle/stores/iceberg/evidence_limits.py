"""Evidence about limits by number and by size: counted again on the plan's snapshot, and searched in the staged one (P5).

The settings alone decide; the plan's bounds and counts are not used. The count reads only the data that the limits need: the sizes of
kept messages, and the files that a limit cuts. Messages beyond a limit come from the plan's snapshot alone. In the staged snapshot a held
message may fit again, after the removal of a larger message before it (RET-4, DEL-9).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from message_lifecycle.model.message import NOTHING, DueRows, LimitQuestion, Place, Reason, RowQuestion
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import is_limit
from message_lifecycle.model.rules import AnyOfRules
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import Positions, Vectors, read_rows
from message_lifecycle.stores.iceberg.due_rows import due_rows
from message_lifecycle.stores.iceberg.engine import job_text
from message_lifecycle.stores.iceberg.evidence_files import judging_failed, schema
from message_lifecycle.stores.iceberg.file_tasks import FileReader
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.engine import Engine


LIMITS = schema("most_records", "most_bytes", "within", "beyond")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """Evidence about limits; empty if no limit acts.

    Attributes:
        beyond: Offsets beyond the limits in the plan's snapshot, as `ranges_text`, by file (relative to the table's location) and reason.
        left: By segment, the last offset and the number of these messages that are still in the staged snapshot.
    """

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
    engine: Callable[[], Engine | None],
) -> LimitEvidence:
    """Return the evidence about limits.

    Args:
        table: The log's table.
        plan: The plan, for its time, its reasons and its holders.
        policy: The topic's policy.
        expired: Segments that have expired.
        before: The deletion vectors of the plan's snapshot.
        after: The deletion vectors of the staged snapshot.
        stays: The paths of the staged snapshot's data files.
        renewed: Places of older markers that the plan removes because their key has a new one (MRK-5).
        engine: Returns the engine whose tasks read many files. None: this process reads them.
    """
    if policy.limits is None or "retention_count" not in plan.reasons:
        return LimitEvidence()
    question = _question(plan, policy, frozenset(expired))
    was = due_rows(table, before.snapshot_id, question, engine=engine)
    same = before.snapshot_id == after.snapshot_id
    now = was if same else due_rows(table, after.snapshot_id, question, ends=dict(plan.requirements.end_offsets), engine=engine)
    beyond = [entry for entry in was.due if is_limit(entry.reason)]
    left: dict[Place, tuple[int, int]] = {}
    for entry, last, rows in _find_remaining(table, plan, beyond, before=before, after=after, stays=stays, engine=engine):
        if rows:
            place = entry.partition, entry.base_offset
            known = left.get(place, (NOTHING, 0))
            left[place] = max(last, known[0]), known[1] + rows
    count, stay = sum(entry.rows for entry in beyond), sum(rows for _, rows in left.values())
    held = sum(entry.rows for entry in plan.held if is_limit(entry.reason))
    row = {
        # Messages that stay beyond the limits without a holder count against the plan.
        "most_records": now.limited.most_records + max(0, stay - held),
        "most_bytes": now.limited.most_bytes,
        # Messages that rules of age remove are not part of these counts. The rest must equal the messages that the limits keep, except for
        # renewed markers.
        "within": (was.limited.left - count) - (now.limited.left - stay) - _within(renewed, beyond),
        "beyond": count,
    }
    offsets: dict[tuple[str, str], str] = {(entry.file, entry.reason): entry.taken for entry in beyond}
    return LimitEvidence(frame=pa.Table.from_pylist([row], schema=LIMITS), beyond=offsets, left=left)


def _within(places: Iterable[tuple[int, int]], beyond: Sequence[DueRows]) -> int:
    """Count the places that lie within the limits."""
    found = 0
    for partition, group in groupby(sorted(places), key=itemgetter(0)):
        offsets = np.array([offset for _, offset in group], dtype=np.int64)
        for entry in beyond:
            if entry.partition == partition:
                offsets = offsets[~is_named(offsets, entry.taken)]
        found += len(offsets)
    return found


def _find_remaining(
    table: Table,
    plan: Plan,
    beyond: Iterable[DueRows],
    *,
    before: Vectors,
    after: Vectors,
    stays: Container[str],
    engine: Callable[[], Engine | None],
) -> Iterator[tuple[DueRows, int, int]]:
    """Yield each entry of a file that stays, with the last offset and the number of its messages that are still there.

    A file with an unchanged deletion vector is not read.
    """
    prefix = location_prefix(table.location())
    changed: list[DueRows] = []
    files: list[_CutFile] = []
    for entry in beyond:
        path = absolute(prefix, entry.file)
        if path not in stays:
            continue
        if np.array_equal(before[path], after[path]):
            yield entry, entry.last_offset, entry.rows
        else:
            changed.append(entry)
            files.append(_CutFile(path=path, beyond=entry.taken, removed=after[path]))
    reader = FileReader(
        question=_count_remaining,
        store=Store.of_io(table.io, table.location()),
        description=job_text(plan, f"judging limits in {len(files)} files"),
        failed=judging_failed,
    )
    for entry, (last, rows) in zip(changed, reader.read(files, table.io, engine), strict=True):
        yield entry, last, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutFile:
    """A data file that a limit cuts, and whose deletion vector the staged change has replaced.

    Attributes:
        beyond: The messages of the file that are beyond the limit, as `ranges_text` writes them.
        removed: The positions that the new deletion vector marks.
    """

    path: str
    beyond: str
    removed: Positions


def _count_remaining(io: FileIO, file: _CutFile) -> tuple[int, int]:
    """Return the last offset and the number of messages beyond a limit that are still in a file."""
    rows = read_rows(io, file.path, file.removed, ())
    remaining = rows.offsets[rows.alive & is_named(rows.offsets, file.beyond)]
    return int(remaining.max(initial=NOTHING)), len(remaining)


def _question(plan: Plan, policy: Policy, expired: frozenset[Place]) -> RowQuestion:
    """Return the question of the settings alone, without bounds of holders: a held message counts neither as left nor twice (DEL-9)."""
    assert policy.limits is not None
    rules, cleans = expiry.age_rules(policy), "expiry" in plan.reasons
    named = {reason: rule for reason, rule in rules.items() if reason in plan.reasons}
    reasons = [Reason(name=reason, rule=rule, segments=expired if reason == "expiry" else None) for reason, rule in named.items()]
    lapsed = [rules[reason] for reason in (("expiry",) if cleans else ("expiry", "ttl")) if reason in rules]
    beyond = LimitQuestion(limits=policy.limits, lapsed=AnyOfRules(tuple(lapsed)) if lapsed else None)
    return RowQuestion(as_of=plan.as_of, reasons=tuple(reasons), beyond=beyond)
