"""The message cleaner, and `retention`, which is all the cleaning that topics of backends have (RET-5): what goes from a topic at `as_of`, and
what holds the rest (EXP-1 to EXP-7, TTL-5 to TTL-7, CLK-4, DEL-9).

Whole segments first: per partition the leading run of expired ones, by metadata alone. Then single messages, which the store
is asked for: those of an expired segment that keeps some, those past their own TTL, those past the topic's age, and of what is
left those beyond its limits of number and size. The active segment goes only when all of it is expired: the plan then seals it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from message_lifecycle.model.facts import Facts
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import OF_LIMITS, AskRows, Beyond, Place, Reason, RowAnswer, RowQuestion
from message_lifecycle.model.rules import Either
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules
from message_lifecycle.operations.age_rules import Expired, Walk
from message_lifecycle.operations.barriers import Barriers, barriers
from message_lifecycle.operations.removal import below, may_keep_some, place_of, removal, silent


def plan(facts: Facts, policy: Policy, *, as_of: Instant, ask: AskRows) -> Plan:
    """What the cleaner removes from one topic at `as_of`. Pure: same facts, answers, policy and `as_of`, same plan."""
    readers = barriers(facts.consumers, policy, as_of)
    warnings = silent(readers, policy)
    walks: dict[int, Walk] = {}
    spared = SparedOffsets(facts.spared)
    answer = RowAnswer()
    if not policy.cleaner_enabled:
        warnings = ["the message cleaner is disabled ([message_cleaner] enabled = false): nothing is removed"]
    else:
        if policy.message_expiry_us:
            for partition, group in groupby(facts.log.segments, key=lambda segment: segment.partition):
                segments = tuple(group)
                warnings += age_rules.warnings(segments, policy.message_expiry_us)
                walks[partition] = age_rules.walk(partition, segments, readers, policy, as_of, spared)
        question = _question(walks, facts, readers, policy, as_of)
        if question.reasons or question.beyond is not None:
            answer = ask(question)
    return removal(
        "message_cleaner",
        facts,
        policy,
        readers,
        answer,
        as_of=as_of,
        walks=walks,
        bounded=policy.cleaner_enabled,
        warnings=warnings,
        reasons=("expiry", "ttl", *OF_LIMITS) if policy.cleaner_enabled else (),
    )


def _question(walks: Mapping[int, Walk], facts: Facts, readers: Barriers, policy: Policy, as_of: Instant) -> RowQuestion:
    """The reasons, in the order in which the first that applies counts (CNT-1), and the limits on what they leave."""
    expired = [entry for walk in walks.values() for entry in walk.expired]
    partly = frozenset(place_of(entry.segment) for entry in expired if may_keep_some(entry.segment, policy))
    going = frozenset(place_of(entry.segment) for entry in expired if entry.holder is None) - partly
    reasons = []
    rule = rule_of_held = age_rules.expiry(policy)
    free = frozenset(place_of(entry.segment) for entry in expired if entry.holder is None) & partly
    if rule is not None and free:
        reasons.append(Reason(name="expiry", rule=rule, segments=free))
    partitions = facts.log.end_offsets
    if (rule := age_rules.ttl(policy)) is not None:
        reasons.append(Reason(name="ttl", rule=rule, below=below(partitions, readers, of_ttl=True)))
    if (rule := age_rules.retention_age(policy)) is not None:
        reasons.append(Reason(name="retention_age", rule=rule, below=below(partitions, readers, of_ttl=False)))
    if rule_of_held is not None and partly - free:
        # Counted last and never taken: what another reason takes of a segment that is held is not held.
        reasons.append(Reason(name="expiry", rule=rule_of_held, segments=partly - free, below=dict.fromkeys(partitions, 0)))
    beyond = _beyond(expired, partly, readers, policy, partitions)
    return RowQuestion(as_of=as_of, reasons=tuple(reasons), going=going, beyond=beyond, spared=facts.spared)


def _beyond(
    expired: list[Expired], partly: frozenset[Place], readers: Barriers, policy: Policy, partitions: Iterable[int]
) -> Beyond | None:
    """Number and size bound what is left (DEL-9): a message that an earlier rule has is not, though somebody holds it."""
    if policy.limits is None:
        return None
    return Beyond(
        limits=policy.limits,
        lapsed=age_rules.expiry(policy),
        dead=frozenset(place_of(entry.segment) for entry in expired) - partly,
        below=below(partitions, readers, of_ttl=False),
    )


# The operation `retention`: the limits by age, number and size, and nothing else, on any store (RET-5).


def plan_retention(facts: Facts, policy: Policy, *, as_of: Instant, ask: AskRows) -> Plan:
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
