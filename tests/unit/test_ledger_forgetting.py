"""An erased document's name goes from every row of its topic, and what was recorded stays readable under its id."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import text, update

from message_lifecycle.ledger import Ledger, tables
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import ACCEPTED_OWN, StagedDocuments, Synced
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import words_of
from message_lifecycle.model.outcome import Approval, Check, DueState, GateReport, Outcome, Staged
from message_lifecycle.model.plan import Held, Plan
from tests.changes import named
from tests.errors import raises
from tests.ledgers import AS_OF, OTHER, TOPIC, alter, place, plan_of

GONE = "über.den-\u05e9\u05b8\u05dc\u05d5\u05dd_1"
WORD = "erased:0123"
SUBSTITUTE = {GONE.encode(): WORD}.get


def plan() -> Plan:
    actions = tuple(SnapshotDocument(document=name, seq=9, after=0, snapshot=9, epoch=0) for name in (GONE, "kept"))
    held = Held(
        partition=0, first_base=1, last_offset=2, rows=2, overdue_since=None, holder="hold", detail=f"document {GONE}: legal hold 1"
    )
    made = plan_of()
    return replace(
        made,
        operation="snapshot_with_purge",
        changes=named(*actions),
        held=(held,),
        warnings=(f"document {GONE}: silent for longer: ann", "document kept: silent: bob"),
        asks=(f"stricter than the last approved value: changes_keep_last (document {GONE} and 2 more)",),
    )


def recorded(ledger: Ledger, made: Plan) -> Outcome:
    """All the way from a plan to its outcome, each telling the name."""
    plan_id = made.plan_id
    ledger.add_plan(made, run="r")
    documents = StagedDocuments(snapshots_id=2, changes_id=None, made=1, dropped=0, purged=0, blocked=((GONE, f"no fold of {GONE}."),))
    staged = Staged(plan_id=plan_id, branch="b", snapshot_id=1, documents=documents)
    ledger.record_staged(staged)
    found = Check(id="unproved", says="All are proved.", kind="limit", evaluated=True, passed=False, found=f"1 document: '{GONE}'")
    rule = Check(id="policy", says="It is the same.", kind="rule", evaluated=True, passed=True, found="1")
    report = GateReport(plan_id=plan_id, staged_snapshot_id=1, declared=2, checks=(rule, found), figures=(("rows", 1.5),))
    ledger.record_report(staged, report)
    ledger.record_approval(Approval(plan_id=plan_id, granted=True, by="ada", at=AS_OF, text=f"{GONE} may go"))
    return ledger.record_outcome(
        Outcome(
            name="failed", operation=made.operation, topic=made.topic, as_of=AS_OF, plan_id=plan_id,
            warnings=(f"InvalidChange: document {GONE}: at 3",), held=made.held, detail=f"clients of {GONE} need more.",
        )
    )  # fmt: skip


@pytest.fixture
def full(ledger: Ledger) -> Ledger:
    """The name in every row that may have it, and beside it what must stay."""
    for topic in (TOPIC, OTHER):
        for document in (GONE, "kept"):
            place(ledger, topic, Synced(document=document, client="ann", server_seq=3, at=Instant(1)))
        alter(
            ledger, topic, documents={GONE: {"changes_keep_last": 1}, "kept": {"changes_keep_last": 2}}, owners={GONE: "bob", "kept": "bob"}
        )
        alter(ledger, topic, users={GONE: {"changes_keep_last": 7}})
    own = {"users": {}, "documents": {GONE: {"changes_keep_last": 1}}, "owners": {GONE: "bob", "kept": "bob"}}
    ledger.set_accepted(TOPIC, {"fold": "yjs", ACCEPTED_OWN: json.dumps(own, sort_keys=True)}, by="ada", text=f"for {GONE}")
    ledger.set_due_state(TOPIC, DueState(marker="m", policy_hash="p", next_due_at=None, holders=()))
    recorded(ledger, plan())
    ledger.record_idle_run("idle", as_of=AS_OF, detail=f"{TOPIC}: InvalidSetting: document {GONE} of topic {TOPIC}")
    return ledger


def rows_with(ledger: Ledger) -> list[str]:
    once = json.dumps(GONE)[1:-1]
    spelled = (GONE, once, json.dumps(once)[1:-1])
    with ledger._database.reading() as connection:
        return [
            table.name
            for table in tables.metadata.sorted_tables
            for row in connection.execute(text(f"SELECT * FROM {table.name}"))
            if any(one in str(value) for one in spelled for value in row)
        ]


def test_no_row_of_the_topic_tells_the_name(full: Ledger) -> None:
    full.forget_documents(TOPIC, SUBSTITUTE)
    # Of the other topic, and of the user who is called so.
    assert sorted(rows_with(full)) == sorted(
        ["lifecycle_synced_seqs", "lifecycle_document_owners", *["lifecycle_document_settings"] * 2, "lifecycle_document_settings"]
    )
    assert [row.document for row in full.synced(TOPIC)] == ["kept"]
    assert [row.document for row in full.synced(OTHER)] == ["kept", GONE]
    own = full.settings_below_topic(TOPIC)
    assert (dict(own.owners), list(own.documents), list(own.users)) == ({"kept": "bob"}, ["kept"], [GONE])
    accepted = full.accepted(TOPIC)
    assert accepted is not None
    assert (accepted["fold"], json.loads(str(accepted[ACCEPTED_OWN]))["owners"]) == ("yjs", {"kept": "bob"})
    assert full.due_states() == {}


def test_what_was_recorded_is_read_under_its_id_with_the_word_in_the_names_place(full: Ledger) -> None:
    full.forget_documents(TOPIC, SUBSTITUTE)
    record = full.record(plan().plan_id)
    assert record.plan.plan_id == plan().plan_id
    assert [action.document for action in record.plan.snapshots_commit.documents] == [WORD, "kept"]
    assert record.plan.warnings == (f"document {WORD}: silent for longer: ann", "document kept: silent: bob")
    assert f"(document {WORD} and 2 more)" in record.plan.asks[0]
    assert record.staged is not None
    assert record.staged.documents is not None
    assert record.staged.documents.blocked == ((WORD, f"no fold of {WORD}."),)
    assert record.report is not None
    assert record.report.checks[1].found == f"1 document: '{WORD}'"
    assert record.approval is not None
    assert record.approval.text == f"{WORD} may go"
    assert record.outcome is not None
    assert (record.outcome.detail, record.outcome.held[0].detail) == (f"clients of {WORD} need more.", f"document {WORD}: legal hold 1")
    (entry,) = full.run_entries("r")
    assert (entry.plan_id, entry.outcome) == (record.plan.plan_id, record.outcome)


def test_again_it_changes_nothing(full: Ledger) -> None:
    full.forget_documents(TOPIC, SUBSTITUTE)
    first = full.record(plan().plan_id)
    full.forget_documents(TOPIC, {GONE.encode(): "erased:another"}.get)
    assert full.record(plan().plan_id) == first


def test_a_plan_without_the_name_keeps_its_text(ledger: Ledger) -> None:
    other = replace(plan(), changes=named(*plan().snapshots_commit.documents[1:]), held=(), warnings=(), asks=())
    ledger.add_plan(other)
    ledger.forget_documents(TOPIC, SUBSTITUTE)
    with ledger._database.reading() as connection:
        assert connection.execute(text("select document, text_id from lifecycle_plan_documents")).all() == [(other.to_json(), None)]


def test_a_text_that_was_changed_after_the_name_went_is_corrupt(full: Ledger) -> None:
    full.forget_documents(TOPIC, SUBSTITUTE)
    with full._database.writing() as connection:
        told = connection.execute(text("select document from lifecycle_plan_documents")).scalar_one()
        connection.execute(update(tables.plan_documents).values(document=told.replace('"seq":9', '"seq":8')))
    with raises("CorruptRecord"):
        full.record(plan().plan_id)


def test_names_are_found_as_whole_words() -> None:
    told = [part for part, is_name in words_of(f"document {GONE}: 3 ({GONE}-2), my.letter") if is_name]
    assert told == ["document", GONE, "3", f"{GONE}-2", "my.letter"]
