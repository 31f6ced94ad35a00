"""What a plan needs to be still true of its table, looked at again before it is staged and before it is published."""

from __future__ import annotations

from collections.abc import Mapping

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, Value, resolve
from message_lifecycle.stores.iceberg.fence import main_ancestors
from message_lifecycle.stores.iceberg.layout import settings_of
from message_lifecycle.stores.iceberg.session import Java


def check(plan: Plan, plan_id: str, table: Java, server: Mapping[str, Value] | None) -> None:
    """Same table, same settings, and the plan's snapshot still in the history of main. Raises PlanConflict.

    Without the server's settings, only those that stand with the topic are compared.
    """
    needed = plan.requirements
    if str(table.uuid()) != needed.table_uuid:
        raise PlanConflict(plan_id, f"the topic's table is another one now ({table.uuid()}, planned on {needed.table_uuid})")
    topic = settings_of(dict(table.properties()), where=f"topic {plan.topic}")
    now = topic if server is None else resolve(topic=topic, server=server).values
    planned = Policy.of_values(plan.policy)
    changed = ", ".join(f"{name} {planned[name]!r} -> {value!r}" for name, value in now.items() if planned[name] != value)
    if changed:
        raise PlanConflict(plan_id, f"the settings have changed since ({changed})")
    if needed.snapshot_id is not None and all(ancestor.snapshot_id != needed.snapshot_id for ancestor in main_ancestors(table)):
        raise PlanConflict(plan_id, f"its snapshot {needed.snapshot_id} is no longer in the table's history")
