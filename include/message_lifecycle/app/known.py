"""Every topic there is: those of the catalog and the backends, and those that the ledger knows and that have gone without a word of ours.

A topic that cannot be found is not a topic that never was: as long as nobody has deleted it, it is told, and nothing is well without it.
"""

from __future__ import annotations

from contextlib import suppress

from message_lifecycle.app.holds import holds_of
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import HeldByLegalHold, LifecycleError, UnknownTopic, topic_exists, topic_missing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome


def all_topics(s: Services, stream: str | None = None) -> list[TopicName]:
    """Of the lake and of the backends beside it, in order; with those that have gone without a word of ours (see `why_absent`)."""
    there = {*s.topics.list(), *s.backends}
    gone = {name for name, since in s.ledger.known_topics().items() if name not in there and not _is_deleted(s, name, since)}
    return sorted(name for name in there | gone if stream in (None, name.stream))


def why_absent(s: Services, name: TopicName) -> LifecycleError:
    """What to tell where no topic of the name was found: it never was or was deleted, or nobody here has taken it away."""
    since = s.ledger.known_topics().get(name)
    return UnknownTopic(str(name)) if since is None or _is_deleted(s, name, since) else topic_missing(str(name))


def forget_topic(s: Services, name: TopicName, *, by: str, text: str) -> Outcome:
    """Take a person's word that a topic without a table is meant to be gone. Raises TopicExists where it is there, UnknownTopic where nobody
    misses it, HeldByLegalHold."""
    with suppress(UnknownTopic):
        s.topics.describe(name)
        raise topic_exists(str(name))
    error = why_absent(s, name)
    if isinstance(error, UnknownTopic):
        raise error
    holds = holds_of(s, name)
    if holds:
        raise HeldByLegalHold(str(name), None, [hold.told for hold in holds])
    told = f"another program dropped its tables; {by} says that it is meant to be gone: {text}"
    outcome = Outcome(name="no_op", operation="topic_delete", topic=name, as_of=s.ledger.now(), detail=told)
    s.ledger.record_run_outcome(None, outcome)
    s.ledger.forget_topic(name)
    return outcome


def _is_deleted(s: Services, name: TopicName, since: Instant) -> bool:
    """Whether a plan has deleted the topic that was there `since` then, and nobody has brought it back."""
    begun = s.ledger.open_plan(name)
    if begun is not None and begun.plan.moved("away"):
        return True  # it is being deleted: its outcome is not told yet
    deletions = ((at, one.plan_id) for at, one in s.ledger.history(name, operations=["topic_delete"]) if one.name == "published")
    last = next(((at, plan_id) for at, plan_id in deletions if at >= since and plan_id is not None), None)
    return last is not None and s.ledger.undoing(last[1]) is None
