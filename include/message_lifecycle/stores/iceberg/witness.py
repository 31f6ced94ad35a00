"""The state of a log after another engine has worked on its table (MSG-4).

Snapshot summaries carry the state: end offsets, active segments, horizons. Another engine's `expire_snapshots` removes them. So each
commit of ours also writes the state, with the id and the sequence number of its snapshot, to a table property in the same commit. Expiry
does not remove a property, and a rollback does not restore one. The ledger keeps a third copy (`app/witness.py`).

`find_state` compares the property with the history of main. There are three results:

- main contains our newest commit, or the history ends before it and provably goes back to it: the state is valid;
- main goes back past that commit: another engine rolled the table back (LogRolledBack);
- neither can be proved: the state is lost until a person repairs it (LogStateLost).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from message_lifecycle.model.errors import LogRolledBack, LogStateLost
from message_lifecycle.stores.iceberg import parsed
from message_lifecycle.stores.iceberg.java import Java, call_static
from message_lifecycle.stores.iceberg.layout import (
    END_OFFSETS,
    HORIZONS,
    INGEST_ID,
    LEDGER,
    REPAIRED,
    SPAN_SECONDS,
    STATE_KEYS,
    VIEW_KEYS,
    WITNESS,
    ancestors,
    summary_of,
)
from message_lifecycle.stores.iceberg.table_folder import TORN, Metadata, TableDocument

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_CARRIED = (*STATE_KEYS, *VIEW_KEYS, LEDGER)
_OF_BATCH = (INGEST_ID, SPAN_SECONDS, "added-records", "changed-partition-count", *STATE_KEYS)
_MARKS = (END_OFFSETS, HORIZONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The table property: the newest commit of ours on main, and the state that its summary carries.

    Attributes:
        batch: The summary of the newest ingest, with the id of its snapshot. A run that died between its commit and the ledger's record
            finds its batch here after an expiry.
    """

    snapshot_id: int
    sequence_number: int
    state: Mapping[str, str]
    batch: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, properties: Mapping[str, str], where: str) -> Witness | None:
        """Return the property's content; None if the table has no such property.

        Raises:
            LogStateLost: The property is not what we write.
        """
        text = properties.get(WITNESS)
        if text is None:
            return None
        try:
            found = json.loads(text)
            return cls(
                snapshot_id=int(found["snapshot-id"]),
                sequence_number=int(found["sequence-number"]),
                state={str(key): str(value) for key, value in found["state"].items()},
                batch={str(key): str(value) for key, value in found.get("batch", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogStateLost(where, f"the table property {WITNESS} cannot be read ({type(error).__name__}: {error})") from error

    def text(self) -> str:
        found = {"snapshot-id": self.snapshot_id, "sequence-number": self.sequence_number, "state": dict(self.state)}
        return json.dumps({**found, "batch": dict(self.batch)} if self.batch else found, sort_keys=True)


class Commit(Protocol):
    """One snapshot of main."""

    @property
    def snapshot_id(self) -> int: ...
    @property
    def sequence_number(self) -> int: ...
    @property
    def parent_id(self) -> int | None: ...
    @property
    def operation(self) -> str: ...
    def get(self, key: str) -> str | None:
        """Return a property of the snapshot's summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A `Commit` in this process's memory."""

    snapshot_id: int
    sequence_number: int
    parent_id: int | None
    operation: str
    summary: Mapping[str, str]

    def get(self, key: str) -> str | None:
        return self.summary.get(key)

    @classmethod
    def of_document(cls, snapshot: Metadata) -> Known:
        """Read a snapshot of a metadata document."""
        parent, summary = snapshot.get("parent-snapshot-id"), snapshot.get("summary") or {}
        return cls(
            snapshot_id=int(snapshot["snapshot-id"]),
            sequence_number=int(snapshot.get("sequence-number", 0)),
            parent_id=None if parent is None else int(parent),
            operation=str(summary.get("operation", "")),
            summary=summary,
        )


def read_snapshot(snapshot: Java) -> Known:
    """Return what Java knows of a snapshot, in one call."""
    return Known.of_document(json.loads(call_static(snapshot, "org.apache.iceberg.SnapshotParser.toJson", snapshot)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStanding:
    """The state that a table has now.

    Attributes:
        snapshot_id: The newest commit of ours that main contains or contained.
        in_history: Main's history still has that commit.
        witnessed: The table property names that commit.
        foreign: Later commits by other writers, newest first.
    """

    snapshot_id: int
    sequence_number: int
    state: Mapping[str, str]
    in_history: bool
    witnessed: bool
    foreign: tuple[Commit, ...] = ()

    @property
    def bringing(self) -> list[Commit]:
        """Return the commits in `foreign` that may have brought messages. The others removed messages, or moved them to other files."""
        return [one for one in self.foreign if one.operation not in ("delete", "replace") or _brings(one)]


def _brings(one: Commit) -> bool:
    """Return whether more messages came than went."""
    added, gone = (parsed.whole(one.get(key) or "0", key) for key in ("added-records", "deleted-records"))
    return added > gone


Earlier = Callable[[], Iterable[Commit]]
"""Snapshots that earlier metadata documents of the table know, to prove where an expired history came from."""


def find_state(where: str, mark: str, main: Iterable[Commit], witness: Witness | None, earlier: Earlier) -> TableStanding | None:
    """Return the state of a table; None if nothing says that it ever had one.

    Args:
        where: The table, for errors.
        mark: The key that each state has: END_OFFSETS of a log, HORIZONS of a compacted view.
        main: Snapshots of main, newest first.
        witness: Our newest commit, by the table's property. None: the property is missing.
        earlier: Returns snapshots of earlier metadata.

    Raises:
        LogRolledBack: Main goes back past our newest commit.
        LogStateLost: The witnesses disagree, or the origin of main cannot be proved.
    """
    if witness is not None and mark not in witness.state:
        witness = None
    head: Commit | None = None
    last: Commit | None = None
    foreign: list[Commit] = []
    for one in main:
        head = head or one
        ours = one.get(mark) is not None
        if witness is not None and one.snapshot_id == witness.snapshot_id:
            state = _state_in(one)
            if state != _only_state(witness.state):
                raise LogStateLost(where, f"snapshot {one.snapshot_id} and the table property {WITNESS} say different things about it")
            return _standing(one, state, foreign, witnessed=True)
        if witness is not None and one.sequence_number <= witness.sequence_number:
            raise LogRolledBack(where, head.snapshot_id, witness.snapshot_id)
        if ours:  # newer than the property, which an older version of our writer, or another engine, left unchanged
            return _standing(one, _state_in(one), foreign, witnessed=False)
        foreign.append(one)
        last = one
    if witness is None:
        return None
    if head is None or last is None or last.parent_id is None:
        raise LogRolledBack(where, None if head is None else head.snapshot_id, witness.snapshot_id)
    proven = _back_to(witness, last.parent_id, earlier, where, head)
    return TableStanding(
        snapshot_id=witness.snapshot_id,
        sequence_number=witness.sequence_number,
        state=_only_state(witness.state),
        in_history=False,
        witnessed=True,
        foreign=(*foreign, *proven),
    )


def _standing(one: Commit, state: Mapping[str, str], foreign: Sequence[Commit], *, witnessed: bool) -> TableStanding:
    return TableStanding(
        snapshot_id=one.snapshot_id,
        sequence_number=one.sequence_number,
        state=state,
        in_history=True,
        witnessed=witnessed,
        foreign=tuple(foreign),
    )


def _back_to(witness: Witness, parent: int, earlier: Earlier, where: str, head: Commit) -> list[Commit]:
    """Follow the parents of an expired history to our newest commit; return the foreign commits on the way."""
    passed: list[Commit] = []
    known: dict[int, Commit] | None = None
    at: int | None = parent
    while at != witness.snapshot_id:
        if at is None:
            raise LogRolledBack(where, head.snapshot_id, witness.snapshot_id)
        known = {one.snapshot_id: one for one in earlier()} if known is None else known
        one = known.get(at)
        if one is None:
            reason = (
                f"the history of main was expired, and nothing shows that its head {head.snapshot_id} comes from our newest commit, snapshot "
                f"{witness.snapshot_id}"
            )
            raise LogStateLost(where, reason)
        if one.sequence_number <= witness.sequence_number:
            raise LogRolledBack(where, head.snapshot_id, witness.snapshot_id)
        passed.append(one)
        at = one.parent_id
    return passed


def _state_in(one: Commit) -> dict[str, str]:
    return {key: value for key in (*STATE_KEYS, *VIEW_KEYS) if (value := one.get(key)) is not None}


def _only_state(carried: Mapping[str, str]) -> dict[str, str]:
    return {key: carried[key] for key in (*STATE_KEYS, *VIEW_KEYS) if key in carried}


def next_witness(head: Commit, before: Mapping[str, str]) -> dict[str, str]:
    """Return the property to write with a new head of main; empty if the head carries nothing to keep.

    Args:
        head: The new head.
        before: The table's properties as the commit found them.
    """
    carried = {key: value for key in _CARRIED if (value := head.get(key)) is not None}
    try:
        earlier = Witness.read(before, "")
    except LogStateLost:  # the commit's own check has judged it; the new one takes its place
        earlier = None
    lacks_state = not any(mark in carried for mark in _MARKS)
    if not carried or (lacks_state and earlier is not None and any(mark in earlier.state for mark in _MARKS)):
        return {}
    batch = {} if earlier is None or head.get(REPAIRED) == "rollback" else earlier.batch  # a rollback takes batches off main
    if head.get(INGEST_ID) is not None:
        batch = {key: value for key in _OF_BATCH if (value := head.get(key)) is not None}
        batch["snapshot-id"] = str(head.snapshot_id)
    return {WITNESS: Witness(snapshot_id=head.snapshot_id, sequence_number=head.sequence_number, state=carried, batch=batch).text()}


# How PyIceberg's tables are read.


def main_of(table: Table, snapshot: Snapshot | None = None) -> Iterator[Known]:
    """Yield the snapshots of main from this one on, newest first, as far back as the table remembers them."""
    for one in ancestors(table, snapshot):
        yield Known(
            snapshot_id=one.snapshot_id,
            sequence_number=one.sequence_number or 0,
            parent_id=one.parent_snapshot_id,
            operation="" if one.summary is None else one.summary.operation.value,
            summary=summary_of(one),
        )


def state_of_table(table: Table, mark: str, snapshot: Snapshot | None = None) -> TableStanding | None:
    """Return the state at a snapshot of main (None: its head). Raises as `find_state`."""
    where, witness = ".".join(table.name()), Witness.read(table.properties, ".".join(table.name()))
    if snapshot is not None and witness is not None and (snapshot.sequence_number or 0) < witness.sequence_number:
        witness = None  # it is of a later time
    return find_state(where, mark, main_of(table, snapshot), witness, lambda: _earlier(table))


def state_of_document(document: TableDocument, where: str, mark: str, io: Callable[[], FileIO]) -> TableStanding | None:
    """Return the state at the head of main, by the metadata document alone.

    Args:
        document: The table's metadata document.
        where: The table, for errors.
        mark: The key that each state has.
        io: Returns the way to the table's earlier documents.

    Raises:
        LogStateLost, LogRolledBack: As `find_state`.
    """
    main, witness = map(Known.of_document, document.main()), Witness.read(document.properties, where)
    return find_state(where, mark, main, witness, lambda: snapshots_before(document, io))


def snapshots_before(document: TableDocument, io: Callable[[], FileIO]) -> Iterator[Known]:
    """Yield the snapshots that the table's earlier documents know."""
    for entry in reversed(document.content.get("metadata-log") or ()):
        yield from snapshots_at(io(), str(entry["metadata-file"]))


def _earlier(table: Table) -> Iterator[Known]:
    for entry in reversed(table.metadata.metadata_log):
        yield from snapshots_at(table.io, entry.metadata_file)


def snapshots_at(io: FileIO, location: str) -> Iterator[Known]:
    """Yield the snapshots of an earlier metadata document, or nothing if the document cannot be read any more."""
    try:
        with io.new_input(location).open() as stream:
            document = TableDocument.of(location, stream.read())
    except (OSError, *TORN):
        return
    yield from map(Known.of_document, document.snapshots)
