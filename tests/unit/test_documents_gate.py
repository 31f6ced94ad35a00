"""What is wrong in staged documents is seen, blocks the run, and leaves both tables as they were (SNP-6, SNP-7, DEL-2, DEL-3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.memory.documents import MemoryDocuments
from message_lifecycle.stores.memory.tables import SnapshotRow, Snapshots, StagedVersion
from tests.damaged_documents import Damage, changes, damaged, snapshots, state
from tests.documents import NAME, Drafts, drafts, text_at


@pytest.fixture
def topic() -> Drafts:
    """a: a snapshot at 10, changes to 24, so one at 24 is due, and everybody has 18; b: too young for anything."""
    made = drafts()
    made.write("a", range(1, 11))
    assert made.run().name == "published"
    made.write("a", range(11, 25))
    made.sync("a", "ann", 18)
    made.write("b", range(1, 4))
    return made


OTHER = Change(document="a", server_seq=25, client="x", at=None, payload=b"[]")
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "one change more goes": (changes("a", lambda rows: rows[1:]), {"unnamed", "purged", "rows_kept"}),
    "a change in the middle goes": (changes("a", lambda rows: rows[:1] + rows[2:]), {"unnamed", "purged", "rows_kept", "holes"}),
    "a change after the snapshot's base goes": (changes("a", lambda rows: rows[:-1]), {"unnamed", "purged", "rows_kept", "holes"}),
    "all changes go": (changes("a", lambda _rows: ()), {"unnamed", "purged", "rows_kept", "holes"}),
    "a change comes": (changes("a", lambda rows: (*rows, OTHER)), {"unnamed", "rows_kept", "holes"}),
    "another payload": (changes("a", lambda rows: (*rows[:-1], replace(rows[-1], payload=b"[]"))), {"unnamed"}),
    "another document loses a change": (changes("b", lambda rows: rows[1:]), {"unnamed", "purged", "rows_kept", "epochs_wrong", "uncovered"}),
    "another text in the snapshot": (snapshots("a", lambda rows: (*rows[:-1], state(24, "x"))), {"unproved"}),
    "a snapshot that is none": (snapshots("a", lambda rows: (*rows[:-1], replace(rows[-1], state=b"x"))), {"unproved"}),
    "no snapshot": (snapshots("a", lambda rows: rows[:-1]), {"snapshots_made", "epochs_wrong", "uncovered", "unproved"}),
    "a snapshot past the document": (snapshots("a", lambda rows: (*rows, state(25, text_at(24)))), {"snapshots_made", "ahead", "snapshots_unnamed", "unproved"}),
    "a second snapshot at one server_seq": (snapshots("a", lambda rows: (*rows, state(24, text_at(24)[1:]))), {"snapshots_unnamed", "unproved"}),
    "the epoch is not raised": (snapshots("a", lambda rows: (*rows[:-1], replace(rows[-1], epoch=0))), {"epochs_wrong"}),
    "the epoch is raised twice": (snapshots("a", lambda rows: (*rows[:-1], replace(rows[-1], epoch=2))), {"epochs_wrong"}),
    "the epoch of another document is raised": (snapshots("b", lambda rows: (*rows, SnapshotRow(server_seq=0, epoch=1, state=None))), {"epochs_wrong", "snapshots_unnamed"}),
    "a snapshot of another document": (snapshots("b", lambda rows: (*rows, state(3, text_at(3), 0))), {"snapshots_made", "snapshots_unnamed"}),
}  # fmt: skip


def staged_by(topic: Drafts) -> tuple[str, StagedVersion[Snapshots]]:
    plan_id = topic.planned()
    steps.stage(topic.s, plan_id)
    return plan_id, topic.log.snapshots.staged[plan_id]


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_documents_are_not_published(topic: Drafts, name: str) -> None:
    damage, wanted = DAMAGES[name]
    plan_id, _ = staged_by(topic)
    damaged(topic.log, plan_id, damage)
    report = steps.gate(topic.s, plan_id)
    assert {check.id for check in report.blocking} == wanted
    assert getattr(steps.publish(topic.s, plan_id), "name", None) == "blocked"
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == (list(range(1, 25)), [10], 0)
    assert topic.run(1).name == "published"
    assert (topic.stored("a"), topic.epoch("a")) == (list(range(18, 25)), 1)


def test_undamaged_documents_pass(topic: Drafts) -> None:
    plan_id, staged = staged_by(topic)
    assert [row.server_seq for row in staged.version["a"]] == [24]
    assert steps.gate(topic.s, plan_id).judgement == "passed"


def test_the_check_names_the_documents_without_a_proof(topic: Drafts) -> None:
    plan_id, staged = staged_by(topic)
    staged.version = {**staged.version, "a": (state(24, "x"),)}
    steps.gate(topic.s, plan_id)
    outcome = topic.s.ledger.record(plan_id).outcome
    assert outcome is not None
    assert "unproved: documents without a proof: 1 (a), expected 0" in outcome.detail


def test_a_purge_that_relies_on_a_damaged_snapshot_goes_without_its_document(topic: Drafts) -> None:
    topic.run(1)
    topic.sync("a", "ann", 22)
    topic.write("c", range(1, 11))
    topic.sync("c", "ann", 9)
    commit = topic.log.snapshots.commits[-1]
    topic.log.snapshots.commits[-1] = replace(commit, version={"a": (state(18, text_at(18)), state(24, "x"))})
    outcome = topic.run(2)
    assert outcome.name == "published"
    assert [warning for warning in outcome.warnings if "document a:" in warning]
    assert (topic.stored("a"), topic.stored("c")) == (list(range(18, 25)), [9, 10])
    assert topic.epoch("a") == 1


def falls_back(topic: Drafts) -> None:
    topic.sync("a", "bob", 3)


def leaves(topic: Drafts) -> None:
    topic.s.ledger.detach(NAME, "a", "ann")


@pytest.mark.parametrize("what", [falls_back, leaves])
def test_a_client_that_moves_before_the_gate_has_it_planned_anew(topic: Drafts, what: Callable[[Drafts], None]) -> None:
    """An editor that is opened or closed while a topic is staged is no defect, and holds up no other document."""
    topic.write("c", range(1, 11))
    topic.sync("c", "ann", 9)
    plan_id, _ = staged_by(topic)
    what(topic)
    with pytest.raises(PlanConflict, match="clients of a"):
        steps.gate(topic.s, plan_id)
    assert topic.run().name == "published"
    assert topic.stored("a")[0] == (3 if what is falls_back else 1)
    assert (topic.stored("c"), topic.epoch("c")) == ([9, 10], 1)


@pytest.mark.parametrize("what", [falls_back, leaves])
def test_a_client_that_moves_while_the_gate_judges_blocks(
    topic: Drafts, what: Callable[[Drafts], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_id, _ = staged_by(topic)
    evidence = MemoryDocuments.evidence

    def meanwhile(*arguments: Any) -> object:
        what(topic)
        return evidence(*arguments)

    monkeypatch.setattr(MemoryDocuments, "evidence", meanwhile)
    assert {check.id for check in steps.gate(topic.s, plan_id).blocking} == {"unsynced"}


def test_a_gate_without_evidence_of_clients_blocks(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id, _ = staged_by(topic)
    monkeypatch.setattr(
        "message_lifecycle.app.operations.documents.SnapshotWithPurge.evidence",
        lambda _, s, plan, staged, policy: s.stores.snapshots.evidence(plan, staged, policy),
    )
    assert {check.id for check in steps.gate(topic.s, plan_id).blocking} == {"clients", "unsynced"}


def test_a_tightened_setting_asks_a_person() -> None:  # DEL-3
    topic = drafts(changes_keep_last=20)
    topic.write("a", range(1, 25))
    topic.sync("a", "ann", 24)
    topic.run()
    assert topic.stored("a") == list(range(5, 25))
    topic.s.topics.alter(NAME, {"changes_keep_last": 2})
    plan_id = topic.planned(1)
    steps.stage(topic.s, plan_id)
    assert steps.gate(topic.s, plan_id).judgement == "needs_approval"
    assert topic.stored("a") == list(range(5, 25))
    steps.approve(topic.s, plan_id, granted=True, by="ann", text="")
    steps.publish(topic.s, plan_id)
    steps.verify(topic.s, plan_id)
    assert topic.stored("a") == [23, 24]
    assert Instant(1) == topic.s.ledger.record(plan_id).plan.as_of
