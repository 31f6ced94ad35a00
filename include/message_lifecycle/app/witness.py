"""Before anything is written or removed: do the witnesses of a topic's log agree (MSG-4)?

The table has two witnesses: the snapshots' summaries and a table property (`stores/iceberg/witness.py`). The ledger is the third. The
ledger keeps our newest commit on each table, and learns of a newer commit whenever a verb reads the topic. The ledger also knows each table
next to the log: a known table that the catalog lacks keeps erasures open, because its files may still hold messages (DEL-7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LogRolledBack, LogStateLost, UnknownTopic, nothing_to_repair
from message_lifecycle.model.facts import LogFound, LogWitness, SeenTable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ports import LogIntegrity

_DELETION: tuple[Operation, ...] = ("topic_delete",)


def require_intact(s: Services, name: TopicName) -> None:
    """Return if the topic may be written to and removed from.

    Raises:
        LogStateLost: A witness is missing, or two disagree.
        LogRolledBack: Another engine rolled a table of the topic back.
    """
    if s.witnesses is not None and name not in s.backends:
        with suppress(UnknownTopic):  # deleted and missing topics have their own errors
            compare(s.witnesses, s.ledger, name)


def note(s: Services, name: TopicName) -> None:
    """Record our newest commit, and the tables next to the log, in the ledger."""
    if s.witnesses is not None and name not in s.backends:
        record_state(s.witnesses, s.ledger, name)


def record_state(witnesses: LogIntegrity, ledger: Ledger, name: TopicName) -> None:
    """Do the work of `note` for a topic whose log is a table. Disagreements are ignored here, because the next verb reports them."""
    with suppress(LogStateLost, LogRolledBack, UnknownTopic):
        compare(witnesses, ledger, name)
    known = ledger.side_tables(name)
    new = {
        table_uuid: kind
        for kind, table_uuid in witnesses.side_table_uuids(name).items()
        if table_uuid is not None and table_uuid not in known
    }
    if new:
        ledger.record_side_tables(name, new)


def compare(witnesses: LogIntegrity, ledger: Ledger, name: TopicName) -> None:
    """As `require_intact`, of a topic whose log is a table."""
    seen = [(one, ledger.log_witness(one.table_uuid)) for one in witnesses.read_commits(name)]
    if any(kept is not None and (one.witness is None or one.witness.sequence_number < kept.sequence_number) for one, kept in seen):
        # Another run may have committed since the table was read: the table is read again, after the ledger.
        known = {one.table_uuid: kept for one, kept in seen}
        seen = [(one, known.get(one.table_uuid)) for one in witnesses.read_commits(name, anew=True)]
    newer = []
    for one, kept in seen:
        if one.witness is None:
            if kept is not None:
                raise LogStateLost(one.table, "the table says of no compaction, and the ledger knows up to where the view goes")
            continue
        _require_agreement(one, one.witness, kept)
        if one.witness.witnessed and (kept is None or kept.sequence_number < one.witness.sequence_number):
            newer.append(one.witness)
    if newer:
        ledger.record_log_witnesses(name, newer)


def _require_agreement(table: SeenTable, seen: LogWitness, kept: LogWitness | None) -> None:
    if kept is None:
        if not seen.in_history:
            raise LogStateLost(table.table, "another engine expired the snapshots that carry it, and the ledger does not know the table")
        return
    if kept.sequence_number > seen.sequence_number:
        raise LogRolledBack(table.table, table.head_id, kept.snapshot_id)
    if kept.sequence_number == seen.sequence_number and kept.snapshot_id != seen.snapshot_id:
        raise LogStateLost(
            table.table, f"the ledger knows snapshot {kept.snapshot_id} as our newest commit, the table snapshot {seen.snapshot_id}"
        )
    if not seen.witnessed and kept.sequence_number >= seen.sequence_number:
        raise LogStateLost(table.table, "the table property that names our newest commit is missing, or is older than the ledger's")
    lower = [
        f"partition {partition}: {seen.offsets.get(partition)} in the table, {offset} in the ledger"
        for partition, offset in sorted(kept.offsets.items())
        if seen.offsets.get(partition, -1) < offset
    ]
    if lower:
        raise LogStateLost(table.table, f"its offsets went back ({'; '.join(lower)})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTable:
    """A table next to a topic's log that the ledger knows and the catalog lacks. `kind` is the end of the table's name."""

    kind: str
    table_uuid: str

    def __str__(self) -> str:
        return f"{self.kind} table {self.table_uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The findings, and the changes of a repair.

    Attributes:
        repaired: Names of the tables whose state the repair rewrote. Empty if a person only checked.
        set_back: Consumer, partition and former offset, for each consumer that was set back.
        files: Files whose messages the rollback took away; `ingest` takes them again.
        missing: Tables next to the log that the ledger knows and the catalog lacks.
        given_up: Missing tables that a person gave up in this repair.
    """

    topic: TopicName
    found: Sequence[LogFound]
    repaired: tuple[str, ...] = ()
    set_back: tuple[tuple[str, int, int], ...] = ()
    files: tuple[str, ...] = ()
    missing: tuple[MissingTable, ...] = ()
    given_up: tuple[MissingTable, ...] = ()


