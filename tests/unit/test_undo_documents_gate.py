"""An undo of documents whose staged rows are not exactly those that had gone is not published (DEL-2, DEL-7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.memory.tables import SnapshotRow
from tests.damaged_documents import Damage, changes, damaged, snapshots, state
from tests.documents import NAME, Drafts, drafts, text_at


@pytest.fixture
def topic() -> Drafts:
    """Of `a` changes 18 to 29 went, and the snapshot at 10; `b` is as it was."""
    made = drafts()
    made.write("b", range(1, 4))
    for first, last, synced in ((1, 10, 8), (11, 24, 18), (25, 34, 30)):
        made.write("a", range(first, last + 1))
        made.sync("a", "ann", synced)
        assert made.run(synced).name == "published"
    assert (made.stored("a"), made.snapshots("a")) == (list(range(30, 35)), [24, 34])
    return made


def staged(topic: Drafts) -> str:
    purge = next(plan.plan_id for plan in topic.s.ledger.plans(NAME) if plan.as_of == Instant(30))
    plan_id = steps.plan(topic.s, NAME, as_of=Instant(30), work=UndoPlan(plan_id=purge)).plan.plan_id
    steps.stage(topic.s, plan_id)
    return plan_id


OLDER = Change(document="a", server_seq=17, client="x", at=Instant(0), payload=b"[]")
FEWER = {"rows_restored", "rows_kept"}
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "the first change does not come": (changes("a", lambda rows: rows[1:]), {"changes_back", "changes_missing", *FEWER}),
    "one in the middle does not come": (changes("a", lambda rows: rows[:3] + rows[4:]), {"changes_back", "changes_missing", "holes", *FEWER}),
    "none comes": (changes("a", lambda rows: rows[12:]), {"changes_back", "changes_missing", *FEWER}),
    "one more comes": (changes("a", lambda rows: (OLDER, *rows)), {"changes_unnamed", "changes_changed", *FEWER}),
    "one of another document comes": (changes("b", lambda rows: (*rows, replace(OLDER, document="b", server_seq=4))), {"changes_unnamed", "changes_changed", *FEWER}),
    "another payload comes": (changes("a", lambda rows: (replace(rows[0], payload=b"[]"), *rows[1:])), {"changes_changed"}),
    "another time comes": (changes("a", lambda rows: (replace(rows[0], at=None), *rows[1:])), {"changes_changed"}),
    "one that was there differs": (changes("a", lambda rows: (*rows[:-1], replace(rows[-1], client="y"))), {"changes_changed"}),
    "one that was there goes": (changes("a", lambda rows: rows[:-1]), {"changes_lost", "holes", "rows_kept"}),
    "another document's goes": (changes("b", lambda rows: rows[1:]), {"changes_lost", "rows_kept"}),
    "one comes twice": (changes("a", lambda rows: (rows[0], *rows)), {"changes_twice", "holes", "rows_kept"}),
    "no snapshot comes": (snapshots("a", lambda rows: rows[1:]), {"snapshots_back", "snapshots_missing"}),
    "another text comes": (snapshots("a", lambda rows: (state(10, "x"), *rows[1:])), {"snapshots_changed"}),
    "one with another epoch comes": (snapshots("a", lambda rows: (replace(rows[0], epoch=2), *rows[1:])), {"snapshots_changed"}),
    "one more snapshot comes": (snapshots("a", lambda rows: (*rows, state(20, text_at(20)))), {"snapshots_unnamed", "snapshots_changed"}),
    "a snapshot comes twice": (snapshots("a", lambda rows: (*rows, rows[0])), {"snapshots_twice"}),
    "the snapshot of before goes": (snapshots("a", lambda rows: (rows[0], rows[2])), {"snapshots_lost"}),
    "the epoch goes back": (snapshots("a", lambda rows: (*rows[:-1], replace(rows[-1], epoch=2))), {"snapshots_changed", "epochs_wrong"}),
    "the epoch of another is raised": (
        snapshots("b", lambda rows: (*rows, SnapshotRow(server_seq=0, epoch=1, state=None))),
        {"snapshots_unnamed", "snapshots_changed", "epochs_wrong"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_undo_is_not_published(topic: Drafts, name: str) -> None:
    damage, wanted = DAMAGES[name]
    before = topic.stored("a"), topic.snapshots("a"), topic.epoch("a")
    plan_id = staged(topic)
    damaged(topic.log, plan_id, damage)
    report = steps.gate(topic.s, plan_id)
    found = {check.id for check in report.blocking}
    assert found == wanted
    assert getattr(steps.publish(topic.s, plan_id), "name", None) == "blocked"
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == before


def test_an_undamaged_one_asks_a_person(topic: Drafts) -> None:
    plan_id = staged(topic)
    report = steps.gate(topic.s, plan_id)
    assert (report.judgement, [check.id for check in report.checks if not check.passed]) == ("needs_approval", ["undo"])
