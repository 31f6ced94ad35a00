"""`lifecycle scenario run`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import Lake, make_lake

HOLDS: dict[str, Any] = {
    "id": "two-go",
    "config": {"message_expiry": 1},
    "steps": [
        {"append": [{"append_time": 1000000, "segment": 0}, {"append_time": 9000000, "segment": 1}]},
        {"run": {"operation": "message_cleaner", "as_of": 2000000}},
        {"expect": {"outcome": "published", "kept": [1]}},
    ],
}
DIFFERS = {**HOLDS, "id": "differs", "steps": [*HOLDS["steps"][:2], {"expect": {"kept": [0, 1], "outcome": "no_op"}}]}


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def write(folder: Path, name: str, *scenarios: Any) -> str:
    path = folder / name
    path.write_text("\n".join(json.dumps(scenario) for scenario in scenarios), encoding="utf-8")
    return str(path)


def test_all_held_ends_with_0(lake: Lake, tmp_path: Path) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "one.json", HOLDS))
    assert (told.status, told.out.splitlines()) == (0, ["ok      two-go  (one.json)", "1 of 1 scenarios passed"])


def test_a_difference_names_step_field_expected_and_found_and_ends_with_1(lake: Lake, tmp_path: Path) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "all.jsonl", DIFFERS, HOLDS))
    assert told.status == 1
    assert "step 2 (expect): kept: expected [0, 1], found [1]" in told.out
    assert "step 2 (expect): outcome: expected 'no_op', found 'published'" in told.out
    assert "1 of 2 scenarios passed" in told.out


AFTER_RUN = {
    "kept": [], "removed": {}, "removed_counts": {}, "markers": [{"key": "k"}], "more": True, "outcome": "no_op", "cancelled_markers": 1,
    "end_offset": 0, "horizon": 0, "quarantined": 1, "error": "UnknownTopic",
}  # fmt: skip
READ, AFTER_READ = {"read": {"raw": True}}, {"messages": [], "offsets": [], "markers": [{"key": "k"}]}
AFTER_APPEND = {"offsets": [], "refused": [{"index": 0, "code": "x"}]}


@pytest.mark.parametrize(
    ("steps", "word", "wrong"),
    [
        *((HOLDS["steps"][:2], word, wrong) for word, wrong in AFTER_RUN.items()),
        *(([*HOLDS["steps"][:1], READ], word, wrong) for word, wrong in AFTER_READ.items()),
        *((HOLDS["steps"][:1], word, wrong) for word, wrong in AFTER_APPEND.items()),
    ],
)
def test_each_word_is_compared_also_where_nothing_is_expected(lake: Lake, tmp_path: Path, steps: list[Any], word: str, wrong: Any) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "one.json", {**HOLDS, "steps": [*steps, {"expect": {word: wrong}}]}))
    assert told.status == 1
    assert f"step {len(steps)} (expect): {word}: expected {wrong!r}, found" in told.out


def test_json_is_one_object_a_step(lake: Lake, tmp_path: Path) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "all.jsonl", HOLDS, DIFFERS), "--output", "json")
    assert told.status == 1
    assert [(line["id"], line["step"], line["verb"], line["ok"]) for line in told.lines] == [
        ("two-go", 0, "append", True),
        ("two-go", 1, "run", True),
        ("two-go", 2, "expect", True),
        ("differs", 0, "append", True),
        ("differs", 1, "run", True),
        ("differs", 2, "expect", False),
    ]
    assert set(told.lines[0]) == {"file", "id", "step", "verb", "ok", "found", "differences"}
    assert told.lines[5]["differences"] == ["kept: expected [0, 1], found [1]", "outcome: expected 'no_op', found 'published'"]


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({**HOLDS, "stepz": []}, "stepz"),
        ({**HOLDS, "steps": [{"apend": []}]}, "steps[0].apend"),
        ({**HOLDS, "steps": [{"run": {"operation": "shred", "as_of": 1}}]}, "steps[0].run.operation"),
        ({**HOLDS, "steps": [{"run": {"as_of": 1}}]}, "steps[0].run.operation"),
        *(
            ({**HOLDS, "steps": [{"run": {"operation": "erasure", "as_of": 1, **given}}]}, place)
            for given, place in (
                ({}, "Allowed: either `key`, or `keys`"),
                ({"key": "a", "keys": ["b"]}, "Allowed: either `key`, or `keys`"),
                ({"keys": []}, "Allowed: either `key`, or `keys`"),
                ({"keys": ["a", None]}, "steps[0].run.keys[1]"),
            )
        ),
        ({**HOLDS, "steps": [{"run": {"operation": "compaction", "as_of": 1, "step": 0}}]}, "steps[0].run.step"),
        ({**HOLDS, "steps": [{"append": [], "seal": {}}]}, "steps[0]"),
        ({**HOLDS, "steps": [{"append": [{"append_time": "noon"}]}]}, "steps[0].append[0].append_time"),
        ({**HOLDS, "steps": [{"append": []}, {"expect": {"more": True}}]}, "steps[1].expect.more"),
        ([], "the file"),
    ],
)
def test_a_wrong_file_ends_with_2_and_names_the_place(lake: Lake, tmp_path: Path, wrong: Any, place: str) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "wrong.json", wrong))
    assert told.status == 2
    assert told.err.startswith("InvalidScenario: ")
    assert place in told.err
    in_json = lake.say("scenario", "run", write(tmp_path, "wrong.json", wrong), "-o", "json")
    assert in_json.lines[-1]["error"] == "InvalidScenario"


def test_a_wrong_file_is_found_before_anything_runs(lake: Lake, tmp_path: Path) -> None:
    told = lake.say("scenario", "run", write(tmp_path, "good.json", HOLDS), write(tmp_path, "wrong.jsonl", HOLDS, {"id": "x"}))
    assert (told.status, told.out) == (2, "")
    assert "wrong.jsonl:2: steps" in told.err


def test_a_missing_file_and_one_that_is_no_json(lake: Lake, tmp_path: Path) -> None:
    missing = lake.say("scenario", "run", str(tmp_path / "none.json"))
    assert (missing.status, missing.err.split(":")[0]) == (2, "InvalidScenario")
    (tmp_path / "text.json").write_text("{", encoding="utf-8")
    broken = lake.say("scenario", "run", str(tmp_path / "text.json"))
    assert (broken.status, broken.err.split(":")[0]) == (2, "InvalidScenario")
    (tmp_path / "bytes.json").write_bytes(b"\xd0\xff")
    no_text = lake.say("scenario", "run", str(tmp_path / "bytes.json"))
    assert (no_text.status, "bytes.json" in no_text.err, "UTF-8" in no_text.err) == (2, True, True)
    assert lake.say("scenario", "run").status == 2
    assert lake.say("scenario", "run", str(tmp_path / "none.json"), "--store", "paper").status == 2


def test_an_unexpected_error_is_a_difference(lake: Lake, tmp_path: Path) -> None:
    clash = {**HOLDS, "steps": [{"append": [{"offset": 5, "append_time": 1}]}, {"append": [{"offset": 5, "append_time": 1}]}]}
    told = lake.say("scenario", "run", write(tmp_path, "one.json", clash))
    assert told.status == 1
    assert "step 1 (append): error: append refused: offset 5 of partition 0 is not free" in told.out


def test_the_help_names_every_field_and_verb(lake: Lake) -> None:
    from message_lifecycle.app.scenario.file import Scenario, Step

    said = re.findall(r"\w+", lake.say("scenario", "--help").out)
    names = [field.alias or name for model in (Scenario, Step) for name, field in model.model_fields.items()]
    assert [name for name in names if name not in said] == []


@pytest.mark.parametrize(
    ("read", "field"),
    [
        ({"client_seq": 0, "limit": 1}, "limit"),
        ({"client_seq": 0, "since": 0}, "since"),
        ({"client_seq": 0, "raw": True}, "raw"),
        ({"client_seq": 0, "compacted": True}, "compacted"),
        ({"history": True, "client_seq": 0}, "client_seq"),
        ({"history": True, "raw": True}, "raw"),
    ],
)
def test_what_a_read_of_a_document_would_pass_over_is_an_error(lake: Lake, tmp_path: Path, read: dict[str, Any], field: str) -> None:
    steps = [
        {"change": [{"document": "a", "server_seq": 1, "client": "x", "payload": 1}]},
        {"read": {"document": "a", "history": True, "limit": 1}},
        {"read": {"document": "a", **read}},
    ]
    path = write(tmp_path, "s.json", {"id": "a", "config": {"fold": "last_write"}, "steps": steps})
    told = lake.say("scenario", "run", path)
    assert told.status == 2
    assert f"read.{field}" in told.err
