"""Every scenario file, on every store that can hold it: one case stated once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from lifecycle_local.worlds import WORLDS
from message_lifecycle.app.scenario.file import Scenario, load
from message_lifecycle.app.scenario.run import ScenarioRun
from message_lifecycle.model.topic import Backend
from tests.contract.conftest import NEEDS, WHOLE_LOGS, MakeWorld, worlds_of
from tests.effort import hunt

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.jsonl"))
STORES: dict[str, tuple[Backend, ...]] = {
    "retention.jsonl": tuple(WORLDS),
    "erasure.jsonl": tuple(WORLDS),
    "holds_retention.jsonl": tuple(WORLDS),
    "backends.jsonl": ("json_file", "rotating_file"),
}
"""Where a file holds; all others are about what only stores of whole logs do."""


def words(scenario: Scenario) -> set[tuple[str, ...]]:
    """What it speaks of: settings, verbs and their fields, and of each operation how it ends and for what reasons messages go."""
    found = {("setting", name) for settings in (scenario.config, *scenario.topics.values()) for name in settings}
    operation = ""
    for step in scenario.steps:
        said = getattr(step, next(iter(step.model_fields_set - {"topic"})))
        operation = getattr(said, "operation", step.verb if step.verb == "delete" else operation)
        found |= {(step.verb, field) for field in getattr(said, "model_fields_set", ())} | {(step.verb, operation if step.run else "")}
        if step.expect is not None:
            reasons = {*(step.expect.removed or {}).values(), *(step.expect.removed_counts or ())}
            found |= {(operation, end) for end in (step.expect.outcome, *reasons) if end}
    return found


def fewest_with_every_word(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Take the scenario with the most new words, then the next, until no word is new. Of equals, take the one with fewer steps."""
    found, missing = list[Scenario](), set[tuple[str, ...]]().union(*map(words, scenarios))
    while missing:
        found.append(max(scenarios, key=lambda scenario: (len(words(scenario) & missing), -len(scenario.steps))))
        missing -= words(found[-1])
    return found


def cases() -> Iterator[ParameterSet]:
    """All on every store, and in an object store. On tables each takes seconds: `make test` takes a few that together speak of everything."""
    of_files = [(path, STORES.get(path.name, WHOLE_LOGS), list(load(path))) for path in FILES]
    on_tables = fewest_with_every_word([scenario for _, stores, scenarios in of_files if "iceberg" in stores for scenario in scenarios])
    for path, stores, scenarios in of_files:
        for scenario in scenarios:
            for store in stores:
                marks = (*NEEDS.get(store, ()), *([hunt] if store == "iceberg" and scenario not in on_tables else ()))
                yield pytest.param(store, path.name, scenario, id=f"{store}-{path.stem}-{scenario.id}", marks=marks)
            if "iceberg" in stores:
                marks = (*NEEDS["iceberg"], hunt)
                yield pytest.param("rest_s3", path.name, scenario, id=f"rest_s3-{path.stem}-{scenario.id}", marks=marks)


@pytest.fixture
def make_world(store_kind: Backend) -> Iterator[MakeWorld]:
    """Makes worlds whose own gate judges: Great Expectations on tables, for every operation."""
    with worlds_of(store_kind) as make:
        yield make


@pytest.mark.parametrize(("store_kind", "file", "scenario"), list(cases()), indirect=["store_kind"])
def test_scenario_holds(file: str, scenario: Scenario, make_world: MakeWorld) -> None:
    results = list(ScenarioRun(scenario, make_world, file=file).results())
    assert [result for result in results if not result.ok] == []
    assert any(result.verb == "expect" for result in results), "a scenario that expects nothing proves nothing"
