"""`python -m tests.spark.demo_contents AS_OF`: the demo's data in the lake of this environment, what its operations plan and publish as of that
time, and the contents of their plans, a line each."""

from __future__ import annotations

import sys
from datetime import date

from lifecycle_local import demo
from lifecycle_local.environment import load_environment
from lifecycle_local.progress import Progress
from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.instants import Instant, format_instant, parse_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan_content import content_digest
from message_lifecycle.model.request import PurgeKey, UndoPlan


def main(as_of: Instant) -> None:
    progress = Progress(announced=False)
    demo._land(progress, shift_to=date.fromisoformat(format_instant(as_of)[:10]))
    s = lake()
    demo._land_document(s, progress)

    def done(name: TopicName, work: Work) -> str:
        outcome = steps.run(s, name, as_of=as_of, approver=lambda *_: (True, "ada", "to compare"), work=work)
        assert outcome.name == "published" and outcome.plan_id is not None, outcome.detail
        plan = s.ledger.record(outcome.plan_id).plan
        print(
            f"content of {plan.operation} {name}: {content_digest(plan)}, removed {dict(outcome.removed)}, back {outcome.restored}",
            flush=True,
        )
        return outcome.plan_id

    done(demo.FLIGHTS, "compaction")
    done(demo.FLIGHTS, "message_cleaner")
    taken = done(demo.WITH_TTL, "message_cleaner")
    done(demo.WITH_TTL, UndoPlan(plan_id=taken))
    done(demo.WITH_TTL, PurgeKey(key=b"N978SW"))
    done(demo.COMPONENTS, "snapshot_with_purge")


if __name__ == "__main__":
    load_environment()
    main(parse_instant(sys.argv[1]))
