"""Which topics compaction, and the purge of what it covers, has work on: without a JVM (CMP-5, CMP-9, CMP-10).

Where nothing is new that is found out by two metadata documents, the log's and the view's, however long the log."""

from __future__ import annotations

from collections.abc import Iterable

from message_lifecycle.app.compaction_facts import compaction_facts
from message_lifecycle.app.due import Due, Questions, due_unless_hindered, judge_each, of_messages
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.errors import IsADocumentTopic
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import compaction


def due_compactions(s: Services, names: Iterable[TopicName], *, as_of: Instant, run: str | None = None, named: bool = False) -> list[Due]:
    """Judge every topic that asks for compaction. `named`: a person named these, so whether they ask, and for how much, is no matter."""
    questions = Questions(s)
    return judge_each(names if named else of_messages(s, names), lambda name: _compaction(s, name, questions, as_of, run, named=named))


def due_purges(s: Services, names: Iterable[TopicName], *, as_of: Instant, run: str | None = None) -> list[Due]:
    """Judge every topic whose `cleanup_policy` is to purge what its view covers."""
    questions = Questions(s)
    return judge_each(of_messages(s, names), lambda name: _purge(s, name, questions, as_of, run))


def _compaction(s: Services, name: TopicName, questions: Questions, as_of: Instant, run: str | None, *, named: bool) -> Due:
    policy = policy_of(s, name)
    if policy.fold is not None:
        raise IsADocumentTopic(str(name))
    if not policy.is_compacted and not named:
        return Due(topic=name, due=False, reason=f"cleanup_policy is {policy['cleanup_policy']}: compacted by hand alone")
    question = questions.about(name)
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    if _is_settled(s, name, policy, as_of):
        return Due(topic=name, due=False, reason="nothing is new, and nothing in the view is due")
    facts = compaction_facts(s, name, policy, as_of=as_of)
    made = compaction.plan(facts, policy, as_of=as_of)
    if made.is_empty:
        waits = "; ".join(made.warnings)
        return Due(topic=name, due=False, reason=waits or "nothing new is as old as as_of")
    new = sum(tail.size_bytes for tail in facts.tails)
    threshold = 0 if named else policy.compaction_threshold_bytes
    due = compaction.is_due(facts.view, policy, as_of=as_of)
    if not due and 0 < threshold >= new:
        return Due(topic=name, due=False, reason=f"{new} bytes are new, not more than compaction_threshold_bytes = {threshold}")
    since = "" if made.due_since is None else f" since {format_instant(made.due_since)}"
    reason = f"{sum(tail.rows for tail in facts.tails)} messages, {new} bytes, are new"
    reason += f"; in the view messages may be due{since}" if due else ""
    return due_unless_hindered(s, made, reason, as_of=as_of, run=run)


def _is_settled(s: Services, name: TopicName, policy: Policy, as_of: Instant) -> bool:
    view = s.views.view(name)
    if view is None or compaction.is_due(view, policy, as_of=as_of):
        return False
    # A view that is past the log is no settled one: planning says what is wrong with it.
    return all(view.horizon(partition) == end - 1 for partition, end in s.reader.end_offsets(name).items())


def _purge(s: Services, name: TopicName, questions: Questions, as_of: Instant, run: str | None) -> Due:
    policy = policy_of(s, name)
    if not policy.purges_compacted:
        return Due(topic=name, due=False, reason=f"cleanup_policy is {policy['cleanup_policy']}: the log keeps what the view covers")
    question = questions.about(name)
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    if not policy.cleaner_enabled:
        return Due(topic=name, due=False, reason="nothing is removed while [message_cleaner] enabled = false")
    if s.views.view(name) is None:
        return Due(topic=name, due=False, reason="nothing was compacted yet")
    made = preview(s, name, as_of=as_of, work="purge_compacted")
    if made.is_empty:
        held = "; ".join(sorted({entry.detail for entry in made.held}))
        return Due(topic=name, due=False, reason=held or "no sealed segment is compacted whole")
    reason = f"{made.expected.removed_rows} messages in {made.expected.segments} segments are compacted"
    return due_unless_hindered(s, made, reason, as_of=as_of, run=run)
