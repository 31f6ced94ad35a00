"""How far clients have synchronised, settings below the topic's and owners: what the ledger keeps of documents."""

from __future__ import annotations

import pytest

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import add_rows
from message_lifecycle.ledger.errors import CorruptRecord
from message_lifecycle.ledger.ledger import SqlLedger
from message_lifecycle.model.document import OwnSettings, Synced
from message_lifecycle.model.errors import InvalidName, InvalidServerSeq, InvalidSetting
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.setting import Value
from tests.ledgers import OTHER, TOPIC


def synced(document: str, client: str, server_seq: int, at: int | None = 1) -> Synced:
    return Synced(document=document, client=client, server_seq=server_seq, at=None if at is None else Instant(at))


def test_who_has_what_is_kept_by_normal_names_and_per_topic(ledger: SqlLedger) -> None:
    ledger.set_synced(TOPIC, synced(" My  Letter ", "Ada", 7, 5))
    ledger.set_synced(TOPIC, synced("my.letter", "bob", INT64_MAX, None))
    ledger.set_synced(TOPIC, synced("list", "ada", 1, -5))
    ledger.set_synced(OTHER, synced("list", "ada", 9))
    whole = [synced("list", "ada", 1, -5), synced("my.letter", "ada", 7, 5), synced("my.letter", "bob", INT64_MAX, None)]
    assert list(ledger.synced(TOPIC)) == whole
    assert list(ledger.synced(TOPIC, "My Letter")) == whole[1:]
    assert ledger.synced(TOPIC, "other") == []


def test_a_client_may_fall_back(ledger: SqlLedger) -> None:
    """SNP-3: what its newest request says it has; it needs what came after that."""
    ledger.set_synced(TOPIC, synced("d", "c", 30, 1))
    ledger.set_synced(TOPIC, synced("d", "c", 18, 2))
    assert list(ledger.synced(TOPIC)) == [synced("d", "c", 18, 2)]


def test_a_client_at_0_has_no_row(ledger: SqlLedger) -> None:
    """SNP-5: it does not pin."""
    ledger.set_synced(TOPIC, synced("d", "c", 0))
    assert ledger.synced(TOPIC) == []
    ledger.set_synced(TOPIC, synced("d", "c", 4))
    ledger.set_synced(TOPIC, synced("d", "c", 0))
    assert ledger.synced(TOPIC) == []


@pytest.mark.parametrize("server_seq", [-1, INT64_MAX + 1])
def test_an_impossible_server_seq_is_refused(ledger: SqlLedger, server_seq: int) -> None:
    ledger.set_synced(TOPIC, synced("d", "c", 4))
    with pytest.raises(InvalidServerSeq):
        ledger.set_synced(TOPIC, synced("d", "c", server_seq))
    assert list(ledger.synced(TOPIC)) == [synced("d", "c", 4)]


@pytest.mark.parametrize(("before", "given", "kept"), [(5, 9, 9), (9, 5, 9), (None, 5, 5), (5, None, None), (None, None, None)])
def test_the_time_of_a_request_never_moves_back(ledger: SqlLedger, before: int | None, given: int | None, kept: int | None) -> None:
    """One that comes late must not make a client look silent: what it needs would go (SNP-3)."""
    ledger.set_synced(TOPIC, synced("d", "c", 1, before))
    ledger.set_synced(TOPIC, synced("d", "c", 2, given))
    assert list(ledger.synced(TOPIC)) == [synced("d", "c", 2, kept)]


def test_detaching_says_whether_there_was_anybody(ledger: SqlLedger) -> None:
    for document, client in (("d", "a"), ("d", "b"), ("e", "a")):
        ledger.set_synced(TOPIC, synced(document, client, 3))
    assert ledger.detach(TOPIC, " D ", "A") is True
    assert ledger.detach(TOPIC, "d", "a") is ledger.detach(OTHER, "d", "b") is False
    assert [(row.document, row.client) for row in ledger.synced(TOPIC)] == [("d", "b"), ("e", "a")]


