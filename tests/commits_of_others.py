"""What another engine can commit to a topic's table, by Iceberg's Java library alone: none of it knows of our state (MSG-4, DEL-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from message_lifecycle.app.scenario import World
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.operations.admission import Lifetime
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java, Jvm, each, entries, identifier
from message_lifecycle.stores.iceberg.layout import WITNESS
from message_lifecycle.stores.iceberg.writer import row_of, write_rows

LATER_S = 580
SECOND = 1_000_000


@dataclass(slots=True)
class Other:
    """Another engine at a topic's table. `plan_id`: the plan whose stage it may meet."""

    world: World
    name: TopicName
    plan_id: str = ""

    @property
    def table(self) -> Java:
        return engine_of_process().table(self.name)

    @property
    def jvm(self) -> Jvm:
        return engine_of_process()

    def files(self, *, of: int | None = None) -> list[tuple[Java, list[Java]]]:
        """Data files of main, each with its deletion vectors; `of`: those of one segment."""
        tasks = self.table.newScan().includeColumnStats().planFiles()
        found = [(task.file(), list(each(task.deletes()))) for task in each(tasks)]
        tasks.close()
        jvm = self.jvm.jvm
        long = jvm.java.lang.Class.forName("java.lang.Object")
        return [(file, vectors) for file, vectors in found if of is None or int(file.partition().get(1, long)) == of]

    def write(self, messages: Iterable[Message]) -> list[Java]:
        rows = [_row(message) for message in messages]
        return write_rows(engine_of_process(), self.table, pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()))

    def stored(self) -> list[Message]:
        return list(self.world.services.reader.messages(self.name))

    def new(self, *offsets: int, segment: int = 8) -> list[Message]:
        return [
            Message(partition=0, offset=offset, append_time=Instant(LATER_S * SECOND), key=b"theirs", value=b"v", segment=segment)
            for offset in offsets
        ]


def _row(message: Message) -> dict[str, Any]:
    new = NewMessage(
        append_time=message.append_time, key=message.key, value=message.value, headers=message.headers, partition=message.partition
    )
    return row_of(new, message.offset, message.segment, Lifetime(expires_at=message.expires_at, never=message.never))


def append(by: Other, *, to: str | None = None) -> None:
    update = by.table.newAppend()
    for file in by.write(by.new(8, 9)):
        update = update.appendFile(file)
    (update if to is None else update.toBranch(to)).commit()


def delete_another_row(by: Other) -> None:
    by.world.writer.foreign_delete(by.name, [(0, 5)])  # type: ignore[attr-defined]


def delete_a_planned_row(by: Other) -> None:
    by.world.writer.foreign_delete(by.name, [(0, 1)])  # type: ignore[attr-defined]


def drop_a_file(by: Other) -> None:
    """The file of the newest segment."""
    files = by.files(of=6)
    delete = by.table.newDelete()
    for file, _ in files:
        delete = delete.deleteFile(file)
    delete.commit()


def overwrite(by: Other) -> None:
    """A value of one message."""
    files = by.files(of=3)
    update = by.table.newOverwrite()
    for file, _ in files:
        update = update.deleteFile(file)
    for file in by.write([replace(message, value=b"corrected") for message in by.stored() if message.segment == 3]):
        update = update.addFile(file)
    update.commit()


def rewrite(by: Other) -> None:
    """All files, as a compaction of small files does."""
    files = by.files()
    update = by.table.newRewrite()
    update = update.validateFromSnapshot(by.table.currentSnapshot().snapshotId())
    for file, vectors in files:
        update = update.deleteFile(file)
        for vector in vectors:
            update = update.deleteFile(vector)
    for file in by.write(by.stored()):
        update = update.addFile(file)
    update.commit()


def roll_back(by: Other) -> None:
    """To the snapshot before, where the history has one: an erasure leaves none."""
    parent = by.table.currentSnapshot().parentId()
    if parent is not None and by.table.snapshot(parent) is not None:
        by.table.manageSnapshots().rollbackTo(parent).commit()


def expire(by: Other) -> None:
    by.table.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()


def append_and_expire(by: Other) -> None:
    append(by)
    expire(by)


def rewrite_and_expire(by: Other) -> None:
    rewrite(by)
    expire(by)


def create_refs(by: Other) -> None:
    head = by.table.currentSnapshot().snapshotId()
    by.table.manageSnapshots().createBranch("theirs", head).createTag("theirs too", head).commit()


def drop_our_branch(by: Other) -> None:
    """And every other of their own and ours, as a cleaning of branches does."""
    refs = [str(ref) for ref in by.table.refs() if str(ref) != "main"]
    for ref in refs:
        changing = by.table.manageSnapshots()
        (changing.removeBranch(ref) if by.table.refs().get(ref).isBranch() else changing.removeTag(ref)).commit()


def fast_forward(by: Other) -> None:
    """Messages staged on a branch of theirs, then brought to main."""
    by.table.manageSnapshots().createBranch("audit", by.table.currentSnapshot().snapshotId()).commit()
    append(by, to="audit")
    by.table.manageSnapshots().fastForwardBranch("main", "audit").commit()


def fast_forward_to_our_stage(by: Other) -> None:
    if by.table.refs().containsKey(branch_of(by.plan_id)):
        by.table.manageSnapshots().fastForwardBranch("main", branch_of(by.plan_id)).commit()


def set_a_property(by: Other) -> None:
    by.table.updateProperties().set("theirs", "1").commit()


def change_a_setting(by: Other) -> None:
    by.table.updateProperties().set("lifecycle.max_removed_fraction", "0.9").commit()


def remove_our_witness(by: Other) -> None:
    by.table.updateProperties().remove(WITNESS).commit()


def add_a_column(by: Other) -> None:
    by.table.updateSchema().addColumn("note", by.jvm.jvm.org.apache.iceberg.types.Types.StringType.get()).commit()


def _places(by: Other) -> tuple[Java, Java]:
    place = by.name.namespace, by.name.table()
    return identifier(by.jvm, place), identifier(by.jvm, (place[0], f"{place[1]}_aside"))


def rename(by: Other) -> None:
    place, aside = _places(by)
    by.jvm.lake.renameTable(place, aside)


def bring_back(by: Other) -> None:
    """After `rename`."""
    place, aside = _places(by)
    if by.jvm.lake.tableExists(aside):
        by.jvm.lake.renameTable(aside, place)


def rename_and_back(by: Other) -> None:
    rename(by)
    bring_back(by)


def _create(by: Other, properties: Mapping[str, str]) -> None:
    table, (place, _) = by.table, _places(by)
    schema, spec = table.schema(), table.spec()
    by.jvm.lake.dropTable(place, False)
    by.jvm.lake.buildTable(place, schema).withPartitionSpec(spec).withProperties({"format-version": "3", **properties}).create()


def create_again(by: Other) -> None:
    """Drop the table, and make an empty one of its name."""
    _create(by, {})


def create_again_alike(by: Other) -> None:
    """The same with all properties, as a tool does that copies the definition of a table."""
    _create(by, {key: text for key, text in entries(by.table.properties()).items() if key != "format-version"})


COMMITS: Mapping[str, Callable[[Other], None]] = {
    made.__name__.replace("_", " "): made
    for made in (
        append, delete_another_row, delete_a_planned_row, drop_a_file, overwrite, rewrite, roll_back, expire, append_and_expire,
        rewrite_and_expire, create_refs, drop_our_branch, fast_forward, fast_forward_to_our_stage, set_a_property, change_a_setting,
        remove_our_witness, add_a_column, rename, rename_and_back, create_again, create_again_alike,
    )
}  # fmt: skip
