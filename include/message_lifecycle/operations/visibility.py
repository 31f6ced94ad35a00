"""What a logical read shows: the table under "What a read shows" in the rules, for what is built so far (expiry, TTL, age)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.rules import holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules


def is_hidden(message: Message, policy: Policy, at: Instant) -> bool:
    """A message that is dead or too old is hidden at once, while it may still be there."""
    return holds(age_rules.hidden(policy), message, at)


def visible(
    messages: Iterable[Message],
    policy: Policy,
    *,
    at: Instant | None,
    progress: Iterable[Progress] = (),
    since: Instant | None = None,
) -> Iterator[Message]:
    """Messages that a logical read at `at` shows (None: nothing is hidden). `progress`: the reading consumer's, which still
    sees what is kept for it alone: what it has not processed, while it is not silent (EXP-6)."""
    unread_from = {p.partition: p.offset + 1 for p in progress if at is None or p.pins_at(at, policy.consumer_expiry_us)}
    hidden, ttl = age_rules.hidden(policy), age_rules.ttl(policy)
    for message in messages:
        if since is not None and message.append_time is not None and message.append_time < since:
            continue
        # Of its own TTL a message is kept for nobody.
        kept_for_reader = message.offset >= unread_from.get(message.partition, message.offset + 1)
        rule = ttl if kept_for_reader else hidden
        if at is None or rule is None or not holds(rule, message, at):
            yield message
