"""Compaction by hand: one topic, now, whether it asks for compaction or not (CMP-10)."""

from __future__ import annotations

from message_lifecycle.app import changes, steps
from message_lifecycle.app.operations.registry import Scheduled, named
from message_lifecycle.app.services import Services
from message_lifecycle.app.steps import Approver
from message_lifecycle.model.errors import CompactionRunning, LifecycleError, Unavailable, compacted_table_there
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome

_WORK: Scheduled = "compaction"


def begin_anew(s: Services, name: TopicName) -> None:
    """Forget that the topic had a view, so that the next compaction takes the log for all there is.

    Raises UnknownTopic; CompactedTableThere while there is a view, CompactedTableMissing while there is a damaged one."""
    s.topics.describe(name)
    if s.stores.view.view(name) is not None:
        raise compacted_table_there(str(name), f"{name.namespace}.{name.table('compacted')}")
    s.ledger.set_accepted_view(name, None)


def compact(s: Services, name: TopicName, *, as_of: Instant, approver: Approver | None = None) -> Outcome:
    """All steps for one topic. What fails is written down as an outcome, for the topic's status is told by it (CMP-10)."""
    before = s.ledger.open_plan(name)
    try:
        return steps.run(s, name, as_of=as_of, approver=approver, work=_WORK)
    except (Unavailable, CompactionRunning):
        raise
    except LifecycleError as error:
        _note_failure(s, name, as_of, error, None if before is None else before.plan.plan_id)
        raise


def _note_failure(s: Services, name: TopicName, as_of: Instant, error: LifecycleError, before: str | None) -> None:
    """A plan that this run has made is closed, or the cleaner would wait for it; another's is left to its own run."""
    told = f"{error.code}: {error}"
    left = s.ledger.open_plan(name)
    own = left is not None and named(_WORK).is_of(left.plan, _WORK) and left.plan.plan_id != before
    if own and left is not None and changes.published(s, left.plan) is None:
        steps.close(s, left.plan, "failed", told)
    else:
        s.ledger.record_run_outcome(None, Outcome(name="failed", operation=_WORK, topic=name, as_of=as_of, detail=told))
