"""What earlier versions recorded is read as what it says, byte for byte, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

import pytest

from message_lifecycle.ledger.codec import canonical, from_json, plan_from_json, plan_id_of
from message_lifecycle.ledger.older_formats import OLDEST_PLAN_FORMAT, PLAN_STEPS
from message_lifecycle.model.change import Change
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, Staged
from message_lifecycle.model.plan import PLAN_FORMAT, Operation
from message_lifecycle.model.setting_list import SETTINGS
from message_lifecycle.model.settings import Policy
from tests.errors import raises
from tests.older_plans import FILES, OLDER, recorded_in

UNDO = ("restored", "marker_offsets", "reclaimed_files", "reclaimed_bytes")
LATER: Mapping[str, Mapping[str, object]] = {
    "format_3": {"snapshots": None, "spared": [], "erasure": None},
    "format_4_first": {"spared": [], "erasure": None},
    "format_4": {"spared": [], "erasure": None},
    "format_5": {},
}
"""What today's plan says and that format could not."""
IN_ACTIONS = FILES[:4]
"""What a plan does stood in a list of actions."""
KINDS = {
    "seal": "seal_segment", "drop": "drop_segments", "mark": "remove_rows", "back": "restore_rows", "compact": "compact_partition",
    "documents": "snapshot_document", "files": "drop_quarantined", "files_back": "restore_quarantined",
}  # fmt: skip
OF_VIEW = {"mark": "remove_view_rows", "back": "restore_view_rows"}
REASONS = {
    "message_cleaner": ("expiry", "ttl", "retention_age", "retention_count", "retention_bytes"),
    "retention": ("retention_age", "retention_count", "retention_bytes"),
    "message_request": ("removed", "purged"),
    "purge_compacted": ("compacted",),
}
MOVED = {"away": "delete_table", "back": "return_table", "gone": "drop_table"}


def texts(file: str) -> Iterator[tuple[str, str]]:
    """Ids and documents of its plans."""
    return ((row["plan_id"], row["document"]) for row in recorded_in(file)["rows"]["lifecycle_plan_documents"])


def first(file: str, **wanted: object) -> Any:
    """The content of one of its plans that does something."""
    found = (json.loads(document) for _, document in texts(file))
    return next(
        plan
        for plan in found
        if (plan.get("actions") or plan.get("changes")) and all(plan[name] == value for name, value in wanted.items())
    )


def again(content: object) -> tuple[str, str]:
    """A document as a version could have recorded it, with its id."""
    document = canonical(content)
    return document, plan_id_of(document)


@pytest.mark.parametrize("file", FILES)
def test_every_plan_is_read_with_all_that_it_says_and_its_own_id(file: str) -> None:
    for plan_id, document in texts(file):
        plan, said = plan_from_json(document, plan_id), json.loads(document)
        assert (plan.plan_id, plan.format, plan.is_older) == (plan_id, said["format"], file in IN_ACTIONS)
        now = json.loads(plan.to_json())
        later = LATER.get(file, {})
        assert {name: now.pop(name) for name in later} == later
        if file in OLDER:
            assert now["requirements"].pop("heeded") == []
        if file in IN_ACTIONS:
            told, source_id = actions_of(now.pop("changes")), said.pop("source_id", None)
            assert now.pop("reasons") == list(REASONS.get(plan.operation, ()))
            assert sorted(told, key=canonical) == sorted(map(plainly, said.pop("actions")), key=canonical)
            assert source_id is None or source_id in {plan.on_log.source_id, plan.on_changes.source_id, plan.on_quarantine.source_id}
        assert now == said


def plainly(action: dict[str, Any]) -> dict[str, Any]:
    """Without what follows from the rest of it: first and last offset, and which snapshot holds what comes back."""
    return {
        name: value
        for name, value in action.items()
        if name not in (("source_id", *(("first_offset", "last_offset") if "offsets" in action else ())))
    }