@pytest.mark.parametrize(("document", "client"), [("a/b", "c"), ("d", ".."), ("", "c")])
def test_names_are_names(ledger: SqlLedger, document: str, client: str) -> None:
    with pytest.raises(InvalidName):
        ledger.set_synced(TOPIC, synced(document, client, 3))
    with pytest.raises(InvalidName):
        ledger.detach(TOPIC, document, client)


def test_settings_below_the_topics_keep_their_level_and_type(ledger: SqlLedger) -> None:
    """SNP-9."""
    assert ledger.own_settings(TOPIC) == OwnSettings(users={}, documents={}, owners={})
    ledger.set_own_setting(TOPIC, "user", " Ada ", "changes_max_age", "1 month")
    ledger.set_own_setting(TOPIC, "user", "ada", "changes_max_age", 60)
    ledger.set_own_setting(TOPIC, "user", "ada", "snapshot_with_purging_changes", True)
    ledger.set_own_setting(TOPIC, "document", "ada", "changes_max_age", "2 years")
    ledger.set_own_setting(TOPIC, "document", "d", "changes_keep_last", 5)
    ledger.set_own_setting(TOPIC, "document", "d", "changes_keep_last", None)
    ledger.set_own_setting(OTHER, "document", "d", "snapshots_keep", 1)
    ledger.set_owner(TOPIC, "My Letter", "Bob")
    ledger.set_owner(TOPIC, "my.letter", " Ada ")
    ledger.set_owner(TOPIC, "gone", "ada")
    ledger.set_owner(TOPIC, "gone", None)
    found = ledger.own_settings(TOPIC)
    assert found == OwnSettings(
        users={"ada": {"changes_max_age": 60, "snapshot_with_purging_changes": True}},
        documents={"ada": {"changes_max_age": "2 years"}},
        owners={"my.letter": "ada"},
    )
    assert type(found.users["ada"]["snapshot_with_purging_changes"]) is bool


@pytest.mark.parametrize(
    ("level", "setting", "value"),
    [
        ("topic", "changes_keep_last", 5),
        ("user", "fold", "yjs"),
        ("user", "message_expiry", 5),
        ("document", "snapshots_interval", 5),
        ("document", "changes_keep_last", 0),
        ("document", "changes_max_age", "a while"),
        ("document", "snapshot_with_purging_changes", 1),
    ],
)
def test_only_what_may_stand_there_is_set(ledger: SqlLedger, level: str, setting: str, value: Value) -> None:
    with pytest.raises(InvalidSetting):
        ledger.set_own_setting(TOPIC, level, "x", setting, value)
    assert ledger.own_settings(TOPIC) == OwnSettings(users={}, documents={}, owners={})


@pytest.mark.parametrize(
    ("level", "setting", "value"),
    [
        ("group", "changes_keep_last", "5"),
        ("user", "changes_kept", "5"),
        ("user", "changes_keep_last", '"5"'),
        ("user", "changes_keep_last", "5,"),
    ],
)
def test_what_is_not_understood_is_not_taken_for_nothing(ledger: SqlLedger, level: str, setting: str, value: str) -> None:
    """A setting that keeps changes, left out, would let them go."""
    row = {"topic": str(TOPIC), "level": level, "name": "x", "setting": setting, "value": value}
    with ledger._database.writing() as connection:
        add_rows(connection, tables.document_settings, [row])
    with pytest.raises(CorruptRecord):
        ledger.own_settings(TOPIC)


def test_a_topic_that_is_made_anew_knows_nothing_of_earlier_documents(ledger: SqlLedger) -> None:
    for topic in (TOPIC, OTHER):
        ledger.set_synced(topic, synced("d", "c", 3))
        ledger.set_own_setting(topic, "user", "ada", "snapshots_keep", 2)
        ledger.set_owner(topic, "d", "ada")
    ledger.start_anew(TOPIC)
    assert ledger.synced(TOPIC) == []
    assert ledger.own_settings(TOPIC) == OwnSettings(users={}, documents={}, owners={})
    assert len(ledger.synced(OTHER)) == 1
    assert ledger.own_settings(OTHER).owners == {"d": "ada"}


def test_a_topic_of_very_many_documents_is_read_at_once(ledger: SqlLedger) -> None:
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
