"""What clients ask of documents while others do as well: a request takes no other's row, nobody gets a hole (SNP-2, SNP-3, SNP-8)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import documents
from message_lifecycle.app.documents import alter_document
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import EpochMismatch, InvalidChange, InvalidSetting, TableBusy
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.memory.documents import MemoryDocuments
from tests.documents import NAME, Died, Drafts, die, drafts, ten_changes, text_at
from tests.errors import raises


@pytest.fixture
def topic() -> Drafts:
    return ten_changes()


def test_a_refused_sync_leaves_the_row_as_it_was(topic: Drafts) -> None:
    with pytest.raises(Exception, match="server_seq 11"):
        topic.sync("a", "ann", 11)
    assert [(row.client, row.server_seq) for row in topic.s.ledger.synced(NAME)] == [("ann", 8)]


def beside(topic: Drafts, monkeypatch: pytest.MonkeyPatch, look: int, what: Callable[[], None]) -> None:
    """Happens when the tables are looked at for that time, before they are."""
    states, looks = MemoryDocuments.states, list[None]()

    def looked_at(store: MemoryDocuments, *arguments: Any, **named: Any) -> Any:
        looks.append(None)
        if len(looks) == look:
            what()
        return states(store, *arguments, **named)

    monkeypatch.setattr(MemoryDocuments, "states", looked_at)


def rows(topic: Drafts) -> list[tuple[str, int, int | None]]:
    return [(row.client, row.server_seq, row.at) for row in topic.s.ledger.synced(NAME)]


def test_a_sync_that_fails_takes_no_other_of_its_client_back(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put back is what this request has written, and nothing else."""

    def succeeds_and_then_the_first_fails() -> None:
        monkeypatch.undo()
        topic.sync("a", "ann", 3, at=7)
        die()

    beside(topic, monkeypatch, 2, succeeds_and_then_the_first_fails)
    with pytest.raises(Died):
        topic.sync("a", "ann", 9, at=5)
    assert rows(topic) == [("ann", 3, 7)]


