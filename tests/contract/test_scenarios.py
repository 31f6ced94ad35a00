"""Every scenario file, on every store that can hold it: one case stated once."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app.scenario.file import Scenario, load
from message_lifecycle.app.scenario.run import ScenarioRun
from message_lifecycle.app.wiring import WORLDS
from message_lifecycle.model.topic import Backend
from tests.contract.conftest import NEEDS, WHOLE_LOGS, MakeWorld

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.jsonl"))
STORES: dict[str, tuple[Backend, ...]] = {
    "retention.jsonl": tuple(WORLDS),
    "erasure.jsonl": tuple(WORLDS),
    "holds_retention.jsonl": tuple(WORLDS),
    "backends.jsonl": ("json_file", "rotating_file"),
}
"""Where a file holds; all others are about what only stores of whole logs do."""
CASES = [
    pytest.param(store, path.name, scenario, id=f"{store}-{path.stem}-{scenario.id}", marks=NEEDS.get(store, ()))
    for path in FILES
    for scenario in load(path)
    for store in STORES.get(path.name, WHOLE_LOGS)
]


@pytest.mark.parametrize(("store_kind", "file", "scenario"), CASES, indirect=["store_kind"])
def test_scenario_holds(file: str, scenario: Scenario, make_world: MakeWorld) -> None:
    results = list(ScenarioRun(scenario, make_world, file=file).results())
    assert [result for result in results if not result.ok] == []
    assert any(result.verb == "expect" for result in results), "a scenario that expects nothing proves nothing"
