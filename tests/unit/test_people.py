"""Names of people: kept, refused and compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from message_lifecycle.app import holds, known, steps
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.people import is_same_person, person_of
from message_lifecycle.model.request import RemoveMessages
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

NOBODY = {
    "nothing": "",
    "space": " \t",
    "zero-width space": "\u200b",
    "soft hyphen": "\u00ad",
    "byte order mark": "\ufeff",
    "filler": "\u3164",
    "unassigned": "\uffff",
    "marks": "\u0301\u0300",
    "points": "...",
}
MIXED = {
    "Latin and Cyrillic": "ad\u0430",
    "Latin and Greek": "\u0391da",
    "full width and Cyrillic": "\uff41\u0430",
    "Latin and Han": "ada\u5c71",
}


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.mark.parametrize("name", NOBODY.values(), ids=NOBODY)
def test_a_name_without_letter_or_digit_is_refused(name: str) -> None:
    with raises("UnnamedPerson"):
        person_of(name)


@pytest.mark.parametrize("name", MIXED.values(), ids=MIXED)
def test_letters_of_several_scripts_are_refused(name: str) -> None:
    with raises("MixedScripts"):
        person_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "ada",
        "Zo\u00eb d\u2019Arc-2",
        "\u0410\u043d\u043d\u0430",
        "\u5c71\u7530\u306f\u306a\u30b3",
        "\uae40\u91d1",
        "ada@example.org",
        "user_17",
        "4711",
    ],
)
def test_a_name_of_one_script_is_kept(name: str) -> None:
    assert person_of(f" {name}\u200b ") == name


def test_different_people_stay_different() -> None:
    names = ["ada", "adam", "Bob", "\u0410\u043d\u043d\u0430", "\u00e1da", "ada2"]
    assert [(a, b) for a in names for b in names if a != b and is_same_person(a, b)] == []


def test_case_is_one_name_in_every_script() -> None:
    for name in ("\u0413\u0440\u0438\u0433\u043e\u0440\u0438\u0439", "\u039d\u03af\u03ba\u03bf\u03c2", "stra\u00dfe"):
        assert is_same_person(name, name.upper()), name


TAKES_A_NAME: dict[str, Callable[[Lake, str], object]] = {
    "approve": lambda lake, by: steps.approve(lake.services, waiting(lake), granted=True, by=by, text="fine"),
    "refuse": lambda lake, by: steps.approve(lake.services, waiting(lake), granted=False, by=by, text="no"),
    "request": lambda lake, by: steps.plan(
        lake.services, with_message(lake), as_of=NOW, work=RemoveMessages(positions=((0, 0),)), requested_by=by
    ),
    "hold": lambda lake, by: holds.place_hold(lake.services, lake.topic("shop/orders"), by=by, why="case 7"),
    "release": lambda lake, by: holds.release_hold(
        lake.services, holds.place_hold(lake.services, lake.topic("shop/orders"), by="ada", why="case 7").hold_id, by=by, why="over"
    ),
    "accepted settings": lambda lake, by: lake.services.ledger.set_accepted(lake.topic("shop/orders"), {}, by=by, text="fine"),
    "forget": lambda lake, by: known.forget_topic(lake.services, lake.topic("shop/orders"), by=by, text="gone"),
}


def with_message(lake: Lake) -> TopicName:
    name = lake.topic("shop/orders")
    lake.append(name, 1)
    return name


def waiting(lake: Lake) -> str:
    name = with_message(lake)
    plan_id = steps.plan(lake.services, name, as_of=NOW, work=RemoveMessages(positions=((0, 0),)), requested_by="eve").plan.plan_id
    steps.stage(lake.services, plan_id)
    steps.gate(lake.services, plan_id)
    return plan_id


@pytest.mark.parametrize(("by", "code"), [("\u200b", "UnnamedPerson"), ("ad\u0430", "MixedScripts")])
@pytest.mark.parametrize("deed", TAKES_A_NAME.values(), ids=TAKES_A_NAME)
def test_whatever_takes_a_name_refuses_it(lake: Lake, deed: Callable[[Lake, str], object], by: str, code: str) -> None:
    with pytest.raises(LifecycleError) as refused:
        deed(lake, by)
    assert refused.value.code == code
