"""A plan's one commit on a table: made at most once, under conditions that are asked in every attempt, and found by the plan's id
(DEL-4, DEL-5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, PlanConflict
from message_lifecycle.model.instants import format_instant
from message_lifecycle.stores.iceberg.catalog import ledger_text
from message_lifecycle.stores.iceberg.fence import Ancestor, main_ancestors
from message_lifecycle.stores.iceberg.layout import AS_OF, COUNTS, GATE_ID, LEDGER, OPERATION, PLAN_ID, POLICY_HASH

if TYPE_CHECKING:
    from message_lifecycle.operations.verdict import Verdict
    from message_lifecycle.stores.iceberg.session import Java

Steps = Callable[[str], None]
"""Told the name of each step as it is reached."""


class AlreadyPublished(LifecycleError):
    """Another run published this plan while we tried."""


def find(table: Java, plan_id: str, *, since: int | None = None) -> Ancestor | None:
    """The commit on main that carries the plan. `since`: a snapshot that is older than it."""
    for ancestor in main_ancestors(table):
        if since is not None and ancestor.snapshot_id == since:
            return None
        if ancestor.get(PLAN_ID) == plan_id:
            return ancestor
    return None


def commit_once(
    table: Java, plan_id: str, commit: Callable[[], None], *, steps: Steps, of: str = "commit", since: int | None = None
) -> Ancestor:
    """The commit that carries the plan, by `commit` or by another run that was first. An unknown result is looked up, never repeated.

    `of`: what the steps are called. `since`: the snapshot of an appended table that the plan was made of. Raises PlanConflict, TableBusy,
    CommitUnknown."""
    steps(f"before_{of}")
    try:
        commit()
    except AlreadyPublished:
        pass
    except (PlanConflict, CommitUnknown, CommitRefused) as error:
        if _found_after(error, table, plan_id, since) is None:
            if not isinstance(error, CommitRefused):
                raise
            # Iceberg's guard came before ours, and knows no plans: say who was first.
            if since is not None:
                only_appends_since(main_ancestors(table), plan_id, since)
            raise PlanConflict(plan_id, error.reason) from error
    steps(f"after_{of}")
    table.refresh()
    found = find(table, plan_id, since=since)
    if found is None:
        raise CommitUnknown(f"publishing plan {plan_id}")
    return found


def _found_after(error: LifecycleError, table: Java, plan_id: str, since: int | None) -> Ancestor | None:
    from py4j.protocol import Py4JError

    try:
        table.refresh()
        return find(table, plan_id, since=since)
    except Py4JError:
        # Whoever did not answer may not answer this either: what is not known stays so.
        if isinstance(error, CommitUnknown):
            raise error from error.__cause__
        raise


def properties(verdict: Verdict, ledger: tuple[str, int], removed: Sequence[tuple[str, int]] | None = None) -> dict[str, str]:
    """What a plan's commit says of itself (DEL-5). `removed`: by reason, where it is not what the outcome counts."""
    plan = verdict.plan
    return {
        PLAN_ID: plan.plan_id,
        OPERATION: plan.operation,
        AS_OF: format_instant(plan.as_of),
        GATE_ID: verdict.gate_id,
        POLICY_HASH: plan.requirements.policy_hash,
        COUNTS: json.dumps(dict(verdict.staged.removed(plan) if removed is None else removed)),
        LEDGER: ledger_text(ledger),
    }


# Conditions, asked inside an attempt


def only_appends_since(ancestors: Iterator[Ancestor], plan_id: str, base_id: int) -> None:
    """Raises PlanConflict where anything else came, AlreadyPublished where the plan itself did."""
    for ancestor in ancestors:
        if ancestor.snapshot_id == base_id:
            return
        rival = ancestor.get(PLAN_ID)
        if rival == plan_id:
            raise AlreadyPublished(plan_id)
        # Taking a file drop back is an `append` to Iceberg as well, so a plan's append does not pass either.
        if ancestor.operation != "append" or rival is not None:
            who = f"plan {rival}" if rival else f"snapshot {ancestor.snapshot_id}, another writer's"
            raise PlanConflict(
                plan_id, f"a conflicting {ancestor.operation} came first ({who})", rival=rival or f"snapshot {ancestor.snapshot_id}"
            )
    raise PlanConflict(plan_id, f"its snapshot {base_id} is not among the ancestors of main")


def nothing_since(ancestors: Iterator[Ancestor], plan_id: str, base_id: int, *, table: str) -> None:
    """Raises PlanConflict where the table has another head. `table`: its name in words."""
    head = next(ancestors)
    if head.snapshot_id != base_id:
        rival = head.get(PLAN_ID)
        raise PlanConflict(plan_id, f"{table} changed first", rival=rival or f"snapshot {head.snapshot_id}")
