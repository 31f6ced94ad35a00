"""Which topics a sweep for markers looks at, without starting anything (MRK-2)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import Due, due
from message_lifecycle.model.errors import OpenPlan
from message_lifecycle.model.names import TopicName
from tests.worlds import NOW, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def judged(lake: Lake, name: TopicName) -> Due:
    (answer,) = due(lake.services, [name], as_of=NOW, work="marker_generation")
    return answer


def test_a_first_look_owes_nothing_and_a_later_removal_by_others_does(lake: Lake) -> None:
    name = lake.topic("shop/orders", subject_delete_marker_ttl=60)
    lake.append(name, 3, 2, 1)
    lake.world.writer.foreign_delete(name, [(0, 0)])
    assert not judged(lake, name).due, "nobody knows what was there before"
    lake.append(name, 1)
    assert not judged(lake, name).due, "an append takes nothing away"
    lake.world.writer.foreign_delete(name, [(0, 1)])
    assert judged(lake, name).due


def test_a_topic_without_markers_is_left_alone(lake: Lake) -> None:
    name = lake.topic("shop/orders")
    assert judged(lake, name).reason == "the topic makes no markers"
    assert lake.services.ledger.last_swept_snapshot(name) is None


def test_a_sweep_that_finds_nothing_owed_is_done_with_what_it_saw(lake: Lake) -> None:
    name = lake.topic("shop/orders", subject_delete_marker_ttl=60)
    lake.append(name, 3, 2)
    judged(lake, name)
    lake.world.writer.foreign_delete(name, [(0, 0)])  # the key has another message
    outcome = steps.run(lake.services, name, as_of=NOW, work="marker_generation")
    assert (outcome.name, outcome.markers) == ("no_op", 0)
    assert not judged(lake, name).due


def test_a_question_to_a_person_is_not_taken_away_by_a_sweep(lake: Lake) -> None:
    name = lake.topic("shop/orders", subject_delete_marker_ttl=60, message_expiry=DAY)
    lake.append(name, 40, 35, 1)
    judged(lake, name)
    assert steps.run(lake.services, name, as_of=NOW).name == "needs_approval"
    lake.world.writer.foreign_delete(name, [(0, 2)])
    with pytest.raises(OpenPlan):
        steps.run(lake.services, name, as_of=NOW, work="marker_generation")


def test_the_plan_of_a_sweep_can_be_looked_at(lake: Lake) -> None:
    name = lake.topic("shop/orders", subject_delete_marker_ttl=60)
    lake.append(name, 3, 2)
    judged(lake, name)
    lake.world.writer.foreign_delete(name, [(0, 0)])
    plan_id = steps.run(lake.services, name, as_of=NOW, work="marker_generation").plan_id
    assert plan_id is not None
    assert lake.say("explain", plan_id).status == 0
