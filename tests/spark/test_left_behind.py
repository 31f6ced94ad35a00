"""What a run that died has left of a plan that is closed is gone when the topic is next planned; nothing else is (DEL-1, DEL-4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.documents import Died, die
from tests.effort import sample
from tests.spark import (
    test_compaction_kill_points,
    test_document_kill_points,
    test_erasure_kill_points,
    test_kill_points,
    test_quarantine_age,
)
from tests.spark.kill_points import with_ledger

from message_lifecycle.app import changes, steps
from message_lifecycle.app.operations.registry import Work, preview
from message_lifecycle.app.services import Services
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.errors import CatalogUnavailable, CommitUnknown
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.erasure import publish as erasing
from message_lifecycle.stores.iceberg.layout import COMPACTED, QUARANTINE, SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF, LATER = Instant(100_000_000), Instant(101_000_000)
TOPICS: dict[str, tuple[Any, Work | None, tuple[str, ...]]] = {
    "log": (test_kill_points.Topic, "message_cleaner", ("",)),
    "view": (test_compaction_kill_points.Topic, "compaction", ("", COMPACTED)),
    "documents": (test_document_kill_points.Topic, "snapshot_with_purge", ("", SNAPSHOTS)),
    "quarantine": (test_quarantine_age.Topic, "quarantine", ("", QUARANTINE)),
    "erasure": (test_erasure_kill_points.Topic, None, ("", COMPACTED)),
}
ENDINGS: tuple[OutcomeName, ...] = ("superseded", "lapsed", "refused", "blocked", "failed")


class Left:
    """A topic of one of the suites, and what is there of plans beside its tables' own."""

    def __init__(self, kind: str, ledger_url: str) -> None:
        made, work, self.kinds = TOPICS[kind]
        self.topic = made(ledger_url)
        self.s: Services = self.topic.s
        self.name = self.topic.name
        self.work: Work = EraseKey(request_id=self.topic.request_id) if work is None else work

    def plan(self, as_of: Instant = AS_OF) -> Plan:
        return steps.plan(self.s, self.name, as_of=as_of, work=self.work).plan

    def of(self, plan: Plan) -> set[str]:
        """Branches of the plan, and an erasure's files. What the snapshots of a branch have named is history, which reclaim takes."""
        found = set()
        for kind in self.kinds:
            if Tables().pointers.one((self.name.namespace, self.name.table(kind))) is None:
                continue
            table = Tables().load(self.name, kind=kind)
            found |= {f"{kind}:{name}" for name in table.metadata.refs if name == branch_of(plan.plan_id)}
            if plan.erasure is not None:
                found |= {f"{kind}:{path.name}" for path in local_path(table.location()).rglob(f"*{plan.plan_id[:16]}*")}
        return found


@pytest.fixture(params=TOPICS)
def left(request: pytest.FixtureRequest, embedded: Path, erasure_secret: None, tmp_path: Path) -> Iterator[Left]:
    with with_ledger(lambda url: Left(request.param, url), tmp_path) as made:
        yield made


@pytest.fixture
def of_log(embedded: Path, tmp_path: Path) -> Iterator[Left]:
    with with_ledger(lambda url: Left("log", url), tmp_path) as made:
        yield made


