"""Exactly once and in one piece: whoever else writes meanwhile, and wherever a run dies."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.effort import sample
from tests.errors import raises
from tests.spark.lake import EXPIRY_S, Lake, Rows
from tests.spark.landing import Landing, by_the_rule, json_lines

from message_lifecycle.model.errors import EXIT_UNAVAILABLE, CommitUnknown, TableBusy
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import append
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.fence import fenced_commit
from message_lifecycle.stores.iceberg.layout import DELETED_BY
from message_lifecycle.stores.iceberg.table_metadata import change_metadata, set_properties

pytestmark = pytest.mark.spark

START = 1714564800
BAD = "broken\n"


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    return Landing(lake, tmp_path)


def lines(first: int, count: int) -> str:
    return json_lines(*((f"key {n % 5}", f"value {n}", f"2024-05-01T12:00:{n % 60:02}Z") for n in range(first, first + count)))


class Meanwhile:
    """What others do between the writing of a batch and its commit. `tries` counts the commits asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object], *, times: int = 1) -> None:
        self.tries = 0
        commit = append.commit_staged

        def after_the_deed(*args: Any, **named: Any) -> None:
            if named.get("state") is not None:
                self.tries += 1
                if self.tries <= times:
                    deed()
            commit(*args, **named)

        monkeypatch.setattr(append, "commit_staged", after_the_deed)


def assert_whole(landing: Landing, name: TopicName, expected: int) -> None:
    messages = landing.messages(name)
    assert len({(message.partition, message.offset) for message in messages}) == len(messages) == expected
    ends = landing.state(name).end_offsets
    for partition, end in ends.items():
        assert [m.offset for m in messages if m.partition == partition] == list(range(end))
    assert landing.branches(name) == []
    assert not landing.ledger.open_batches(name)


