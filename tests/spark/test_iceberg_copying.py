"""Copies on tables: whole, once, and whoever else writes or dies meanwhile (MSG-5, TTL-6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.errors import raises
from tests.spark.lake import EXPIRY_S, SECOND, Lake, Rows

from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.operations.admission import Lifetime
from message_lifecycle.ports import Copied
from message_lifecycle.stores.iceberg import copying
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter, row_of

pytestmark = pytest.mark.spark
LATE = Instant(INT64_MAX)
"""No time of these logs is later than the copier's clock."""


class Copies:
    """An origin with its replica, and a copier."""

    def __init__(self, lake: Lake, role: str, *, partitions: int = 1, **settings: Any) -> None:
        self.lake = lake
        self.origin = lake.topic(partitions=partitions)
        self.replica = lake.topic(partitions=partitions, role=role, origin=str(self.origin), **settings)

    def copy(self) -> Copied:
        return self.lake.copier().copy_new_messages(
            self.replica, self.lake.log(self.origin), self.lake.policy(self.replica), ledger=("ledger", 2), latest_allowed_time=LATE
        )

    def messages(self, name: TopicName) -> list[Message]:
        return list(self.lake.reader.messages(name))

    def state(self) -> LogSummary:
        return newest_state(Tables().load(self.replica))

    def is_mirrored(self) -> None:
        copied = self.messages(self.replica)
        assert [replace(message, origin_offset=None) for message in copied] == self.messages(self.origin)
        assert [message.origin_offset for message in copied] == [message.offset for message in copied]
        assert [str(ref) for ref in engine_of_process().table(self.replica).refs()] == ["main"]


class Meanwhile:
    """What happens between the writing of a copy and its commit, or right after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
        self.tries = 0
        commit = copying.commit_staged

        def with_deeds(*args: Any, **named: Any) -> None:
            self.tries += 1
            if self.tries == 1:
                before()
            commit(*args, **named)
            if self.tries == 1:
                after()

        monkeypatch.setattr(copying, "commit_staged", with_deeds)


def test_a_mirror_is_its_origin_row_by_row_and_segment_by_segment(lake: Lake) -> None:
    made = Copies(lake, "mirror", partitions=3)
    lake.append(made.origin, Rows(base=5, times=(1, None)), Rows(base=9, times=(3, 4)), Rows(base=0, times=(7,), partition=2))
    assert made.copy() == Copied(copied={0: 10, 2: 0}, rows=5)
    lake.append(made.origin, Rows(base=11, times=(5,), segment=9), Rows(base=12, times=(6,)))
    assert made.copy().rows == 2
    made.is_mirrored()
    state, there = made.state(), lake.log(made.origin)
    assert dict(state.end_offsets) == dict(there.end_offsets) == {0: 13, 1: 0, 2: 1}
    assert state.active[0].base_offset == 12
    places = [(s.partition, s.base_offset, s.last_offset, s.rows, s.newest_at, s.sealed) for s in there.segments]
    assert [(s.partition, s.base_offset, s.last_offset, s.rows, s.newest_at, s.sealed) for s in lake.log(made.replica).segments] == places
    made.lake.delete(made.origin, "offset = 9")
    assert made.copy().rows == 0, "what a foreign writer deletes is not copied again, nor deleted here"


def test_a_copy_takes_lifetimes_from_headers_whatever_the_origin_has_made_of_them(lake: Lake) -> None:
    """An old topic's log holds headers that nobody looked at, also such as are refused today."""
    values = (b"2s", b"NEVER", b"0", b"invalid!", b" 1s", b"", b"9" * 30)
    headers = [((("a", b"1"), ("Nats-TTL", value), ("Nats-TTL", b"7s")) if value else ()) for value in values]
    messages = [NewMessage(append_time=Instant(10 * SECOND), key=b"k", value=b"v", headers=own) for own in headers]
    for role in ("mirror", "source"):
        made = Copies(lake, role)
        rows = [row_of(message, offset, 0, Lifetime()) for offset, message in enumerate(messages)]
        IcebergWriter(engine_of_process)._commit(made.origin, rows, LogSummary(end_offsets={0: len(rows)}))
        assert made.copy().rows == len(values)
        found = made.messages(made.replica)
        assert [message.headers for message in found] == headers
        assert [message.expires_at for message in found] == [12 * SECOND, None, None, None, 11 * SECOND, None, INT64_MAX]
        assert [message.offset for message in found if message.never] == [1]


