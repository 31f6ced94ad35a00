"""Between the two commits of a plan: whatever happens there takes no change that is needed, and the next run goes on (SNP-7, SNP-9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import documents, steps
from message_lifecycle.app.documents import alter_document, alter_user
from message_lifecycle.app.operations import documents as operation
from message_lifecycle.model.document import OwnChanges, OwnSettings
from message_lifecycle.model.errors import EpochMismatch, InvalidSetting, PlanConflict
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Published
from message_lifecycle.model.setting_list import Value
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.memory.documents import MemoryDocuments
from tests.documents import NAME, Died, Drafts, die, drafts, ten_changes


@pytest.fixture
def topic() -> Drafts:
    return ten_changes()


def between(topic: Drafts, monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """Happens after the snapshots are published, and before anything else; once."""
    publish = MemoryDocuments.publish_snapshots

    def publish_and_then(store: MemoryDocuments, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        done = publish(store, verdict, ledger=ledger)
        monkeypatch.setattr(MemoryDocuments, "publish_snapshots", publish)
        what()
        return done

    monkeypatch.setattr(MemoryDocuments, "publish_snapshots", publish_and_then)


def set_unchecked(topic: Drafts, document: str, **settings: Value) -> None:
    topic.s.ledger.alter_own_settings(NAME, OwnChanges(documents={document: settings}), check=lambda _: None)


def test_a_run_that_dies_between_the_commits_goes_on_by_its_plan(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = topic.gated()
    between(topic, monkeypatch, die)
    with pytest.raises(Died):
        steps.publish(topic.s, plan_id)
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == (list(range(1, 11)), [10], 1)
    assert not isinstance(steps.publish(topic.s, plan_id), Outcome)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == ([8, 9, 10], [10], 1)


def test_another_run_after_one_that_died_purges_by_a_plan_of_its_own(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    between(topic, monkeypatch, die)
    with pytest.raises(Died):
        topic.run()
    outcome = topic.run(1)
    assert (outcome.name, outcome.removed) == ("published", (("purged_synced", 7),))
    # The first purge's epoch stands without it: higher than need be, which costs a client an attach and never a change.
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == ([8, 9, 10], [10], 2)


def test_a_published_plan_is_reported_again_and_changes_nothing(topic: Drafts) -> None:  # DEL-5
    plan_id = topic.gated()
    first = steps.publish(topic.s, plan_id)
    assert steps.publish(topic.s, plan_id) == first
    assert topic.epoch("a") == 1


def test_a_client_that_falls_back_between_the_commits_keeps_its_changes(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = topic.gated()
    between(topic, monkeypatch, lambda: topic.sync("a", "ann", 3))
    with pytest.raises(PlanConflict, match="clients of a"):
        steps.publish(topic.s, plan_id)
    assert topic.stored("a") == list(range(1, 11))
    steps.close(topic.s, topic.s.ledger.record(plan_id).plan, "superseded", "")
    assert topic.run(1).name == "published"
    assert topic.stored("a") == list(range(3, 11))


def test_what_is_known_to_be_in_the_way_raises_no_epoch_and_drops_no_snapshot(topic: Drafts) -> None:
    plan_id = topic.gated()
    topic.sync("a", "ann", 3)
    with pytest.raises(PlanConflict, match="clients of a"):
        steps.publish(topic.s, plan_id)
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == (list(range(1, 11)), [], 0)


def test_the_history_is_whole_where_only_the_first_of_both_commits_was_made(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes with the first commit is no snapshot that the changes need which are still there (SNP-8)."""
    topic.run()
    topic.write("a", range(11, 21))
    topic.sync("a", "ann", 15)
    before = list(documents.history(topic.s, NAME, "a"))
    assert before[0][0] == 10
    plan_id = topic.gated(1)
    between(topic, monkeypatch, lambda: topic.sync("a", "ann", 12))
    with pytest.raises(PlanConflict):
        steps.publish(topic.s, plan_id)
    assert list(documents.history(topic.s, NAME, "a")) == before


def test_a_plan_that_purges_nothing_makes_no_version_of_the_changes(topic: Drafts) -> None:
    topic.sync("a", "ben", 1)
    before = topic.log.changes.snapshot_id
    assert topic.run().name == "published"
    assert (topic.snapshots("a"), topic.log.changes.snapshot_id) == ([10], before)


def other_snapshots(topic: Drafts) -> None:
    """Another plan's commit, of which this one knows nothing."""
    assert isinstance(topic.s.documents, MemoryDocuments)
    snapshots = topic.s.documents.of(NAME).snapshots
    snapshots.publish(snapshots.head, Published(plan_id="other", snapshot_id=snapshots.next_id, removed=()))


