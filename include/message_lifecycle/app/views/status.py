"""Is each topic cleaned as it should be (OBL-1)? Made so that a cleaner which is green and does nothing is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from message_lifecycle.app.changes import waits
from message_lifecycle.app.known import all_topics, of_it_alone
from message_lifecycle.app.obligations import Lake, of_lake, of_topic, regardless
from message_lifecycle.app.operations.registry import named, names_of
from message_lifecycle.app.refused import needing_a_person, rows_in_quarantine
from message_lifecycle.app.rendering import Document, each
from message_lifecycle.app.seals import broken_seal
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.past_expiry import past_expiry
from message_lifecycle.app.views.state import HeldView, outcomes_view, undone_among, when
from message_lifecycle.app.witness import require_intact
from message_lifecycle.model.errors import ledger_tampered
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Obligation
from message_lifecycle.model.outcome import Outcome, PlanSummary
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import origin_of

_BAD_ENDS = ("blocked", "starved", "failed")
# Old plans of other ends are passed over in search of the last removal; beyond so many nobody asks any more.
_PLANS_SEARCHED = 50


def status(s: Services, names: Iterable[TopicName] | None = None) -> list[Document]:
    """Every topic's state now. A topic that cannot be read is reported as such and hides no other."""
    with s.topics.look(), s.ledger.look():
        lake = of_lake(s)
        if names is not None:
            return [_isolated(s, name, lake) for name in names]
        standing = all_topics(s)
        return [*(_isolated(s, name, lake) for name in standing), *_gone(lake, standing)]


def _gone(lake: Lake, standing: Sequence[TopicName]) -> list[Document]:
    """Deleted topics, of names that no topic has, whose space should have been given back long ago."""
    if lake.unknown is not None:
        told = f"which topics were deleted, and what of them is left, cannot be told: {lake.unknown.code}: {lake.unknown}"
        return [{"topic": "(deleted topics)", "ok": False, "problems": [told]}]
    late = ((name, [problem for one in ones for problem in one.problems]) for name, ones in sorted(lake.deleted.items()))
    return [{"topic": str(name), "ok": False, "problems": problems} for name, problems in late if problems and name not in standing]


def _isolated(s: Services, name: TopicName, lake: Lake) -> Document:
    try:
        with s.topics.look():
            return topic_status(s, name, lake)
    except Exception as error:  # noqa: BLE001 - the barrier of one topic
        told = of_it_alone(s, name, error)
        return {"topic": str(name), "ok": False, "problems": [f"{told.code}: {told}"]}


def topic_status(s: Services, name: TopicName, lake: Lake | None = None) -> Document:
    """One topic judged as of now. `ok` is false where anything that it obliges is later than `max_overdue` (OBL-1), where its cleaner is
    disabled, or where the last run ended badly; `problems` says it in words."""
    lake = of_lake(s) if lake is None else lake
    policy = policy_of(s, name)
    require_intact(s, name)
    work = "snapshot_with_purge" if policy.of_documents else s.work_on(name)
    would = named(work).plan(s, name, regardless(policy), work, as_of=lake.now)
    obliged = of_topic(s, name, policy, {work: would}, lake)
    return (
        _of_documents(s, name, policy, would, obliged, lake) if policy.of_documents else _of_messages(s, name, policy, would, obliged, lake)
    )


def _of_messages(s: Services, name: TopicName, policy: Policy, would: Plan, obliged: Sequence[Obligation], lake: Lake) -> Document:
    now, asked = lake.now, open_question(s, lake.waiting, name)
    last = next(iter(s.ledger.history(name, limit=1, operations=names_of(lambda one: one.removes))), None)
    holder, since = _word_of_a_person(asked, last, policy, now), would.due_since
    due = _due(0 if holder else would.expected.removed_rows, None if holder else since, now)
    problems = [*(problem for one in obliged for problem in one.problems), *_tampered(s, name)]
    # What is held to `enabled`: the cleaner, the purge of what is compacted, and the sweep for markers (EXP-2).
    idle = sorted({one.kind for one in obliged if named(one.operation).rests})
    if idle and not policy.cleaner_enabled:
        problems.append(f"the message cleaner is disabled ([message_cleaner] enabled = false): nobody sees to {', '.join(idle)}")
    problems += _bad_end("run", last)
    problems += _ahead(s, name, policy, now)
    if policy.is_compacted:
        problems += _bad_end("compaction", last_compaction(s, name))
    return {
        "topic": str(name),
        "ok": not problems,
        "problems": problems,
        "as_of": when(now),
        "messages": would.expected.rows_in,
        "due": due,
        "overdue": _overdue(obliged, would, policy, now),
        "held": each(HeldView)([*would.held, *_held_by_a_person(would, since, holder)]),
        "past_expiry": past_expiry(s, name, policy, now),
        **_alike(s, name, policy, would, obliged, asked, last),
        "warnings": [*would.warnings, *_unregistered(s, name)],
    }


