"""Plans that remove snapshots and files which no reader, undo or writer needs any more (DEL-7).

These snapshots of each table stay:

- the snapshots of branches and tags, and the snapshots that their own rules keep;
- every snapshot that was the head of a branch within the undo window, so that an undo finds the removed rows;
- all snapshots between a branch or tag and the newest progress of each writer, ours included (MSG-4), because writers walk from there,
  snapshot by snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from message_lifecycle.model.change import Change, DropTables, Forget, MovedTable, RemoveFiles
from message_lifecycle.model.errors import InvalidSetting, undo_window_open
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import (
    AskLoose,
    DeletedFacts,
    LooseFiles,
    LooseQuestion,
    ReclaimFacts,
    RefFact,
    SnapshotFact,
    TableFiles,
    TableHistory,
)
from message_lifecycle.operations.planning import asks_where_shorter, empty_plan, required_of_table

MAIN = "main"
WINDOW = "undo_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHistory:
    """The part of a table's history that stays: each snapshot with its first reason, and the names of the refs that end."""

    reasons: Mapping[int, str]
    refs: tuple[str, ...]
    going: tuple[int, ...]
    next_due_at: Instant | None = None


@dataclass(slots=True)
class _HistoryWalk:
    """Snapshots by id, and those that stay so far."""

    by_id: Mapping[int, SnapshotFact]
    reasons: dict[int, str] = field(default_factory=dict)

    def ancestors(self, snapshot_id: int | None) -> Iterator[SnapshotFact]:
        while snapshot_id is not None and (found := self.by_id.get(snapshot_id)) is not None:
            yield found
            snapshot_id = found.parent_id

    def keep(self, snapshot_id: int, reason: str) -> None:
        self.reasons.setdefault(snapshot_id, reason)


def plan(facts: ReclaimFacts, policy: Policy, *, as_of: Instant, ask: AskLoose) -> Plan:
    """Plan the removals at `as_of`.

    Args:
        facts: The histories of the topic's tables.
        policy: The topic's policy.
        as_of: Judge ages at this instant.
        ask: Gets one question for each table, and none for a table without a remaining snapshot: there is no base to compare with.

    Raises:
        InvalidSetting: The undo window is empty.
    """
    window = policy.undo_window_us
    if window <= 0:
        raise InvalidSetting(where=f"topic {facts.topic}", key=WINDOW, value=policy[WINDOW], allowed="a whole number of seconds from 1")
    cut = _undo_cut(facts, policy, as_of)
    orphans = _earliest(as_of - policy.orphan_age_us, facts.needed_since)
    changes: list[Forget] = []
    loose_files: list[LooseFiles] = []
    due_at: list[Instant] = []
    left = policy.reclaim_max_files
    for table, kept in kept_histories(facts, policy, as_of=as_of):
        if kept.next_due_at is not None:
            due_at.append(Instant(kept.next_due_at + window))
        if not kept.reasons:
            continue
        question = LooseQuestion(
            table=table.table, kept=tuple(sorted(kept.reasons)), metadata_before=cut, orphans_before=orphans, limit=left
        )
        loose = ask(question)
        made = _change(table, kept, loose)
        if made is not None:
            changes.append(made)
            loose_files.append(loose)
            left -= len(loose.files)
    uuid = next((table.table_uuid for table in facts.tables if not table.table), "")
    requirements = required_of_table(uuid, facts.snapshot_id, policy, facts.heeded)
    empty = empty_plan("reclaim", facts.topic, policy, requirements, as_of=as_of)
    return replace(
        empty,
        changes=tuple(changes),
        expected=replace(
            empty.expected,
            removed_bytes=sum(files.size_bytes for change in changes for files in change.files),
            bytes_in=sum(loose.total_bytes for loose in loose_files),
        ),
        warnings=tuple(f"nothing is reclaimed: {holder}" for holder in facts.held),
        asks=asks_where_shorter(WINDOW, policy, facts.accepted) if changes else (),
        more=any(loose.more for loose in loose_files),
        next_due_at=min(due_at, default=None),
    )


