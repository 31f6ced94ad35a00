"""Whatever is wrong with a document or with its files: nothing of it is purged, and it is named (SNP-6, SNP-10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.changes import named
from tests.effort import sample
from tests.errors import raises
from tests.spark.documents import AS_OF, LATER, Documents, splice, text_at, typed
from tests.spark.lake import LEDGER, Lake, tables

from message_lifecycle.app import documents, steps
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.iceberg.documents.tables import FoldingFailed, UnreadableDocuments, digest_of
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def broken(document: str, seq: int) -> Change:
    """A change that does not fit its text."""
    return replace(typed(document, seq, seq)[0], payload=splice(10_000, 0, "x"))


def files(topic: Documents, kind: str, *, pattern: str = "*.parquet") -> list[Path]:
    return sorted(local_path(tables().load(topic.name, kind=kind).location()).glob(f"data/*/{pattern}"))


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The file with other content in its place, of which its table knows nothing."""
    before = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist([change(row) for row in before.to_pylist()], schema=before.schema), path)


def forged(row: dict[str, Any], state: bytes = b'"another text"') -> dict[str, Any]:
    """With a state that is whole, and not that of the document."""
    return {**row, "state": state, "digest": digest_of(state)}


@pytest.fixture
def topic(lake: Lake) -> Documents:
    """`one` and `two` lie in different buckets, and can lose seven changes each."""
    made = Documents.on(lake)
    made.add(*typed("one", 1, 12), *typed("two", 1, 12))
    for document in ("one", "two"):
        made.sync(document, a=8)
    return made


def test_a_change_that_does_not_apply_blocks_its_document_alone(topic: Documents) -> None:
    topic.add(broken("one", 13))
    outcome = topic.run()
    assert (outcome.name, dict(outcome.removed)) == ("published", {"purged_synced": 7})
    assert [warning for warning in outcome.warnings if "one" in warning and "InvalidChange" in warning and "13" in warning]
    assert (topic.stored("one"), topic.snapshots("one"), topic.epoch("one")) == (list(range(1, 14)), [], 0)
    assert (topic.stored("two"), topic.snapshots("two")) == (list(range(8, 13)), [(12, 1, text_at(12))])
    assert topic.run(LATER).name == "blocked", "it is tried again, and by itself there is nothing else to do"


@pytest.mark.parametrize("visible", sample([True, False], True), ids=["digest", "content"])
def test_a_stored_snapshot_that_is_not_the_fold_blocks_its_document_alone(topic: Documents, visible: bool) -> None:
    topic.run()
    topic.sync("one", a=12)
    topic.sync("two", a=12)
    for path in files(topic, SNAPSHOTS):
        rewrite(path, lambda row: row if row["document"] != "one" else {**row, "state": b'"?"'} if visible else forged(row))
    if visible:
        with raises("DamagedSnapshot", match="one at server_seq 12"):
            topic.snapshots("one")
    # Nothing but the newest snapshot is left to fold on from, so only its digest can tell; with lower ones the fold tells, too.
    topic.add(*typed("one", 13, 22), *typed("two", 13, 22))
    topic.run(LATER)
    assert topic.stored("two") == list(range(12, 23))
    if visible:
        assert topic.stored("one") == list(range(8, 23))


def test_a_snapshot_that_changes_do_not_give_blocks_the_purge_that_relies_on_it(lake: Lake) -> None:
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 12))
    topic.run()
    (path,) = files(topic, SNAPSHOTS)
    rewrite(path, forged)
    topic.sync("one", a=8)
    outcome = topic.run(LATER)
    assert (outcome.name, outcome.removed) == ("blocked", ())
    assert any("one" in warning for warning in outcome.warnings)
    assert topic.stored("one") == list(range(1, 13))


def test_a_damaged_older_snapshot_is_in_nobodys_way(lake: Lake) -> None:
    """Who attaches or lags is given the newest one, which is whole."""
    topic = Documents.on(lake, snapshots_keep=3)
    for first, at in ((1, AS_OF), (13, LATER)):
        topic.add(*typed("one", first, first + 11))
        topic.run(at)
    for path in files(topic, SNAPSHOTS):
        rewrite(path, lambda row: {**row, "state": b'"?"'} if row["server_seq"] == 12 else row)
    for server_seq in (None, 12):
        with raises("DamagedSnapshot", match="one at server_seq 12"):
            topic.s.documents.snapshots(topic.name, "one", server_seq=server_seq)
    text = json.loads(text_at(24))
    assert documents.attach(topic.s, topic.name, "one", client="eve").state == text
    assert documents.pull(topic.s, topic.name, "one", client_seq=0).state == text
    assert list(documents.history(topic.s, topic.name, "one", start=24)) == [(24, text)]
    assert topic.s.documents.snapshots(topic.name, "one", server_seq=13) == []


