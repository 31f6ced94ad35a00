"""The cost of the quality gate for the same drop on topics of 1 GB and of 10 GB: evidence and judgement, in a warm application.

The cost must not grow with the bytes, because the gate inspects metadata and a sample of the removed messages. The peer is the gate itself
on the smaller topic. First the larger topic has as many files, ten times as large. Then it has ten times as many files, where the cost may
grow ten times at most. The removed files are real. The other files are only declared, so opening one of them would fail.
"""

from __future__ import annotations

import os
import sys
from secrets import token_hex
from statistics import median

from pyspark.sql import SparkSession
from tests.spark.lake import SECOND, Lake, Rows
from tests.spark.synthetic import Shape, append_segments

from bench import size
from bench.segment_drop import Times
from lifecycle_local.environment import load_environment
from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.session import spark_session

REPEATS = size.repeats(3)
GOING, ROWS = 10, 3
MB = 1_000_000
MESSAGE_BYTES = 1_000
# Removed messages are of the first minute since 1970, without its second 0, which means unknown. The others are of the half minute before
# as_of.
START_S = 1_000
AS_OF_S = START_S + 30.0
# 1 is flat. A gate that read the remaining messages would be at 10.
MAX_RATIO = 1.5
FEW, MANY = size.of(1_000), size.of(10_000)
TOPICS = {
    f"{files * file_bytes / 1e9:g} GB in {files:,} files of {file_bytes // MB} MB": (files, file_bytes)
    for files, file_bytes in ((FEW, MB), (FEW, 10 * MB), (MANY, MB))
}


def prepared(lake: Lake, session: SparkSession, files: int, file_bytes: int) -> TopicName:
    """Make a topic with a few small expired segments at its beginning, and `files` unexpired files of `file_bytes` each."""
    name = lake.topic()
    lake.append(name, *(Rows(base=ROWS * at, times=tuple(range(ROWS * at + 1, ROWS * (at + 1) + 1))) for at in range(GOING)))
    stays = Shape(
        segments=files,
        rows=file_bytes // MESSAGE_BYTES,
        first=GOING * ROWS,
        file_bytes=file_bytes,
        start_us=START_S * SECOND,
        step_us=1_000,
    )
    append_segments(session, name, stays)
    return name


def judge(lake: Lake, name: TopicName, times: Times) -> None:
    """Plan and stage, then the steps that are measured."""
    plan, policy, store = lake.plan(name, AS_OF_S), lake.policy(name), lake.store()
    staged = store.stage(plan)
    with times.step("evidence"):
        evidence = store.evidence(plan, staged, policy)
    with times.step("judgement"):
        report = GreatExpectationsGate().judge(plan, staged, suite_of(plan, staged, policy), evidence)
    assert (report.judgement, dict(report.figures)["rows_removed"]) == ("passed", GOING * ROWS), report


def main() -> int:
    load_environment()
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    lake = Lake(session, stream=f"bench-{token_hex(4)}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: above that, read CPU")
    try:
        judge(lake, prepared(lake, session, *next(iter(TOPICS.values()))), Times())
        measured = {what: Times() for what in TOPICS}
        for _ in range(REPEATS):
            for what, shape in TOPICS.items():
                judge(lake, prepared(lake, session, *shape), measured[what])
    finally:
        lake.drop()
    print(f"\nThe gate on a drop of {GOING} files; medians of {REPEATS}, in seconds")
    print(f"  {'':32}{'wall':>8}{'CPU':>8}   evidence  judgement (CPU)")
    for what, times in measured.items():
        steps = "".join(f"{median(of):11.2f}" for of in times.cpu.values())
        print(f"  {what:32}{times.total(times.wall):8.2f}{times.total(times.cpu):8.2f}{steps}")
    small, large, many = (times.total(times.cpu) for times in measured.values())
    print(
        f"  ratio of CPU, ten times the bytes in as many files: {large / small:.2f} (limit {MAX_RATIO}: {'kept' if large <= small * MAX_RATIO else 'MISSED'})"
    )
    print(f"  ratio of CPU, ten times the files: {many / small:.2f}")
    return size.status(kept=large <= small * MAX_RATIO)


if __name__ == "__main__":
    sys.exit(main())
