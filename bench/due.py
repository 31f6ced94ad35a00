"""What it costs to find that nothing is due: `lifecycle due` over 100 idle topics, as a process of its own, without a JVM.

The peer in the same run is what any answer from these tables costs at least: a process that opens the catalog by PyIceberg and
loads each of the 100 tables.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from secrets import token_hex

from message_lifecycle.app import embedded
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.local.layout import venv_bin
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import LIVE

TOPICS = 100
REPEATS = 3
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
    catalog = Tables().catalog
    try:
        for name in names:
            create_topic(s, name, partitions=4, settings={"message_expiry": 3600})
        asked = [str(name) for name in names]
        command = [str(venv_bin() / "lifecycle"), "due", *asked, "--output", "json"]
        cost(command)  # the first look reads the tables and remembers
        ours = [cost(command) for _ in range(REPEATS)]
        peer = [cost([sys.executable, "-c", PEER, names[0].namespace]) for _ in range(REPEATS)]
    finally:
        for name in names:
            catalog.drop_table((name.namespace, name.table()))
            view_file.drop((name.namespace, name.table(LIVE)))
        catalog.drop_namespace(names[0].namespace)
    for what, costs in (("lifecycle due, 100 idle topics", ours), ("PyIceberg loads the 100 tables", peer)):
        cpu, wall = (statistics.median(one[index] for one in costs) for index in (0, 1))
        print(f"{what:34} {cpu:6.2f} CPU s  {wall:6.2f} s wall")
    ratio = statistics.median(one[0] for one in ours) / statistics.median(one[0] for one in peer)
    print(f"ratio {ratio:.2f} (bound: 2 CPU s)")
    return 0


def cost(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of a process. Of its children those count that it has waited for: PySpark's Java is none of them."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{command[:4]} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - started


if __name__ == "__main__":
    raise SystemExit(main())