def _ahead(s: Services, name: TopicName, policy: Policy, now: Instant) -> list[str]:
    """A last update in the future, until which no commit of a right clock can be made."""
    updated = s.topics.describe(name).updated_at if s.ledger.has_real_clock else None
    if updated is None or updated <= policy.late_after(now):
        return []
    return [
        f"the last update of its table lies ahead: a machine whose clock was ahead has written {format_instant(updated)} to it. Until then every "
        "commit on it is refused (TableAhead)"
    ]


def _alike(
    s: Services,
    name: TopicName,
    policy: Policy,
    would: Plan,
    obliged: Sequence[Obligation],
    asked: PlanSummary | None,
    last: tuple[Instant, Outcome] | None,
) -> Document:
    """What is told of topics of messages and of documents alike."""
    return {
        "obligations": [obligation_view(one) for one in obliged],
        "next_due_at": when(would.next_due_at),
        "waiting": None if asked is None else _question(s, asked, policy),
        "last_run": None if last is None else outcomes_view(s, [last])[0],
        "last_removal": _last_removal(s, name),
        "refused": {"rows": rows_in_quarantine(s, name), "batches": [one.batch_id for one in needing_a_person(s, name)]},
        "hidden_bytes": s.stores.forget.hidden_bytes(name),
    }


def obligation_view(one: Obligation) -> Document:
    """`state`: late, held, due or idle."""
    return {
        "kind": one.kind,
        "state": one.state,
        "operation": one.operation,
        "due_since": when(one.due_since),
        "amount": one.amount,
        "unit": one.unit,
        "held": each(HeldView)(one.held),
        "last_run": None if one.last_run is None else {"at": when(one.last_run[0]), "outcome": one.last_run[1]},
        "looked_at": when(one.looked_at),
        "problems": list(one.problems),
    }


def last_compaction(s: Services, name: TopicName) -> tuple[Instant, Outcome] | None:
    """The newest outcome of a compaction, with the time of its recording."""
    return next(iter(s.ledger.history(name, limit=1, operations=["compaction"])), None)


def _bad_end(what: str, last: tuple[Instant, Outcome] | None) -> list[str]:
    """In words, how the newest of them ended, where a person must see it."""
    return [] if last is None or last[1].name not in _BAD_ENDS else [f"the last {what} ended as {last[1].name}: {last[1].detail}"]


def _of_documents(s: Services, name: TopicName, policy: Policy, would: Plan, obliged: Sequence[Obligation], lake: Lake) -> Document:
    """A document that cannot be folded is what a person must see, too: nothing of it goes until somebody has mended it (SNP-10)."""
    asked = open_question(s, lake.waiting, name)
    last = next(iter(s.ledger.history(name, limit=1, operations=[would.operation])), None)
    problems = [*(problem for one in obliged for problem in one.problems), *_tampered(s, name)]
    problems += [*_bad_end("run", last), *_ahead(s, name, policy, lake.now)]
    if last is not None and last[1].plan_id is not None:
        staged = s.ledger.record(last[1].plan_id).staged
        blocked = () if staged is None or staged.documents is None else staged.documents.blocked
        problems += [f"document {document} keeps every change, and gets no snapshot: {reason}" for document, reason in blocked]
    return {
        "topic": str(name),
        "ok": not problems,
        "problems": problems,
        "as_of": when(lake.now),
        "documents": {
            "due": len(would.on_snapshots.documents),
            "snapshots_due": sum(action.snapshot is not None for action in would.on_snapshots.documents),
        },
        "messages": would.expected.rows_in,
        "due": _due(would.expected.removed_rows, None, lake.now),
        "overdue": _overdue(obliged, would, policy, lake.now),
        "held": each(HeldView)(would.held),
        **_alike(s, name, policy, would, obliged, asked, last),
        "warnings": list(would.warnings),
    }


