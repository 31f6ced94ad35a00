"""One erasure, or its peer's rewrite, in a fresh process that imports nothing else:
`python -m bench.erasure_run erase TOPIC REQUEST`, `python -m bench.erasure_run rewrite DATA FOLDER KEY`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def erase(topic: str, request_id: str) -> dict[str, int]:
    """Plan, stage, judge, publish and verify, as `lifecycle erase run` does. Return the number of removed messages."""
    from lifecycle_local.environment import load_environment

    load_environment()
    from message_lifecycle.app import steps
    from message_lifecycle.app.wiring import lake
    from message_lifecycle.model.names import TopicName
    from message_lifecycle.model.request import EraseKey

    s = lake()
    work = EraseKey(request_id=request_id)
    outcome = steps.run(s, TopicName.parse(topic), as_of=s.ledger.now(), approver=lambda _plan, _report: (True, "bench", "yes"), work=work)
    assert outcome.name == "published", outcome.detail
    return dict(outcome.removed)


def rewrite(data: str, to: str, key: str) -> dict[str, int]:
    """Write all files again without the key, by DuckDB on two threads. Return how many partitions were written."""
    import duckdb

    Path(to).mkdir(exist_ok=True)
    connection = duckdb.connect(config={"threads": 2})
    partitions = sorted(path for path in Path(data).iterdir() if path.is_dir())
    for partition in partitions:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet('{partition}/*.parquet') WHERE key != ?::BLOB) "
            f"TO '{to}/{partition.name}.parquet' (FORMAT parquet, COMPRESSION zstd)",
            [key.encode()],
        )
    return {"partitions": len(partitions)}


if __name__ == "__main__":
    _, what, *arguments = sys.argv
    print(json.dumps(erase(*arguments) if what == "erase" else rewrite(*arguments)))
