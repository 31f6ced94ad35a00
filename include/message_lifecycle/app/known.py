"""Every known topic: the topics of the catalog and the backends, and the topics that only the ledger still knows.

A topic that the ledger knows and no plan has deleted is missing. Commands report a missing topic, and `status` is not ok while one exists.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from message_lifecycle.app.services import Services, find_topic
from message_lifecycle.model.errors import (
    HeldByLegalHold,
    LifecycleError,
    PartlyUnavailable,
    Unavailable,
    UnknownTopic,
    internal_error,
    topic_exists,
    topic_missing,
)
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.people import person_of
from message_lifecycle.model.tables import Deletion

log = logging.getLogger("lifecycle")


def all_topics(s: Services, stream: str | None = None) -> list[TopicName]:
    """Return the topics of the lake and the backends, sorted, together with missing topics (see `why_absent`)."""
    there = {*s.topics.list(), *s.backends}
    missing = _find_missing(s, s.ledger.known_topics().keys() - there)
    return sorted(name for name in there | missing if stream in (None, name.stream))


def why_absent(s: Services, name: TopicName, error: UnknownTopic) -> LifecycleError:
    """Return the error to report after a part of the topic was not found.

    Returns:
        TopicMissing, if the topic is gone but no plan deleted it. Otherwise `error`: the topic exists, never existed or was deleted.
    """
    absent = find_topic(s, name) is None and _find_missing(s, {name})
    return topic_missing(str(name)) if absent else error


def require_not_missing(s: Services, name: TopicName) -> None:
    """Refuse to create a topic in the place of a missing one.

    A new, empty topic of the same name would hide the loss of the missing topic. `status` would be ok, and an open erasure would find
    nothing and end with a receipt.

    Raises:
        PartlyUnavailable: The topic is missing (`TopicMissing`), and stays missing until `topic forget`.
    """
    if is_missing(s, name):
        raise topic_missing(str(name))


def is_missing(s: Services, name: TopicName) -> bool:
    """Return whether the ledger knows a topic of this name that no plan has deleted. The caller has found that no topic has the name."""
    return bool(_find_missing(s, {name}))


def error_of_one_topic(s: Services, name: TopicName, error: Exception) -> LifecycleError:
    """Return the error to report for one topic while the other topics go on.

    The barrier of one topic catches every exception. Another program can bring a table into an unforeseen state, and that must not hide the
    other topics. A defect is logged with its traceback and reported as InternalError.

    Raises:
        Unavailable: The error concerns the other topics, too, because a system that all need is away.
    """
    if not isinstance(error, LifecycleError):
        log.error("topic %s: %s", name, type(error).__name__, exc_info=error)
        return internal_error(str(name), error)
    if isinstance(error, UnknownTopic):
        return why_absent(s, name, error)
    if isinstance(error, Unavailable) and not isinstance(error, PartlyUnavailable):
        raise error
    return error


def holds_documents(s: Services, name: TopicName) -> bool | None:
    """Return whether the topic holds documents, or None if this topic cannot be read. Errors that concern other topics, too, are raised."""
    try:
        return s.topics.describe(name).has_documents
    except Exception as error:  # noqa: BLE001 - the barrier of one topic
        error_of_one_topic(s, name, error)
        return None


def forget_topic(s: Services, name: TopicName, *, by: str, text: str) -> Outcome:
    """Record a person's statement that a missing topic is meant to be gone.

    Raises:
        TopicExists: The topic exists.
        UnknownTopic: No topic of this name is missing.
        HeldByLegalHold, UnnamedPerson, MixedScripts: The topic stays missing.
    """
    from message_lifecycle.app.holds import holds_of

    by = person_of(by)
    if find_topic(s, name) is not None:
        raise topic_exists(str(name))
    if not _find_missing(s, {name}):
        raise UnknownTopic(str(name))
    holds = holds_of(s, name)
    if holds:
        raise HeldByLegalHold(str(name), None, [hold.description for hold in holds])
    detail = f"no plan has deleted it, and it is not there; {by} says that it is meant to be gone: {text}"
    outcome = Outcome(name="no_op", operation="topic_delete", topic=name, as_of=s.ledger.now(), detail=detail)
    s.ledger.record_run_outcome(None, outcome)
    s.ledger.forget_topic(name)
    return outcome


def _find_missing(s: Services, names: Collection[TopicName]) -> set[TopicName]:
    """Return the names that the ledger knows and no plan has deleted since. The caller has found that no topic has these names."""
    known = {name: since for name, since in s.ledger.known_topics().items() if name in names}
    deleted: dict[TopicName, tuple[Instant, str]] = {}
    for at, one in s.ledger.history(operations=["topic_delete"]) if known else ():
        if one.name == "published" and one.plan_id is not None:
            deleted.setdefault(one.topic, (at, one.plan_id))  # the newest first

    def is_deleted(name: TopicName, since: Instant) -> bool:
        if name in deleted and deleted[name][0] >= since and s.ledger.undone_by(deleted[name][1]) is None:
            return True
        begun = s.ledger.open_plan(name)
        return begun is not None and bool(begun.plan.deleted_tables)  # the deletion has no recorded outcome yet

    missing = {name for name, since in known.items() if not is_deleted(name, since)}
    # The ledger may be older than a deletion, or have recorded it as failed. The tables show the deletion, too.
    return missing - {
        topic.topic for topic in (_deletions(s) if missing else ()) if topic.deleted_at >= known.get(topic.topic, topic.deleted_at)
    }


def _deletions(s: Services) -> Sequence[Deletion]:
    try:
        return s.stores.deletions()
    except LifecycleError:  # the deletions cannot be read
        return ()