def _due(messages: int, since: Instant | None, now: Instant) -> Document:
    """What the next run takes."""
    return {
        "messages": messages,
        "since": when(since),
        "for_seconds": None if since is None else (now - since) // MICROS_PER_SECOND,
    }


def _overdue(obliged: Sequence[Obligation], would: Plan, policy: Policy, now: Instant) -> Document:
    """What is due by rules of which the first message is due for longer than `max_overdue` allows. Anything here makes the topic not ok."""
    late = [one for one in obliged if one.overdue and one.operation == would.operation]
    since = min((one.due_since for one in late if one.due_since is not None), default=None)
    return {**_due(sum(one.overdue for one in late), since, now), "max_overdue": policy["max_overdue"]}


def _tampered(s: Services, name: TopicName) -> list[str]:
    """The records of the topic's open plan that somebody else has written (DEL-3)."""
    plan_id = s.ledger.judged_plan(name)
    broken = None if plan_id is None else broken_seal(s, s.ledger.record(plan_id))
    if plan_id is None or broken is None:
        return []
    told = ledger_tampered(plan_id, broken)
    return [f"{told.code}: {told}"]


def _unregistered(s: Services, name: TopicName) -> list[str]:
    """A replica that its origin does not wait for: a person took it off, or the ledger is from before it was made."""
    origin = origin_of(name, s.topics.describe(name).settings)
    if origin is None or any(progress.kind == "replica" and progress.consumer == str(name) for progress in s.ledger.consumers(origin)):
        return []
    return [f"its origin {origin} keeps nothing for it, and no run copies into it: `lifecycle topic copy {name}` registers it again"]


def open_question(s: Services, waiting: Sequence[PlanSummary], name: TopicName) -> PlanSummary | None:
    """The plan that a person is asked about; a question that has lapsed, or that other settings have made void, is none."""
    return next((plan for plan in waiting if plan.topic == name and waits(s, s.ledger.record(plan.plan_id))), None)


def _word_of_a_person(asked: PlanSummary | None, last: tuple[Instant, Outcome] | None, policy: Policy, now: Instant) -> str | None:
    """Who holds what a run would take: an open question, or a refusal that still stands."""
    if asked is not None:
        return f"plan {asked.plan_id} waits for a person's approval"
    # Without a plan it is no word on what is due: a request was refused by a rule (DEL-8).
    if last is not None and last[1].name == "refused" and last[1].plan_id is not None and now < last[1].as_of + policy.approval_ttl_us:
        return last[1].detail
    return None


def _held_by_a_person(would: Plan, since: Instant | None, holder: str | None) -> list[Held]:
    if holder is None:
        return []
    return [
        Held(partition=partition, first_base=base, last_offset=last, rows=rows, overdue_since=since, holder="open_approval", detail=holder)
        for partition, base, last, rows in (
            *((run.partition, run.first_base, run.last_offset, run.rows) for run in would.on_log.drop),
            *((one.partition, one.base_offset, one.last_offset, one.rows) for one in would.on_log.mark),
        )
    ]


def is_asked_in_airflow(s: Services, plan_id: str) -> bool:
    """Return True if a run of Airflow works on the plan, so that its question is under Required Actions. The command's runs have no DAG."""
    return any("/" in run for run in s.ledger.runs_of(plan_id))


def _question(s: Services, asked: PlanSummary, policy: Policy) -> Document:
    assert asked.reported_at is not None
    return {
        "plan_id": asked.plan_id,
        # What is no message of the log, or comes back to it, is told on the plan's own page.
        "messages": asked.expected_rows if named(asked.operation).takes_messages else None,
        "since": when(asked.reported_at),
        "lapses_at": when(Instant(asked.reported_at + policy.approval_ttl_us)),
        "asked_in_airflow": is_asked_in_airflow(s, asked.plan_id),
    }


def _last_removal(s: Services, name: TopicName) -> Document | None:
    for plan in s.ledger.plans(name, limit=_PLANS_SEARCHED):
        operation = named(plan.operation)
        if plan.outcome == "published" and operation.removes and not operation.gives_back:
            # After the commit, when the effect was verified: the plan may have waited for a person for a day before.
            return {
                "plan_id": plan.plan_id,
                "at": when(s.ledger.published_at(plan.plan_id)),
                "as_of": when(plan.as_of),
                "messages": plan.expected_rows,
                "undone": plan.plan_id in undone_among(s, [plan.plan_id]),
            }
    return None