def test_other_snapshots_between_the_commits_stop_the_purge(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proved rests on the plan's own."""
    plan_id = topic.gated()
    between(topic, monkeypatch, lambda: other_snapshots(topic))
    with pytest.raises(PlanConflict, match="other snapshots of its documents were published since"):
        steps.publish(topic.s, plan_id)
    assert (topic.stored("a"), topic.snapshots("a")) == (list(range(1, 11)), [10])


def test_other_snapshots_since_the_plan_refuse_it_whole(topic: Drafts) -> None:
    plan_id = topic.gated()
    other_snapshots(topic)
    with pytest.raises(PlanConflict, match="the snapshots have changed since it was planned"):
        steps.publish(topic.s, plan_id)
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == (list(range(1, 11)), [], 0)


def test_a_snapshot_that_is_not_there_after_its_commit_stops_what_comes_next(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a client is taken off, and before a change goes (SNP-7)."""
    plan_id = topic.gated()

    def loses() -> None:
        assert isinstance(topic.s.documents, MemoryDocuments)
        commits = topic.s.documents.of(NAME).snapshots.commits
        commits[-1] = replace(commits[-1], version={})

    between(topic, monkeypatch, loses)
    with pytest.raises(PlanConflict, match="document a: there is no snapshot at server_seq 10"):
        steps.publish(topic.s, plan_id)
    assert topic.stored("a") == list(range(1, 11))


def test_a_purge_asks_for_the_clients_within_its_commit(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:  # SNP-9
    plan_id = topic.gated()
    purge = MemoryDocuments.purge

    def comes_late(*arguments: Any, **named: Any) -> Published:
        topic.sync("a", "ann", 3)
        return purge(*arguments, **named)

    monkeypatch.setattr(MemoryDocuments, "purge", comes_late)
    with pytest.raises(PlanConflict, match="clients of a"):
        steps.publish(topic.s, plan_id)
    assert topic.stored("a") == list(range(1, 11))


def test_the_last_client_that_detaches_between_the_commits_stops_the_purge(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = topic.gated()

    def leaves() -> None:
        topic.s.ledger.detach(NAME, "a", "ann")

    between(topic, monkeypatch, leaves)
    with pytest.raises(PlanConflict):
        steps.publish(topic.s, plan_id)
    assert topic.stored("a") == list(range(1, 11))


def test_a_client_without_a_row_that_comes_after_the_epoch_was_raised_is_told(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = topic.gated()
    told = []

    def comes() -> None:
        with pytest.raises(EpochMismatch):
            topic.sync("a", "bob", 3, epoch=0)
        told.append([row.client for row in topic.s.ledger.synced(NAME)])

    between(topic, monkeypatch, comes)
    steps.publish(topic.s, plan_id)
    assert told == [["ann"]]
    assert topic.stored("a") == [8, 9, 10]


def test_changes_that_come_after_the_plan_stay(topic: Drafts) -> None:  # DEL-4
    plan_id = topic.gated()
    topic.write("a", [11, 12])
    topic.write("b", [1])
    steps.publish(topic.s, plan_id)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert (topic.stored("a"), topic.stored("b")) == ([8, 9, 10, 11, 12], [1])


def test_settings_of_a_document_that_change_after_the_plan_make_it_anew(topic: Drafts) -> None:
    plan_id = topic.gated()
    set_unchecked(topic, "a", snapshot_with_purging_changes=False)
    with pytest.raises(PlanConflict, match="settings of users or documents"):
        steps.publish(topic.s, plan_id)
    assert (topic.stored("a"), topic.epoch("a")) == (list(range(1, 11)), 0)


def test_settings_that_do_not_go_together_stop_a_plan(topic: Drafts) -> None:  # SNP-5, however they came to be
    set_unchecked(topic, "a", snapshot_threshold=99)
    with pytest.raises(InvalidSetting):
        topic.run()


def test_who_is_silent_goes_by_one_call_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = drafts(client_deactivate_after=10)
    for document in ("a", "b", "c"):
        topic.write(document, range(1, 11))
        topic.sync(document, "old", 2, at=0)
        topic.sync(document, "new", 7, at=9_999_999)
    plan_id, calls, detach = topic.gated(10_000_001), list[int](), topic.s.ledger.detach_silent

    def counted(name: TopicName, silent: Any) -> int:
        calls.append(len(silent))
        return detach(name, silent)

    monkeypatch.setattr(topic.s.ledger, "detach_silent", counted)
    steps.publish(topic.s, plan_id)
    assert calls == [3]
    assert {row.client for row in topic.s.ledger.synced(NAME)} == {"new"}


def test_two_alterations_at_once_that_do_not_go_together_are_not_both_kept(topic: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """SNP-5: each is checked with what is there when it is kept, not when it was asked for."""
    alter = topic.s.ledger.alter_own_settings

    def another_comes_first(*arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        alter_document(topic.s, NAME, "a", {"snapshot_threshold": 8})
        alter(*arguments, **named)

    monkeypatch.setattr(topic.s.ledger, "alter_own_settings", another_comes_first)
    with pytest.raises(InvalidSetting, match="document a"):
        alter_document(topic.s, NAME, "a", {"snapshot_interval": 7, "snapshots_keep": 4}, owner="ben")
    assert topic.s.ledger.settings_below_topic(NAME) == OwnSettings(users={}, documents={"a": {"snapshot_threshold": 8}}, owners={})


def test_a_client_that_was_silent_is_out_of_the_ledger_when_the_plan_is_published() -> None:
    topic = drafts(client_deactivate_after=10)
    topic.write("a", range(1, 11))
    topic.sync("a", "old", 2, at=0)
    topic.sync("a", "new", 7, at=9_999_999)
    outcome = topic.run(10_000_001)
    assert [warning for warning in outcome.warnings if "old" in warning]
    assert [row.client for row in topic.s.ledger.synced(NAME)] == ["new"]
    assert topic.stored("a") == [7, 8, 9, 10]


def test_a_client_that_was_silent_is_out_of_the_ledger_where_nothing_was_to_do_as_well() -> None:  # SNP-3
    topic = drafts(client_deactivate_after=10)
    topic.write("a", [1])
    topic.sync("a", "old", 1, at=0)
    topic.sync("a", "new", 1, at=9_999_999)
    assert topic.run(10_000_001).name == "no_op"
    assert [row.client for row in topic.s.ledger.synced(NAME)] == ["new"]


@pytest.mark.parametrize(("as_of", "first"), [(9_999_999, 2), (10_000_000, 2), (10_000_001, 7)])
def test_a_client_is_silent_when_it_was_for_longer_than_it_may(as_of: int, first: int) -> None:  # SNP-3
    topic = drafts(client_deactivate_after=10)
    topic.write("a", range(1, 11))
    topic.sync("a", "old", 2, at=0)
    topic.sync("a", "new", 7, at=9_999_999)
    topic.run(as_of)
    assert topic.stored("a")[0] == first


def test_a_client_that_comes_back_while_it_is_taken_off_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = drafts(client_deactivate_after=10)
    topic.write("a", range(1, 11))
    topic.sync("a", "old", 2, at=0)
    topic.sync("a", "new", 7, at=9_999_999)
    plan_id = topic.gated(10_000_001)
    live = operation.live_clients

    def comes_back(rows: Any, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(operation, "live_clients", live)
        topic.sync("a", "old", 2, at=10_000_001)
        return live(rows, *arguments, **named)

    monkeypatch.setattr(operation, "live_clients", comes_back)
    with pytest.raises(PlanConflict):
        steps.publish(topic.s, plan_id)
    assert [row.client for row in topic.s.ledger.synced(NAME)] == ["new", "old"]
    assert topic.stored("a") == list(range(1, 11))


def test_what_was_tightened_for_one_document_asks_wherever_it_was_set() -> None:  # DEL-3
    topic = drafts()
    for document in ("a", "b"):
        topic.write(document, range(1, 31))
        topic.sync(document, "ann", 20)
    alter_document(topic.s, NAME, "a", {"changes_keep_last": 1000})
    assert topic.asked() == "published"
    assert topic.stored("a")[0] == 1
    alter_document(topic.s, NAME, "a", {"changes_keep_last": None})
    assert topic.asked(1) == "needs_approval"
    assert topic.stored("a")[0] == 1


def test_what_was_tightened_for_a_document_that_loses_nothing_yet_is_not_accepted_with_another() -> None:  # DEL-3
    topic = drafts()
    topic.write("a", range(1, 31))
    topic.sync("a", "ann", 3)
    alter_document(topic.s, NAME, "a", {"changes_keep_last": 1000})
    topic.write("b", range(1, 31))
    topic.sync("b", "ann", 20)
    assert topic.asked() == "published"
    alter_document(topic.s, NAME, "a", {"changes_keep_last": 5})
    topic.sync("b", "ann", 25)
    assert topic.asked(1) == "needs_approval"


def test_a_document_that_came_to_a_stricter_owner_asks() -> None:  # DEL-3
    topic = drafts(changes_keep_last=1000)
    alter_user(topic.s, NAME, "ben", {"changes_keep_last": 1})
    for document in ("a", "b"):
        topic.write(document, range(1, 31))
        topic.sync(document, "ann", 20)
    topic.run()
    alter_document(topic.s, NAME, "a", {}, owner="ben")
    assert topic.asked(1) == "needs_approval"


def test_every_bound_stands_in_the_plan() -> None:
    topic = drafts(changes_keep_last=4, changes_max_age=5)
    topic.write("a", range(1, 21), at=0)
    topic.sync("a", "ann", 12)
    (action,) = topic.s.ledger.record(topic.planned(6_000_000)).plan.snapshots_commit.documents
    assert action.bounds == (("synced", 12), ("snapshot", 21), ("changes_max_age", 21), ("changes_keep_last", 17))
    assert (action.purge_from, action.purge_before, action.reason, action.after, action.epoch) == (1, 12, "purged_synced", 0, 1)
