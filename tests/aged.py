"""Policies and rows at the edges of time, and a second form of the age rules, straight from the settings (CLK-2 to CLK-4, TTL-5)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeKnown
from message_lifecycle.model.setting_list import U32_MAX, U63_MAX, Value
from message_lifecycle.model.settings import Policy, resolve

SECOND = 1_000_000
_COLUMNS = st.sampled_from(("append_time", "expires_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """As it is stored: null is None, and other writers may have stored zero, or `never` as false."""

    append_time: Instant | None
    expires_at: Instant | None
    never: bool | None


def times() -> st.SearchStrategy[Instant | None]:
    edges = (0, 1, -1, INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX, INT64_MAX - SECOND, -SECOND)
    known = st.one_of(st.sampled_from(edges), st.integers(-5 * SECOND, 5 * SECOND), st.integers(INT64_MIN, INT64_MAX))
    return st.one_of(st.none(), known.map(Instant))


def rows() -> st.SearchStrategy[Row]:
    return st.builds(Row, append_time=times(), expires_at=times(), never=st.sampled_from((None, False, True)))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    topic: dict[str, Value] = {
        "message_expiry": draw(st.sampled_from((0, 1, 2, 3600, U32_MAX))),
        "allow_msg_ttl": draw(st.booleans()),
        "ttl_overrides_age": draw(st.booleans()),
    }
    limit = draw(st.one_of(st.none(), st.sampled_from((0.0, 1e-6, 1.0, 9.2e12, 1e15, float(U63_MAX))), st.floats(0, 4)))
    return resolve(topic=topic if limit is None else {**topic, "max_age_seconds": limit}, server={})


def rules() -> st.SearchStrategy[Rule]:
    """Draw rules of any shape that the model allows."""
    after = st.builds(PeriodPassed, column=_COLUMNS, us=st.one_of(st.sampled_from((0, 1, SECOND, INT64_MAX)), st.integers(0, 3 * SECOND)))
    timeless = st.recursive(
        st.one_of(st.just(NeverExpires()), st.builds(TimeKnown, column=_COLUMNS)),
        lambda inner: st.builds(NotRule, rule=st.one_of(inner, st.builds(AnyOfRules, rules=st.lists(inner, max_size=3).map(tuple)))),
        max_leaves=4,
    )
    both = st.lists(st.one_of(after, timeless), max_size=3).map(tuple)
    return st.recursive(
        st.one_of(after, timeless),
        lambda inner: st.one_of(
            st.builds(AnyOfRules, rules=st.lists(inner, max_size=3).map(tuple)),
            st.builds(AllOfRules, rules=st.one_of(both, st.lists(inner, max_size=3).map(tuple))),
        ),
        max_leaves=8,
    )


def hidden_by_the_settings(row: Row, policy: Policy, as_of: int) -> bool:
    """In plain words and unbounded numbers: no rendering of a rule is used. The first instant of all counts as unknown."""
    appended = None if row.append_time in (None, 0, INT64_MIN) else int(row.append_time)
    expires = None if row.expires_at in (None, INT64_MIN) else int(row.expires_at)
    own = expires is not None and policy.ttl_overrides_age
    kept = policy.allow_msg_ttl and (bool(row.never) or own)
    dead = [expires] if policy.allow_msg_ttl and expires is not None else []
    if appended is not None and not kept:
        dead += [appended + policy.message_expiry_us] if policy.message_expiry_us else []
        dead += [appended + policy.max_age_us + 1] if policy.max_age_us is not None else []
    return any(at < INT64_MAX and at <= as_of for at in dead)


def edges_of(instant: int | None) -> tuple[Instant, ...]:
    """Return the instants just before, at and after this one, if they are valid instants."""
    return () if instant is None else tuple(Instant(instant + by) for by in (-1, 0, 1) if INT64_MIN <= instant + by <= INT64_MAX)
