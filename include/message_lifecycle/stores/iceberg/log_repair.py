"""Read the state of a topic's log and view from the table's own witnesses, and repair it (MSG-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError, LogRolledBack, LogStateLost, TableBusy, TableUnreadable
from message_lifecycle.model.facts import ActiveSegment, LogFound, LogWitness, SeenTable
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.layout import (
    COMPACTED,
    END_OFFSETS,
    FOLD_PROPERTY,
    HORIZONS,
    KINDS,
    LEDGER,
    PARTITIONS_PROPERTY,
    REPAIRED,
    ROLE_PROPERTY,
    VIEW_KEYS,
    LogSummary,
    by_partition,
    offsets_of,
)
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.table_folder import TableDocument
from message_lifecycle.stores.iceberg.witness import Known, TableStanding, Witness, snapshots_before, state_of_document

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.fence import Walk
    from message_lifecycle.stores.iceberg.java import Java

_POLICY = "lifecycle.cleanup_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """A table of a topic that has a state.

    Attributes:
        mark: The key that every state of the table has.
    """

    kind: str
    mark: str
    name: str
    document: TableDocument
    io: Callable[[], FileIO]
    """Returns the way to the table's earlier metadata documents."""

    def offsets(self, state: Mapping[str, str]) -> dict[int, int]:
        return offsets_of(state.get(self.mark, "{}"))


class IcebergLogIntegrity(WithNamedErrors):
    """Implements `ports.LogIntegrity` on tables. Only a repair needs Java."""

    def __init__(self, tables: Tables, engine: Callable[[], Engine]) -> None:
        self._tables, self._engine = tables, engine

    def read_commits(self, name: TopicName, *, anew: bool = False) -> Sequence[SeenTable]:
        """Return the log and the view with our newest commit on each. Raises the errors of `read.newest_state`."""
        found = []
        for table in self._stated(name, anew=anew):
            standing = state_of_document(table.document, table.name, table.mark, table.io)
            if standing is None and not table.kind:
                raise LogStateLost(table.name, "no snapshot and no table property says where the log ends")
            if standing is not None and standing.bringing and not table.kind:
                newest_state(self._tables.load(name))
            witness = None if standing is None else _witness(table, standing)
            found.append(SeenTable(table=table.name, table_uuid=table.document.uuid, head_id=table.document.current_id, witness=witness))
        return found

    def read_states(
        self, name: TopicName, kept: Callable[[str], LogWitness | None], ever: Sequence[LogWitness], judge: Callable[[], None]
    ) -> Sequence[LogFound]:
        """Return the remaining state of each table, and the state after a repair.

        Args:
            name: The topic.
            kept: Returns the ledger's witness of a table, by its uuid.
            ever: The ledger's witnesses of each table that was ever the topic's log. If another engine created the table again under the
                name, its offsets continue above them: an offset is never given twice (MSG-1).
            judge: Raises the error that stops the topic now.
        """
        stops: LifecycleError | None = None
        try:
            judge()
        except (LogStateLost, LogRolledBack) as error:
            stops = error
        return [self._found(name, table, kept(table.document.uuid), ever, stops) for table in self._stated(name)]

    def _found(
        self, name: TopicName, table: _Stated, kept: LogWitness | None, ever: Sequence[LogWitness], stops: LifecycleError | None
    ) -> LogFound:
        document, mark = table.document, table.mark
        mine = stops if isinstance(stops, LogStateLost | LogRolledBack) and stops.table == table.name else None
        try:
            witness = Witness.read(document.properties, table.name)
        except LogStateLost:
            witness = None
        witness = witness if witness is not None and mark in witness.state else None
        main = [Known.of_document(snapshot) for snapshot in document.main()]
        newest = next((one for one in main if one.get(mark) is not None), None)
        newest_carried = {} if newest is None else newest.summary
        said = {
            "snapshots": None if newest is None else (newest.sequence_number, newest_carried),
            "table property": None if witness is None else (witness.sequence_number, witness.state),
            "ledger": None if kept is None else (kept.sequence_number, kept.state),
        }
        there = [one for one in said.values() if one is not None]
        rolled_back = isinstance(mine, LogRolledBack)
        base = newest_carried if rolled_back else max(there, key=lambda one: one[0], default=(0, newest_carried))[1]
        known: dict[str, Mapping[int, int] | None] = {who: None if one is None else table.offsets(one[1]) for who, one in said.items()}
        if table.kind:
            state = {mark: "{}", **{key: base[key] for key in VIEW_KEYS if key in base}}
        else:
            in_data = known["data"] = self._ends_in_data(name)
            everywhere = [
                *(state for _, state in there),
                *(Known.of_document(one).summary for one in document.snapshots),
                {END_OFFSETS: by_partition(in_data)},
                *({END_OFFSETS: by_partition(one.offsets)} for one in ever),
            ]
            state = _log_state(document, base, everywhere, rolled_back=rolled_back).to_properties()
        ours = max(((one.sequence_number, one.snapshot_id) for one in (witness, kept) if one is not None), default=None)
        last = table.offsets(newest_carried)
        return LogFound(
            table_uuid=document.uuid,
            table=table.name,
            kind=table.kind,
            problem="" if mine is None else f"{mine.code}: {mine}",
            rolled_back=rolled_back,
            head_id=document.current_id,
            witnesses=known,
            offsets=table.offsets(state),
            state=state,
            read={partition: last.get(partition, 0) - 1 for partition in table.offsets(state)} if rolled_back and not table.kind else {},
            gone=tuple(_gone(table, main, ours[1])) if rolled_back and ours is not None else (),
        )

    def _ends_in_data(self, name: TopicName) -> dict[int, int]:
        from message_lifecycle.stores.iceberg.manifests import files_of

        table, ends = self._tables.load(name), dict[int, int]()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        for snapshot in filter(None, (table.snapshot_by_id(snapshot_id) for snapshot_id in sorted(heads))):
            for file in files_of(table, snapshot):
                if file.last_offset is not None:
                    ends[file.partition] = max(file.last_offset + 1, ends.get(file.partition, 0))
        return ends

    def side_table_uuids(self, name: TopicName) -> Mapping[str, str | None]:
        """Return the uuid of each table next to the topic's log, by kind; None if the table's metadata cannot be read."""
        found = dict[str, str | None]()
        for kind in KINDS[1:]:
            try:
                document = self._tables.find((name.namespace, name.table(kind)))
            except TableUnreadable:
                found[kind] = None
            else:
                if document is not None:
                    found[kind] = document.uuid
        return found

    def repair(self, name: TopicName, found: LogFound, *, ledger: tuple[str, int]) -> LogWitness:
        """Commit the state that was found, with the table's witness, on the inspected head.

        Raises:
            TableBusy: The head has moved since.
        """
        from message_lifecycle.stores.iceberg.fence import fenced_commit

        engine = self._engine()
        table = engine.table(name, kind=found.kind)
        what = f"repairing {found.table}"

        def judge(walk: Walk) -> None:
            head = next(walk(), None)
            if (None if head is None else head.snapshot_id) != found.head_id:
                raise TableBusy(what, 1)

        def make(on: Java, _walk: Walk) -> Iterator[Java]:
            update = on.newFastAppend()
            how = "rollback" if found.rolled_back else "state"
            for key, value in {**found.state, LEDGER: ledger_text(ledger), REPAIRED: how}.items():
                update.set(key, value)
            yield update

        fenced_commit(table, judge, make, what=what)
        engine.forget(name, kind=found.kind)
        made = next(one.witness for one in self.read_commits(name) if one.table == found.table)
        assert made is not None, "the commit carries it"
        return made

    def _stated(self, name: TopicName, *, anew: bool = False) -> Iterator[_Stated]:
        """Yield the topic's tables that have a state; a topic of documents has none."""
        log = self._tables.document(name)
        if anew:
            log = self._document(name, "", anew=True) or log
        if FOLD_PROPERTY in log.properties:
            return
        yield self._table(name, "", END_OFFSETS, log)
        if "compact" in log.properties.get(_POLICY, "") and (view := self._document(name, COMPACTED, anew=anew)):
            yield self._table(name, COMPACTED, HORIZONS, view)

    def _document(self, name: TopicName, kind: str, *, anew: bool) -> TableDocument | None:
        place = name.namespace, name.table(kind)
        location = self._tables.pointers.newest(place) if anew else None
        return self._tables.find(place) if location is None else self._tables.at(place, location)

    def _table(self, name: TopicName, kind: str, mark: str, document: TableDocument) -> _Stated:
        place = name.namespace, name.table(kind)
        return _Stated(
            kind=kind,
            mark=mark,
            name=".".join(place),
            document=document,
            io=lambda: self._tables.pointers.file_io(place, document.location),
        )


