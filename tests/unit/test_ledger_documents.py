"""How far clients have synchronised, settings below the topic's and owners: what the ledger keeps of documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import event

from message_lifecycle.ledger import Ledger, tables
from message_lifecycle.ledger import topics as documents_of_the_ledger
from message_lifecycle.ledger.database import add_rows
from message_lifecycle.model.document import OwnChanges, OwnSettings, Synced
from message_lifecycle.model.errors import InvalidName, InvalidSetting
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.setting_list import Value
from tests.errors import raises
from tests.ledgers import OTHER, TOPIC, alter, place


def synced(document: str, client: str, server_seq: int, at: int | None = 1) -> Synced:
    return Synced(document=document, client=client, server_seq=server_seq, at=None if at is None else Instant(at))


def test_who_has_what_is_kept_by_normal_names_and_per_topic(ledger: Ledger) -> None:
    place(ledger, TOPIC, synced(" My  Letter ", "Ada", 7, 5))
    place(ledger, TOPIC, synced("my.letter", "bob", INT64_MAX, None))
    place(ledger, TOPIC, synced("list", "ada", 1, -5))
    place(ledger, OTHER, synced("list", "ada", 9))
    whole = [synced("list", "ada", 1, -5), synced("my.letter", "ada", 7, 5), synced("my.letter", "bob", INT64_MAX, None)]
    assert list(ledger.synced(TOPIC)) == whole
    assert list(ledger.synced(TOPIC, "My Letter")) == whole[1:]
    assert ledger.synced(TOPIC, "other") == []


def test_detaching_says_whether_there_was_anybody(ledger: Ledger) -> None:
    for document, client in (("d", "a"), ("d", "b"), ("e", "a")):
        place(ledger, TOPIC, synced(document, client, 3))
    assert ledger.detach(TOPIC, " D ", "A") is True
    assert ledger.detach(TOPIC, "d", "a") is ledger.detach(OTHER, "d", "b") is False
    assert [(row.document, row.client) for row in ledger.synced(TOPIC)] == [("d", "b"), ("e", "a")]


@pytest.mark.parametrize(("document", "client"), [("a/b", "c"), ("d", ".."), ("", "c")])
def test_names_are_names(ledger: Ledger, document: str, client: str) -> None:
    with pytest.raises(InvalidName):
        place(ledger, TOPIC, synced(document, client, 3))
    with pytest.raises(InvalidName):
        ledger.detach(TOPIC, document, client)


def test_settings_below_the_topics_keep_their_level_and_type(ledger: Ledger) -> None:
    """SNP-9."""
    assert ledger.settings_below_topic(TOPIC) == OwnSettings(users={}, documents={}, owners={})
    alter(ledger, users={" Ada ": {"changes_max_age": "1 month"}}, owners={"My Letter": "Bob", "gone": "ada"})
    alter(
        ledger,
        users={"ada": {"changes_max_age": 60, "snapshot_with_purging_changes": True}},
        documents={"ada": {"changes_max_age": "2 years"}, "d": {"changes_keep_last": 5}},
        owners={"my.letter": " Ada ", "gone": None},
    )
    alter(ledger, documents={"D": {"changes_keep_last": None}})
    alter(ledger, OTHER, documents={"d": {"snapshots_keep": 1}})
    found = ledger.settings_below_topic(TOPIC)
    assert found == OwnSettings(
        users={"ada": {"changes_max_age": 60, "snapshot_with_purging_changes": True}},
        documents={"ada": {"changes_max_age": "2 years"}},
        owners={"my.letter": "ada"},
    )
    assert type(found.users["ada"]["snapshot_with_purging_changes"]) is bool


@pytest.mark.parametrize(
    ("level", "setting", "value"),
    [
        ("user", "fold", "yjs"),
        ("user", "message_expiry", 5),
        ("document", "snapshots_interval", 5),
        ("document", "changes_keep_last", 0),
        ("document", "changes_max_age", "a while"),
        ("document", "snapshot_with_purging_changes", 1),
    ],
)
def test_only_what_may_stand_there_is_set_and_with_it_nothing_else(ledger: Ledger, level: str, setting: str, value: Value) -> None:
    with pytest.raises(InvalidSetting):
        alter(ledger, **{f"{level}s": {"w": {"snapshots_keep": 2}, "x": {"changes_max_age": 5, setting: value}}}, owners={"x": "ada"})
    assert ledger.settings_below_topic(TOPIC) == OwnSettings(users={}, documents={}, owners={})


@pytest.mark.parametrize(
    ("level", "setting", "value"),
    [
        ("group", "changes_keep_last", "5"),
        ("user", "changes_kept", "5"),
        ("user", "changes_keep_last", '"5"'),
        ("user", "changes_keep_last", "5,"),
    ],
)
def test_what_is_not_understood_is_not_taken_for_nothing(ledger: Ledger, level: str, setting: str, value: str) -> None:
    """A setting that keeps changes, left out, would let them go."""
    row = {"topic": str(TOPIC), "level": level, "name": "x", "setting": setting, "value": value}
    with ledger._database.writing() as connection:
        add_rows(connection, tables.document_settings, [row])
    with raises("CorruptRecord"):
        ledger.settings_below_topic(TOPIC)


def test_a_topic_that_is_made_anew_knows_nothing_of_earlier_documents(ledger: Ledger) -> None:
    for topic in (TOPIC, OTHER):
        place(ledger, topic, synced("d", "c", 3))
        alter(ledger, topic, users={"ada": {"snapshots_keep": 2}}, owners={"d": "ada"})
    ledger.reset_topic(TOPIC)
    assert ledger.synced(TOPIC) == []
    assert ledger.settings_below_topic(TOPIC) == OwnSettings(users={}, documents={}, owners={})
    assert len(ledger.synced(OTHER)) == 1
    assert ledger.settings_below_topic(OTHER).owners == {"d": "ada"}


def test_a_topic_of_very_many_documents_is_read_at_once(ledger: Ledger) -> None:
    """Each look at what is due reads all of it, by one question."""
    rows = [
        {"topic": str(TOPIC), "document": f"d{n:06}", "client": client, "server_seq": n + 1, "at": n}
        for n in range(100_000)
        for client in ("a", "b")
    ]
    with ledger._database.writing() as connection:
        add_rows(connection, tables.synced_seqs, rows)
    found = ledger.synced(TOPIC)
    assert (len(found), found[0], found[-1]) == (200_000, synced("d000000", "a", 1, 0), synced("d099999", "b", 100_000, 99_999))


def test_what_is_altered_together_is_kept_together_or_not_at_all(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of settings of which one is there alone may be one that every run refuses (SNP-5)."""
    alter(ledger, users={"ada": {"snapshots_keep": 2}}, owners={"d": "ada"})
    before, put, written = ledger.settings_below_topic(TOPIC), documents_of_the_ledger.put, list[object]()

    def dies_at_the_second(*arguments: Any, **named: Any) -> None:
        written.append(named)
        if len(written) == 2:
            raise ConnectionError
        put(*arguments, **named)

    monkeypatch.setattr(documents_of_the_ledger, "put", dies_at_the_second)
    with pytest.raises(ConnectionError):
        alter(ledger, documents={"d": {"snapshot_interval": 20, "snapshot_threshold": 15}}, owners={"d": "bob"})
    assert len(written) == 2
    assert ledger.settings_below_topic(TOPIC) == before
    monkeypatch.undo()
    alter(ledger, documents={"d": {"snapshot_interval": 20, "snapshot_threshold": 15}}, owners={"d": "bob"})
    assert ledger.settings_below_topic(TOPIC) == OwnSettings(
        users={"ada": {"snapshots_keep": 2}}, documents={"d": {"snapshot_interval": 20, "snapshot_threshold": 15}}, owners={"d": "bob"}
    )


