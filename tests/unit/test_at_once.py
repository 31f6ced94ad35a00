"""A plan's commits as one: made by who can, looked for in each table afterwards, and what is missing follows in order (DEL-4)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, PlanConflict, TableBusy
from message_lifecycle.model.names import TopicName
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore, CommitContext
from message_lifecycle.stores.iceberg import fence, transaction
from message_lifecycle.stores.iceberg.capabilities import Capabilities
from message_lifecycle.stores.iceberg.fence import AlreadyPublished
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.transaction import Ready, commits_at_once
from message_lifecycle.stores.memory.documents import MemoryChanges, MemorySnapshots
from tests.documents import NAME, Died, Drafts, ten_changes
from tests.errors import raises
from tests.unit.test_commits import Table
from tests.unit.test_fence import BASE, MINE, OTHER, Snapshot, Told, known

OURS, THEIRS = Snapshot(2, "delete", {PLAN_ID: MINE}), Snapshot(2, "delete", {PLAN_ID: OTHER})


@pytest.fixture(autouse=True)
def snapshots_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "read_snapshot", known)


class Late(Table):
    """Shows what came only when it is looked at for the second time."""

    looks = 0

    def refresh(self) -> None:
        self.looks += 1
        if self.looks > 1:
            super().refresh()


def ready(*tables: Table, steps: Callable[[str], None] = lambda _: None) -> list[Ready]:
    topic = TopicName.parse("s/t")
    return [
        Ready(
            jvm=MagicMock(),
            topic=topic,
            kind=kind,
            table=table,
            plan_id=MINE,
            judge=_passes,
            make=_nothing,
            steps=steps,
            of=kind,
            since=BASE,
        )
        for kind, table in zip(("snapshots", "changes"), tables, strict=True)
    ]


def _passes(_walk: object) -> None: ...


def _nothing(_on: object, _walk: object) -> tuple[()]:
    return ()


def at_once(monkeypatch: pytest.MonkeyPatch, ends: LifecycleError | None, *tables: Table) -> list[str]:
    """Both are committed, the catalog makes it of these tables and says so by `ends`. The steps that were told."""

    def swap(*_: object, **__: object) -> None:
        for table in made:
            table.comes(OURS)
        if ends is not None:
            raise ends

    told: list[str] = []
    first, second, *made = tables
    monkeypatch.setattr(transaction, "swap_at_once", swap)
    monkeypatch.setattr(transaction, "attempt_of", lambda *_: None)
    one, other = ready(first, second, steps=told.append)
    one.commit_with([other])
    return told


UNKNOWN, REFUSED, CONFLICT = (
    CommitUnknown("publishing"),
    CommitRefused("publishing", "a file is gone"),
    PlanConflict(MINE, "another came first"),
)


@pytest.mark.parametrize("ends", [None, UNKNOWN, REFUSED, CONFLICT, AlreadyPublished(MINE)])
def test_all_that_are_there_are_enough_whatever_was_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: LifecycleError | None
) -> None:
    one, other = Table(), Table()
    assert at_once(monkeypatch, ends, one, other, one, other) == ["before_snapshots", "before_changes", "after_snapshots", "after_changes"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("ends", "said"), [(None, CommitUnknown), (UNKNOWN, CommitUnknown), (REFUSED, PlanConflict), (CONFLICT, PlanConflict)]
)
def test_where_none_is_there_it_is_said_why(
    monkeypatch: pytest.MonkeyPatch, ends: LifecycleError | None, said: type[LifecycleError]
) -> None:
    with pytest.raises(said):
        at_once(monkeypatch, ends, Table(), Table())


def test_a_table_that_is_too_busy_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableBusy):
        at_once(monkeypatch, TableBusy("publishing", 10), Table(), Table())


@pytest.mark.parametrize("ends", [None, UNKNOWN, CONFLICT])
def test_a_half_is_named_and_left_to_who_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: LifecycleError | None
) -> None:
    first = Table()
    with caplog.at_level(logging.WARNING):
        at_once(monkeypatch, ends, first, Table(), first)
    (record,) = caplog.records
    assert "spark.sql.catalog.lake.lifecycle.atomic-transactions" in record.getMessage()
    assert f"of 2 it has not committed {ready(first, first)[1].place[0]}.{ready(first, first)[1].place[1]}" in record.getMessage()


def test_what_comes_between_two_looks_is_no_half(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Late(), Table()
    at_once(monkeypatch, UNKNOWN, first, second, first, second)
    assert not caplog.records


# Whether the catalog does so


class Catalog:
    def __init__(self, ends: Exception | None) -> None:
        self._ends = ends

    def commitTransaction(self, _commits: object) -> None:  # Iceberg's name
        if self._ends is not None:
            raise self._ends


def jvm(*, atomic: bool = True, server: bool = True, ends: Exception | None = None) -> Any:
    util = SimpleNamespace(ArrayList=list)
    found = Capabilities(has_transactions=server)
    return SimpleNamespace(is_atomic=atomic, capabilities=found, lake=Catalog(ends), jvm=SimpleNamespace(java=SimpleNamespace(util=util)))


def test_nobody_who_has_not_said_so_gets_it() -> None:
    assert not commits_at_once(jvm(atomic=False, ends=Told("UnsupportedOperationException")))


def test_one_that_offers_it_refuses_a_commit_of_no_table() -> None:
    assert commits_at_once(jvm(ends=Told("IllegalArgumentException")))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (jvm(server=False), "no REST catalog"),
        (jvm(ends=Told("UnsupportedOperationException")), "does not offer"),
    ],
)
def test_where_it_is_configured_and_not_offered_it_is_said_what_to_do(asked: Any, why: str) -> None:
    with raises("NoTransactions", match=f"{why}.*Remove the setting"):
        commits_at_once(asked)


def test_an_error_on_the_way_tells_nothing() -> None:
    with pytest.raises(Told):
        commits_at_once(jvm(ends=Told("RESTException")))


# Who walks a plan's changes


class Both:
    """Both commits of a plan in memory, where one store's readiness is the other's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, made: Sequence[type[ChangeStore]], dies: bool = False) -> None:
        self.asked = list[str]()
        self._deeds: dict[type[ChangeStore], Callable[[], object]] = {}

        def prepare(store: ChangeStore, verdict: Verdict, given: CommitContext) -> Both:
            self.asked.append(type(store).__name__)
            self._deeds[type(store)] = lambda: store.publish(verdict, given)
            return self

        self._made, self._dies = made, dies
        for store in (MemorySnapshots, MemoryChanges):
            monkeypatch.setattr(store, "prepare", prepare)

    def commit_with(self, others: Sequence[Both]) -> None:
        assert list(others) == [self]
        for store in self._made:
            self._deeds[store]()
        if self._dies:
            raise Died


