"""A person sees one line for each run of messages, where a plan has an entry for each data file or segment."""

from __future__ import annotations

import pytest

from message_lifecycle.app.cli.screen import render_text
from message_lifecycle.app.rendering import Number, Table, View
from message_lifecycle.app.views.actions import ActionView, action_blocks, merge_neighbours
from message_lifecycle.app.views.state import HeldView, merge_held
from message_lifecycle.model.instants import Instant


def removed(first: int, last: int, *, partition: int = 0, reason: str = "ttl") -> ActionView:
    return ActionView(
        action="remove_rows", partition=partition, from_=first, to=last, segments=0, messages=1, bytes=None, newest_at=None, reason=reason
    )


def dropped(first: int, last: int) -> ActionView:
    return ActionView(action="drop_segments", partition=0, from_=first, to=last, segments=1, messages=5, bytes=10, newest_at=None)


def spans(actions: list[ActionView]) -> list[tuple[int, str, int]]:
    return [(one.partition, one.span, one.messages) for one in merge_neighbours(actions)]


def test_neighbours_are_one_line() -> None:
    assert spans([removed(0, 4), removed(5, 9), removed(10, 12)]) == [(0, "0..12", 3)]


@pytest.mark.parametrize(
    "other",
    [removed(6, 9), removed(5, 9, partition=1), removed(5, 9, reason="retention_age"), dropped(5, 9)],
    ids=["gap", "partition", "reason", "segments"],
)
def test_other_rows_stay_apart(other: ActionView) -> None:
    assert len(merge_neighbours([removed(0, 4), other])) == 2


def test_dropped_segments_stay_apart() -> None:
    assert len(merge_neighbours([dropped(0, 4), dropped(5, 9)])) == 2


def test_a_plan_of_single_messages_shows_no_empty_columns() -> None:
    text = render_text(action_blocks([removed(0, 4), removed(5, 9)]))
    assert [line.split() for line in text.splitlines() if line] == [
        ["Removes"],
        ["action", "partition", "offsets", "messages"],
        ["remove", "messages", "0", "0..9", "2"],
    ]


def held(first: int, since: int | None, *, partition: int = 0, detail: str = "a hold") -> HeldView:
    return HeldView(
        partition=partition, from_=first, to=first + 4, messages=5, overdue_since=None if since is None else Instant(since),
        holder="legal_hold", detail=detail,
    )  # fmt: skip


def test_entries_of_one_holder_are_one_line_with_the_earliest_time() -> None:
    (one,) = merge_held([held(0, 7), held(5, None), held(10, 3)])
    assert (one.offsets, one.messages, one.overdue_since) == ("0..14", 15, 3)


@pytest.mark.parametrize(
    "other", [held(5, 7, partition=1), held(5, 7, detail="another"), held(6, 7), held(0, 3)], ids=["partition", "detail", "gap", "before"]
)
def test_entries_of_other_holders_stay_apart(other: HeldView) -> None:
    assert merge_held([held(0, 7), other]) == [held(0, 7), other]


def test_a_column_that_names_its_absence_stays() -> None:
    class Row(View):
        a: Number | None
        b: Number | None

    table = Table(columns={"a": "a", "b": "b", "c": lambda _: ""}, absent={"b": "-"})
    text = render_text([table.of([Row(a=1, b=None)])])
    assert [line.split() for line in text.splitlines()] == [["a", "b"], ["1", "-"]]
