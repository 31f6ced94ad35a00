"""Reclaiming on tables: find the files and snapshots that only the past needs, and remove them (DEL-7).

Reclaiming a table takes two repeatable steps. One compare-and-swap, which carries the plan's id, removes the snapshots from the metadata.
Then the store deletes the listed files, and no others. If a run dies in between, the next run finds the plan by its id and continues.
Without the id, the next plan would find the files as orphans. At the end, the log's table records what was reclaimed.

Iceberg itself does the swap. Everything else is read without a JVM.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.change import Forget
from message_lifecycle.model.errors import PlanConflict, Refused, SnapshotInUse, UnknownTopic, UnsafePath, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import LogSize, LooseFiles, LooseQuestion, TableHistory
from message_lifecycle.operations.reclaim import ended_refs, find_kept_history
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.iceberg import catalog, history, parsed
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.history import NamedFile, all_named, inventory, reachable, snapshot_ids
from message_lifecycle.stores.iceberg.layout import ERASING, PARENT_PLAN_ID, PLAN_ID, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.table_files import Deleted, delete_files, kept_of_removed, list_files
from message_lifecycle.stores.iceberg.table_folder import Metadata, TableDocument, Within
from message_lifecycle.stores.iceberg.table_metadata import TableGone, change_metadata, document_of, set_properties

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.java import Java


RECLAIMING = "lifecycle._reclaiming"
"""The plan by which snapshots were last taken out of this table."""
RECLAIMED = "lifecycle._reclaimed"
"""On the topic's own table: what the last plan that came to its end has brought back, of all tables of the topic."""