def test_what_does_not_go_together_is_told_of_all_that_is_there_and_nothing_is_kept(ledger: Ledger) -> None:
    alter(ledger, users={"ada": {"snapshots_keep": 2}})
    before, told = ledger.settings_below_topic(TOPIC), list[OwnSettings]()

    def refuse(after: OwnSettings) -> None:
        told.append(after)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.alter_own_settings(TOPIC, OwnChanges(documents={" D ": {"snapshots_keep": 3}}, owners={"D": "Ada"}), check=refuse)
    assert told == [OwnSettings(users={"ada": {"snapshots_keep": 2}}, documents={"d": {"snapshots_keep": 3}}, owners={"d": "ada"})]
    assert ledger.settings_below_topic(TOPIC) == before


A, B = synced("d", "c", 8, 5), synced("d", "c", 9, 5)


@pytest.mark.parametrize("there", [None, A, B, synced("d", "c", 8, None), synced("d", "c", 8, 6)])
@pytest.mark.parametrize("seen", [None, A, synced("d", "c", 8, None)])
@pytest.mark.parametrize("to", [None, B, synced("d", "c", 3, None), synced("d", "c", 3, 1)])
def test_a_row_is_replaced_only_while_it_is_the_one_that_was_seen(
    ledger: Ledger, there: Synced | None, seen: Synced | None, to: Synced | None
) -> None:
    for row in (there, synced("d", "other", 1)):
        if row is not None:
            place(ledger, TOPIC, row)
    assert ledger.replace_synced(TOPIC, " D ", "C", seen=seen, to=to) is (there == seen)
    left = to if there == seen else there
    assert list(ledger.synced(TOPIC)) == [row for row in (left, synced("d", "other", 1)) if row is not None]


