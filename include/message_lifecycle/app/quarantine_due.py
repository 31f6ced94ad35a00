"""Which topics have quarantine rows that have reached their age: without a JVM, by metadata alone (QUA-1)."""

from __future__ import annotations

from collections.abc import Iterable

from message_lifecycle.app.due import Due, Questions, due_unless_hindered, judge_each
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName


def due_quarantines(s: Services, names: Iterable[TopicName], *, as_of: Instant, run: str | None = None) -> list[Due]:
    """Judge every topic."""
    questions = Questions(s)
    return judge_each(names, lambda name: _quarantine(s, name, questions, as_of, run))


def _quarantine(s: Services, name: TopicName, questions: Questions, as_of: Instant, run: str | None) -> Due:
    question = questions.about(name)
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    made = preview(s, name, as_of=as_of, work="quarantine")
    if made.is_empty:
        held = "; ".join(entry.detail for entry in made.held)
        later = "" if made.next_due_at is None else f"; the next rows go at {format_instant(made.next_due_at)}"
        return Due(topic=name, due=False, reason=held or f"no quarantine row has reached its age{later}")
    reason = f"{made.expected.removed_rows} quarantine rows in {len(made.selection.files)} files have reached their age"
    return due_unless_hindered(s, made, reason, as_of=as_of, run=run)
