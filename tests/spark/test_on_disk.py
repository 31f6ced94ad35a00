"""What a catalog is about to name is on disk first: data, vectors, manifests, metadata, and the folders that they lie in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from tests.logs import SECOND
from tests.spark import test_compaction_kill_points, test_document_kill_points, test_kill_points, test_quarantine_age
from tests.spark.durable_files import compiled, in_jar
from tests.spark.kill_points import with_ledger
from tests.spark.lake import Lake, Rows

from lifecycle_local.spark_settings import DURABLE_FILES
from message_lifecycle.app import steps
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.stores.iceberg import fence, table_metadata
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.history import reachable, snapshot_ids
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.table_folder import absolute, local_path, location_prefix
from message_lifecycle.stores.iceberg.table_metadata import Document, changed_metadata, document_of, set_properties

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF = Instant(100 * SECOND)


class Syncs:
    """When each file or folder was brought to disk first, by this process or by Java; and what was about to be named when."""

    def __init__(self) -> None:
        self.at_ns: dict[Path, int] = {}
        self.swaps: list[tuple[int, Document]] = []
        self.began_ns = time.time_ns()

    def note(self, path: Path, at_ns: int) -> None:
        self.at_ns[path] = min(at_ns, self.at_ns.get(path, at_ns))

    def missing(self) -> set[Path]:
        """Named by the metadata of a swap, and not on disk before it, or not its folder."""
        found = set()
        for at_ns, document in self.swaps:
            io = Tables().catalog._load_file_io({}, str(document["location"]))
            prefix = location_prefix(str(document["location"]))
            for file in reachable(io, document, snapshot_ids(document)):
                path = local_path(absolute(prefix, file.name))
                # What was there before the recording is an earlier swap's.
                if path.exists() and path.stat().st_ctime_ns > self.began_ns:
                    found |= {one for one in (path, path.parent) if self.at_ns.get(one, at_ns + 1) > at_ns}
        return found


@contextmanager
def recorded(folder: Path) -> Iterator[Syncs]:
    """Python's calls are watched, Java's told by its flight recorder."""
    jvm = engine_of_process().jvm
    # Java 17 dies where it takes PostgreSQL's driver out of a class archive while it records.
    _ = engine_of_process().lake
    syncs, fsync, swap = Syncs(), os.fsync, table_metadata.compare_and_swap

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        syncs.note(Path(f"/proc/self/fd/{descriptor}").readlink(), time.time_ns())

    class Operations:
        def __init__(self, real: Java) -> None:
            self._real = real

        def commit(self, base: Java, changed: Java) -> None:
            syncs.swaps.append((time.time_ns(), document_of(changed)))
            self._real.commit(base, changed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    def watched_swap(operations: Java, attempt: Callable[[], tuple[Java, Java]], *, what: str) -> None:
        swap(Operations(operations), attempt, what=what)

    recording = jvm.jdk.jfr.Recording()
    recording.enable("jdk.FileForce").withoutThreshold()
    recording.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", watched)
        for module in (table_metadata, fence):
            patched.setattr(module, "compare_and_swap", watched_swap)
        yield syncs
    recording.stop()
    file = jvm.java.nio.file.Path.of(
        str(folder / "recording.jfr"), spark_session("tests").sparkContext._gateway.new_array(jvm.java.lang.String, 0)
    )
    recording.dump(file)
    recording.close()
    for event in jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(file):
        end = event.getEndTime()
        syncs.note(Path(event.getString("path")), int(end.getEpochSecond()) * 1_000_000_000 + int(end.getNano()))


TOPICS: dict[str, Any] = {
    "log": test_kill_points.Topic,
    "view": test_compaction_kill_points.Topic,
    "documents": test_document_kill_points.Topic,
    "quarantine": test_quarantine_age.Topic,
}


@pytest.mark.parametrize("title", TOPICS)
def test_what_a_run_commits_is_on_disk_before_it_is_named(title: str, embedded: Path, tmp_path: Path) -> None:
    with with_ledger(TOPICS[title], tmp_path) as topic:
        with recorded(tmp_path) as syncs:
            assert topic.run().name == "published"
        assert syncs.swaps, "something was committed"
        assert syncs.missing() == set()


def test_single_messages_that_go_go_by_vectors_that_are_on_disk(embedded: Path, tmp_path: Path) -> None:
    with with_ledger(test_kill_points.Topic, tmp_path) as topic:
        request = RemoveMessages(positions=((0, 3),))
        with recorded(tmp_path) as syncs:
            outcome = steps.run(topic.s, topic.name, as_of=AS_OF, work=request, approver=lambda _plan, _report: (True, "tester", "yes"))
        assert outcome.name == "published"
        assert any(path.suffix == ".puffin" for path in syncs.at_ns)
        assert syncs.missing() == set()


def test_the_metadata_are_on_disk_before_the_catalog_names_them(lake: Lake, tmp_path: Path) -> None:
    """The swap is refused: what is on disk all the same was there before it."""
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1,)))
    # Of its own: a table of Spark's would see what comes between, and refuse before it writes anything.
    late = table_metadata._table_operations((name.namespace, name.table()))
    base = late.current()
    changed = changed_metadata(base, lambda base, builder: set_properties(base, builder, {"test": "late"}))
    lake.append(name, Rows(base=1, times=(2,)))
    named = {local_path(str(entry.metadata_file)) for entry in Tables().load(name).metadata.metadata_log}
    with recorded(tmp_path) as syncs, pytest.raises(Py4JJavaError, match="CommitFailedException"):
        late.commit(base, changed)
    (refused,) = {path for path in syncs.at_ns if path.name.endswith(".metadata.json")}
    assert refused not in named | {local_path(Tables().load(name).metadata_location)}
    assert refused.parent in syncs.at_ns


def test_the_jar_is_what_its_source_says(lake: Lake) -> None:
    assert in_jar(DURABLE_FILES) == compiled(engine_of_process().jvm), "run `python -m tests.spark.durable_files`"
