"""What is recorded is read back as the same value, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from message_lifecycle.ledger.codec import (
    Recorded,
    canonical,
    from_json,
    pairs_from_json,
    plan_from_json,
    plan_id_of,
    settings_from_json,
    to_json,
)
from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.message import StagedView
from message_lifecycle.model.outcome import Approval, Outcome, Staged, StagedMarkers
from message_lifecycle.model.plan import PLAN_FORMAT, Held, Plan
from message_lifecycle.model.reasons import REASONS
from tests import ledgers
from tests.errors import raises
from tests.ledgers import approval_of, plan_of


@settings(deadline=None)  # the first example builds the readers
@given(ledgers.plans)
def test_a_plan_comes_back_equal_with_its_id(plan: Plan) -> None:
    document = plan.to_json()
    found = plan_from_json(document, plan.plan_id)
    assert found == plan
    assert found.plan_id == plan.plan_id == plan_id_of(document)
    # 1 == 1.0 == True: equality alone would not notice a changed type, the hash of a later plan would.
    assert [type(value) for _, value in found.policy] == [type(value) for _, value in plan.policy]


@settings(deadline=None)  # the first example builds the readers
@given(ledgers.recorded)
def test_everything_else_comes_back_equal(value: Recorded) -> None:
    assert from_json(type(value), to_json(value)) == value


def _changed(plan: Plan, *path: str | int, to: object) -> str:
    content = json.loads(plan.to_json())
    place = content
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return canonical(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("as_of",), "1"),
        (("as_of",), 1.0),
        (("more",), 0),
        (("changes", 0, "kind"), "drop_everything"),
        (("changes", 0, "kind"), "drop_tables"),
        (("changes", 0, "drop", 0, "rows"), None),
        (("changes", 0, "drop", 0, "surprise"), 1),
        (("expected", "surprise"), 1),
        (("surprise",), 1),
        (("operation",), "other"),
        (("format",), 1),
        (("selection", "files"), "a.parquet"),
    ],
)
def test_a_plan_that_is_not_exactly_known_is_not_read(path: tuple[str | int, ...], value: object) -> None:
    document = _changed(plan_of(), *path, to=value)
    with raises("CorruptRecord"):
        plan_from_json(document, plan_id_of(document))


_ROWS = RemoveRows(partition=0, offsets="1", rows=1, file="a.parquet", reason="ttl")
_HELD = Held(partition=0, first_base=0, last_offset=9, rows=1, overdue_since=None, holder="budget", detail="", reason="ttl")
_OF_VIEW = StagedView(view_rows=1, tail_rows=0, rows=0, removed=(("ttl", 1),), bytes_read=0, bytes_written=0, engine="kernel")


@pytest.mark.parametrize("reason", ["tll", "", "tombstoned", "quarantine_age"])
@pytest.mark.parametrize("path", [("changes", 0, "mark", 0, "reason"), ("held", 0, "reason"), ("reasons", 0)])
def test_a_plan_with_a_reason_that_takes_nothing_from_the_log_is_not_read(path: tuple[str | int, ...], reason: str) -> None:
    plan = replace(plan_of(actions=(_ROWS,)), held=(_HELD,), reasons=("ttl",))
    assert plan_from_json(plan.to_json(), plan.plan_id) == plan
    text = _changed(plan, *path, to=reason)
    with raises("CorruptRecord", match=f"reason.*'{reason}' is no reason that this program knows here. Allowed: erased, removed"):
        plan_from_json(text, plan_id_of(text))


@pytest.mark.parametrize(
    "value",
    [
        replace(ledgers.outcome_of(plan_of()), held=(_HELD,)),
        Staged(plan_id="p", branch=None, snapshot_id=1, markers=StagedMarkers(count=0, digest="", superseded=(_ROWS,))),
        Staged(plan_id="p", branch=None, snapshot_id=1, view=_OF_VIEW),
    ],
)
def test_a_record_with_a_reason_that_the_table_lacks_is_not_read(value: Outcome | Staged) -> None:
    text = to_json(value)
    assert from_json(type(value), text) == value
    with raises("CorruptRecord", match="'tll' is no reason that this program knows here. Allowed: .*ttl"):
        from_json(type(value), text.replace('"ttl"', '"tll"'))


@pytest.mark.parametrize("name", REASONS)
def test_a_view_counts_the_reasons_of_the_view_alone(name: str) -> None:
    staged = Staged(plan_id="p", branch=None, snapshot_id=1, view=replace(_OF_VIEW, removed=((name, 1),)))
    if REASONS[name].of_view:
        assert from_json(Staged, to_json(staged)) == staged
    else:
        with raises("CorruptRecord", match=f"'{name}' is no reason that this program knows here"):
            from_json(Staged, to_json(staged))


def test_a_plan_whose_text_was_changed_is_not_read() -> None:
    plan = plan_of()
    other = replace(plan, more=True)
    with raises("CorruptRecord", match="changed after"):
        plan_from_json(other.to_json(), plan.plan_id)


@pytest.mark.parametrize("missing", ["changes", "requirements", "next_due_at"])
def test_a_plan_without_a_field_is_not_read(missing: str) -> None:
    content = json.loads(plan_of().to_json())
    del content[missing]
    document = canonical(content)
    with raises("CorruptRecord"):
        plan_from_json(document, plan_id_of(document))


@pytest.mark.parametrize("format", [None, "6", 6.0, True, [6], 0, PLAN_FORMAT - 1, PLAN_FORMAT + 1])
def test_a_plan_of_another_format_is_not_read(format: object) -> None:
    text = _changed(plan_of(), "format", to=format)
    with raises("CorruptRecord", match="its format is not|format: "):
        plan_from_json(text, plan_id_of(text))


@pytest.mark.parametrize(
    ("format", "advice"),
    [
        (PLAN_FORMAT - 1, "an older program wrote format .*Go back to that program"),
        (PLAN_FORMAT + 1, "a newer program .*Use the newer program"),
    ],
)
def test_a_plan_of_another_format_says_which_program_to_use(format: int, advice: str) -> None:
    text = _changed(plan_of(), "format", to=format)
    with raises("CorruptRecord", match=advice):
        plan_from_json(text, plan_id_of(text))


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format":6', '{"format":6,"format":5}', json.dumps(json.loads(plan_of().to_json()))])
def test_a_text_that_is_not_written_as_plans_are_is_not_read(text: str) -> None:
    with raises("CorruptRecord"):
        plan_from_json(text, plan_id_of(text))


def test_a_changed_byte_is_noticed_wherever_it_is() -> None:
    document = plan_of().to_json()
    for at in range(0, len(document), 7):
        changed = f"{document[:at]}{'0' if document[at] != '0' else '1'}{document[at + 1 :]}"
        with raises("CorruptRecord", match="changed after it was recorded"):
            plan_from_json(changed, plan_of().plan_id)


def test_a_plan_keeps_its_id_after_an_erasure_took_a_name_out_of_its_text() -> None:
    text = _changed(plan_of(), "topic", "topic", to="erased:1")
    plan = plan_from_json(text, plan_of().plan_id, plan_id_of(text))
    assert (plan.plan_id, plan.topic.topic) == (plan_of().plan_id, "erased:1")
    with raises("CorruptRecord", match="changed after"):
        plan_from_json(plan_of().to_json(), plan_of().plan_id, plan_id_of(text))


def test_a_record_with_an_unknown_field_is_not_read() -> None:
    content = json.loads(to_json(approval_of(plan_of())))
    content["on_behalf_of"] = "someone"
    with raises("CorruptRecord", match="not hold exactly the fields"):
        from_json(Approval, canonical(content))


def test_a_record_of_another_kind_is_not_read() -> None:
    with raises("CorruptRecord"):
        from_json(Staged, to_json(approval_of(plan_of())))
    with raises("CorruptRecord"):
        from_json(Outcome, "{")


def test_a_defaulted_field_that_is_missing_is_not_made_up() -> None:
    content = json.loads(to_json(ledgers.outcome_of(plan_of())))
    del content["more"]
    with raises("CorruptRecord"):
        from_json(Outcome, canonical(content))


def test_settings_keep_their_types() -> None:
    values = {"a": 1, "b": 1.0, "c": True, "d": "1", "e": None}
    found = settings_from_json(canonical(values))
    assert found == values
    assert [type(value) for value in found.values()] == [int, float, bool, str, type(None)]
    with raises("CorruptRecord"):
        settings_from_json('{"a": []}')


@pytest.mark.parametrize("text", ['{"a": "b"}', '[["a"]]', '[["a", 1]]', "[1]", '["ab"]'])
def test_holders_that_are_no_pairs_are_refused(text: str) -> None:
    with raises("CorruptRecord"):
        pairs_from_json(text)
