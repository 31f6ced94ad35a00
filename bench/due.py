"""The cost of finding that nothing is due: `lifecycle due` over 100 idle topics, as a process of its own, without a JVM.

The peer in the same run shows the least cost of any answer from these tables: a process that opens the catalog by PyIceberg and loads each
of the 100 tables.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from secrets import token_hex

from bench import size
from lifecycle_local import embedded
from lifecycle_local.layout import venv_bin
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.catalog import Tables

TOPICS = size.of(100)
REPEATS = size.repeats(3)
PEER = """
import sys
from pyiceberg.catalog import load_catalog
catalog = load_catalog("lake")
for table in catalog.list_tables(sys.argv[1]):
    catalog.load_table(table).current_snapshot()
"""


def main() -> int:
    """Print CPU and wall seconds, medians of three, and the ratio."""
    embedded.up(with_airflow=False)
    stream = f"bench-due-{token_hex(3)}"
    names = [TopicName(stream=stream, topic=f"t{number}") for number in range(TOPICS)]
    s = lake()
    try:
        for name in names:
            create_topic(s, name, partitions=4, settings={"message_expiry": 3600})
        asked = [str(name) for name in names]
        command = [str(venv_bin() / "lifecycle"), "due", *asked, "--output", "json"]
        cost(command)  # the first look reads the tables and remembers
        ours = [cost(command) for _ in range(REPEATS)]
        peer = [cost([sys.executable, "-c", PEER, names[0].namespace]) for _ in range(REPEATS)]
    finally:
        view_file.drop_stream(Tables().catalog, names[0].namespace)
        for name in names:
            s.ledger.forget_topic(name)
    for what, costs in ((f"lifecycle due, {TOPICS} idle topics", ours), (f"PyIceberg loads the {TOPICS} tables", peer)):
        cpu, wall = (statistics.median(one[index] for one in costs) for index in (0, 1))
        print(f"{what:34} {cpu:6.2f} CPU s  {wall:6.2f} s wall")
    ratio = statistics.median(one[0] for one in ours) / statistics.median(one[0] for one in peer)
    print(f"ratio {ratio:.2f} (bound: 2 CPU s)")
    return 0


def cost(command: list[str], *, allowed: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Return CPU and wall seconds of a process. Children count if the process waited for them: PySpark's Java does not.

    Args:
        command: The process to run.
        allowed: Exit statuses that are no error.

    Raises:
        RuntimeError: The process ended with another status.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended not in allowed:
        raise RuntimeError(f"{command[:4]} ended with {ended}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - started


if __name__ == "__main__":
    raise SystemExit(main())