def kept_histories(facts: ReclaimFacts, policy: Policy, *, as_of: Instant) -> Iterator[tuple[TableHistory, KeptHistory]]:
    """Yield each table of the topic with the snapshots that stay. Yields nothing under a legal hold, because then everything stays."""
    cut = _undo_cut(facts, policy, as_of)
    # A new branch may point to an old snapshot, and its age is the age of that snapshot.
    ended = None if facts.needed_since is None else ()
    for table in () if facts.held else facts.tables:
        yield table, find_kept_history(table, as_of=as_of, before=cut, ended=ended)


def _undo_cut(facts: ReclaimFacts, policy: Policy, as_of: Instant) -> Instant:
    return _earliest(_earliest(as_of - policy.undo_window_us, facts.needed_since), facts.undoable_since)


def find_kept_history(table: TableHistory, *, as_of: Instant, before: Instant, ended: Collection[str] | None = None) -> KeptHistory:
    """Return the snapshots that stay, with reasons.

    Args:
        table: The history of the table.
        as_of: Judge ages at this instant.
        before: Snapshots that were the head of a branch after this time stay.
        ended: Branches and tags that leave. None: all that are past their own age.
    """
    walk = _HistoryWalk({snapshot.snapshot_id: snapshot for snapshot in table.snapshots})
    ended = ended_refs(table, as_of) if ended is None else tuple(ended)
    refs = [ref for ref in table.refs if ref.name not in ended]
    for ref in refs:
        if ref.snapshot_id in walk.by_id:
            walk.keep(ref.snapshot_id, "branches and tags")
    successor_at = _successors(table.snapshots)
    for snapshot in table.snapshots:
        if _replaced_at(snapshot, successor_at) > before:
            walk.keep(snapshot.snapshot_id, "undo window")
    for ref in refs:
        if ref.is_branch:
            _keep_by_branch_rules(walk, ref, as_of)
        # A tag's, too, because people roll main back to tags.
        _keep_progress(walk, ref)
    going = [snapshot for snapshot in table.snapshots if snapshot.snapshot_id not in walk.reasons]
    heads = {ref.snapshot_id for ref in refs}
    waiting = [s for s in table.snapshots if walk.reasons.get(s.snapshot_id) == "undo window" and s.snapshot_id not in heads]
    return KeptHistory(
        reasons=walk.reasons,
        refs=ended,
        going=tuple(snapshot.snapshot_id for snapshot in going) if walk.reasons else (),
        next_due_at=min((_replaced_at(snapshot, successor_at) for snapshot in waiting), default=None),
    )


