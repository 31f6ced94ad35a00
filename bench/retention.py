"""Retention by age, number and size together on 20 million messages, from plan to verify, by the command and by a DAG run.

The peer is DuckDB on two threads, which writes the kept messages again. The benchmark gives DuckDB the cut, so DuckDB need not find it.
Figures are of whole processes (`bench.whole_run`), and medians. Run: `python -m bench retention`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

from tests.spark.lake import SECOND, Lake

from bench import size
from bench.compaction import own_ledger
from bench.ttl_rows import MESSAGES, PARTITIONS, ROWS, SEGMENTS, VALUE_BYTES, generated, measure, prepared
from lifecycle_local.environment import load_environment
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.session import spark_session

REPEATS = size.repeats(3)
LIMIT = 0.6
_DAY = 86_400
MESSAGE_BYTES = VALUE_BYTES + 8
KEPT = round(0.75 * MESSAGES)


def newest(segments: int) -> Instant:
    """Return when the newest message of so many segments came."""
    return Instant((1_700_000_000 + segments * 3600 - _DAY) * SECOND)


def limits(segments: int) -> Mapping[str, Value]:
    """Return the settings of a topic with so many segments in each partition.

    The age removes about a tenth, the count another tenth, and the size a twentieth. Each limit removes messages from different files.
    """
    messages = PARTITIONS * segments * ROWS
    return {
        "max_age_seconds": 0.9 * segments * 3600,
        "max_records": round(0.8 * messages) + 7,
        "max_total_bytes": round(0.75 * messages) * MESSAGE_BYTES + 13,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    load_environment()
    data = generated("bench-retained", ascending=True)
    return measure(
        data,
        given.repeats,
        settings=limits(SEGMENTS),
        as_of=newest(SEGMENTS),
        kept=KEPT,
        kept_by_peer=[f'"offset" >= {first}' for first in first_kept_offsets(data)],
        limit=LIMIT,
    )


def first_kept_offsets(data: Path) -> list[int]:
    """Return the first offset that each partition keeps, by a plan of ours."""
    with own_ledger(data.parent):
        s, lake = wired(), Lake(spark_session("bench"), stream=f"bench-{token_hex(4)}")
        try:
            plan = lake.plan(prepared(s, lake, data, **limits(SEGMENTS)), newest(SEGMENTS) / SECOND)
        finally:
            lake.drop()
    assert plan.expected.rows_in - plan.expected.removed_rows == KEPT, plan.expected
    assert {reason for reason, _ in plan.expected.removed} == {"retention_age", "retention_count", "retention_bytes"}, plan.expected
    return [max(action.last_offset for action in plan.log_commit.mark if action.partition == p) + 1 for p in range(PARTITIONS)]


if __name__ == "__main__":
    sys.exit(main())
