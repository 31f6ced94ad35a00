"""Taking a plan back on real tables: what other engines, other branches and lost files make of it (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from secrets import token_bytes

import pytest
from tests.errors import raises
from tests.spark.lake import LEDGER, SECOND, Lake, Rows, tables

from message_lifecycle.app import steps, witness
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import data_files
from message_lifecycle.stores.iceberg import undo as undo_module
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.data_rows import Positions
from message_lifecycle.stores.iceberg.engine import Engine, engine_of_process
from message_lifecycle.stores.iceberg.layout import PLAN_ID, UNDOES, of_plan
from message_lifecycle.stores.iceberg.manifests import DELETED, entries, files_of
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

AS_OF = Instant(1000 * SECOND)


def services(lake: Lake) -> Services:
    return lake.services(clock=lambda: AS_OF)


def topic(lake: Lake, s: Services, **settings: Value) -> TopicName:
    """As `Lake.topic` makes it, taken on by the ledger."""
    name = lake.topic(**settings)
    s.ledger.accept(name, LEDGER)
    return name


def run(s: Services, name: TopicName, work: Work = "message_cleaner") -> Outcome:
    return steps.run(s, name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)


def cleaned(lake: Lake, s: Services) -> tuple[TopicName, list[Message], str]:
    """Two expired segments that have gone, the first of which had lost a message before, and a living one; what was there, and the plan."""
    name = topic(lake, s)
    lake.append(name, Rows(base=0, times=(1, 2, 3)))
    lake.append(name, Rows(base=3, times=(4, 5)), Rows(base=5, times=(999,)))
    lake.delete(name, "offset = 1")
    was = list(lake.reader.messages(name))
    outcome = run(s, name)
    assert (outcome.name, outcome.removed_rows) == ("published", 4), outcome.detail
    return name, was, outcome.plan_id or ""


def back(s: Services, name: TopicName, plan_id: str) -> Outcome:
    outcome = run(s, name, UndoPlan(plan_id=plan_id))
    assert outcome.name == "published", outcome.detail
    return outcome


def paths(name: TopicName, *, live: bool) -> set[str]:
    """Data files of main's head, or all that any snapshot of the table has ever let go."""
    table = Tables().load(name)
    if live:
        head = table.current_snapshot()
        assert head is not None
        return {file.name for file in files_of(table, head)}
    prefix = f"{table.location()}/"
    return {
        file[1].removeprefix(prefix)
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for status, _, file in entries(table.io, manifest)
        if status == DELETED
    }


def test_no_live_path_is_one_that_the_table_ever_let_go(lake: Lake) -> None:
    """Expiry the old way deletes what the snapshots that it takes have dropped, whoever has added it again since."""
    s = services(lake)
    name, was, plan_id = cleaned(lake, s)
    back(s, name, plan_id)
    assert list(lake.reader.messages(name)) == was
    assert paths(name, live=False) and not paths(name, live=True) & paths(name, live=False)

    table = engine_of_process().table(name)
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    engine_of_process().forget(name)

    assert list(Tables().load(name).snapshots()) and len(Tables().load(name).snapshots()) == 1
    assert list(lake.reader.messages(name)) == was, "every live file is there still"
    assert lake.session.table(sql_table(name)).count() == len(was), "and Spark reads them"


def test_tags_and_other_branches_are_as_they_were(lake: Lake) -> None:
    s = services(lake)
    name = topic(lake, s)
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(999,)))
    table = engine_of_process().table(name)
    table.manageSnapshots().createTag("audit", table.currentSnapshot().snapshotId()).createBranch("work").commit()
    lake.session.sql(f"DELETE FROM {sql_table(name, branch='work')} WHERE offset = 3")
    plan_id = run(s, name).plan_id or ""
    before = {ref: snapshot.snapshot_id for ref, snapshot in Tables().load(name).refs().items() if ref != "main"}
    lake.append(name, Rows(base=4, times=(999,), segment=3))
    back(s, name, plan_id)
    after = {ref: snapshot.snapshot_id for ref, snapshot in Tables().load(name).refs().items() if ref != "main"}
    assert after == before
    assert set(before) == {"audit", "work"}, "what was staged is gone"
    assert lake.offsets(name) == [0, 1, 2, 3, 4]


