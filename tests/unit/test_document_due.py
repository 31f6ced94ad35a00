"""Which topics of documents have something to do, without looking where nothing has changed; and what the tasks of the DAG call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app import applications, steps, tasks
from message_lifecycle.app.documents import add_changes, detach, sync
from message_lifecycle.app.due import Due, due
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.worlds import HOUR, NOW, SECOND, Lake, make_lake

DAY = 24 * HOUR
SETTLED = "nothing has changed since nothing was due"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def letters(lake: Lake, **settings: Value) -> TopicName:
    chosen = {"snapshot_interval": 10, "snapshot_threshold": 5, "snapshot_with_purging_changes": True, **settings}
    return lake.topic("shop/letters", **{"fold": "last_write", **chosen})


def write(lake: Lake, name: TopicName, first: int, last: int, *, at: int = NOW) -> None:
    add_changes(
        lake.services,
        name,
        [Change(document="letter", server_seq=seq, client="a", at=Instant(at), payload=b"1") for seq in range(first, last + 1)],
    )


def has(lake: Lake, name: TopicName, seq: int, *, client: str = "a", at: int = NOW) -> None:
    sync(lake.services, name, "letter", client=client, server_seq=seq, at=Instant(at))


def judged(lake: Lake, name: TopicName, as_of: int = NOW, **options: bool) -> Due:
    (answer,) = due(lake.services, [name], as_of=Instant(as_of), **options, work="snapshot_with_purge")
    return answer


def run(lake: Lake, name: TopicName) -> None:
    assert steps.run(lake.services, name, as_of=lake.services.ledger.now(), work="snapshot_with_purge").name == "published"


def test_topics_of_messages_are_left_out_unless_they_are_named(lake: Lake) -> None:
    orders = lake.topic("shop/orders")
    assert due(lake.services, [orders], as_of=NOW, work="snapshot_with_purge") == []
    named = judged(lake, orders, named=True)
    assert (named.due, code_of(named.error)) == (False, "NotADocumentTopic")


def test_due_from_the_interval_on_and_until_it_was_done(lake: Lake) -> None:
    """SNP-1."""
    name = letters(lake)
    assert not judged(lake, name).due
    write(lake, name, 1, 9)
    assert not judged(lake, name).due
    write(lake, name, 10, 10)
    assert judged(lake, name).reason == "1 snapshots are due and 0 changes can go, in 1 documents"
    run(lake, name)
    assert not judged(lake, name).due


class Counting:
    """Documents that count how often they are looked at whole."""

    def __init__(self, lake: Lake) -> None:
        self._reader, self.looks = lake.services.documents, 0

    def __getattr__(self, name: str) -> object:
        self.looks += name == "states"
        return getattr(self._reader, name)


@pytest.fixture
def settled(lake: Lake) -> tuple[Lake, TopicName, Counting]:
    """A topic with a snapshot at 10, a client at 10 and one at 4, looked at since: changes 1 to 3 are gone."""
    name = letters(lake)
    write(lake, name, 1, 10)
    has(lake, name, 10)
    has(lake, name, 4, client="b")
    run(lake, name)
    assert not judged(lake, name).due
    counting = Counting(lake)
    watched = replace(lake, world=replace(lake.world, services=replace(lake.services, documents=counting)))
    assert judged(watched, name).reason == SETTLED
    assert counting.looks == 0
    return watched, name, counting


def test_a_client_that_moves_on_makes_the_topic_due(settled: tuple[Lake, TopicName, Counting]) -> None:
    lake, name, _ = settled
    has(lake, name, 7, client="b")
    assert judged(lake, name).reason == "0 snapshots are due and 3 changes can go, in 1 documents"


def test_a_client_that_leaves_makes_the_topic_due(settled: tuple[Lake, TopicName, Counting]) -> None:
    lake, name, _ = settled
    detach(lake.services, name, "letter", client="b")
    assert judged(lake, name).due


def test_a_new_change_is_looked_at(settled: tuple[Lake, TopicName, Counting]) -> None:
    lake, name, counting = settled
    write(lake, name, 11, 11)
    assert not judged(lake, name).due
    assert counting.looks > 0
    counting.looks = 0
    assert judged(lake, name).reason == SETTLED


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "alter", "shop/letters", "--set", "snapshots_keep=7"),
        ("document", "alter", "shop/letters", "--user", "ada", "snapshots_keep=7"),
        ("document", "alter", "shop/letters", "--document", "letter", "--owner", "ada"),
    ],
)
def test_settings_at_any_level_are_looked_at(settled: tuple[Lake, TopicName, Counting], arguments: tuple[str, ...]) -> None:
    lake, name, counting = settled
    assert lake.say(*arguments).status == 0
    counting.looks = 0
    judged(lake, name)
    assert counting.looks > 0


def test_a_client_that_falls_silent_makes_the_topic_due_then_and_not_before(lake: Lake) -> None:
    name = letters(lake)
    write(lake, name, 1, 10)
    has(lake, name, 10, at=NOW + HOUR)
    has(lake, name, 4, client="b", at=NOW)
    run(lake, name)
    assert not judged(lake, name).due
    lake.world.set_now(Instant(NOW + DAY + 1))
    assert judged(lake, name, NOW + DAY).reason == SETTLED
    assert judged(lake, name, NOW + DAY + 1).due


@pytest.mark.parametrize("level", ["topic", "user", "document"])
def test_changes_that_grow_old_are_looked_for_each_time(lake: Lake, level: str) -> None:
    """SNP-9: when they do, only the changes themselves tell."""
    name = letters(lake)
    age = "changes_max_age=1 day"
    if level == "topic":
        lake.say("topic", "alter", str(name), "--set", age)
    else:
        lake.say("document", "alter", str(name), f"--{level}", "letter", age)
    lake.say("document", "alter", str(name), "--document", "letter", "--owner", "letter")
    write(lake, name, 1, 10)
    has(lake, name, 10, at=NOW + DAY)
    run(lake, name)
    assert not judged(lake, name).due
    later = NOW + DAY + SECOND
    lake.world.set_now(Instant(later))
    assert judged(lake, name, later).due


def test_history_for_ever_is_no_reason_to_look(lake: Lake) -> None:
    name = letters(lake, changes_max_age="permanent")
    write(lake, name, 1, 10)
    has(lake, name, 10)
    run(lake, name)
    assert not judged(lake, name).due
    assert judged(lake, name, NOW + 1).reason == SETTLED


def test_a_plan_under_way_is_another_runs(lake: Lake) -> None:
    name = letters(lake)
    write(lake, name, 1, 10)
    steps.plan(lake.services, name, as_of=NOW, run="first", work="snapshot_with_purge")
    assert "another run works on it" in judged(lake, name).reason


RUN = "snapshot_with_purge/a run"
AS_OF = format_instant(NOW)


@pytest.fixture
def tasked(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    monkeypatch.setattr(applications, "lake", lambda **_: lake.services)
    return lake


def test_a_run_from_due_to_verified(tasked: Lake) -> None:
    name = letters(tasked)
    tasked.topic("shop/orders")
    write(tasked, name, 1, 10)
    has(tasked, name, 8)
    assert tasks.due(run=RUN, as_of=AS_OF, topics=[], work="snapshot_with_purge") == [str(name)]
    assert applications.plan_and_stage(run=RUN, as_of=AS_OF, topics=[str(name)], work="snapshot_with_purge") == 0
    assert applications.gate_all(run=RUN) == 0
    assert applications.publish_all(run=RUN) == 0
    assert not tasks.wants_markers(run=RUN)
    assert tasks.waiting_plans(run=RUN) == []
    (outcome,) = tasks.verify(run=RUN, work="snapshot_with_purge")
    assert (outcome["outcome"], outcome["removed"], outcome["messages_kept"]) == ("published", {"purged_synced": 7}, 3)
    assert tasks.due(run="snapshot_with_purge/the next", as_of=AS_OF, topics=[], work="snapshot_with_purge") == []
    idle = next(run for run in tasked.services.ledger.runs() if run.run_id == "snapshot_with_purge/the next")
    assert "removed 7 at this as_of before" in idle.detail
    assert "shop/orders" not in idle.detail


def test_a_topic_of_messages_that_is_named_is_refused(tasked: Lake) -> None:
    tasked.topic("shop/orders")
    with pytest.raises(Exception, match="holds messages, not documents"):
        tasks.due(run=RUN, as_of=AS_OF, topics=["shop/orders"], work="snapshot_with_purge")


def test_what_a_person_is_asked_speaks_of_changes(tasked: Lake) -> None:
    name = letters(tasked, snapshot_with_purging_changes=False)
    write(tasked, name, 1, 10)
    has(tasked, name, 8)
    tasked.say("topic", "alter", str(name), "--set", "snapshot_with_purging_changes=true")
    tasks.due(run=RUN, as_of=AS_OF, topics=[], work="snapshot_with_purge")
    applications.plan_and_stage(run=RUN, as_of=AS_OF, topics=[str(name)], work="snapshot_with_purge")
    applications.gate_all(run=RUN)
    (question,) = tasks.waiting_plans(run=RUN)
    assert question["subject"] == "shop/letters: remove 7 of 10 changes of documents?"
    assert "of 1 document, each covered by a checked snapshot" in question["body"]
    assert "; newer changes are not affected" in question["body"]


def test_the_pages_of_a_topic_and_of_its_plan(tasked: Lake) -> None:
    from message_lifecycle.app import pages

    name = letters(tasked)
    write(tasked, name, 1, 10)
    has(tasked, name, 8)
    run(tasked, name)
    page = pages.topic(base="/lifecycle", page=tasks.topic_page(str(name)))
    assert "8 – 10" in page
    assert "Synchronised up to" in page
    (plan,) = tasked.services.ledger.plans(name)
    shown = pages.plan(base="/lifecycle", page=tasks.plan_page(plan.plan_id))
    assert "1 – 7" in shown
    assert "synced 8, snapshot 11" in shown
    assert "Changes of documents" in pages.overview(base="/lifecycle", status=tasks.status(), runs=tasks.runs())