def _witness(table: _Stated, standing: TableStanding) -> LogWitness:
    return LogWitness(
        table_uuid=table.document.uuid,
        kind=table.kind,
        snapshot_id=standing.snapshot_id,
        sequence_number=standing.sequence_number,
        offsets=table.offsets(standing.state),
        state=standing.state,
        in_history=standing.in_history,
        witnessed=standing.witnessed,
    )


def _log_state(
    document: TableDocument, base: Mapping[str, str], everywhere: Iterable[Mapping[str, str]], *, rolled_back: bool
) -> LogSummary:
    """Return the state after a repair. No end offset is below an end offset in any witness or in the data."""
    before = LogSummary.from_properties(base) or LogSummary()
    mirror = document.properties.get(ROLE_PROPERTY) == "mirror"
    ends = dict.fromkeys(range(int(document.properties[PARTITIONS_PROPERTY])), 0)
    purged = dict(before.purged_through)
    # A mirror takes its offsets from its origin, so removed messages return with the same offsets after a rollback.
    for state in (base,) if mirror and rolled_back else everywhere:
        known = LogSummary.from_properties(state) or LogSummary()
        for partition, end in known.end_offsets.items():
            ends[partition] = max(end, ends.get(partition, 0))
        for partition, last in known.purged_through.items() if not rolled_back else ():
            purged[partition] = max(last, purged.get(partition, -1))
    active = {
        partition: before.active[partition]
        if before.end_offsets.get(partition) == end and partition in before.active
        else ActiveSegment(base_offset=end)
        for partition, end in ends.items()
    }
    return replace(before, end_offsets=ends, active=active, purged_through=purged)


def _gone(table: _Stated, main: Sequence[Known], ours: int) -> Iterator[int]:
    """Yield the commits that are no longer on main, from our newest one back."""
    known = {one.snapshot_id: one for one in snapshots_before(table.document, table.io)}
    known |= {one.snapshot_id: one for one in map(Known.of_document, table.document.snapshots)}
    on_main, at = {one.snapshot_id for one in main}, known.get(ours)
    while at is not None and at.snapshot_id not in on_main:
        yield at.snapshot_id
        at = None if at.parent_id is None else known.get(at.parent_id)
