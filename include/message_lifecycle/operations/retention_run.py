"""The operation `retention`: the limits by age, number and size, and nothing else, on any store (RET-5)."""

from __future__ import annotations

from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import OF_LIMITS, AskRows, Beyond, Reason, RowAnswer, RowQuestion
from message_lifecycle.model.rules import Either
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules
from message_lifecycle.operations.barriers import barriers
from message_lifecycle.operations.removal import below, removal, silent


def plan(facts: Facts, policy: Policy, *, as_of: Instant, ask: AskRows) -> Plan:
    """What lies beyond the topic's limits at `as_of`, with the same bounds as the cleaner's. Pure, as the cleaner's plan."""
    readers = barriers(facts.consumers, policy, as_of)
    bounds = below(facts.log.end_offsets, readers, of_ttl=False)
    age = age_rules.retention_age(policy)
    # What expiry or its own TTL has made dead is not this operation's, and is shown by no read either.
    dead = tuple(rule for rule in (age_rules.expiry(policy), age_rules.ttl(policy)) if rule is not None)
    beyond = None if policy.limits is None else Beyond(limits=policy.limits, lapsed=Either(dead) if dead else None, below=bounds)
    reasons = () if age is None else (Reason(name="retention_age", rule=age, below=bounds),)
    answer = RowAnswer()
    if reasons or beyond is not None:
        answer = ask(RowQuestion(as_of=as_of, reasons=reasons, beyond=beyond, spared=facts.spared))
    return removal("retention", facts, policy, readers, answer, as_of=as_of, walks={}, warnings=silent(readers, policy), reasons=OF_LIMITS)


def shown(policy: Policy, as_of: Instant) -> RowQuestion | None:
    """What a logical read at `as_of` asks a store: which messages lie beyond the limits, of those that no rule of age hides (RET-5).

    None: the topic has no such limits."""
    if policy.limits is None:
        return None
    hidden = Reason(name="retention_age", rule=age_rules.hidden(policy))
    return RowQuestion(as_of=as_of, reasons=(hidden,), beyond=Beyond(limits=policy.limits))
