"""Applications on the embedded default do their data work as Spark jobs, which a person recognises in Spark's pages."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from tests.events import described_jobs, event_log
from tests.spark.documents import SETTINGS, typed
from tests.spark.landing import json_lines

from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.document import Synced
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.view_file import drop_stream
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("lake_environment", "erasure_secret")]

SECOND = 1_000_000
# One Spark start for all operations: the applications differ in their arguments alone.
PROGRAM = """
from message_lifecycle.app.applications import plan_and_stage, run_application
from message_lifecycle.app.ingest import ingest
from message_lifecycle.model.request import EraseKey

def main():
    result = ingest({topic!r}, {folder!r}, key="k", value="v", append_time="at")
    assert (result.rows, result.quarantined) == (9, {{"unreadable_line": 1}})
    works = {works!r}
    for topic, work in works:
        asked = EraseKey(request_id=work) if work not in ("compaction", "message_cleaner", "snapshot_with_purge") else work
        status = plan_and_stage(run="a run", as_of="1970-01-01T00:01:40Z", topics=[topic], work=asked)
        assert status == 0, topic
    return 0

run_application(main)
"""


@pytest.fixture
def stream() -> Iterator[str]:
    """The lake is the user's, too: a topic that stays there, with a ledger that is gone, would fail every run."""
    name = f"jobs-{token_hex(4)}"
    yield name
    drop_stream(Tables().catalog, TopicName(stream=name, topic="any").namespace)


def test_each_operation_has_a_job_that_names_it(stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger")
    migrate_ledger(os.environ["LIFECYCLE_LEDGER_URL"])
    s = lake()
    topics = ("view", "ttl", "documents", "erased", "taken")
    view, ttl, documents, erased, taken = (TopicName(stream=stream, topic=topic) for topic in topics)
    create_topic(s, taken, partitions=2, settings={})
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jsonl").write_text(json_lines(*((f"key {at}", "v", None) for at in range(9))))
    (tmp_path / "files" / "b.jsonl").write_text("broken\n")
    create_topic(s, view, partitions=2, settings={"cleanup_policy": "compact"})
    create_topic(s, ttl, partitions=1, settings={"allow_msg_ttl": True, "max_removed_fraction": 1.0})
    create_topic(s, documents, partitions=1, settings=SETTINGS)
    create_topic(s, erased, partitions=1, settings={})
    writer = IcebergWriter(engine_of_process)
    for name in (view, ttl, erased):
        headers = ((("Nats-TTL", b"60s"),), ()) if name == ttl else ((), ())
        messages = [
            NewMessage(
                partition=at % 2 if name == view else 0, append_time=Instant(SECOND), key=b"k%d" % at, value=b"v", headers=headers[at % 2]
            )
            for at in range(4)
        ]
        writer.append(name, messages, policy_of(s, name))
    s.documents.add(documents, typed("one", 1, 12), ledger=s.ledger.next_identity(documents))
    synced = Synced(document="one", client="a", server_seq=8, at=Instant(1))
    assert s.ledger.replace_synced(documents, "one", "a", seen=None, to=synced)
    s.ledger.add_erasure("request", s.key_secret(True).digests([b"k1"]), topics=[erased], forbid=False, requested_by="tester", why="test")

    works = [(str(view), "compaction"), (str(ttl), "message_cleaner"), (str(documents), "snapshot_with_purge"), (str(erased), "request")]
    (tmp_path / "program.py").write_text(PROGRAM.format(works=works, topic=str(taken), folder=str(tmp_path / "files")))
    (tmp_path / "events").mkdir()
    given = [part for name, value in event_log(tmp_path / "events").items() for part in ("--conf", f"{name}={value}")]
    submit = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit")
    done = subprocess.run([submit, *given, str(tmp_path / "program.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    found = described_jobs(tmp_path / "events")
    assert [re.sub("(plan|batch) [0-9a-f]{8}", r"\1 ID", job) for job in found] == [
        f"ingest of {taken}, batch ID: reading 2 files",
        f"ingest of {taken}, batch ID: refused rows of 1 files",
        f"ingest of {taken}, batch ID: writing 2 partitions",
        f"compaction of {view}: 2 partitions, plan ID",
        f"message cleaner of {ttl}: finding rows in 1 files, plan ID",
        f"snapshot with purge of {documents}: folding 1 buckets, plan ID",
        f"erasure of {erased}: searching 1 files",
    ]