def test_a_sync_that_fails_brings_nobody_back_who_has_detached(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves() -> None:
        topic.s.ledger.detach(NAME, "a", "ann")
        die()

    beside(topic, monkeypatch, 2, leaves)
    with pytest.raises(Died):
        topic.sync("a", "ann", 9)
    assert rows(topic) == []


@pytest.mark.parametrize("look", [1, 2])
def test_of_two_syncs_of_a_client_at_once_the_later_end_counts_and_pins_meanwhile(
    topic: Drafts, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    def falls_back() -> None:
        monkeypatch.undo()
        topic.sync("a", "ann", 3, at=7)

    beside(topic, monkeypatch, look, falls_back)
    topic.sync("a", "ann", 9, at=5)
    assert rows(topic) == [("ann", 9, 7)]


@pytest.mark.parametrize(("before", "given", "kept"), [(5, 9, 9), (9, 5, 9), (None, 5, 5), (5, None, None), (None, None, None)])
def test_the_time_of_a_sync_never_moves_back(topic: Drafts, before: int | None, given: int | None, kept: int | None) -> None:
    """One that comes late must not make a client look silent: what it needs would go (SNP-3). An unknown time never falls silent."""
    for at in (before, given):
        documents.sync(topic.s, NAME, "a", client="bob", server_seq=4, at=None if at is None else Instant(at))
    assert rows(topic) == [("ann", 8, 0), ("bob", 4, kept)]


def test_a_client_that_falls_back_needs_what_comes_after_it_again(topic: Drafts) -> None:
    """SNP-3: what its newest request says; at 0 it has no row, and does not pin (SNP-5)."""
    topic.sync("a", "ann", 3)
    assert rows(topic) == [("ann", 3, 0)]
    topic.sync("a", "ann", 0)
    assert rows(topic) == []
    topic.sync("a", "ann", 0)
    assert rows(topic) == []


def test_a_sync_that_never_gets_its_turn_says_so(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic.s.ledger, "replace_synced", lambda *_, **__: False)
    with pytest.raises(TableBusy, match="client ann"):
        topic.sync("a", "ann", 9)
    assert rows(topic) == [("ann", 8, 0)]


def test_a_client_that_is_at_0_again_keeps_its_changes_until_that_is_accepted(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[object] = []
    beside(topic, monkeypatch, 2, lambda: pinned.append(rows(topic)))
    topic.sync("a", "ann", 0)
    assert pinned == [[("ann", 8, 0)]]
    assert rows(topic) == []


def test_a_pull_by_name_is_no_silence_and_no_proof() -> None:
    """SNP-3: what keeps a client's changes is what it has proved to have, for as long as it asks for something now and then."""
    topic = drafts(client_deactivate_after=10)
    topic.write("a", range(1, 11))
    topic.sync("a", "old", 2, at=0)
    topic.sync("a", "new", 7, at=9_999_999)
    for client in ("old", None, "stranger"):
        documents.pull(topic.s, NAME, "a", client_seq=8, client=client, at=Instant(5_000_000))
    documents.pull(topic.s, NAME, "a", client_seq=8, client="old", at=Instant(4_000_000))
    assert rows(topic) == [("new", 7, 9_999_999), ("old", 2, 5_000_000)]
    topic.run(10_000_001)
    assert topic.stored("a")[0] == 2
    topic.run(15_000_001)
    assert topic.stored("a")[0] == 7


def test_a_pull_that_is_refused_is_no_sign_of_life() -> None:
    topic = drafts(client_deactivate_after=10)
    topic.write("a", range(1, 11))
    topic.sync("a", "old", 2, at=0)
    with raises("InvalidServerSeq"):
        documents.pull(topic.s, NAME, "a", client_seq=11, client="old", at=Instant(5_000_000))
    assert rows(topic) == [("old", 2, 0)]


def test_a_damaged_older_snapshot_is_in_nobodys_way(topic: Drafts) -> None:
    """The newest one is whole, and is all that a client is given."""
    alter_document(topic.s, NAME, "a", {"snapshots_keep": 3})
    topic.run()
    topic.write("a", range(11, 21))
    topic.run(1)
    assert topic.snapshots("a") == [10, 20]
    rows_of = topic.log.snapshots.head
    damaged = {"a": tuple(replace(row, state=b"{" if row.server_seq == 10 else row.state) for row in rows_of["a"])}
    topic.log.snapshots.commits[-1] = replace(topic.log.snapshots.commits[-1], version=damaged)
    assert documents.attach(topic.s, NAME, "a", client="eve").state == text_at(20)
    assert documents.pull(topic.s, NAME, "a", client_seq=0).state == text_at(20)
    assert list(documents.history(topic.s, NAME, "a", start=20)) == [(20, text_at(20))]
    with pytest.raises(InvalidChange):
        list(documents.history(topic.s, NAME, "a"))


def test_a_read_that_a_purge_comes_into_is_read_again(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state says that all changes are there; when they are read, they have gone."""
    states = MemoryDocuments.states
    once: list[None] = []

    def purged_meanwhile(store: MemoryDocuments, *arguments: Any, **named: Any) -> object:
        found = states(store, *arguments, **named)
        if not once:
            once.append(None)
            topic.run()
        return found

    monkeypatch.setattr(MemoryDocuments, "states", purged_meanwhile)
    pulled = documents.pull(topic.s, NAME, "a", client_seq=0)
    assert (pulled.snapshot is not None, pulled.changes) == (True, ())


def test_an_attach_that_fails_leaves_the_client_its_changes(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is all that keeps what it needs to go on without."""
    before = topic.s.ledger.synced(NAME, "a")
    client = before[0].client

    def unreadable(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as broken:
        broken.setattr(topic.s.documents, "changes", unreadable)
        with pytest.raises(OSError):
            documents.attach(topic.s, NAME, "a", client=client)
    assert topic.s.ledger.synced(NAME, "a") == before
    documents.attach(topic.s, NAME, "a", client=client)
    assert client not in [row.client for row in topic.s.ledger.synced(NAME, "a")]


def test_a_limited_history_reads_no_change_beyond(topic: Drafts) -> None:  # SNP-8
    topic.write("a", [11], payload="no change at all")
    entries = list(documents.history(topic.s, NAME, "a", limit=3))
    assert [seq for seq, _ in entries] == [1, 2, 3]
    assert list(documents.history(topic.s, NAME, "a", start=4, limit=2)) == list(documents.history(topic.s, NAME, "a", limit=5))[3:]
    with pytest.raises(InvalidSetting):  # RET-5
        list(documents.history(topic.s, NAME, "a", limit=0))
    assert [seq for seq, _ in documents.history(topic.s, NAME, "a", start=9, limit=1)] == [9]
    with pytest.raises(InvalidChange):
        list(documents.history(topic.s, NAME, "a", start=10, limit=2))


def test_a_limited_history_takes_no_more_changes_than_it_shows(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    changes = MemoryDocuments.changes

    def counted(store: MemoryDocuments, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        for change in changes(store, name, document, after=after):
            read.append(change.server_seq)
            yield change

    monkeypatch.setattr(MemoryDocuments, "changes", counted)
    list(documents.history(topic.s, NAME, "a", limit=1))
    assert read == [1]
    topic.run()
    read.clear()
    assert [seq for seq, _ in list(documents.history(topic.s, NAME, "a", start=10, limit=1))] == [10]
    assert read == []


def test_a_history_keeps_no_state_that_it_has_given() -> None:
    """As many states as it has changes would be as many texts in memory."""
    topic = drafts()
    topic.write("a", range(1, 41), payload=[[0, 0, "x" * 500_000]])
    tracemalloc.start()
    try:
        seqs = [seq for seq, _ in documents.history(topic.s, NAME, "a")]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seqs == list(range(1, 41))
    assert most < 5 * 20_000_000, "the last text has 20 million characters, all of them together 410 million"


def test_a_history_with_a_hole_gives_what_comes_before_and_names_it(topic: Drafts) -> None:
    rows_of = topic.log.changes.head
    topic.log.changes.commits[-1] = replace(
        topic.log.changes.commits[-1], version={"a": tuple(change for change in rows_of["a"] if change.server_seq != 4)}
    )
    given: list[int] = []
    with pytest.raises(InvalidChange, match="server_seq 5"):
        given.extend(seq for seq, _ in documents.history(topic.s, NAME, "a"))
    assert given == [1, 2, 3]


def changes_of(document: str, seqs: range, *, client: str = "new") -> list[Change]:
    return [Change(document=document, server_seq=seq, client=client, at=Instant(0), payload=b'[[0,0,"x"]]') for seq in seqs]


def test_changes_with_an_epoch_read_the_tables_once(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    states, synced = MemoryDocuments.states, topic.s.ledger.synced

    def counted(store: MemoryDocuments, *given: Any, **named: Any) -> Any:
        asked.append("states")
        return states(store, *given, **named)

    def counted_rows(*given: Any) -> Any:
        asked.append("synced")
        return synced(*given)

    monkeypatch.setattr(MemoryDocuments, "states", counted)
    monkeypatch.setattr(topic.s.ledger, "synced", counted_rows)
    documents.add_changes(topic.s, NAME, changes_of("a", range(11, 31)) + changes_of("b", range(1, 11)), epoch=0)
    assert asked == ["states", "synced"]


def test_the_epoch_of_every_document_and_client_is_looked_at(topic: Drafts) -> None:  # SNP-7
    topic.run()
    assert topic.epoch("a") == 1
    for changes in (
        changes_of("b", range(1, 3)) + changes_of("a", range(11, 13)),
        changes_of("a", range(11, 12), client="ann") + changes_of("a", range(12, 13)),
    ):
        with pytest.raises(EpochMismatch):
            documents.add_changes(topic.s, NAME, changes, epoch=0)
    assert topic.stored("b") == []
    documents.add_changes(topic.s, NAME, changes_of("a", range(11, 13), client="ann"), epoch=0)


def test_a_document_that_is_not_there_has_no_later_epoch(topic: Drafts) -> None:  # SNP-7
    with pytest.raises(EpochMismatch, match="has not come to that epoch"):
        documents.add_changes(topic.s, NAME, changes_of("b", range(1, 3)), epoch=1)
    documents.add_changes(topic.s, NAME, changes_of("b", range(1, 3)), epoch=0)