def ended_refs(table: TableHistory, as_of: Instant) -> tuple[str, ...]:
    """Return branches and tags past their own age. Main never is."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots}
    return tuple(sorted(ref.name for ref in table.refs if _has_ended(ref, by_id, as_of)))


def _has_ended(ref: RefFact, snapshots: Mapping[int, SnapshotFact], as_of: Instant) -> bool:
    head = snapshots.get(ref.snapshot_id)
    return ref.name != MAIN and ref.max_ref_age_us is not None and head is not None and as_of - head.at > ref.max_ref_age_us


def _successors(snapshots: Sequence[SnapshotFact]) -> dict[int, Instant]:
    """Return for each snapshot the time of its last successor."""
    found: dict[int, Instant] = {}
    for snapshot in snapshots:
        if snapshot.parent_id is not None:
            found[snapshot.parent_id] = max(found.get(snapshot.parent_id, snapshot.at), snapshot.at)
    return found


def _replaced_at(snapshot: SnapshotFact, successor_at: Mapping[int, Instant]) -> Instant:
    """Return when this snapshot stopped being the head of a branch.

    The sources are its successors and main's own log, which records rollbacks and branches that main took over. If neither knows the
    snapshot, return the time when it was made.
    """
    return max(snapshot.at, successor_at.get(snapshot.snapshot_id, snapshot.at), snapshot.replaced_on_main_at or snapshot.at)


def _keep_by_branch_rules(walk: _HistoryWalk, ref: RefFact, as_of: Instant) -> None:
    for number, snapshot in enumerate(walk.ancestors(ref.snapshot_id)):
        young = ref.max_snapshot_age_us is not None and as_of - snapshot.at <= ref.max_snapshot_age_us
        if number >= ref.min_snapshots and not young:
            return
        walk.keep(snapshot.snapshot_id, "the branch's own rules")


def _keep_progress(walk: _HistoryWalk, ref: RefFact) -> None:
    """Keep all snapshots from the branch to the newest progress of each writer. A gap would hide the progress."""
    path = list(walk.ancestors(ref.snapshot_id))
    seen: set[str] = set()
    reasons: dict[int, str] = {}
    for at, snapshot in enumerate(path):
        fresh = [name for name in snapshot.carries if name not in seen]
        seen.update(fresh)
        if fresh:
            for between in path[: at + 1]:
                reasons.setdefault(between.snapshot_id, f"progress of {fresh[0]}")
    for snapshot_id, reason in reasons.items():
        walk.keep(snapshot_id, reason)


def _change(table: TableHistory, kept: KeptHistory, loose: LooseFiles) -> Forget | None:
    # Every reclaim leaves metadata behind. Removing only these would make another reclaim of every topic, without end.
    if not kept.going and not kept.refs and {role for _, role, _ in loose.files} <= {"metadata"}:
        return None
    return Forget(
        table=table.table,
        table_uuid=table.table_uuid,
        snapshots=kept.going,
        refs=kept.refs,
        kept=tuple(sorted(Counter(kept.reasons.values()).items())),
        files=tuple(removals(loose.files)),
    )


def removals(files: Sequence[tuple[str, str, int]]) -> Iterator[RemoveFiles]:
    """Return one removal for each role. `files` holds (name, role, bytes)."""
    for role in sorted({role for _, role, _ in files}):
        mine = [(name, size) for name, of_role, size in files if of_role == role]
        yield RemoveFiles(role=role, files=tuple(name for name, _ in mine), size_bytes=sum(size for _, size in mine))


def _earliest(at: int, other: Instant | None) -> Instant:
    return Instant(at if other is None else min(at, other))


# A deleted topic that no undo can restore gives its space back: all its tables and files (DEL-7).


def check(plan_id: str, topic: str, *, until: Instant, now: Instant) -> None:
    """Raise UndoWindowOpen if an undo can still restore the topic, which ends at `until`."""
    if now < until:
        raise undo_window_open(plan_id, topic, until=format_to_second(until), now=format_to_second(now))


def plan_deleted(facts: DeletedFacts, policy: Policy, *, as_of: Instant) -> Plan:
    """Plan the removal of the whole topic, whatever `max_files` says: after its tables are dropped, nobody would find the rest."""
    topic, log = facts.topic, facts.tables[0].table
    stays = (*facts.held, *(f"{name} is new and in no table, so a writer may still commit it" for name in _describe_young_tables(facts)))
    changes = () if stays else _changes(facts.tables)
    going = [removal for found in facts.tables for removal in removals(found.files)] if changes else []
    size, files = sum(removal.size_bytes for removal in going), sum(len(removal.files) for removal in going)
    requirements = required_of_table(log.table_uuid, log.snapshot_id, policy, facts.heeded)
    made = empty_plan("reclaim", topic.topic, policy, requirements, as_of=as_of)
    return replace(
        made,
        changes=changes,
        expected=replace(made.expected, removed_bytes=size, bytes_in=size),
        warnings=tuple(f"nothing is reclaimed: {why}" for why in stays),
        asks=(
            f"removes deleted topic {topic.topic} for good (plan {short(topic.plan_id)}): {amount(topic.rows, 'messages')}, {amount(files, 'files')}",
            *(f"{reader}, as far as the ledger knows" for reader in facts.readers),
        )
        if changes
        else (),
        parent=topic.plan_id,
        parent_operation="topic_delete",
    )


def _describe_young_tables(facts: DeletedFacts) -> Iterator[str]:
    return (table.young for table in facts.tables if table.young is not None)


def _changes(found: Sequence[TableFiles]) -> tuple[Change, ...]:
    tables = tuple(
        MovedTable(
            table=one.table.table,
            table_uuid=one.table.table_uuid,
            snapshot_id=one.table.snapshot_id,
            rows=one.table.rows,
            location=one.location,
            metadata=one.metadata,
        )
        for one in found
    )
    files = ((one.table, tuple(removals(one.files))) for one in found)
    forgets = tuple(Forget(table=table.table, table_uuid=table.table_uuid, files=mine) for table, mine in files if mine)
    return (DropTables(tables=tables, forgets=forgets),)