class IcebergReclaimer(WithNamedErrors, ChangeStore):
    """`ports.Reclaimer` on tables.

    Args:
        steps: Called with the name of each step of publishing (`before_expire`, `after_expire`, `while_deleting`, `after_delete`).
    """

    def __init__(self, tables: Tables, *, steps: Callable[[str], None] | None = None) -> None:
        self._tables = tables
        self._steps = steps or (lambda _: None)

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        catalog.check_no_shared_folders(self._tables, name)
        return [history.history_of(document, kind) for kind, document in catalog.documents(self._tables, name)]

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        document, io = self._open(name, question.table)
        location = str(document.content["location"])
        with inventory() as found:
            try:
                found.add_named(all_named(io, document.content, kept=question.kept))
            except FileNotFoundError as gone:
                # The files that the lost one named are unknown, so the list of needed files would be incomplete.
                raise storage_refused(str(gone.filename or location), "it is not there, and a snapshot is read through it") from gone
            found.add_named(_metadata(document, before_ms=question.metadata_before // 1_000))
            found.add_named(_erasing(document))
            found.add_listed(list_files(io, location))
            if found.missing(1, name=Within(location).name(document.location)):
                raise UnsafePath(location, "no metadata of the table, where its newest should lie")
            files = found.going(question.limit + 1)
            files += found.orphans(before_ms=question.orphans_before // 1_000, limit=question.limit + 1 - len(files))
            files += found.going(question.limit + 1 - len(files), metadata=True)
            total_files, total_bytes = found.totals()
        return LooseFiles(
            table=question.table,
            files=tuple(sorted((file.name, file.kind, file.size_bytes) for file in files[: question.limit])),
            total_files=total_files,
            total_bytes=total_bytes,
            more=len(files) > question.limit,
        )

    def find_published(self, plan: Plan) -> Published | None:
        document = self._tables.document(plan.topic)
        said = parsed.json_object(document.properties.get(RECLAIMED, "{}"), RECLAIMED)
        if said.get("plan") != plan.plan_id:
            return None
        return Published(
            plan_id=plan.plan_id,
            snapshot_id=document.current_id or 0,
            removed=(),
            reclaimed_files=parsed.whole(said.get("files"), RECLAIMED),
            reclaimed_bytes=parsed.whole(said.get("bytes"), RECLAIMED),
            kept_beneath=tuple(said.get("kept", ())),
        )

    def has_begun(self, plan: Plan) -> bool:
        there = {snapshot.snapshot_id for table in self.histories(plan.topic) for snapshot in table.snapshots}
        return any(snapshot_id not in there for action in plan.forgets for snapshot_id in action.snapshots)

    def find_unapplied(self, plan: Plan) -> Sequence[str]:
        return [
            *(
                f"snapshot {snapshot_id} of {_words(action)} is still there"
                for action in plan.forgets
                for snapshot_id in sorted(set(action.snapshots) & set(snapshot_ids(self._open(plan.topic, action.table)[0].content)))
            ),
            *(f"{file} of {_words(action)} is still there" for action in plan.forgets for file in self._still_there(plan.topic, action)),
        ]

    def size_history(self, name: TopicName) -> Sequence[LogSize]:
        return log_sizes(self._tables.document(name))

    def hidden_bytes(self, name: TopicName) -> int | None:
        return sum(hidden_bytes(document) for _, document in catalog.documents(self._tables, name))

    def evidence(self, plan: Plan, _staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.reclaim_evidence import reclaim_evidence

        return reclaim_evidence(self._tables, plan, policy)

    def publish(self, verdict: Verdict, _given: CommitContext) -> Published:
        plan = verdict.plan
        done = self.find_published(plan)
        if done is not None:
            return done
        catalog.check_no_shared_folders(self._tables, plan.topic)
        checks = {action.table: _Check(self, plan, action) for action in plan.forgets}
        for check in checks.values():
            check(self._document(plan, check.action).content)
        gone = Deleted()
        places: list[tuple[FileIO, str]] = []
        for action in plan.forgets:
            self._steps("before_expire")
            self._expire(plan, action, checks[action.table])
            self._steps("after_expire")
            # A catalog's server may apply the change to newer metadata than the check has seen.
            checks[action.table](self._document(plan, action).content)
            document, io = self._open(plan.topic, action.table)
            places.append((io, str(document.content["location"])))
            for at, removal in enumerate(action.files):
                if at:
                    self._steps("while_deleting")
                    document, io = self._open(plan.topic, action.table)
                gone += delete_files(io, str(document.content["location"]), removal.files)
        self._steps("after_delete")
        said = {"plan": plan.plan_id, "files": gone.files, "bytes": gone.size_bytes, "missing": gone.missing}
        text = json.dumps({**said, "kept": kept_of_removed(places)}, sort_keys=True)
        self._change(plan, "", lambda base, builder: set_properties(base, builder, {RECLAIMED: text}))
        found = self.find_published(plan)
        assert found is not None
        return found

    def _expire(self, plan: Plan, action: Forget, check: _Check) -> None:
        self._document(plan, action)
        change = partial(
            expire,
            table=_words(action),
            snapshot_ids=action.snapshots,
            properties={RECLAIMING: plan.plan_id},
            refs=action.refs,
            check=check,
        )
        try:
            self._change(plan, action.table, change)
        except SnapshotInUse as error:
            raise PlanConflict(plan.plan_id, str(error)) from error

    def _change(self, plan: Plan, table: str, change: Callable[[Java, Java], None]) -> None:
        place = plan.topic.namespace, plan.topic.table(table)
        try:
            change_metadata(place, change, what=f"reclaiming by plan {plan.plan_id}")
        except TableGone:
            raise UnknownTopic(str(plan.topic)) from None

    def _document(self, plan: Plan, action: Forget) -> TableDocument:
        document, _ = self._open(plan.topic, action.table)
        if document.uuid != action.table_uuid:
            raise PlanConflict(plan.plan_id, f"{_words(action)} is another table than was planned for")
        return document

    def open(self, name: TopicName, table: str) -> tuple[TableDocument, FileIO]:
        """Metadata as they are now, and the table's own way to its files."""
        return self._open(name, table)

    def _open(self, name: TopicName, table: str) -> tuple[TableDocument, FileIO]:
        place = name.namespace, name.table(table)
        document = self._tables.at(place, self._tables.metadata_location(name, kind=table))
        return document, self._tables.pointers.file_io(place, document.location)

    def _still_there(self, name: TopicName, action: Forget) -> Iterator[str]:
        document, io = self._open(name, action.table)
        going = {file for removal in action.files for file in removal.files}
        yield from (file.name for file in list_files(io, str(document.content["location"])) if file.name in going)


class _Check:
    """Check that no remaining snapshot names a listed file, whatever was committed since. Inspect each snapshot only once."""

    def __init__(self, store: IcebergReclaimer, plan: Plan, action: Forget) -> None:
        self.action = action
        self._plan, self._seen = plan, frozenset[int]()
        self._listed = {name for removal in action.files for name in removal.files}
        _, self._io = store.open(plan.topic, action.table)

    def __call__(self, document: Metadata) -> None:
        now = history.history_of(TableDocument(location="", content=document), self.action.table)
        moved = {ref.name for ref in now.refs}.intersection(self.action.refs).difference(ended_refs(now, self._plan.as_of))
        if moved:
            raise PlanConflict(self._plan.plan_id, f"{', '.join(sorted(moved))} of {_words(self.action)} has moved on")
        # A branch that was made since needs what it is read by, and main may have been set back to a tag.
        before = Instant(self._plan.as_of - Policy.from_values(self._plan.policy).undo_window_us)
        needed = find_kept_history(now, as_of=self._plan.as_of, before=before, ended=self.action.refs).reasons
        for snapshot_id in self.action.snapshots:
            if snapshot_id in needed:
                raise PlanConflict(
                    self._plan.plan_id, f"snapshot {snapshot_id} of {_words(self.action)} is needed again: {needed[snapshot_id]}"
                )
        stays = frozenset(snapshot_ids(document)).difference(self.action.snapshots)
        if not stays and snapshot_ids(document):
            raise PlanConflict(self._plan.plan_id, f"no snapshot of {_words(self.action)} would stay")
        for file in reachable(self._io, document, stays - self._seen):
            if file.name in self._listed:
                raise PlanConflict(self._plan.plan_id, f"{file.name} of {_words(self.action)} is needed again")
        self._seen = stays


def _metadata(document: TableDocument, *, before_ms: int) -> Iterator[NamedFile]:
    """Yield the metadata files. The newest file stays, the one before it, and each file that was the newest at or after `before_ms`."""
    within = Within(str(document.content["location"]))
    log = list(document.content.get("metadata-log") or ())
    yield NamedFile(within.name(document.location), "metadata")
    # An entry's time is when its document was written; it was the newest until the next one's.
    until = [int(entry["timestamp-ms"]) for entry in log[1:]] + [int(document.content["last-updated-ms"])]
    for at, entry in enumerate(log):
        yield NamedFile(within.name(entry["metadata-file"]), "metadata", until[at] > before_ms or at == len(log) - 1)


def _erasing(document: TableDocument) -> Iterator[NamedFile]:
    """The list of what an erasure has still to delete. A property names it, and no snapshot; without it no erasure could go on."""
    name = document.properties.get(ERASING)
    if name is not None:
        yield NamedFile(name, "metadata")


def _words(action: Forget) -> str:
    return f"the table {action.table}" if action.table else "the log"


# Snapshots taken out of a table's metadata: exactly those named, in one compare-and-swap, and no file is removed by it (DEL-7).
#
# Iceberg's own `expireSnapshots().commit()` takes more than is named, by the ages of refs, and removes files by walking what each snapshot
# changed, live ones among them where a path came back to life. Which files may go is decided by reachability alone (see `history`).


def expire(
    base: Java,
    builder: Java,
    *,
    table: str,
    snapshot_ids: Collection[int],
    properties: Mapping[str, str | None],
    refs: Collection[str] = (),
    check: Callable[[Metadata], None] | None = None,
) -> None:
    """Remove snapshots and refs and set properties, within a change of a table's metadata (see `change_metadata`).

    A snapshot or ref that is already gone is no error. The log of earlier metadata files forgets as many as Iceberg's own setting says.

    Args:
        base: The metadata that the attempt builds on.
        builder: Builds the new metadata.
        table: The table's name in errors.
        snapshot_ids: The snapshots to remove.
        properties: None removes a property.
        refs: The branches and tags to remove.
        check: Sees the metadata that each attempt builds on, and raises to prevent the change.

    Raises:
        SnapshotInUse: Another ref points at one of the snapshots.
    """
    document = document_of(base)
    if check is not None:
        check(document)
    gone, pointed = frozenset(snapshot_ids), {name: int(ref["snapshot-id"]) for name, ref in document.get("refs", {}).items()}
    for name, snapshot_id in pointed.items():
        if snapshot_id in gone and name not in refs:
            raise SnapshotInUse(table, snapshot_id, name)
    for name in pointed.keys() & set(refs):
        builder.removeRef(name)
    going = [base.snapshot(snapshot_id) for snapshot_id in history.snapshot_ids(document) if snapshot_id in gone]
    if going:
        builder.removeSnapshots(going)
    set_properties(base, builder, properties)


# The part of a table's disk space that only its past needs, by summaries alone: a figure for `status`, not a plan.


def hidden_bytes(document: TableDocument) -> int:
    """Return the bytes of data and delete files that older snapshots still name and the newest does not.

    The sum counts the files of the oldest snapshot and the files that later snapshots add, without the files of the newest snapshot. A plan
    stages its snapshot outside main and then commits on main, so two snapshots add the same files. Their equal numbers show that, and the
    files count once. A file that is added again counts again. An abandoned stage with the same numbers does not count. Manifests do not
    count.
    """
    snapshots = document.content.get("snapshots") or ()
    if not snapshots:
        return 0
    first, *others = sorted(snapshots, key=lambda snapshot: snapshot.get("sequence-number", 0))
    held = _number(first, "total-files-size") + sum(_number(snapshot, "added-files-size") for snapshot in others)
    main = set(document.main_ids())
    committed, staged = (
        Counter(_added(snapshot) for snapshot in snapshots if (snapshot["snapshot-id"] in main) is on_main) for on_main in (True, False)
    )
    twice = sum(added[-1] * times for added, times in (committed & staged).items())
    shown = next((_number(snapshot, "total-files-size") for snapshot in snapshots if snapshot["snapshot-id"] == document.current_id), 0)
    return max(0, held - twice - shown)


def log_sizes(document: TableDocument) -> list[LogSize]:
    """Return the size of a log after each snapshot of main, oldest first, by summaries alone.

    Other engines may write a summary without the totals, or with damaged ones. Such a snapshot is left out, because an unknown size is not
    0 (CNT-1).
    """
    found = []
    for snapshot in document.main():
        summary = snapshot.get("summary") or {}
        if not {"total-records", "total-files-size"} <= summary.keys():
            continue
        is_ingest = summary.get("operation") == "append" and not {PLAN_ID, STAGED_PLAN_ID, PARENT_PLAN_ID} & summary.keys()
        try:
            found.append(
                LogSize(
                    snapshot_id=int(snapshot["snapshot-id"]),
                    at=Instant(int(snapshot["timestamp-ms"]) * 1_000),
                    messages=_number(snapshot, "total-records") - _number(snapshot, "total-position-deletes"),
                    bytes=_number(snapshot, "total-files-size"),
                    added=_number(snapshot, "added-records") if is_ingest else 0,
                )
            )
        except Refused:
            continue
    return found[::-1]


def _added(snapshot: dict[str, object]) -> tuple[int, ...]:
    """Return how many data files, delete files, messages and bytes the snapshot added."""
    return tuple(_number(snapshot, f"added-{what}") for what in ("data-files", "delete-files", "records", "files-size"))


def _number(snapshot: Metadata, key: str) -> int:
    summary = snapshot.get("summary")
    return parsed.count(summary, key) if isinstance(summary, dict) else 0