def missing_tables(s: Services, name: TopicName) -> tuple[MissingTable, ...]:
    """Return the tables next to the log that the ledger knows and the catalog lacks under the topic's name.

    Another program has renamed or dropped such a table, and its files may still hold messages. Tables that were deleted with their topic,
    and did not come back, are left out.
    """
    if s.witnesses is None or name in s.backends:
        return ()
    known = s.ledger.side_tables(name)
    there = s.witnesses.side_table_uuids(name) if known else {}
    missing = [
        MissingTable(kind=kind, table_uuid=table_uuid)
        for table_uuid, kind in known.items()
        if table_uuid not in there.values() and there.get(kind, "") is not None
    ]
    if not missing:
        return ()
    deletions = s.ledger.published_since(name, _DELETION, published_after=Instant(0))
    standing = deletions - s.ledger.find_undone(deletions)
    deleted = {table.table_uuid for plan_id in standing for table in s.ledger.record(plan_id).plan.deleted_tables}
    return tuple(one for one in missing if one.table_uuid not in deleted)


def note_searched(s: Services, name: TopicName, searched: Iterable[str]) -> None:
    """Record which tables next to the log a search has missed. Call this after the search, because a table may disappear during the search.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        searched: The uuids of the tables that the search has seen.
    """
    missed = s.ledger.side_tables(name).keys() - set(searched)
    if missed:
        s.ledger.record_missed_tables(missed)


def tables_back_since(s: Services, name: TopicName, searched_at: Instant) -> tuple[MissingTable, ...]:
    """Return the tables next to the log that exist now, but that a search at this time or later has missed."""
    missed = {table_uuid: kind for table_uuid, (kind, at) in s.ledger.missed_tables(name).items() if searched_at <= at}
    there = s.witnesses.side_table_uuids(name).values() if missed and s.witnesses is not None else ()
    return tuple(MissingTable(kind=kind, table_uuid=table_uuid) for table_uuid, kind in missed.items() if table_uuid in there)


def inspect_topic(s: Services, name: TopicName) -> Repair:
    """Return the remaining state of a topic's log and view, and the changes that a repair would make."""
    if s.witnesses is None or name in s.backends:
        return Repair(topic=name, found=())
    witnesses = s.witnesses
    return Repair(
        topic=name,
        found=witnesses.read_states(name, s.ledger.log_witness, s.ledger.log_witnesses(name), lambda: compare(witnesses, s.ledger, name)),
        missing=missing_tables(s, name),
    )


def repair(s: Services, name: TopicName, *, by: str, text: str, accept_rollback: bool, give_up_tables: bool = False) -> Repair:
    """Rewrite the state of a topic's log and view, because a person requests it.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        by: The person who requests the repair.
        text: The person's reason.
        accept_rollback: The person accepts the loss by another engine's rollback.
        give_up_tables: The person says that missing tables will not return.

    Raises:
        NothingToRepair: The witnesses agree, and no table is missing.
        LogRolledBack: A table was rolled back, and the person has not accepted that.
    """
    s.ledger.check(name, s.topics.describe(name).ledger)
    with s.ledger.lock(name, purpose=""):
        return _repair(s, name, by=by, text=text, accept_rollback=accept_rollback, give_up_tables=give_up_tables)


def _repair(s: Services, name: TopicName, *, by: str, text: str, accept_rollback: bool, give_up_tables: bool) -> Repair:
    repaired, set_back, files = list[str](), list[tuple[str, int, int]](), list[str]()
    first = inspect_topic(s, name)
    # Compare again after each repair, because the comparison ends at the first wrong table, and may hide another.
    for _ in range(len(first.found)):
        one = next((one for one in inspect_topic(s, name).found if one.problem), None)
        if one is None:
            break
        if one.rolled_back and not accept_rollback:
            require_intact(s, name)  # raises LogRolledBack
        assert s.witnesses is not None, "something was found"
        if one.rolled_back and not one.kind:
            # Before the commit: a run that dies in between leaves consumers with messages twice, never without.
            set_back += s.ledger.set_back_consumers(name, one.read)
            files += s.ledger.forget_batches(name, one.gone)
        made = s.witnesses.repair(name, one, ledger=s.ledger.next_identity(name))
        s.ledger.record_log_witnesses(name, [made], by=by, text=text)
        repaired.append(one.table)
    given_up = first.missing if give_up_tables else ()
    for table in given_up:
        s.ledger.give_up_table(table.table_uuid, by=by, text=text)
    if not repaired and not first.missing:
        raise nothing_to_repair(str(name))
    return replace(first, repaired=tuple(repaired), set_back=tuple(set_back), files=tuple(files), given_up=given_up)
