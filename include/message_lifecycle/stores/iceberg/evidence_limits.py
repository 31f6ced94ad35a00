"""What the gate judges of limits by number and by size: counted anew on the staged snapshot, and on the plan's for what goes (P5).

The settings alone say what is asked; neither the plan's bounds nor its own counts are used. Read is what the limits themselves need: the
sizes of what they keep, and the files in which they cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import Beyond, DueRows, Place, Reason, RowAnswer, RowQuestion
from message_lifecycle.model.rules import Either
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.iceberg.due_rows import due_rows

if TYPE_CHECKING:
    from pyiceberg.table import Table

LIMITS = pa.schema([(name, pa.int64()) for name in ("most_records", "most_bytes", "within", "beyond")])
BY_LIMIT = ("retention_count", "retention_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """`beyond`: offsets as `ranges_text` by file (relative to the table's location) and reason, in the plan's snapshot; `left`: what still
    lies beyond in the staged one, by segment: its last offset, and how many. Empty where no limit acts."""

    frame: pa.Table = field(default_factory=LIMITS.empty_table)
    beyond: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left: Mapping[Place, tuple[int, int]] = field(default_factory=dict)


def limit_evidence(table: Table, plan: Plan, policy: Policy, expired: Iterable[Place], *, before: int, after: int) -> LimitEvidence:
    """`expired`: segments that have expired; `before` and `after`: ids of the plan's snapshot and of the staged one."""
    acts = plan.operation == "retention" or (plan.operation == "message_cleaner" and policy.cleaner_enabled)
    if policy.limits is None or not acts:
        return LimitEvidence()
    question = _question(plan, policy, frozenset(expired))
    was = due_rows(table, before, question)
    now = was if before == after else due_rows(table, after, question, ends=dict(plan.requirements.end_offsets))
    beyond, still = _by_limit(was), _by_limit(now)
    # All that rules of age take is apart from this; what is left of the rest is what the limits keep.
    kept_before, kept_after = (found.limited.left - sum(entry.rows for entry in rows) for found, rows in ((was, beyond), (now, still)))
    held = sum(entry.rows for entry in plan.held if entry.reason in BY_LIMIT)
    left: dict[Place, tuple[int, int]] = {}
    for entry in still:
        place = entry.partition, entry.base_offset
        last, count = left.get(place, (entry.last_offset, 0))
        left[place] = max(last, entry.last_offset), count + entry.rows
    unheld = sum(entry.rows for entry in still) - held
    row = {
        # What stays beyond the limits without a holder is kept against them.
        "most_records": now.limited.most_records + max(0, unheld),
        "most_bytes": now.limited.most_bytes,
        "within": kept_before - kept_after,
        "beyond": sum(entry.rows for entry in beyond),
    }
    offsets: dict[tuple[str, str], str] = {(entry.file, entry.reason): entry.taken for entry in beyond}
    return LimitEvidence(frame=pa.Table.from_pylist([row], schema=LIMITS), beyond=offsets, left=left)


def _question(plan: Plan, policy: Policy, expired: frozenset[Place]) -> RowQuestion:
    """As the settings read, without anybody's bounds: what is held counts neither as left nor twice (DEL-9)."""
    assert policy.limits is not None
    expiry, ttl, age = age_rules.expiry(policy), age_rules.ttl(policy), age_rules.retention_age(policy)
    reasons = [Reason(name="retention_age", rule=age)] if age is not None else []
    lapsed = [rule for rule in (expiry, ttl) if rule is not None]
    if plan.operation == "message_cleaner":
        reasons = [Reason(name="ttl", rule=ttl), *reasons] if ttl is not None else reasons
        reasons = [Reason(name="expiry", rule=expiry, segments=expired), *reasons] if expiry is not None else reasons
        lapsed = [expiry] if expiry is not None else []
    beyond = Beyond(limits=policy.limits, lapsed=Either(tuple(lapsed)) if lapsed else None)
    return RowQuestion(as_of=plan.as_of, reasons=tuple(reasons), beyond=beyond)


def _by_limit(answer: RowAnswer) -> list[DueRows]:
    return [entry for entry in answer.due if entry.reason in BY_LIMIT]
