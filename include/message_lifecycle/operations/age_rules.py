"""The rules by which a message's age takes it, as one policy states them (CLK-2, TTL-5): for the plan and for every read."""

from __future__ import annotations

from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule
from message_lifecycle.model.settings import Policy


def expiry(policy: Policy) -> Rule | None:
    """Of messages in an expired segment: those that their own TTL does not keep (EXP-5). None: nothing expires."""
    if not policy.message_expiry_us:
        return None
    return _unless_kept(After("append_time", policy.message_expiry_us), policy)


def ttl(policy: Policy) -> Rule | None:
    """None: the topic does not heed it (TTL-6)."""
    return After("expires_at", 0) if policy.allow_msg_ttl else None


def retention_age(policy: Policy) -> Rule | None:
    """Too old: strictly older than the limit, so one microsecond after it (CLK-2, RET-2). None: no limit, or one beyond all of time."""
    if policy.max_age_us is None or policy.max_age_us >= INT64_MAX:
        return None
    return _unless_kept(After("append_time", policy.max_age_us + 1), policy)


def hidden(policy: Policy) -> Rule:
    """What a logical read hides, though it may still be there."""
    rules = (expiry(policy), ttl(policy), retention_age(policy))
    return Either(tuple(rule for rule in rules if rule is not None))


def kept_by_own_ttl(policy: Policy) -> Never | Either | None:
    """Which messages no age takes but their own (TTL-5). None: the topic does not heed it."""
    if not policy.allow_msg_ttl:
        return None
    return Either((Never(), Known("expires_at"))) if policy.ttl_overrides_age else Never()


def _unless_kept(rule: Rule, policy: Policy) -> Rule:
    kept = kept_by_own_ttl(policy)
    return rule if kept is None else Both((rule, Not(kept)))
