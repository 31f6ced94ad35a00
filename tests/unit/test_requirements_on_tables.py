"""What a plan of a table needs to be still true, asked again before it is staged and published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest

from message_lifecycle.ledger.codec import plan_from_json
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.fence import check
from tests.older_plans import OLDER, recorded_in


@pytest.fixture(autouse=True)
def maps_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables here are none of Java's, and neither are their maps."""
    monkeypatch.setattr(fence, "entries", dict)


@dataclass(frozen=True, slots=True)
class Table:
    """As much of a table as is asked: it has no snapshots."""

    table_uuid: str
    settings: dict[str, object] = field(default_factory=dict)

    def uuid(self) -> str:
        return self.table_uuid

    def properties(self) -> dict[str, str]:
        return {f"lifecycle.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in self.settings.items()}


def plan_of(file: str) -> Plan:
    """The request on a compacted topic that stopped half done."""
    found = recorded_in(file)
    plan_id = next(told["plan_id"] for told in found["story"] if told["do"] == "run" and told["until"] == "halfway")
    row = next(row for row in found["rows"]["lifecycle_plan_documents"] if row["plan_id"] == plan_id)
    plan = plan_from_json(row["document"], plan_id)
    return replace(plan, requirements=replace(plan.requirements, snapshot_id=None)).known_as(plan_id)


@pytest.mark.parametrize("file", OLDER)
def test_a_setting_that_came_since_the_plan_is_as_it_was_while_it_has_its_default(file: str) -> None:
    plan = plan_of(file)
    own = {"cleanup_policy": "compact,delete", "max_removed_fraction": 1.0}
    table = Table(plan.requirements.table_uuid, own)
    check(plan, plan.plan_id, table, server={})
    check(plan, plan.plan_id, table, server=None)
    later = Table(plan.requirements.table_uuid, {**own, "approver_is_not_requester": True})
    for server in ({}, None):
        with pytest.raises(PlanConflict, match="approver_is_not_requester False -> True"):
            check(plan, plan.plan_id, later, server=server)
    with pytest.raises(PlanConflict, match="undo_window"):
        check(plan, plan.plan_id, table, server={"undo_window": 60})