def actions_of(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What changes do, said as format 5 said it."""
    found: list[dict[str, Any]] = []
    documents: dict[str, dict[str, Any]] = {}
    for change in changes:
        match change["kind"]:
            case "commit":
                of_view = change["table"] == "view"
                for part, kind in (KINDS | (OF_VIEW if of_view else {})).items():
                    found += [{**said, "kind": kind} for said in change[part]]
                found += [{"kind": "sweep_markers", "removals": change["sweep"]}] if change["sweep"] else []
                for back in change["documents_back"]:
                    both = documents.setdefault(back["document"], {**back, "kind": "restore_document"})
                    both |= {name: value for name, value in back.items() if value}
            case "rewrite":
                found += [{**rows, "kind": "erase_rows", "table": change["table"]} for rows in change["rows"]]
                found.append({**{name: value for name, value in change.items() if name != "rows"}, "kind": "erase_table"})
            case "forget":
                of = {"table": change["table"], "table_uuid": change["table_uuid"]}
                found += [{**files, **of, "kind": "remove_files"} for files in change["files"]]
                if change["kept"] or change["snapshots"] or change["refs"]:
                    found.append({**{name: value for name, value in change.items() if name != "files"}, "kind": "expire_snapshots"})
            case "move":
                found += [{**table, "kind": MOVED[change["to"]]} for table in change["tables"]]
    for action in found:
        if action["kind"] in OF_VIEW.values():
            action.pop("base_offset"), action.pop("file"), action.pop("size_bytes", None), action.pop("standing", None)
        if action["kind"] in MOVED.values():
            for name in ("size_bytes",) if action["kind"] == "drop_table" else ("location", "metadata"):
                action.pop(name)
    return [*found, *documents.values()]


def test_every_format_since_the_first_that_is_known_was_recorded() -> None:
    assert (
        {recorded_in(file)["plan_format"] for file in FILES}
        == {*PLAN_STEPS, PLAN_FORMAT}
        == set(range(OLDEST_PLAN_FORMAT, PLAN_FORMAT + 1))
    )


def test_every_operation_and_every_change_was_recorded() -> None:
    """What stands in no file would not be missed where it is read no more."""
    plans = [json.loads(document) for file in FILES for _, document in texts(file)]
    assert {plan["operation"] for plan in plans} == set(get_args(Operation))
    kinds = {*KINDS.values(), *OF_VIEW.values(), *MOVED.values(), "sweep_markers", "restore_document"}
    kinds |= {"erase_rows", "erase_table", "expire_snapshots", "remove_files"}
    assert {action["kind"] for plan in plans for action in plan.get("actions", ())} == kinds
    changes = [change for plan in plans for change in plan.get("changes", ())]
    assert {change["kind"] for change in changes} == {change.__dataclass_fields__["kind"].default for change in get_args(Change)}
    said = {name for change in changes for name, value in change.items() if value}
    assert said >= {field.name for kind in get_args(Change) for field in fields(kind)} - {"undo"}, "no undo is open in memory"


@pytest.mark.parametrize("file", FILES)
def test_a_changed_byte_is_noticed_wherever_it_is(file: str) -> None:
    plan_id, document = next(texts(file))
    for at in range(0, len(document), 7):
        changed = f"{document[:at]}{'0' if document[at] != '0' else '1'}{document[at + 1 :]}"
        with raises("CorruptRecord", match="changed after it was recorded"):
            plan_from_json(changed, plan_id)


def put(path: str, value: object) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        *way, last = path.replace("actions", "actions" if "actions" in content else "changes").split(".")
        for part in way:
            content = content[int(part)] if part.isdigit() else content[part]
        content[last] = value

    return change


def drop(name: str) -> Callable[[Any], None]:
    return lambda content: content.pop(name)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "change",
    [
        put("surprise", 1), put("requirements.surprise", 1), put("actions.0.surprise", 1), put("expected.surprise", 1), drop("asks"),
        drop("requirements"), drop("view"), put("more", 0), put("as_of", "1"), put("requirements", []), put("operation", "other"),
        put("actions.0.kind", "other"), put("actions", {}), put("requirements.end_offsets", None), put("operation", []),
    ],
)  # fmt: skip
def test_a_plan_that_its_version_cannot_have_written_is_refused(file: str, change: Callable[[Any], None]) -> None:
    """Also where the id is that of the text."""
    content = first(file, operation="message_cleaner", more=False)
    change(content)
    with raises("CorruptRecord"):
        plan_from_json(*again(content))


@pytest.mark.parametrize(
    ("file", "later"), [("format_3", "snapshots"), ("format_3", "spared"), ("format_4", "erasure"), ("format_4", "spared")]
)
def test_a_field_of_a_later_format_is_not_taken_from_an_earlier_one(file: str, later: str) -> None:
    content = first(file, operation="message_cleaner")
    content[later] = LATER[file][later]
    with raises("CorruptRecord", match=f"it says {later}, and no plan of format"):
        plan_from_json(*again(content))


@pytest.mark.parametrize("holds", [[], ["h1"]])
def test_nor_are_holds_that_it_could_not_heed(holds: list[str]) -> None:
    content = first("format_4", operation="message_cleaner")
    content["requirements"]["heeded"] = holds
    with raises("CorruptRecord", match="it says heeded"):
        plan_from_json(*again(content))


@pytest.mark.parametrize(
    ("file", "operation"),
    [(file, op) for file in OLDER for op in ("erasure", "undo", "reclaim", "quarantine", "topic_delete")]
    + [("format_3", "retention"), ("format_3", "snapshot_with_purge")],
)
def test_nor_is_an_operation_that_came_later(file: str, operation: str) -> None:
    content = first(file, operation="message_cleaner")
    content["operation"] = operation
    with raises("CorruptRecord", match=f"it says {operation}, and no plan of format"):
        plan_from_json(*again(content))


@pytest.mark.parametrize("file", OLDER)
def test_nor_is_an_action_that_came_later(file: str) -> None:
    own = {action["kind"] for name in OLDER if name <= file for _, text in texts(name) for action in json.loads(text)["actions"]}
    actions = {action["kind"]: action for _, text in texts("format_5") for action in json.loads(text)["actions"]}
    for kind in actions.keys() - own:
        content = first(file, operation="message_cleaner")
        content["actions"] = [actions[kind]]
        with raises("CorruptRecord", match=f"it says {kind}, and no plan of format"):
            plan_from_json(*again(content))


@pytest.mark.parametrize("format", [-1, 0, 1, 2])
def test_a_format_that_nobody_knows_any_more_is_named_with_what_to_do(format: int) -> None:
    content = first("format_3", operation="message_cleaner") | {"format": format}
    with raises(
        "CorruptRecord", match=rf"its format is {format}, this program reads 3 to 6: .* not guessed.*Use the program that wrote it"
    ):
        plan_from_json(*again(content))


def test_a_format_of_a_newer_version_says_to_upgrade() -> None:
    content = first("format_6", operation="undo") | {"format": PLAN_FORMAT + 1, "steps": []}
    with raises("CorruptRecord", match=rf"its format is {PLAN_FORMAT + 1}, .* a newer version wrote it.*Upgrade") as error:
        plan_from_json(*again(content))
    assert "restore" not in str(error.value)


@pytest.mark.parametrize("format", [None, "5", 4.0, True, [5]])
def test_a_format_that_is_no_number_is_refused(format: object) -> None:
    with raises("CorruptRecord", match="its format is"):
        plan_from_json(*again(first("format_4", operation="message_cleaner") | {"format": format}))


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format":4', '{"format": 4}', '{"format":5,"format":4}'])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with raises("CorruptRecord"):
        plan_from_json(text, plan_id_of(text))


def test_a_text_that_is_written_otherwise_is_refused() -> None:
    """Its id would be another one's."""
    text = json.dumps(first("format_4", operation="message_cleaner"))
    with raises("CorruptRecord", match="not written as plans are"):
        plan_from_json(text, plan_id_of(text))


def test_a_name_that_an_erasure_took_out_of_an_older_text_leaves_the_plan_its_id() -> None:
    content = first("format_4", operation="snapshot_with_purge")
    before, plan_id = again(content)
    content["actions"][0]["document"] = "erased:1"
    text, text_id = again(content)
    plan = plan_from_json(text, plan_id, text_id)
    assert (plan.plan_id, plan.on_snapshots.documents[0].document) == (plan_id, "erased:1")
    with raises("CorruptRecord", match="changed after"):
        plan_from_json(before, plan_id, text_id)


@pytest.mark.parametrize("file", OLDER)
def test_a_setting_that_came_later_did_what_its_default_does(file: str) -> None:
    content = first(file, operation="message_cleaner")
    policy = Policy.of_values(tuple(map(tuple, content["policy"])))
    known, later = (
        dict(policy.settings),
        {setting.name: setting.default for setting in SETTINGS if setting.name not in dict(policy.settings)},
    )
    assert later and {name: policy[name] for name in later} == later
    assert {name: policy[name] for name in known} == dict(content["policy"])
    assert policy.hash == content["requirements"]["policy_hash"]
    assert (policy.archive_to, policy.limits, policy.max_compaction_lag_us) == (None, None, None)


# What is recorded beside plans


def outcomes(file: str) -> Iterator[str]:
    return (row["outcome"] for row in recorded_in(file)["rows"]["lifecycle_outcomes"])


@pytest.mark.parametrize(("file", "lacks"), [("format_3", (*UNDO, "archived")), ("format_4_first", (*UNDO, "archived")), ("format_4", UNDO), ("format_5", ())])  # fmt: skip
def test_outcomes_are_read_and_what_they_could_not_say_is_nothing_or_unknown(file: str, lacks: tuple[str, ...]) -> None:
    made = 0
    for text in outcomes(file):
        said, read = json.loads(text), from_json(Outcome, text)
        now = json.loads(canonical({name: getattr(read, name) for name in ("restored", "archived", "reclaimed_files", "reclaimed_bytes")}))
        assert now == {"restored": 0, "archived": 0, "reclaimed_files": None, "reclaimed_bytes": None} | {
            name: said[name] for name in now if name in said
        }
        assert {*UNDO, "archived"} - said.keys() == set(lacks)
        if lacks:
            made += read.markers
            assert read.marker_offsets == (None if read.markers else ()), "where markers lie was not kept"
        assert (read.markers, dict(read.removed), read.detail) == (said["markers"], dict(said["removed"]), said["detail"])
    assert made or not lacks


@pytest.mark.parametrize("file", FILES)
def test_what_was_staged_judged_and_answered_is_read(file: str) -> None:
    found = {Staged: 0, GateReport: 0, Approval: 0}
    for row in recorded_in(file)["rows"]["lifecycle_plans"]:
        for kind, column in ((Staged, "staged"), (GateReport, "report"), (Approval, "approval")):
            if row[column] is not None:
                read = from_json(kind, row[column])
                found[kind] += 1
                assert read.plan_id == row["plan_id"]
                if isinstance(read, Staged) and file == "format_3":
                    assert read.documents is None
                if isinstance(read, GateReport):
                    assert read.judgement == row["judgement"]
    assert all(found.values())


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("lost", ["more", "markers", "held", "plan_id", "removed", "restored", "reclaimed_files", "archived"])
def test_an_outcome_that_lacks_what_its_version_wrote_is_refused(file: str, lost: str) -> None:
    """Versions wrote all of their fields: one that is missing alone was taken out."""
    content = json.loads(next(outcomes(file)))
    if (file, lost) == ("format_4", "archived"):
        content |= {"restored": 0}  # without both it is as the first of format 4
    elif lost in content:
        del content[lost]
    else:
        content |= dict.fromkeys(UNDO, 0) if lost == "archived" else {lost: 0}
    with raises("CorruptRecord"):
        from_json(Outcome, canonical(content))


@pytest.mark.parametrize("file", FILES)
def test_a_record_with_an_unknown_field_is_refused(file: str) -> None:
    row = next(row for row in recorded_in(file)["rows"]["lifecycle_plans"] if row["approval"] is not None)
    for kind, text in ((Staged, row["staged"]), (GateReport, row["report"]), (Approval, row["approval"]), (Outcome, next(outcomes(file)))):
        content = json.loads(text) | {"surprise": 1}
        with raises("CorruptRecord", match="more than this program knows"):
            from_json(kind, canonical(content))
