"""What a run of the DAG `preview` keeps for its page: the plan as the command prints it, and nothing of it as a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from message_lifecycle.app import steps, tasks
from message_lifecycle.app.documents import add_changes
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant, format_instant
from tests.errors import raises
from tests.worlds import HOUR, NOW, Lake, make_lake

RUN = "preview/a run"
AS_OF = format_instant(NOW)
DAY = 86_400
EXPIRY = {"message_expiry": DAY}


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = make_lake(capsys)
    monkeypatch.setattr(tasks, "lake", lambda: made.services)
    return made


def kept(*topics: str, work: Scheduled = "message_cleaner", as_of: str = AS_OF) -> str:
    tasks.store_preview(run=RUN, as_of=as_of, topics=list(topics), work=work)
    return str(tasks.preview_page(run=RUN)["printed"])


def recorded(lake: Lake) -> list[Any]:
    """All that the ledger has of plans, questions, outcomes and what runs have taken."""
    ledger = lake.services.ledger
    plans = [ledger.record(summary.plan_id) for summary in ledger.plans()]
    return [plans, ledger.waiting(), ledger.history(), [(run.run_id, run.entries) for run in ledger.runs() if run.run_id != RUN]]


def test_the_plan_is_told_as_the_command_prints_it(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 48, 1)
    printed = kept("shop/orders")
    assert printed == lake.say("plan", "shop/orders", "--dry-run", "--as-of", AS_OF).out
    assert "2 by expiry" in printed
    assert tasks.preview_page(run=RUN)["as_of"] == AS_OF


def waits(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 48, 1)
    name = lake.services.topics.list()[0]
    assert steps.run(lake.services, name, as_of=NOW).name == "needs_approval"


def was_staged(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 48, 1)
    steps.stage(lake.services, steps.plan(lake.services, lake.services.topics.list()[0], as_of=NOW, run="another").plan.plan_id)


@pytest.mark.parametrize("begun", [waits, was_staged])
@pytest.mark.parametrize("hours_later", [0, 100], ids=["now", "after the question has lapsed"])
def test_no_plan_is_recorded_and_none_that_is_open_gives_way(lake: Lake, begun: Callable[[Lake], None], hours_later: int) -> None:
    """A run of the cleaner at another time would close the one and ask again for the other (DEL-1)."""
    begun(lake)
    before, stored = recorded(lake), lake.stored(lake.services.topics.list()[0])
    lake.world.set_now(Instant(NOW + hours_later * HOUR))
    as_of = format_instant(Instant(NOW + hours_later * HOUR - 1))
    assert " by expiry" in kept("shop/orders", as_of=as_of)
    assert "shop/orders" in kept(as_of=as_of)
    assert recorded(lake) == before
    assert lake.stored(lake.services.topics.list()[0]) == stored
    assert next(iter(lake.services.ledger.runs(RUN))).entries == (), "no topic is the run's"


def test_of_topics_that_are_not_due_it_is_told_why(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 1)
    lake.append(lake.topic("shop/prices"), 72, 1)
    printed = kept()
    assert printed.count("Plan ") == 1
    assert "shop/prices: not due: " in printed
    assert "nothing of 2 messages" in kept("shop/prices"), "what was asked for is told whole"


def test_a_question_is_told_where_all_are_looked_at(lake: Lake) -> None:
    waits(lake)
    assert "is pending approval" in kept()


def test_a_topic_that_cannot_be_planned_is_told_and_hides_no_other(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 1)
    with raises("RunFailed", match="UnknownTopic"):
        kept("shop/nowhere", "shop/orders")
    printed = str(tasks.preview_page(run=RUN)["printed"])
    assert "1 by expiry" in printed
    assert "shop/nowhere: cannot be planned: UnknownTopic" in printed


def test_a_time_that_has_not_come_is_refused_and_nothing_is_kept(lake: Lake) -> None:
    lake.topic("shop/orders")
    with raises("FutureAsOf"):
        kept("shop/orders", as_of="2099-01-01T00:00:00Z")
    assert tasks.preview_page(run=RUN) == {"run_id": RUN, "as_of": None, "printed": None}


def test_another_look_of_the_same_run_takes_the_place_of_the_first(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY), 72, 1)
    assert "1 by expiry" in kept("shop/orders")
    lake.append(lake.topic("shop/prices", **EXPIRY), 72, 71, 1)
    assert "2 by expiry" in kept("shop/prices")
    assert "shop/orders" not in tasks.preview_page(run=RUN)["printed"]


@pytest.mark.parametrize("work", [work for work in get_args(Scheduled) if work != "quarantine"])  # memory keeps no rows there
def test_every_operation_with_a_schedule_can_be_looked_at(lake: Lake, work: Scheduled) -> None:
    lake.append(lake.topic("shop/orders", **EXPIRY, cleanup_policy="compact,delete"), 72, 1)
    lake.topic("shop/letters", fold="last_write")
    before = recorded(lake)
    assert kept(work=work)
    assert recorded(lake) == before


@pytest.mark.parametrize(
    ("topic", "document"),
    [
        pytest.param("shop/letters", "letter-to-" + "ann" * 40, id="long"),
        pytest.param("shop/letters", "an\u200cna", id="joined"),
        pytest.param("shop/let\u200cters", "anna", id="of a joined topic"),
    ],
)
def test_a_document_that_is_erased_is_erased_here_too(lake: Lake, topic: str, document: str) -> None:
    """However it is spelled: a name that was broken over two lines, or written out, would not be found."""
    name = lake.topic(topic, fold="last_write", snapshot_interval=10, snapshot_threshold=5)
    changes = [Change(document=document, server_seq=seq, client="a", at=NOW, payload=b"1") for seq in range(1, 11)]
    add_changes(lake.services, name, changes)
    assert document in kept(work="snapshot_with_purge")
    lake.services.ledger.forget_documents(name, {document.encode(): "erased:0123"}.get)
    printed = str(tasks.preview_page(run=RUN)["printed"])
    assert document not in printed
    assert "erased:0123" in printed