@pytest.mark.parametrize("server_seq", [-1, 0, INT64_MAX + 1])
def test_no_row_is_replaced_by_an_impossible_one(ledger: Ledger, server_seq: int) -> None:
    place(ledger, TOPIC, A)
    with raises("InvalidServerSeq"):
        ledger.replace_synced(TOPIC, "d", "c", seen=A, to=synced("d", "c", server_seq))
    assert list(ledger.synced(TOPIC)) == [A]


@pytest.mark.parametrize(("before", "at", "kept"), [(5, 9, 9), (9, 5, 9), (5, 5, 5), (None, 5, None)])
def test_who_is_heard_of_is_no_further_than_before(ledger: Ledger, before: int | None, at: int, kept: int | None) -> None:
    """SNP-3: an unknown time never falls silent, and is not made to."""
    place(ledger, TOPIC, synced("d", "c", 7, before))
    assert ledger.record_client_seen(TOPIC, " D ", "C", Instant(at)) is (kept != before)
    assert ledger.record_client_seen(TOPIC, "d", "nobody", Instant(at)) is False
    assert list(ledger.synced(TOPIC)) == [synced("d", "c", 7, kept)]


def test_the_silent_go_by_a_few_statements_and_who_came_back_stays(ledger: Ledger) -> None:
    """SNP-3: a client that has asked for something since it was looked at is another row."""
    rows = [synced(f"d{n:04}", client, n + 1, n) for n in range(1_500) for client in ("a", "b")]
    with ledger._database.writing() as connection:
        add_rows(connection, tables.synced_seqs, [{"topic": str(TOPIC), **asdict(row)} for row in rows])
    place(ledger, OTHER, rows[0])
    place(ledger, TOPIC, synced("d0001", "a", 1, 2_000))
    ledger.record_client_seen(TOPIC, "d0002", "b", Instant(2_000))
    place(ledger, TOPIC, synced("d0003", "a", 4, None))
    statements, ends = list[str](), list[None]()
    event.listen(ledger._database.engine, "before_cursor_execute", lambda _c, _u, text, *_: statements.append(text))
    event.listen(ledger._database.engine, "commit", lambda _: ends.append(None))
    assert ledger.detach_silent(TOPIC, [*rows, synced("d0003", "a", 4, None)]) == 2_997
    assert sum("DELETE" in text for text in statements) <= 10
    assert len(ends) == 1
    left = [("d0001", "a", 1, 2_000), ("d0002", "b", 3, 2_000), ("d0003", "a", 4, None)]
    assert list(ledger.synced(TOPIC)) == [synced(*row) for row in left]
    assert list(ledger.synced(OTHER)) == [rows[0]]
    assert ledger.detach_silent(TOPIC, []) == 0
