"""What a consumer's own logical read shows of messages that are due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.rules import Limits
from message_lifecycle.model.settings import resolve
from message_lifecycle.operations.limits import RankedRow, find_cuts, kept_in_group, visible_messages

AS_OF = Instant(100_000_000)


@pytest.mark.parametrize(("dies", "shown"), [(None, True), (AS_OF + 1, True), (AS_OF, False)])
def test_expiry_waits_for_a_consumer_and_a_ttl_for_none(dies: int | None, shown: bool) -> None:  # EXP-6
    """Else a consumer would see a message of its own TTL or not, depending on whether the cleaner was there first."""
    expires_at = None if dies is None else Instant(dies)
    message = Message(
        partition=0, offset=5, append_time=Instant(1), key=None, value=None, segment=0, headers=(), expires_at=expires_at, never=False
    )
    policy = resolve(topic={"message_expiry": 1, "allow_msg_ttl": True}, server={})
    unread = Progress(consumer="c", partition=0, offset=4, at=None)
    assert list(visible_messages([message], policy, at=AS_OF, progress=[unread])) == ([message] if shown else [])
    assert list(visible_messages([message], policy, at=AS_OF)) == []


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.builds(
        Limits, max_records=st.none() | st.integers(1, 8), max_total_bytes=st.none() | st.integers(1, 30), min_keep=st.sampled_from([0, 1])
    ),
)
def test_one_pass_over_one_partition_keeps_what_the_cuts_keep(sizes: list[int], limits: Limits) -> None:  # RET-1, RET-3
    log = [
        Message(partition=0, offset=offset, append_time=None, key=None, value=b"v" * size, segment=0) for offset, size in enumerate(sizes)
    ]
    rows = [RankedRow(partition=0, offset=m.offset, append_time=None, size_bytes=m.size_bytes) for m in log]
    found = find_cuts(rows, limits)
    assert [m.offset for m in kept_in_group(log, limits)] == [row.offset for row in rows if found.reason(row) is None]
