"""The cost of markers in a run: finding and staging them, and the gate's evidence that each is owed and none is missing (MRK-1 to MRK-5).

The cycles of one topic run one after another in a new application, so the first cycle shows the cost of the first run of a scheduled task.
In each cycle some keys lose their last message, one key gets a new marker in place of an older one, and one key keeps a message. Run:
`python -m bench markers`.
"""

from __future__ import annotations

import os
import sys
from secrets import token_hex

from tests.ledgers import StandingClock
from tests.spark.lake import SECOND, Lake

from bench import size
from bench.segment_drop import Times
from lifecycle_local.environment import load_environment
from message_lifecycle.app import steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.writer import IcebergWriter

CYCLES = 3
MINUTE = 60 * SECOND
MAX_CPU = 2.5
"""CPU seconds of a cycle for marking and for its evidence together, of Python and Java."""


def main() -> int:
    load_environment()
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    lake, clock = Lake(session, stream=f"bench-{token_hex(4)}"), StandingClock()
    s, name = lake.services(clock), TopicName(stream=lake.stream, topic="markers")
    writer = IcebergWriter(engine_of_process)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: above that, read CPU")
    missed = []
    try:
        create_topic(s, name, partitions=1, settings={"subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
        for cycle in range(CYCLES):
            keys = (b"again", b"lives" if cycle else b"first", f"once {cycle}".encode())
            at, ttl = Instant((3 * cycle + 1) * MINUTE), (("Nats-TTL", b"60s"),)
            writer.append(name, [NewMessage(append_time=at, key=key, value=b"v", headers=ttl) for key in keys], policy_of(s, name))
            clock.now = Instant((3 * cycle + 3) * MINUTE)
            plan_id, times = steps.plan(s, name, as_of=clock.now).plan.plan_id, Times()
            staged = steps.stage(s, plan_id)
            with times.step("mark"):
                staged = steps.mark(s, plan_id)
            record = s.ledger.record(plan_id)
            with times.step("evidence"):
                s.stores.log.evidence(record.plan, staged, policy_of(s, name))
            steps.gate(s, plan_id)
            steps.approve(s, plan_id, granted=True, by="bench", text="a bench")
            steps.publish(s, plan_id)
            assert steps.verify(s, plan_id).markers == len(keys)
            cost = times.total(times.cpu)
            missed += [cycle] if cost > MAX_CPU else []
            told = ", ".join(f"{step} {times.cpu[step][0]:.2f} CPU s, {times.wall[step][0]:.2f} s" for step in times.cpu)
            print(f"cycle {cycle + 1}: {told}; together {cost:.2f} CPU s of at most {MAX_CPU}")
    finally:
        lake.drop()
    return size.status(kept=not missed)


if __name__ == "__main__":
    sys.exit(main())
