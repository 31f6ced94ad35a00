"""What an erasure plans, what its gate is held to, and its receipt (DEL-2, DEL-7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Operation, Summary

from message_lifecycle.app.cli.screen import render_text
from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.app.views.erasures import receipt_blocks
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.ledger.codec import plan_from_json
from message_lifecycle.model.change import CompactPartition, CompactView, Rewrite
from message_lifecycle.model.erasure import (
    ErasureOf,
    HeldFile,
    KeyMatch,
    KeySearchResult,
    KeySecret,
    Receipt,
    TableKind,
    TableReceipt,
    TopicReceipt,
)
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import resolve
from message_lifecycle.operations import erasure
from message_lifecycle.operations.planning import requirements_of
from message_lifecycle.stores.iceberg.columns import DICTIONARY_COLUMNS, SCHEMA
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewStore
from message_lifecycle.stores.iceberg.erasure import publish
from message_lifecycle.stores.iceberg.erasure.looking import Looks
from message_lifecycle.stores.iceberg.erasure.metadata import read_unreachable_list, snapshot_id_of
from message_lifecycle.stores.iceberg.erasure.publish import load_with_unreachable_files
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder, rewrite
from message_lifecycle.stores.iceberg.erasure.search import MAIN, Heads, UndoWindow, search
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import ERASING, OPERATION, PLAN_ID
from message_lifecycle.stores.iceberg.tasks import HERE
from tests.errors import raises
from tests.histories import PLACE, catalog_in, document_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

POLICY = resolve(topic={}, server={})
NAME = TopicName.parse("s/t")
OF = ErasureOf(request_id="r1", digests=("ab",), secret="cd")
AS_OF = Instant(1_000_000)


def held(name: str, *, live: int = 1, needed: bool = True) -> HeldFile:
    return HeldFile(name=name, partition=0, base_offset=0, offsets="3,5", rows=2, live=live, size_bytes=10, needed=needed)


def table(kind: TableKind, *files: HeldFile, clean: bool | None = None) -> KeySearchResult:
    return KeySearchResult(
        table=kind,
        table_uuid=f"uuid-{kind}",
        snapshot_id=7,
        files=files,
        refs=(("main", 7),),
        undo=(("p1", 5),),
        snapshots=(5, 7),
        rows=10,
        size_bytes=100,
        searched=2,
        clean=not files if clean is None else clean,
    )


def planned(*tables: KeySearchResult) -> Plan:
    log = LogState(topic=NAME, table_uuid="uuid-log", snapshot_id=7, segments=(), end_offsets={0: 10})
    return erasure.plan(NAME, requirements_of(log, POLICY), POLICY, OF, tables, as_of=AS_OF)


def test_nothing_is_planned_where_the_key_is_nowhere() -> None:
    plan = planned(table("log"), table("view"))
    assert plan.is_empty
    assert plan.asks == ()
    assert plan.warnings


def test_the_view_goes_first_and_the_log_carries_the_plan() -> None:
    plan = planned(table("log"), table("view", held("v")))
    assert [(change.table, len(change.rows)) for change in plan.rewrites] == [("view", 1), ("log", 0)]
    assert plan.rewrites == plan.changes
    assert plan.expected.removed == ()


def test_files_that_history_alone_names_are_not_written_again() -> None:
    plan = planned(table("log", held("a"), held("old", live=0, needed=False)))
    assert [rows.file for _, rows in plan.erased] == ["a"]
    assert plan.rewrites[0].files == ("old",)
    assert plan.expected.removed == (("erased", 1),)


def test_metadata_alone_may_tell_of_the_key() -> None:
    plan = planned(table("log", clean=False))
    assert [type(change) for change in plan.changes] == [Rewrite]
    assert plan.asks, "a person is asked, whatever the counts"


def test_a_plan_is_read_back_from_the_ledger() -> None:
    plan = planned(table("log", held("a")), table("view", held("v")))
    assert plan_from_json(plan.to_json(), plan.plan_id) == plan
    assert plan.removal_at(0, 5) == plan.erased_of("log")[-1]
    assert plan.removal_at(0, 4) is None


Frames = dict[str, list[dict[str, int]]]
PLAN = planned(table("log", held("a")), table("view", held("v")))


def evidence() -> Frames:
    row = {"rows": 2, "unnamed": 0, "left": 0, "changed": 0}
    of_table = {"found": 0, "files_differ": 0, "marks_differ": 0, "refs_differ": 0, "history": 0, "searched": 3}
    figures = {"rows_in": 10, "rows_removed": 1, "rows_kept": 9, "bytes_in": 100, "asks": 2}
    return {"rewritten": [dict(row), dict(row)], "tables": [dict(of_table), dict(of_table)], "figures": [figures]}


def judged(frames: Frames) -> Any:
    staged = Staged(plan_id=PLAN.plan_id, branch=None, snapshot_id=1)
    return PlainGate().judge(PLAN, staged, suite_of(PLAN, staged, POLICY), frames)


def test_an_erasure_always_asks_a_person() -> None:
    report = judged(evidence())
    assert report.judgement == "needs_approval"
    assert [check.id for check in report.checks if not check.passed] == ["time_travel"]


def put(frame: str, column: str, value: int) -> Callable[[Frames], None]:
    def damage(frames: Frames) -> None:
        frames[frame][0][column] = value

    return damage


def drop(frame: str) -> Callable[[Frames], None]:
    def damage(frames: Frames) -> None:
        frames[frame].pop()

    return damage


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (put("rewritten", "rows", 3), "rewritten_rows"),
        (put("rewritten", "unnamed", 1), "rewritten_unnamed"),
        (put("rewritten", "left", 1), "rewritten_left"),
        (put("rewritten", "changed", 1), "rewritten_changed"),
        (drop("rewritten"), "rewritten"),
        (put("tables", "found", 1), "tables_found"),
        (put("tables", "files_differ", 1), "tables_files_differ"),
        (put("tables", "marks_differ", 1), "tables_marks_differ"),
        (put("tables", "refs_differ", 1), "tables_refs_differ"),
        (put("tables", "history", 1), "tables_history"),
        (drop("tables"), "tables"),
        (put("figures", "rows_in", 11), "rows_in"),
        (put("figures", "rows_kept", 8), "rows_kept"),
        (put("figures", "asks", 0), "asks"),
    ],
)
def test_whatever_differs_blocks(damage: Callable[[Frames], None], check: str) -> None:
    frames = evidence()
    damage(frames)
    report = judged(frames)
    assert report.judgement == "blocked"
    assert check in {one.id for one in report.checks if not one.passed}


def receipt() -> Receipt:
    of_table = TableReceipt(table="log", table_uuid="u", snapshots=(1, 2), files_searched=3, gone=("data/a.parquet",))
    topic = TopicReceipt(
        topic="s/t",
        plan_id="p",
        rows=1,
        tables=(of_table,),
        hidden_at=Instant(1),
        rewritten_at=Instant(1),
        unreachable_at=Instant(2),
        code_version="0",
    )
    return Receipt(request_id="r", digests=("ab", "ef"), secret="cd", topics=(topic,))


def test_a_receipt_names_the_places_that_may_still_keep_the_key() -> None:
    (topic,) = receipt().topics
    (of_table,) = topic.tables
    told = replace(receipt(), topics=(replace(topic, tables=(replace(of_table, remains="its server's memory"),)),))
    assert Receipt.from_json(told.to_json()) == told
    assert "May still hold bytes of a key" not in render_text(receipt_blocks(receipt(), None))
    shown = render_text(receipt_blocks(told, None))
    assert "May still hold bytes of a key" in shown and "its server's memory" in shown


def test_a_receipt_is_read_back() -> None:
    assert Receipt.from_json(receipt().to_json()) == receipt()


def test_what_was_first_told_of_a_plan_stands() -> None:
    """Two runs may verify one plan; when the slower one looks, nothing tells any more what files went."""
    (topic,) = receipt().topics
    (of_table,) = topic.tables
    assert of_table.gone
    later = replace(topic, tables=(replace(of_table, gone=()),), unreachable_at=Instant(9))
    assert receipt().with_topic(later) == receipt()


def test_a_topic_erased_again_takes_its_own_place() -> None:
    (topic,) = receipt().topics
    again = replace(topic, plan_id="p2")
    other = replace(topic, topic="s/a")
    assert receipt().with_topic(again).with_topic(other).topics == (other, again)


def test_a_search_that_found_nothing_takes_the_place_of_no_erasure_of_the_same_tables() -> None:
    (topic,) = receipt().topics
    (log,) = topic.tables
    view = replace(log, table="view", table_uuid="v", gone=("data/b.parquet",))
    kept = replace(receipt(), topics=(replace(topic, tables=(view, log)),))
    searched = replace(topic, plan_id="p2", tables=(replace(log, gone=()), replace(view, gone=())), found_nowhere=True)
    assert kept.with_topic(searched) == kept
    of_another = replace(searched, tables=(replace(log, table_uuid="made anew"),))
    assert kept.with_topic(of_another).topics == (of_another,)
    assert kept.with_topic(of_another).with_topic(replace(searched, plan_id="p3")).topics[0].plan_id == "p3"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", receipt().to_json().replace('"format":2', '"format":1'), receipt().to_json().replace('"plan_id"', '"plan"')]
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with raises("InvalidReceipt"):
        Receipt.from_json(text)


AGED = {"max-ref-age-ms": 86_400_000}


def snapshot(at: int, parent: int | None, **summary: str) -> dict[str, Any]:
    return {"snapshot-id": at, "parent-snapshot-id": parent, "timestamp-ms": at * 1000, "summary": summary}


def window(at_ms: int) -> UndoWindow:
    return UndoWindow(at_ms=at_ms, length_ms=5000, operations=("message_request",))


def document(**refs: int) -> dict[str, Any]:
    removal = {PLAN_ID: "p" * 32, OPERATION: "message_request"}
    return {
        # What the table was told last: the topic's settings count.
        "properties": {"history.expire.max-snapshot-age-ms": "1"},
        "refs": {name: {"snapshot-id": at, "type": "branch", **(AGED if "_" in name else {})} for name, at in refs.items()},
        "snapshots": [
            snapshot(1, None),
            snapshot(2, 1, **removal),
            snapshot(3, 2, **{PLAN_ID: "c" * 32, OPERATION: "compaction"}),
            snapshot(4, 3),
        ],
    }


def test_heads_are_of_every_ref_and_of_what_can_be_undone() -> None:
    found = Heads.of(document(main=4, side=3, **{f"lc_{'a' * 16}": 2, f"in_{'b' * 8}_{'0' * 8}": 2}), window(6999))
    assert found.refs == {"main": 4, "side": 3}
    assert len(found.stages) == 2
    assert found.undo == {"p" * 32: 1}
    assert found.needed == {1, 3, 4}


def test_a_branch_that_is_only_called_like_a_stage_stays() -> None:
    told = document(main=4)
    told["refs"]["in_review_20261122"] = {"snapshot-id": 3, "type": "branch"}
    found = Heads.of(told, window(6999))
    assert found.refs == {"main": 4, "in_review_20261122": 3}
    assert found.stages == ()


@pytest.mark.parametrize(("now_ms", "is_open"), [(6999, True), (7000, True), (7001, False)])
def test_an_undo_is_open_until_its_window_ends(now_ms: int, is_open: bool) -> None:
    assert bool(Heads.of(document(main=4), window(now_ms)).undo) is is_open


def test_an_undo_counts_from_the_outcome_where_that_came_long_after_the_commit() -> None:
    late = replace(window(9000), undoable={"p" * 32, "c" * 32})
    found = Heads.of(document(main=4), late)
    assert found.undo == {"p" * 32: 1}, "what is no removal is never taken back"
    assert found.undo_until == {"p" * 32: 14_000}
    assert Heads.of(document(main=4), window(9000)).undo == {}


class OneView(IcebergViewStore):
    """Its table is given."""

    def __init__(self, history: dict[int, SimpleNamespace]) -> None:
        self._history = history

    def _table(self, _plan: Plan) -> Any:
        return SimpleNamespace(current_snapshot=lambda: self._history[max(self._history)], snapshot_by_id=self._history.get)


@pytest.mark.parametrize("erased", [True, False])
def test_a_views_history_tells_nothing_of_a_compaction_before_an_erasure(erased: bool) -> None:
    """Those of earlier versions stand first in it, as if nothing had been before."""
    by = "e" * 32
    at = snapshot_id_of(by, MAIN) if erased else 5
    history = {at: SimpleNamespace(snapshot_id=at, parent_snapshot_id=None, summary=Summary(Operation.OVERWRITE, **{PLAN_ID: by}))}
    plan = replace(planned(table("log")), changes=(CompactView(compact=(CompactPartition(partition=0, after=-1, through=1, rows=2),)),))
    assert OneView(history).has_begun(plan) is erased


SECRET = KeySecret(b"s" * 32)


def looks(key: bytes) -> Looks:
    return Looks(io=LakeFileIO(), store=HERE, kind="log", rows_of=KeyRowFinder(KeyMatch.for_requests(SECRET, [SECRET.digests([key])])))


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize("key", [b"k", b""])
def test_a_file_outside_the_table_that_holds_the_key_is_refused(tmp_path: Path, own_catalog: None, key: bytes) -> None:
    """Another engine may have added it as it lay there; nothing outside is deleted, and so nothing is said to be gone."""
    catalog = catalog_in(tmp_path)
    rows = pa.table({"offset": pa.array([0, 1]), "key": pa.array([key, b"other"], pa.binary())})
    made = catalog.create_table(PLACE, schema=rows.schema)
    made.append(rows)
    pq.write_table(rows, tmp_path / "outside.parquet")
    before = search(looks(key), document_of(made), window(0))
    assert [(file.offsets, file.needed) for file in before.summary.files] == [("0", True)]
    made.add_files([str(tmp_path / "outside.parquet")])
    with raises("UnsupportedErasure", match="outside"):
        search(looks(key), document_of(made), window(0))
    search(looks(b"nobody's"), document_of(made), window(0))


@pytest.mark.postgres
@pytest.mark.spark
def test_another_run_may_end_an_erasure_between_two_looks_at_it(tmp_path: Path, own_catalog: None, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_in(tmp_path)
    made = catalog.create_table(PLACE, schema=pa.schema([("offset", pa.int64())]), properties={ERASING: "metadata/erasure-1.going.json"})
    with raises("TableUnreadable", match="erasure-1"):
        load_with_unreachable_files(catalog, PLACE, LakeFileIO())  # the table names it still, and it is lost

    def ended(io: FileIO, found: dict[str, Any]) -> list[str]:
        if ERASING in found["properties"]:
            made.refresh().transaction().remove_properties(ERASING).commit_transaction()
        return read_unreachable_list(io, found)

    monkeypatch.setattr(publish, "read_unreachable_list", ended)
    after, going = load_with_unreachable_files(catalog, PLACE, LakeFileIO())
    assert going == []
    assert ERASING not in after["properties"]


def test_no_key_stands_in_a_plan() -> None:
    told = json.loads(PLAN.to_json())
    assert told["erasure"] == {"request_id": "r1", "digests": ["ab"], "secret": "cd"}


@pytest.mark.parametrize(("store_schema", "dictionary"), [(True, DICTIONARY_COLUMNS), (False, ("offset", "key")), (False, ())])
def test_a_file_written_by_arrow_keeps_its_columns(tmp_path: Path, store_schema: bool, dictionary: Sequence[str]) -> None:
    schema = SCHEMA.as_arrow()
    rows = pa.table(
        [pa.array([0, 1, 2]).cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(3, f.type) for f in schema], schema=schema
    )
    rows = rows.set_column(schema.get_field_index("key"), schema.field("key"), pa.array([b"a", None, b""], schema.field("key").type))
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    pq.write_table(rows, old, store_schema=store_schema, use_dictionary=list(dictionary))
    before = pq.read_table(old)
    found = rewrite(LakeFileIO(), str(old), np.array([0]), str(new), (), new_puffin=str(tmp_path / "v"), within="t")
    assert (found.rows, found.vectors) == (2, ())
    assert pq.read_table(new).equals(before.slice(1), check_metadata=True)
    assert dictionaries(new) == dictionaries(old) == set(dictionary)


def dictionaries(path: Path) -> set[str]:
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    return {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
