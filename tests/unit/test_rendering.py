"""Views: one JSON document by the types of their fields, and tables that name fields which are there."""

from __future__ import annotations

from dataclasses import fields

import pytest

from message_lifecycle.app.cli.screen import Screen
from message_lifecycle.app.rendering import View, as_json, type_name_of
from message_lifecycle.app.views import (
    actions,
    compaction,
    documents,
    erasures,
    explanation,
    past_expiry,
    plans,
    refused,
    repair,
    state,
    status,
    topics,
)
from message_lifecycle.app.views.state import HeldView, OutcomeView, hold_view, outcome_view
from message_lifecycle.model.hold import HeldRange, HeldTopic, Hold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import Held

NAME = TopicName(stream="shop", topic="orders")
MODULES = (actions, compaction, documents, erasures, explanation, plans, past_expiry, refused, repair, state, status, topics)
VIEWS = {one for module in MODULES for one in vars(module).values() if isinstance(one, type) and issubclass(one, View)}


def outcome() -> OutcomeView:
    held = Held(partition=0, first_base=0, last_offset=99, rows=1_100, overdue_since=Instant(10**6), holder="consumer", detail="unread")
    ended = Outcome(topic=NAME, operation="message_cleaner", as_of=Instant(0), name="blocked", plan_id="ab" * 16, held=(held,))
    return outcome_view(ended, Instant(10**6))


def test_a_view_is_json_by_its_fields() -> None:
    found = as_json(outcome())
    assert (found["topic"], found["at"], found["as_of"]) == ("shop/orders", "1970-01-01T00:00:01Z", "1970-01-01T00:00:00Z")
    assert "things" not in found
    assert found["held"] == [
        {
            "partition": 0,
            "from": 0,
            "to": 99,
            "messages": 1_100,
            "overdue_since": "1970-01-01T00:00:01Z",
            "holder": "consumer",
            "detail": "unread",
        }
    ]


def test_a_field_that_is_absent_differs_from_one_without_a_value() -> None:
    kept = Hold(hold_id="h1", topic=NAME, what=HeldTopic(), placed_by="ada", placed_at=Instant(0), why="case 7")
    assert {"to", "from", "key", "key_digest", "covers"}.isdisjoint(as_json(hold_view(kept)))
    of_range = Hold(
        hold_id="h1", topic=NAME, what=HeldRange(partition=0, first=3, last=None), placed_by="ada", placed_at=Instant(0), why="x"
    )
    assert (as_json(hold_view(of_range))["from"], as_json(hold_view(of_range))["to"]) == (3, None)


@pytest.mark.parametrize("view", sorted((one for one in VIEWS if hasattr(one, "table")), key=lambda one: one.__name__))
def test_a_table_names_what_the_view_has(view: type[View]) -> None:
    there = {one.name for one in fields(view)} | {name for name in dir(view) if isinstance(getattr(view, name), property)}  # type: ignore[arg-type]  # every view is a dataclass
    assert {value.partition(".")[0] for value in view.table.columns.values() if isinstance(value, str)} <= there
    assert {*view.table.wrap, *view.table.right, *view.table.absent} <= set(view.table.columns)


def test_types_say_how_a_cell_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert [type_name_of(outcome().held[0], name) for name in ("messages", "overdue_since", "offsets", "detail")] == [
        "Count",
        "Instant",
        "str",
        "str",
    ]
    Screen().draw([HeldView.table.of(outcome().held)])
    assert "0..99       1,100  1970-01-01T00:00:01Z  consumer" in capsys.readouterr().out


def test_the_list_of_runs_names_the_topic_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    Screen().draw([OutcomeView.table.of([outcome()])])
    assert "shop" in capsys.readouterr().out