def test_a_source_numbers_on_and_cuts_by_its_own_size(lake: Lake) -> None:
    made = Copies(lake, "source", partitions=2, segment_size_bytes=20)
    lake.append(made.replica, Rows(base=0, times=(1,)))
    lake.append(made.origin, Rows(base=40, times=(2, 3, 4)), Rows(base=7, times=(2,), partition=1))
    assert made.copy().rows == 4
    lake.append(made.origin, Rows(base=50, times=(5,)))
    made.copy()
    found = [(m.partition, m.offset, m.segment, m.origin_offset) for m in made.messages(made.replica)]
    assert found == [(0, 0, 0, None), (0, 1, 0, 40), (0, 2, 2, 41), (0, 3, 2, 42), (0, 4, 4, 50), (1, 0, 0, 7)]
    state = made.state()
    assert (dict(state.end_offsets), dict(state.copied), state.active[0].rows) == ({0: 5, 1: 1}, {0: 50, 1: 7}, 1)


@pytest.mark.parametrize("role", ["source", "mirror"])
def test_a_copier_that_dies_right_after_its_commit_copies_nothing_twice(lake: Lake, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    made = Copies(lake, role)
    lake.append(made.origin, Rows(base=0, times=(1, 2)))

    def die() -> None:
        raise CommitUnknown("copy")

    Meanwhile(monkeypatch, after=die)
    with pytest.raises(CommitUnknown):
        made.copy()
    assert made.copy() == Copied(copied={0: 1}, rows=0, erased=None), "what was left out then is not counted again"
    made.is_mirrored()


def test_of_two_copies_at_once_one_is_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Copies(lake, "source")
    lake.append(made.origin, Rows(base=0, times=(1, 2)))
    later = lake.log(made.origin)
    rival = Meanwhile(monkeypatch, before=lambda: made.copy())
    lake.append(made.origin, Rows(base=2, times=(3,), segment=0))
    # The first has looked at the origin before its rival did; it comes second, and has nothing left to copy.
    assert lake.copier().copy_new_messages(
        made.replica, later, lake.policy(made.replica), ledger=("ledger", 2), latest_allowed_time=LATE
    ) == Copied(copied={0: 2}, rows=0)
    assert rival.tries == 2
    made.is_mirrored()


def test_a_deletion_repeats_what_is_copied_and_a_segment_it_sealed_stays_closed(lake: Lake) -> None:
    made = Copies(lake, "mirror", message_expiry=EXPIRY_S)
    lake.append(made.origin, Rows(base=0, times=(1, 2)))
    made.copy()
    lake.publish(lake.plan(made.replica, 3 + EXPIRY_S))
    assert (lake.offsets(made.replica), dict(made.state().copied)) == ([], {0: 1})
    lake.append(made.origin, Rows(base=2, times=(500,), segment=0))
    assert made.copy().rows == 1
    assert [(message.offset, message.segment) for message in made.messages(made.replica)] == [(2, 2)]
    assert made.state().active[0].base_offset == 2


def test_a_mirror_ends_where_its_origin_does_though_nothing_is_left_there(lake: Lake) -> None:
    made = Copies(lake, "mirror")
    lake.append(made.origin, Rows(base=0, times=(1, 2)))
    lake.delete(made.origin, "true")
    assert made.copy() == Copied(copied={0: 1}, rows=0)
    assert dict(made.state().end_offsets) == {0: 2}


def test_an_origin_that_was_made_anew_and_is_longer_is_not_copied_with_a_hole(lake: Lake) -> None:
    made = Copies(lake, "mirror", message_expiry=EXPIRY_S)
    lake.append(made.origin, Rows(base=0, times=(1, 2)))
    made.copy()
    uuid = lake.log(made.origin).table_uuid
    lake.publish(lake.plan(made.replica, 3 + EXPIRY_S))
    assert made.state().copied_from == uuid, "every later commit repeats it"
    Tables().catalog.drop_table((made.origin.namespace, made.origin.table()))
    lake.topics.create(made.origin, partitions=1, settings={}, ledger=("ledger", 1))
    engine_of_process().forget(made.origin)
    lake.append(made.origin, Rows(base=0, times=(1, 2, 3)))
    assert lake.log(made.origin).table_uuid != uuid
    with raises("AnotherOrigin", match=uuid):
        made.copy()
    assert (made.messages(made.replica), dict(made.state().copied)) == ([], {0: 1})


def test_files_of_what_is_copied_are_not_read_again(lake: Lake) -> None:
    made = Copies(lake, "source", partitions=2)
    lake.append(made.origin, Rows(base=0, times=(1, 2)), Rows(base=0, times=(1,), partition=1))
    made.copy()
    for segment in lake.log(made.origin).segments:
        for file in segment.files:
            Path(local_path(Tables().load(made.origin).location()), file).unlink()
    lake.append(made.origin, Rows(base=2, times=(3,), segment=0))
    assert made.copy().rows == 1
    assert [(m.partition, m.origin_offset) for m in made.messages(made.replica)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
