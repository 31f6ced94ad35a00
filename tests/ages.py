"""Logs whose messages have lifetimes of their own, and a second form of the age rules, quadratic, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.setting_list import Value
from tests.logs import AS_OF, SECOND

TTLS = st.sampled_from([None, None, b"never", b"1s", b"5s", b"10s", b"20s", b"1h", b"0", b"10.000001s", b"9223372036854775807"])
# Close to the boundaries: with an age or a TTL of 10 s a deadline falls exactly on AS_OF for a time of 90 s.
TIMES = st.one_of(
    st.none(),
    st.integers(80, 100).map(lambda s: Instant(s * SECOND)),
    st.sampled_from([Instant(90 * SECOND + d) for d in (-1, 0, 1)]),
    st.sampled_from([Instant(200 * SECOND), Instant(-5)]),
)
MARKERISH = st.sampled_from([(), (), (), (("KV-Operation", b"PURGE"),), (("KV-Operation", b"DEL"),), (("Nats-Marker-Reason", b"MaxAge"),)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Aged:
    """A topic's settings and its batches."""

    settings: Mapping[str, Value]
    batches: tuple[tuple[NewMessage, ...], ...]


# Strategies are made once, as in `tests.logs`.
_MESSAGES = st.lists(
    st.builds(
        lambda time, key, ttl, extra: NewMessage(
            append_time=time, key=key, value=b"v", headers=(*extra, *((("Nats-TTL", ttl),) if ttl is not None else ()))
        ),
        TIMES,
        st.sampled_from([None, b"", b"a", b"b", b"c"]),
        TTLS,
        MARKERISH,
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def aged_logs(draw: st.DrawFn, *, limited: bool = False) -> Aged:
    """Draw an aged log.

    `limited`: with markers and a limit by number, and without message expiry, because messages that expire with their segment have another
    rank."""
    chosen: dict[str, Value] = {
        "allow_msg_ttl": True,
        "segment_size_bytes": draw(st.sampled_from([1, 30, 1000])),
        "max_removed_fraction": 1.0,
    }
    if not limited and draw(st.booleans()):
        chosen["message_expiry"] = 10
    if draw(st.booleans()):
        chosen["max_age_seconds"] = draw(st.sampled_from([0.0, 10.0, 15.5]))
    if draw(st.booleans()):
        chosen["ttl_overrides_age"] = True
    if limited or draw(st.booleans()):
        chosen["subject_delete_marker_ttl"] = 60
    if limited:
        chosen["max_records"] = draw(st.integers(1, 4))
    return Aged(settings=chosen, batches=tuple(tuple(draw(_MESSAGES)) for _ in range(draw(st.integers(1, 3)))))


def reasons_by_the_rules(
    stored: Iterable[Message], settings: Mapping[str, Any], as_of: int = AS_OF, skew: int = 60 * SECOND
) -> dict[int, str]:
    """Offset -> reason, for a log of one partition that no run has touched (EXP-4, EXP-5, TTL-5, CLK-4, RET-1)."""
    log = list(stored)
    expiry, max_age = settings.get("message_expiry", 0) * SECOND, settings.get("max_age_seconds")
    overrides = settings.get("ttl_overrides_age", False)

    def kept(m: Message) -> bool:
        return m.never or (overrides and m.expires_at is not None)

    def expired(base: int) -> bool:
        times = [m.append_time for m in log if m.segment == base]
        if any(time is None for time in times):
            return False
        in_time = [time for time in times if time is not None and time <= as_of + skew]
        return bool(expiry) and bool(in_time) and max(in_time) + expiry <= as_of

    def ahead(base: int) -> bool:
        """Times to come, and nothing else: such a segment holds nothing behind it."""
        return all(m.append_time is not None and m.append_time > as_of + skew for m in log if m.segment == base)

    gone = {}
    for m in log:
        leading = all(expired(base) or ahead(base) for base in {other.segment for other in log if other.segment <= m.segment})
        if leading and m.append_time is not None and m.append_time + expiry <= as_of and not kept(m):
            gone[m.offset] = "expiry"
        elif m.expires_at is not None and m.expires_at < 2**63 - 1 and m.expires_at <= as_of:
            gone[m.offset] = "ttl"
        elif max_age is not None and m.append_time is not None and as_of - m.append_time > max_age * SECOND and not kept(m):
            gone[m.offset] = "retention_age"
    if "max_records" in settings:
        left = [m.offset for m in log if m.offset not in gone]
        gone |= dict.fromkeys(left[: -settings["max_records"]], "retention_count")
    return gone


def marked_keys_by_the_rules(stored: Iterable[Message], gone: Mapping[int, str]) -> list[bytes]:
    """Keys that get a marker, in the order of the newest message that each loses, by whatever rule (MRK-1, MRK-3)."""
    log = list(stored)

    def has(m: Message, name: str, value: bytes | None = None) -> bool:
        return any(n == name and (value is None or v == value) for n, v in m.headers)

    found = []
    for m in log:
        newest = m.offset in gone and m.key is not None and all(o.offset <= m.offset for o in log if o.key == m.key and o.offset in gone)
        lives = any(o.key == m.key and o.offset not in gone and not has(o, "Nats-Marker-Reason") for o in log)
        by_age = any(o.key == m.key and gone.get(o.offset, "retention_count") != "retention_count" for o in log)
        if (
            newest
            and by_age
            and not lives
            and m.key is not None
            and not has(m, "Nats-Marker-Reason")
            and not has(m, "KV-Operation", b"PURGE")
        ):
            found.append(m.key)
    return found
