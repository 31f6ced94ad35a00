"""What other writers find by walking back is the same after an erasure as before it, on every branch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.evidence import history_left
from message_lifecycle.stores.iceberg.erasure.metadata import MetadataRewrite
from message_lifecycle.stores.iceberg.erasure.search import UndoWindow, ancestors
from message_lifecycle.stores.iceberg.history import progress_in
from message_lifecycle.stores.iceberg.java import identifier
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.table_metadata import change_metadata, changed_metadata, current_metadata
from message_lifecycle.stores.iceberg.table_metadata import document_of as in_java
from tests.histories import ON_OWN_CATALOG, PLACE, append, catalog_in, document_of, new_table

pytestmark = ON_OWN_CATALOG

Summary = dict[str, str]
NOTE = {"my.note": "x"}


def flink(job: str, checkpoint: int) -> Summary:
    return {"flink.job-id": job, "flink.operator-id": "o", "flink.max-committed-checkpoint-id": str(checkpoint)}


def spark(query: str, epoch: int) -> Summary:
    return {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(epoch)}


def connect(group: str, offset: int) -> Summary:
    return {f"kafka.connect.offsets.control.{group}": f'{{"0":{offset}}}', "kafka.connect.commit-id": f"{group}{offset}"}


def past(catalog: SqlCatalog, *summaries: Summary) -> Table:
    table = new_table(catalog)
    for at, summary in enumerate(summaries):
        append(table.refresh(), at, **summary)
    return table.refresh()


def erasure(plan_id: str = "p" * 32) -> MetadataRewrite:
    """Of a key that nothing holds: what is told of here is the metadata alone."""
    return MetadataRewrite(
        io=LakeFileIO(),
        plan_id=plan_id,
        attempt="a",
        files={},
        held=(),
        summary={},
        window=UndoWindow(at_ms=0, length_ms=1, operations=()),
        now_ms=0,
    )


def erase(plan_id: str = "p" * 32) -> None:
    change_metadata(PLACE, erasure(plan_id).change, what="erasing")


def found(document: dict[str, Any], ref: str = "main") -> dict[str, Summary]:
    """By writer, the keys where it finds its own first, but for those of this table and notes."""
    newest: dict[str, Summary] = {}
    for snapshot in ancestors(document, document["refs"][ref]["snapshot-id"]):
        keys = {key: value for key, value in snapshot["summary"].items() if key.startswith(("flink", "spark.sql.streaming", "kafka"))}
        for writer in progress_in(snapshot["summary"]):
            newest.setdefault(writer, keys)
    return newest


def beside(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    heads = {ref["snapshot-id"] for ref in document["refs"].values()}
    return (snapshot for snapshot in document["snapshots"] if snapshot["snapshot-id"] not in heads)


@pytest.mark.parametrize(
    ("summaries", "more"),
    [
        ([spark("q", 3), NOTE], 0),
        ([flink("j", 6), flink("j", 7), NOTE], 0),
        ([NOTE, NOTE], 0),
        ([flink("old", 9), flink("new", 1), NOTE], 1),
        ([spark("q", 3), flink("j", 4), spark("r", 5), flink("j", 5), connect("g", 1), connect("h", 2), connect("g", 3)], 4),
    ],
)
def test_each_writer_finds_its_newest_word(tmp_path: Path, summaries: list[Summary], more: int) -> None:
    catalog = catalog_in(tmp_path)
    table = past(catalog, *summaries)
    before = found(document_of(table))
    for plan_id in ("p" * 32, "q" * 32):  # an erasure after another finds what that left
        erase(plan_id)
        after = document_of(table)
        assert found(after) == before
        assert len(list(beside(after))) == more
    read = table.refresh()
    assert history_left(read) == 0
    assert sorted(read.scan().to_arrow()["offset"].to_pylist()) == list(range(len(summaries)))
    # There is no reading back what was before, by whatever snapshot.
    assert [len(read.scan(snapshot_id=one["snapshot-id"]).to_arrow()) for one in beside(after)] == [0] * more
    append(read, 100, **spark("q", 9))
    assert found(document_of(table)) == {**before, "spark stream q": spark("q", 9)}


def test_a_branch_that_stays_as_it_is_keeps_the_words_before_its_head(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    table = past(catalog, spark("q", 3), flink("a", 1), flink("b", 2), NOTE)
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    table.manage_snapshots().create_branch(ids[2], "side").create_branch(ids[0], "first").create_tag(ids[1], "release").commit()
    before = {ref: found(document_of(table), ref) for ref in ("main", "side", "first")}
    assert len(before["side"]) == 3
    erase()
    after = document_of(table)
    assert {ref: found(after, ref) for ref in before} == before
    assert after["refs"]["side"]["snapshot-id"] == ids[2]
    assert sorted(table.refresh().scan(snapshot_id=ids[2]).to_arrow()["offset"].to_pylist()) == [0, 1, 2]


def test_the_gate_counts_every_snapshot_that_still_reads_something(tmp_path: Path) -> None:
    table = past(catalog_in(tmp_path), NOTE, flink("a", 1), NOTE)
    assert history_left(table) == 2
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "release").commit()
    assert history_left(table.refresh()) == 1


def taken_up_by_a_server(base: Any, changed: Any) -> None:
    """As a REST catalog's server does it: the requirements and the single changes, on whatever the table is by then."""
    jvm: Any = engine_of_process()
    rest, changes = jvm.jvm.org.apache.iceberg.rest, changed.changes()
    needed = jvm.jvm.org.apache.iceberg.UpdateRequirements.forUpdateTable(base, changes)
    place = identifier(jvm, PLACE)
    rest.CatalogHandlers.updateTable(jvm.lake, place, rest.requests.UpdateTableRequest.create(place, needed, changes))


def branched(catalog: SqlCatalog) -> Table:
    """A branch that stays as it is, with a word before its head."""
    table = past(catalog, spark("q", 3), flink("a", 1), flink("b", 2), NOTE)
    table.manage_snapshots().create_branch(table.snapshots()[2].snapshot_id, "side").commit()
    return table.refresh()


def test_a_server_that_is_told_the_single_changes_makes_the_same_of_them(tmp_path: Path) -> None:
    table = branched(catalog_in(tmp_path))
    base = current_metadata(PLACE)
    changed = changed_metadata(base, erasure().change)
    taken_up_by_a_server(base, changed)
    told = ("snapshots", "refs", "current-snapshot-id", "last-sequence-number", "snapshot-log", "properties")
    made, after = in_java(changed), document_of(table)
    assert {name: made[name] for name in told} == {name: after[name] for name in told}


@pytest.mark.parametrize("branch", ["main", "side", "new"])
def test_a_server_refuses_what_was_made_before_another_commit(tmp_path: Path, branch: str) -> None:
    """Also where it came to a branch that the change knows nothing of: the files that it names would go."""
    table = branched(catalog_in(tmp_path))
    base = current_metadata(PLACE)
    changed = changed_metadata(base, erasure().change)
    if branch == "new":
        table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, branch).commit()
    table.refresh().append(table.scan().to_arrow().slice(0, 1), branch=branch)
    before = document_of(table)
    with pytest.raises(Py4JJavaError):
        taken_up_by_a_server(base, changed)
    assert document_of(table) == before