def test_what_was_made_at_once_is_found_and_what_was_not_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in ((), (MemorySnapshots,), (MemorySnapshots, MemoryChanges)):
        topic = ten_changes()
        with monkeypatch.context() as patched:
            both = Both(patched, made=made)
            assert topic.run().name == "published"
        assert both.asked == ["MemorySnapshots", "MemoryChanges"]
        assert _seen(topic) == ([8, 9, 10], [10], 1)


def test_a_run_that_dies_after_the_one_commit_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ten_changes()
    plan_id = topic.gated()
    with monkeypatch.context() as patched:
        Both(patched, made=(MemorySnapshots, MemoryChanges), dies=True)
        with pytest.raises(Died):
            steps.publish(topic.s, plan_id)
    assert _seen(topic) == ([8, 9, 10], [10], 1)
    assert steps.verify(topic.s, plan_id).name == "published"


def test_clients_are_asked_before_both(monkeypatch: pytest.MonkeyPatch) -> None:  # SNP-9
    topic = ten_changes()
    plan_id = topic.gated()
    topic.s.ledger.detach(NAME, "a", "ann")
    Both(monkeypatch, made=(MemorySnapshots, MemoryChanges))
    with pytest.raises(PlanConflict):
        steps.publish(topic.s, plan_id)
    assert _seen(topic) == (list(range(1, 11)), [], 0)


def _seen(topic: Drafts) -> tuple[list[int], list[int], int]:
    return topic.stored("a"), topic.snapshots("a"), topic.epoch("a")
