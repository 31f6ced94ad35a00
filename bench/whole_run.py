"""One operation from plan to verify, in the two ways that users have. Each way's cost is that of whole processes.

- **Command**: one process plans, stages, judges, publishes and verifies. Its tasks run in threads, next to a JVM without Spark.
- **DAG run**: `spark-submit` starts an application for plan and stage, another for the gate, and another for publishing. Then a Python process
  verifies, as Airflow's task does. They run one after the other. Airflow's own time is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from secrets import token_hex
from statistics import median

from bench import size
from bench.process_tree import Cost, cost_of
from lifecycle_local.layout import project_root, venv_bin
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName

_VERIFY = """
import sys
from message_lifecycle.app import tasks
found = tasks.verify(run=sys.argv[1], work=sys.argv[2])
assert [one["outcome"] for one in found] == ["published"], found
"""
APPROVED = ("--by", "bench", "--why", "measured")

COMMAND, DAG_RUN = "command", "DAG run"
WAYS = (COMMAND,) if size.is_part() else (COMMAND, DAG_RUN)
"""At a part of the size, the starts of the applications would take most of the time, and the end-to-end tests run them."""
Steps = Mapping[str, Cost]
"""The cost of each process of a way, in order."""


def by_command(*arguments: str, given: str = "") -> Steps:
    """Run one command, which approves its plan. `given`: its standard input."""
    return {COMMAND: cost_of(str(venv_bin() / "lifecycle"), *arguments, *APPROVED, given=given)}


def by_dag_run(work: Scheduled, name: TopicName, as_of: Instant) -> Steps:
    """Run the applications of one DAG run on one topic. The plan must need no approval."""
    run = f"bench {token_hex(4)}"
    return {
        work: _submitted(work, "--run", run, "--as-of", format_instant(as_of), "--topics", str(name)),
        "quality_gate": _submitted("quality_gate", "--run", run),
        "publish": _submitted("publish", "--run", run),
        "verify": cost_of(sys.executable, "-c", _VERIFY, run, work),
    }


def _submitted(application: str, *arguments: str) -> Cost:
    return cost_of(str(venv_bin() / "spark-submit"), str(project_root() / "spark_apps" / f"{application}.py"), *arguments)


def total(steps: Steps) -> Cost:
    """Return the cost of all processes, one after the other. The memory is that of the largest."""
    each = steps.values()
    return Cost(
        wall=sum(one.wall for one in each), cpu=sum(one.cpu for one in each), memory_mb=max(one.memory_mb for one in each), said=None
    )


def ratio(kind: str, mine: Sequence[Cost], theirs: Sequence[Cost]) -> float:
    """Return the ratio of the medians of `cpu` or `wall`."""
    return _median(kind, mine) / _median(kind, theirs)


def print_costs(what: str, costs: Sequence[Cost]) -> None:
    """Print the medians of CPU and wall, each run, and the highest memory."""
    each = {kind: ", ".join(f"{getattr(cost, kind):.1f}" for cost in costs) for kind in ("cpu", "wall")}
    print(
        f"  {what:22} CPU {_median('cpu', costs):6.2f} ({each['cpu']})  wall {_median('wall', costs):6.2f} ({each['wall']})  "
        f"memory {max(cost.memory_mb for cost in costs):,.0f} MB"
    )


def print_ways(ours: Mapping[str, Sequence[Steps]], theirs: Sequence[Cost], peer: str) -> float:
    """Print the costs of each way and of the peer, and return the ratio of the command's CPU to the peer's."""
    for way, runs in ours.items():
        whole = [total(steps) for steps in runs]
        print_costs(way, whole)
        for step in runs[0] if len(runs[0]) > 1 else ():
            print_costs(f"- {step}", [steps[step] for steps in runs])
        print(f"  {way} / peer: CPU {ratio('cpu', whole, theirs):.2f}, wall {ratio('wall', whole, theirs):.2f}")
    print_costs(peer, theirs)
    sys.stdout.flush()
    return ratio("cpu", [total(steps) for steps in ours[COMMAND]], theirs)


def _median(kind: str, costs: Sequence[Cost]) -> float:
    return median(float(getattr(cost, kind)) for cost in costs)