def test_a_staged_snapshot_that_is_not_the_fold_is_found_by_the_gate(topic: Documents) -> None:
    before = topic.heads()
    plan, staged = topic.staged()
    assert staged.documents is not None
    assert (staged.documents.made, staged.documents.purged, staged.documents.blocked) == (2, 14, ())
    for path in files(topic, SNAPSHOTS):
        rewrite(path, lambda row: forged(row) if row["document"] == "two" else row)
    report = steps.gate(topic.s, plan.plan_id)
    assert report.judgement == "blocked"
    (check,) = report.blocking
    assert check.id == "unproved"
    assert "two" in check.found
    assert topic.stored("two") == list(range(1, 13))
    assert topic.heads()[0] == before[0]


def test_what_was_staged_beside_the_plan_is_found(lake: Lake) -> None:
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 12))
    topic.sync("one", a=8)
    plan = preview(topic.s, topic.name, as_of=AS_OF, work="snapshot_with_purge")
    policy = policy_of(topic.s, topic.name)

    def found(**other: int) -> dict[str, int]:
        """Totals that differ from those of the plan as it is, with another action staged."""
        action = replace(plan.snapshots_commit.documents[0], **other)
        assert isinstance(action, SnapshotDocument)
        deed = replace(plan, changes=named(action), as_of=Instant(AS_OF + len(cases)))
        cases.append(other)
        staged = topic.s.stores.snapshots.stage(deed)
        frames = topic.s.stores.snapshots.evidence(plan, staged, policy)
        topic.s.stores.snapshots.discard(deed)
        totals, unproved = frames["documents"], frames["unproved"]
        assert isinstance(totals, pa.Table)
        assert isinstance(unproved, pa.Table)
        (row,) = totals.to_pylist()
        row["unproved"] = len(unproved)
        return row if not other else {name: number for name, number in row.items() if number != right[name]}

    cases = list[dict[str, int]]()
    right = found()
    assert right == {
        **dict.fromkeys(right, 0),
        "planned": 1,
        "snapshots_made": 1,
        "purged": 7,
    }
    assert found(purge_before=9) == {"purged": 8, "unnamed": 1}
    assert found(purge_from=2) == {"purged": 6, "holes": 1}
    assert found(epoch=2) == {"epochs_wrong": 1, "snapshots_unnamed": 1}
    assert found(epoch=0) == {"epochs_wrong": 1, "snapshots_unnamed": 1}
    assert found(snapshot=11) == {"snapshots_unnamed": 1}
    assert found(purge_before=13) == {"purged": 12, "unnamed": 5}
    assert found(snapshot=10, purge_before=12) == {
        "purged": 11,
        "unnamed": 4,
        "uncovered": 1,
        "holes": 1,
        "snapshots_unnamed": 1,
        "unproved": 1,
    }


def damage(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(200) + b"PAR1")


@pytest.mark.parametrize("deed", [damage, Path.unlink], ids=["damaged", "gone"])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_changed(topic: Documents, deed: Callable[[Path], None]) -> None:
    before, plan = topic.heads(), preview(topic.s, topic.name, as_of=AS_OF, work="snapshot_with_purge")
    for path in files(topic, ""):
        deed(path)
    with pytest.raises(FoldingFailed, match="parquet"):
        topic.s.stores.snapshots.stage(plan)
    with pytest.raises(UnreadableDocuments):
        topic.stored("one")
    with pytest.raises(UnreadableDocuments):
        topic.s.documents.states(topic.name, topic.s.documents.tables(topic.name))
    assert topic.heads()[0] == before[0]
    assert topic.branches() == {"main"}


def test_a_vector_that_cannot_be_read_is_not_taken_for_empty(topic: Documents) -> None:
    topic.run()
    for path in files(topic, "", pattern="*.puffin"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(LifecycleError, match="no deletion vector"):
        topic.stored("one")


def test_names_of_documents_are_no_sql(lake: Lake) -> None:
    topic, name = Documents.on(lake), 'o\'ne \\ ü "x"'
    # Past the verbs, which let no such name in.
    topic.s.documents.add(topic.name, typed(name, 1, 2), ledger=LEDGER)
    topic.s.documents.add(topic.name, typed(name, 3, 3), ledger=LEDGER)
    assert topic.stored(name) == [1, 2, 3]
