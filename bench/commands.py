"""Commands that a person waits for: commands over twenty topics, and an ingest of one row, each as a process of its own.

Two peers run next to them. The first is a process that opens the catalog by PyIceberg and loads each of the topics' tables. The second is a
PySpark application that reads the same row and appends it to a plain Iceberg table in the same catalog.

`python -m bench commands --topics 1000` measures a large catalog. Making it takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

from bench import size
from bench.due import PEER, REPEATS, cost
from lifecycle_local import embedded
from lifecycle_local.layout import venv_bin
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.catalog import Tables

TOPICS = size.of(20)
MOST_SECONDS, MOST_OF_INGEST = 1.5, 5.0
MOST_OF_A_TOPIC = 0.015
"""Seconds of each command for each topic, where that is more: 15 s for 1,000 topics."""
_APPEND = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
session.sql(f"CREATE TABLE IF NOT EXISTS lake.`{sys.argv[1]}`.plain (k string, v string, at string) USING iceberg")
session.read.json(sys.argv[2]).select("k", "v", "at").writeTo(f"lake.`{sys.argv[1]}`.plain").append()
"""


def main() -> int:
    """Print CPU and wall seconds, medians of three, and the ratios; 1 where a command takes longer than its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    topics = parser.parse_args().topics
    embedded.up(with_airflow=False)
    stream = f"bench-commands-{token_hex(3)}"
    names = [TopicName(stream=stream, topic=f"t{number}") for number in range(topics)]
    s, lifecycle = lake(), str(venv_bin() / "lifecycle")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder)
        try:
            for name in names:
                create_topic(s, name, partitions=4, settings={"message_expiry": 3600})
            take = [lifecycle, "ingest", str(names[0]), folder, "--key-field", "k", "--value-field", "v", "--time-field", "at"]
            asked = {
                "topic list": [lifecycle, "topic", "list"],
                "status": [lifecycle, "status"],
                "plan --dry-run": [lifecycle, "plan", str(names[0]), "--dry-run"],
            }
            # `status` ends with 1 if some other topic of this catalog is not as it should be.
            found = {what: [cost(command, allowed=(0, 1)) for _ in range(REPEATS)] for what, command in asked.items()}
            found["PyIceberg loads the tables"] = [cost([sys.executable, "-c", PEER, names[0].namespace]) for _ in range(REPEATS)]
            found["ingest of one row"] = []
            for number in range(REPEATS):
                _row(rows, number)
                found["ingest of one row"].append(cost(take))
            append = [sys.executable, "-c", _APPEND, names[0].namespace]
            found["PySpark appends one row"] = [cost([*append, str(_row(rows, number))]) for number in range(REPEATS)]
        finally:
            view_file.drop_stream(Tables().catalog, names[0].namespace)
            for name in names:
                s.ledger.forget_topic(name)  # else every later status reports it as dropped by another program
    medians = {what: tuple(statistics.median(one[at] for one in costs) for at in (0, 1)) for what, costs in found.items()}
    late, most_of_look = [], max(MOST_SECONDS, MOST_OF_A_TOPIC * topics)
    for what, (cpu, wall) in medians.items():
        is_ingest = what in ("ingest of one row", "PySpark appends one row")
        peer = medians["PySpark appends one row" if is_ingest else "PyIceberg loads the tables"]
        most = MOST_OF_INGEST if is_ingest else most_of_look
        print(f"{what:28} {cpu:6.2f} CPU s  {wall:6.2f} s wall  {cpu / peer[0]:5.2f} and {wall / peer[1]:5.2f} of the peer")
        late += [what] if peer is not medians[what] and wall > most else []
    print(f"longer than their bounds ({most_of_look} s, ingest {MOST_OF_INGEST} s wall): {', '.join(late) or 'none'}")
    return size.status(kept=not late)


def _row(folder: Path, number: int) -> Path:
    """A file with one row that no ingest has taken yet."""
    path = folder / f"{number}.jsonl"
    path.write_text(json.dumps({"k": "a", "v": str(number), "at": "2026-01-01T00:00:00Z"}) + "\n")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