def ends_and_dies(left: Left, plan: Plan, how: OutcomeName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger has the outcome; what was staged is not taken away any more."""
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(changes, "drop", lambda *_, **__: die())
        steps.close(left.s, plan, how, "as the test wants it")


@pytest.mark.parametrize("how", sample(["superseded", "failed"], "superseded"))
def test_the_stage_of_a_plan_that_was_closed_just_before_a_death_goes(
    left: Left, how: OutcomeName, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = left.plan()
    steps.stage(left.s, plan.plan_id)
    ends_and_dies(left, plan, how, monkeypatch)
    assert left.of(plan), "the test leaves something"
    preview(left.s, left.name, as_of=LATER, work=left.work)
    assert left.of(plan), "a dry run changes nothing"
    following = left.plan(LATER)
    assert left.of(plan) == set()
    assert left.s.ledger.plans_with_leftover_stages(left.name) == []
    assert left.s.ledger.record(following.plan_id).outcome is None


def test_what_is_staged_for_a_plan_that_was_closed_meanwhile_goes_though_its_run_died(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, make = left.plan(), changes.stage_all

    def late(s: Services, plan: Plan) -> None:
        steps.close(s, plan, "superseded", "another took its place")  # finds nothing to take away
        make(s, plan)
        die()

    monkeypatch.setattr(changes, "stage_all", late)
    with pytest.raises(Died):
        steps.stage(left.s, plan.plan_id)
    assert left.of(plan)
    left.plan(LATER)
    assert left.of(plan) == set()


def test_an_erasure_that_broke_off_while_it_was_staged_leaves_no_file(
    embedded: Path, erasure_secret: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_ledger(lambda url: Left("erasure", url), tmp_path) as left:
        plan = left.plan()
        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(erasing, "_write", lambda *_: die())
            steps.stage(left.s, plan.plan_id)
        copies = {name for name in left.of(plan) if "erased-" in name}
        assert copies, "copies of files are there, and nothing tells of them"
        steps.close(left.s, plan, "superseded", "as the test wants it")
        assert left.of(plan) == set()
        left.topic.run()
        left.topic.is_as_after_one_run()


@pytest.mark.parametrize("how", sample(ENDINGS, "failed"))
def test_however_a_plan_was_closed(of_log: Left, how: OutcomeName, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = of_log.plan()
    steps.stage(of_log.s, plan.plan_id)
    ends_and_dies(of_log, plan, how, monkeypatch)
    of_log.plan(LATER)
    assert of_log.of(plan) == set()


def test_open_plans_and_those_of_another_ledger_keep_their_stage(of_log: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = of_log.plan()
    steps.stage(of_log.s, closed.plan_id)
    ends_and_dies(of_log, closed, "superseded", monkeypatch)
    others = f"sqlite:///{tmp_path / 'others.db'}"
    migrate_ledger(others)
    theirs = preview(replace(of_log.s, ledger=open_ledger(others)), of_log.name, as_of=Instant(AS_OF + 1))
    of_log.s.stores.log.stage(theirs)
    still_open = of_log.plan(LATER)
    steps.stage(of_log.s, still_open.plan_id)
    changes.sweep(of_log.s, of_log.name)
    assert of_log.of(closed) == set()
    assert of_log.of(theirs) == {f":{branch_of(theirs.plan_id)}"}
    assert of_log.of(still_open) == {f":{branch_of(still_open.plan_id)}"}
    assert of_log.topic.run().name == "published"


def test_a_plan_whose_commit_nobody_knows_keeps_its_stage(of_log: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = of_log.plan()
    steps.stage(of_log.s, plan.plan_id)
    steps.gate(of_log.s, plan.plan_id)

    def unknown(*_: object) -> None:
        raise CommitUnknown("publishing")

    with monkeypatch.context() as patch, pytest.raises(CommitUnknown):
        patch.setattr(changes, "commit", unknown)
        steps.publish(of_log.s, plan.plan_id)
    changes.sweep(of_log.s, of_log.name)
    assert of_log.of(plan)
    assert of_log.topic.run().name == "published"
    of_log.topic.is_as_after_one_run()


def test_a_sweep_that_fails_is_told_and_hinders_no_plan(
    of_log: Left, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = of_log.plan()
    steps.stage(of_log.s, plan.plan_id)
    ends_and_dies(of_log, plan, "lapsed", monkeypatch)
    left = of_log.of(plan)

    def away(*_: object) -> None:
        raise CatalogUnavailable("it rests")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(of_log.s.stores.log, "discard", away)
        of_log.plan(LATER)
    assert of_log.of(plan) == left
    (told,) = [record.getMessage() for record in caplog.records if plan.plan_id in record.getMessage()]
    assert "CatalogUnavailable" in told and "it rests" in told
    of_log.plan(Instant(LATER + 1))
    assert of_log.of(plan) == set()


def test_a_published_plan_needs_no_second_look(of_log: Left) -> None:
    assert of_log.topic.run().name == "published"
    assert of_log.s.ledger.plans_with_leftover_stages(of_log.name) == []