def test_asked_again_it_needs_no_engine(lake: Lake) -> None:
    s = services(lake)
    name, was, plan_id = cleaned(lake, s)
    first = back(s, name, plan_id)

    def no_engine() -> Engine:
        raise AssertionError("nothing is to do, and a JVM takes seconds to start")

    store, returns = (kind(no_engine, tables=tables(), server={}) for kind in (IcebergStore, IcebergLogReturns))
    without = replace(s, stores=replace(s.stores, log=store, log_return=returns))
    again = run(without, name, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id, again.restored) == ("no_op", first.plan_id, 0)
    assert list(lake.reader.messages(name)) == was


def test_its_commit_says_what_it_takes_back(lake: Lake) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)
    outcome = back(s, name, plan_id)
    head = Tables().load(name).current_snapshot()
    assert head is not None and head.summary is not None
    assert (head.summary[PLAN_ID], head.summary[UNDOES]) == (outcome.plan_id, plan_id)


@pytest.mark.parametrize("kind", [".parquet", ".puffin"])
def test_a_file_that_is_lost_is_found_before_anything_is_changed(lake: Lake, kind: str) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)
    lost = sorted(path for path in paths(name, live=False) if path.endswith(kind))
    local_path(f"{Tables().load(name).location()}/{lost[0]}").unlink()
    marker = lake.reader.marker(name)
    with raises("UndoSourceGone", match="not there any more"):
        run(s, name, UndoPlan(plan_id=plan_id))
    assert lake.reader.marker(name) == marker
    assert set(Tables().load(name).refs()) == {"main"}


def test_after_the_snapshot_was_expired_nothing_comes_back(lake: Lake) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)
    table = engine_of_process().table(name)
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).cleanExpiredFiles(False).commit()
    with raises("UndoSourceGone", match="expired"):
        run(s, name, UndoPlan(plan_id=plan_id))


@pytest.mark.parametrize("erased", [False, True], ids=["", "past an erasure"])
@pytest.mark.parametrize("by", ["time", "snapshot"])
def test_after_main_was_rolled_back_to_what_was_staged_it_comes_back(lake: Lake, by: str, erased: bool) -> None:
    """That snapshot is as old as the stage: whoever goes back to a time before the publish may come to it, and finds the messages gone."""
    secret = KeySecret(token_bytes(32))
    s = replace(services(lake), key_secret=lambda _: secret)
    name, was, plan_id = cleaned(lake, s)
    table = engine_of_process().table(name)
    word = table.currentSnapshot()
    rolled = table.manageSnapshots()
    (rolled.rollbackToTime(word.timestampMillis()) if by == "time" else rolled.rollbackTo(word.parentId())).commit()
    engine_of_process().forget(name)
    assert lake.offsets(name) == [5], "what was staged is on main, and the plan's word is not"
    with raises("LogRolledBack"):
        run(s, name, UndoPlan(plan_id=plan_id))
    witness.repair(s, name, by="ada", text="what was staged may stay", accept_rollback=True)
    if erased:
        gone = s.ledger.add_erasure("r", s.key_secret(True).digests([b"k2"]), topics=[name], forbid=False, requested_by="ada", why="asked")
        assert run(s, name, EraseKey(request_id=gone.request_id)).name == "published"
    come_back = [message for message in was if not erased or message.key != b"k2"]
    assert back(s, name, plan_id).restored == len(come_back) - 1
    assert list(lake.reader.messages(name)) == come_back


def test_where_an_erasure_has_kept_a_branch_of_it_rows_come_from_there(lake: Lake) -> None:
    """An erasure ends the history; what it leaves of the plan's own messages is in a branch, without what was erased."""
    s = services(lake)
    name, was, plan_id = cleaned(lake, s)
    table = engine_of_process().table(name)
    commit = table.currentSnapshot()
    source, _ = of_plan(commit.snapshotId(), commit.parentId(), dict(commit.summary()))
    table.manageSnapshots().createBranch(undo_ref(plan_id), source).commit()
    lake.session.sql(f"DELETE FROM {sql_table(name, branch=undo_ref(plan_id))} WHERE offset = 3")
    table.refresh()
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).cleanExpiredFiles(False).commit()
    engine_of_process().forget(name)
    outcome = back(s, name, plan_id)
    assert outcome.restored == 3
    assert any("1 message" in warning for warning in outcome.warnings), "what was erased is told"
    assert list(lake.reader.messages(name)) == [message for message in was if message.offset != 3]
    assert set(Tables().load(name).refs()) == {"main"}, "the branch has served"


