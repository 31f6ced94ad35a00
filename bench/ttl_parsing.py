"""Reading `Nats-TTL` headers: ingest's arrays against DuckDB, which reads the same strings by regular expressions.

The peer is the code that anyone would write first in SQL: whole seconds as a number, and each unit of a duration by an expression of its
own. The peer knows less of the grammar (no `.5h`, no sign, no repeated unit), and both must give the same microseconds. Ours and the peer
run in this process on one thread, by turns. Figures are medians of CPU seconds. Ours reads blocks of as many rows as Spark hands to Python
at a time.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import duckdb
import pyarrow as pa

from bench import size
from message_lifecycle.sources.lifetimes import parse_lifetimes

ROWS = size.of(2_000_000)
REPEATS = size.repeats(5)
BLOCK = 10_000
# CPU of ours over that of the peer, at the most.
LIMIT = 1.0

_WHOLE = r"coalesce(CAST(try_cast(regexp_extract(v, '{}', 1) AS bigint) * {} AS bigint), 0)"
_PARTS = " + ".join(
    (
        _WHOLE.format(r"(\d+)h", 3_600_000_000),
        _WHOLE.format(r"(\d+)m(?:\d|$)", 60_000_000),
        r"coalesce(CAST(round(try_cast(regexp_extract(v, '(\d+(?:\.\d+)?)s', 1) AS double) * 1000000) AS bigint), 0)",
        _WHOLE.format(r"(\d+)ms", 1_000),
    )
)
_PEER = rf"""
SELECT CASE
    WHEN regexp_full_match(v, '\d+') THEN CAST(v AS bigint) * 1000000
    WHEN regexp_full_match(v, '(\d+h)?(\d+m)?(\d+(\.\d+)?s)?(\d+ms)?') THEN {_PARTS}
    WHEN lower(v) = 'never' THEN -1
    ELSE -2
END AS lifetime FROM headers
"""


def usual() -> Iterator[str]:
    """Yield values as publishers write them: a few round values, again and again."""
    chance = random.Random(43)
    for _ in range(ROWS):
        yield chance.choice(
            ["60", "3600", "86400", "30s", "5m", "1h", "24h", "1h30m", "1h30m5s", "1.5s", "1500ms", "never", "1m0s", "2h0m0s"]
        )


def distinct() -> Iterator[str]:
    """No value twice, in the forms of the usual ones."""
    for number in range(ROWS):
        hours, minutes, seconds = number // 3600, number // 60, number % 60
        yield (
            f"{number + 1}", f"{number + 1}s", f"{minutes + 1}m{seconds}s", f"{hours}h{minutes % 60}m{seconds}.{number % 10}s",
            f"{1 + number // 10**6}.{number % 10**6:06}s", f"{number + 1000}ms",
        )[number % 6]  # fmt: skip


MIXES: dict[str, Callable[[], Iterator[str]]] = {"usual values": usual, "all distinct": distinct}


def ours(values: pa.Array) -> list[pa.Array]:
    return [parse_lifetimes(values.slice(start, BLOCK)) for start in range(0, len(values), BLOCK)]


def measure(what: str, values: pa.Array) -> bool:
    connection = duckdb.connect(config={"threads": 1})
    connection.register("strings", pa.table({"v": values.cast(pa.string())}))
    connection.execute("CREATE TABLE headers AS SELECT v FROM strings")
    cpu: dict[str, list[float]] = {"ours": [], "DuckDB": []}
    for _ in range(REPEATS):
        started = time.process_time()
        mine = ours(values)
        cpu["ours"].append(time.process_time() - started)
        started = time.process_time()
        theirs = connection.sql(_PEER).to_arrow_table()
        cpu["DuckDB"].append(time.process_time() - started)
    if pa.chunked_array(mine).combine_chunks() != theirs["lifetime"].combine_chunks():
        raise RuntimeError("the two do not read the same")
    ratio = median(cpu["ours"]) / median(cpu["DuckDB"])
    print(f"{what:14} ours {median(cpu['ours']):6.2f} CPU s   DuckDB {median(cpu['DuckDB']):6.2f} CPU s   ratio {ratio:.2f}")
    return ratio <= LIMIT


def main() -> int:
    """Print CPU seconds and ratios; 1 where DuckDB is faster."""
    print(f"{ROWS:,} headers; medians of {REPEATS}; limit: ratio {LIMIT}")
    kept = [measure(what, pa.array([value.encode() for value in mix()], pa.binary())) for what, mix in MIXES.items()]
    return size.status(kept=all(kept))


if __name__ == "__main__":
    sys.exit(main())