def test_a_rival_append_to_the_partition_makes_the_batch_number_again(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    landing.take(name, landing.source(a_jsonl=lines(0, 3)))
    rival = Meanwhile(monkeypatch, lambda: landing.lake.append(name, Rows(base=3, times=(START, START), segment=0)))
    result = landing.take(name, landing.source(b_jsonl=lines(3, 4)))
    assert (rival.tries, result.end_offsets) == (2, {0: 9})
    assert_whole(landing, name, 9)
    assert [message.value for message in landing.messages(name)][5:] == [f"value {n}".encode() for n in range(3, 7)]


def test_no_quarantine_is_made_beside_a_log_that_half_a_deletion_has_left(landing: Landing) -> None:  # DEL-7
    """Its own quarantine is away, and could not come back to a name that another has."""
    name, folder = landing.topic(), landing.source(a_jsonl=lines(0, 3) + BAD)
    place = name.namespace, name.table()
    change_metadata(place, lambda base, builder: set_properties(base, builder, {DELETED_BY: "plan 7"}), what="a deletion")
    with raises("DeletionBegun", match="`lifecycle publish plan 7`"):
        landing.take(name, folder)
    assert (landing.messages(name), landing.branches(name)) == ([], [])
    assert Tables().pointers.one((name.namespace, name.table("quarantine"))) is None
    change_metadata(place, lambda base, builder: set_properties(base, builder, {DELETED_BY: None}), what="taken back")
    landing.take(name, folder)
    assert [at for _, at, _, _ in landing.quarantine(name)] == [4]
    assert_whole(landing, name, 3)


def test_a_rival_append_to_another_partition_passes_and_both_ends_are_right(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic(partitions=3)
    landing.take(name, landing.source(a_jsonl=lines(0, 1)))
    mine = landing.messages(name)[0].partition
    other = (mine + 1) % 3
    rival = Meanwhile(monkeypatch, lambda: landing.lake.append(name, Rows(base=0, times=(START, START), partition=other)))
    landing.take(name, landing.source(b_jsonl=lines(0, 1)))
    assert rival.tries == 1
    assert landing.state(name).end_offsets == {mine: 2, other: 2, 3 - mine - other: 0}
    assert landing.state(name).active[other].rows == 2
    assert_whole(landing, name, 4)


def test_a_deletion_published_meanwhile_passes_and_takes_only_what_it_named(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic(message_expiry=EXPIRY_S, segment_size_bytes=10**6)
    landing.lake.append(name, Rows(base=0, times=(1, 2)))
    landing.lake.append(name, Rows(base=2, times=(START,)))
    plan = landing.lake.plan(name, START + 1)
    Meanwhile(monkeypatch, lambda: landing.lake.publish(plan))
    assert landing.take(name, landing.source(a_jsonl=lines(0, 3))).end_offsets == {0: 6}
    assert [message.offset for message in landing.messages(name)] == [2, 3, 4, 5]


def test_a_segment_that_the_cleaner_seals_meanwhile_takes_no_more_messages(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic(message_expiry=EXPIRY_S)
    landing.take(name, landing.source(a_jsonl=json_lines(("a", "1", "2024-05-01T12:00:00Z"))))
    plan = landing.lake.plan(name, START + EXPIRY_S)
    rival = Meanwhile(monkeypatch, lambda: landing.lake.publish(plan))
    landing.take(name, landing.source(b_jsonl=json_lines(("a", "2", None))))
    assert rival.tries == 2
    assert [(message.offset, message.segment) for message in landing.messages(name)] == [(1, 1)]


def test_a_batch_that_always_comes_too_late_says_so_and_can_be_taken_later(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    folder = landing.source(a_jsonl=lines(0, 2))
    monkeypatch.setattr(append, "TRIES", 2)

    def rival() -> None:
        landing.lake.append(name, Rows(base=landing.state(name).end_offsets[0], times=(START,), segment=0))

    Meanwhile(monkeypatch, rival, times=2)
    with pytest.raises(TableBusy):
        landing.take(name, folder)
    assert len(landing.messages(name)) == 2
    assert landing.take(name, folder).rows == 2
    assert_whole(landing, name, 4)


def test_a_new_topic_takes_messages_under_the_name_of_one_that_took_some(landing: Landing) -> None:
    """Spark's session keeps tables by their names, and would look for the old one's next state."""
    name = landing.topic()
    landing.take(name, landing.source(a_jsonl=lines(0, 2)))
    Tables().catalog.drop_table((name.namespace, name.table()))
    landing.lake.topics.create(name, partitions=1, settings={}, ledger=landing.ledger.next_identity(name))
    assert landing.take(name, landing.source(b_jsonl=lines(0, 3))).end_offsets == {0: 3}
    assert_whole(landing, name, 3)


def test_an_ingest_into_another_topic_hides_no_older_ledger(landing: Landing) -> None:  # DEL-8
    """A ledger restored from a backup knows fewer commits of a topic than the topic's table. Its own number grows with each ingest."""
    restored, other = landing.topic(), landing.topic()
    uuid, number = landing.ledger.identity()
    for at in range(3):
        landing.take(other, landing.source(**{f"{at}_jsonl": lines(at, 1)}))
    assert landing.ledger.identity()[1] > number + 1
    with raises("LedgerMismatch", match="older state"):
        landing.ledger.check(restored, (uuid, number + 1))


def test_two_ingests_at_once_both_land(landing: Landing) -> None:
    name = landing.topic(partitions=2, segment_size_bytes=50)
    folders = [landing.source(a_jsonl=lines(0, 30)), landing.source(b_jsonl=lines(30, 30)), landing.source(a_jsonl=lines(0, 30))]
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda folder: landing.take(name, folder), folders))
    assert sorted(result.rows for result in results) == [0, 30, 30]
    assert_whole(landing, name, 60)
    messages = landing.messages(name)
    segments, state = by_the_rule(messages, limit_bytes=50, expiry_us=0)
    assert [message.segment for message in messages] == segments
    assert landing.state(name) == state


def test_a_commit_of_unknown_result_is_looked_for_and_not_repeated(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    folder = landing.source(a_jsonl=lines(0, 3) + BAD)
    commit = fenced_commit

    def commit_unheard(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise CommitUnknown("batch")

    with monkeypatch.context() as patched:
        patched.setattr(append, "fenced_commit", commit_unheard)
        for _ in range(2):  # the first time it is the quarantine's commit
            with pytest.raises(CommitUnknown):
                landing.take(name, folder)
    assert landing.take(name, folder).files == ()
    assert_whole(landing, name, 3)
    assert len(landing.quarantine(name)) == 1


def test_a_run_whose_batch_was_given_up_may_not_commit(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    folder = landing.source(a_jsonl=lines(0, 3))
    Meanwhile(monkeypatch, lambda: landing.ledger.abandon_batch(landing.ledger.open_batches(name)[0].batch_id))
    with raises("BatchNotOpen"):
        landing.take(name, folder)
    assert landing.messages(name) == []
    assert landing.take(name, folder).rows == 3
    assert_whole(landing, name, 3)


@pytest.mark.parametrize("bad", [BAD, ""])
def test_a_run_that_only_seemed_dead_cannot_put_the_batch_in_twice(landing: Landing, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    name = landing.topic()
    folder = landing.source(a_jsonl=lines(0, 3) + bad)

    # A second run that holds no lock, as after a lost connection to the ledger: it finds the open batch and does it again.
    def second_run() -> None:
        monkeypatch.undo()
        landing.take(name, folder)

    deed = Meanwhile(monkeypatch, second_run)
    monkeypatch.setattr(type(landing.ledger), "lock", _no_lock)
    result = landing.take(name, folder)
    assert (deed.tries, result.rows) == (1, 3)
    assert_whole(landing, name, 3)
    if bad:
        assert len(landing.quarantine(name)) == 1


def test_an_open_batch_whose_files_are_gone_is_given_up(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = landing.topic()
    with monkeypatch.context() as patched:
        patched.setattr(append, "commit_staged", _power_cut)
        with pytest.raises(KeyboardInterrupt):
            landing.take(name, landing.source(a_jsonl=lines(0, 3)))
    assert len(landing.ledger.open_batches(name)) == 1
    assert landing.take(name, landing.source(a_jsonl=lines(0, 5))).rows == 5
    assert_whole(landing, name, 5)


@pytest.mark.parametrize("point", sample(("begun", "staged", "committed")))
def test_a_killed_run_is_made_good_by_the_next(landing: Landing, point: str) -> None:
    name = landing.topic(partitions=2)
    folder = landing.source(a_jsonl=lines(0, 20) + BAD, b_csv="at,k,v\n2024-05-01T00:00:00Z,a,1\n")
    command = [sys.executable, "-m", "tests.spark.dying_ingest", point, landing.url, str(name), str(folder)]
    died = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert len(landing.messages(name)) == (21 if point == "committed" else 0)
    result = landing.take(name, folder)
    assert (result.rows, len(result.files)) == ((0, 0) if point == "committed" else (21, 2))
    assert_whole(landing, name, 21)
    assert len(landing.quarantine(name)) == 1


def test_a_full_disk_is_named_and_leaves_the_log_as_it_was(landing: Landing) -> None:
    name = landing.topic()
    noise = random.Random(7)
    rows = [("a", noise.randbytes(200).hex(), None) for _ in range(10_000)]
    folder = landing.source(a_jsonl=json_lines(*rows))
    command = [sys.executable, "-m", "tests.spark.dying_ingest", "disk full", landing.url, str(name), str(folder)]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert stopped.returncode == EXIT_UNAVAILABLE, stopped.stderr[-2000:]
    assert "StorageFull: " in stopped.stdout
    assert landing.messages(name) == []
    assert landing.take(name, folder).rows == 10_000
    assert_whole(landing, name, 10_000)


def _power_cut(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


class _no_lock:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