def test_single_messages_come_back_though_their_file_was_rewritten_since(lake: Lake) -> None:
    s = services(lake)
    name = topic(lake, s, message_expiry=0)
    lake.append(name, Rows(base=0, times=(1, 2, 3, 4, 5, 6)))
    was = list(lake.reader.messages(name))
    plan_id = run(s, name, RemoveMessages(positions=((0, 1), (0, 4)))).plan_id or ""
    catalog, table = sql_table(name).replace("`", "").split(".", 1)
    lake.session.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))"
    )
    engine_of_process().forget(name)
    assert lake.offsets(name) == [0, 2, 3, 5]
    outcome = back(s, name, plan_id)
    assert outcome.restored == 2
    assert list(lake.reader.messages(name)) == was


@pytest.mark.parametrize("step", ["before_commit", "inside_commit"])
def test_an_append_in_the_middle_of_the_commit_stays(lake: Lake, step: str) -> None:  # DEL-4
    s = services(lake)
    name, was, plan_id = cleaned(lake, s)
    done: list[str] = []

    def overtake(reached: str) -> None:
        if reached == step and not done:
            done.append(reached)
            lake.append(name, Rows(base=6, times=(999,), segment=5))

    back(replace(s, stores=replace(s.stores, log_return=lake.log_returns(overtake))), name, plan_id)
    assert done
    assert [m.offset for m in lake.reader.messages(name)] == [*(m.offset for m in was), 6]
    assert lake.log(name).end_offsets == {0: 7}


def test_a_delete_of_another_writer_in_between_refuses_and_it_is_planned_again(lake: Lake) -> None:
    s = services(lake)
    name, was, plan_id = cleaned(lake, s)
    undo_id = steps.plan(s, name, as_of=AS_OF, work=UndoPlan(plan_id=plan_id)).plan.plan_id
    steps.stage(s, undo_id)
    steps.gate(s, undo_id)
    steps.approve(s, undo_id, granted=True, by="tester", text="as expected")
    lake.delete(name, "offset = 5")
    with pytest.raises(PlanConflict):
        steps.publish(s, undo_id)
    back(s, name, plan_id)
    assert list(lake.reader.messages(name)) == [message for message in was if message.offset != 5]


def _marks_less(kept: Callable[[Positions], Positions]) -> Callable[..., object]:
    real = undo_module.write_vector_files

    def write(session: object, table: object, io: object, vectors: object, places: object) -> object:
        chosen = [(path, kept(gone)) for path, gone in vectors]  # type: ignore[attr-defined]  # as `write_vector_files` is given them
        return real(session, table, io, [(p, g) for p, g in chosen if len(g)], places)  # type: ignore[arg-type]  # passed on

    return write


def judged(lake: Lake, s: Services, name: TopicName, plan_id: str) -> set[str]:
    """The rules that do not hold."""
    undo_id = steps.plan(s, name, as_of=AS_OF, work=UndoPlan(plan_id=plan_id)).plan.plan_id
    steps.stage(s, undo_id)
    return {check.id for check in steps.gate(s, undo_id).blocking}


def test_the_gate_blocks_a_copy_that_holds_something_else(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)

    def spoilt(io: object, source: str, target: str) -> int:
        content = bytearray(local_path(source).read_bytes())
        content[6] ^= 1
        path = local_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return len(content)

    monkeypatch.setattr(data_files, "copy_file", spoilt)
    assert "restored_same" in judged(lake, s, name, plan_id)


def test_nothing_is_staged_that_brings_back_more_than_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)
    monkeypatch.setattr(undo_module, "write_vector_files", _marks_less(lambda gone: gone[:0]))
    with pytest.raises(PlanConflict, match="brought back 5 messages, the plan names 4"):
        judged(lake, s, name, plan_id)
    assert set(Tables().load(name).refs()) == {"main"}


def test_the_gate_blocks_other_messages_than_those_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    s = services(lake)
    name, _, plan_id = cleaned(lake, s)
    monkeypatch.setattr(undo_module, "write_vector_files", _marks_less(lambda gone: gone + 1))
    assert {"restored_missing", "restored_unnamed"} <= judged(lake, s, name, plan_id)
