"""Every scenario file, on every store: one case stated once."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app import scenario_file
from message_lifecycle.app.scenario import ScenarioRun
from tests.contract.conftest import MakeWorld

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.jsonl"))
CASES = [(path.name, scenario) for path in FILES for scenario in scenario_file.load(path)]


@pytest.mark.parametrize(("file", "scenario"), CASES, ids=[f"{file.removesuffix('.jsonl')}-{scenario.id}" for file, scenario in CASES])
def test_scenario_holds(file: str, scenario: scenario_file.Scenario, make_world: MakeWorld) -> None:
    results = list(ScenarioRun(scenario, make_world, file=file).results())
    assert [result for result in results if not result.ok] == []
    assert any(result.verb == "expect" for result in results), "a scenario that expects nothing proves nothing"
