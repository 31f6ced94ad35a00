"""Erasure of a key from logs of records: messages, damaged records next to the log, and archived messages (RET-6, RET-7).

A backend has no earlier states: a rewrite removes the old file with its content. Data next to the log leaves first. A run that dies in
between then leaves a log that still shows the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from message_lifecycle.model.erasure import TABLE_KINDS, ErasedTable, KeySearchResult, Matches
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.in_values import Needle, ValuePlace, places_of_messages
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import Backend
from message_lifecycle.operations.erasure import is_only_inside, tells_key
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.archive import (
    ParquetArchive,
    archive_of,
    archived_key_finding,
    erase_archive,
    key_in_archive,
    told_in_archive,
)
from message_lifecycle.stores.memory import eraser
from message_lifecycle.stores.memory.eraser import held_files, named, of_key
from message_lifecycle.stores.record_log import DamagedRecords, Head, RecordLog, RecordLogs, Removal
from message_lifecycle.stores.record_log.store import Evidence, as_rows, merged, published_from_commit, require, require_content, version_of

_REMAINS: Mapping[Backend, str] = {
    "redis_streams": "the Redis server keeps bytes of deleted entries in its memory, its append-only file and its snapshots, "
    "until BGREWRITEAOF and a new start from that file; docs/erasure.md says how, and about replicas"
}
"""Backends that keep bytes of deleted messages, and the place of these bytes."""


class RecordLogEraser(ChangeStore):
    """`ports.Eraser` of a backend. `server` and `frames` as in `RecordLogStore`."""

    def __init__(self, logs: RecordLogs, *, server: Mapping[str, Value], frames: Callable[[Evidence], Evidence] = as_rows) -> None:
        self._logs, self._server, self._frames = logs, server, frames

    def find_key(
        self,
        name: TopicName,
        matches: Matches,
        policy: Policy,  # noqa: ARG002  # no undo ends here
        *,
        as_of: Instant,  # noqa: ARG002  # as above
        undoable: Collection[str] = (),  # noqa: ARG002  # as above
    ) -> Sequence[KeySearchResult]:
        log = self._logs.open(name)
        if isinstance(log, DamagedRecords):
            # No search of the log sees leftovers. A removal that died may have left removed messages there.
            log.drop_leftovers()
        head = log.head()
        messages = version_of(log.scan()[1], head.end_offsets, head.segments).messages
        found = of_key(messages, matches)
        tables = [
            KeySearchResult(
                table="log",
                table_uuid=head.uuid,
                snapshot_id=head.generation,
                files=held_files(found, messages),
                refs=(("main", head.generation),),
                undo=(),
                snapshots=(head.generation,),
                rows=len(messages),
                size_bytes=sum(message.size_bytes for message in messages.values()),
                searched=1,
                clean=not found,
            )
        ]
        if isinstance(log, DamagedRecords):
            rows = log.count_matching(partial(tells_key, matches=matches))
            files = (archived_key_finding("quarantine", rows),) if rows else ()
            tables.append(
                KeySearchResult(
                    table="quarantine", table_uuid=head.uuid, snapshot_id=None, files=files, refs=(), undo=(), snapshots=(),
                    rows=head.quarantined, size_bytes=0, searched=1, clean=not rows,
                )
            )  # fmt: skip
        archive = self._archive(head)
        if archive is not None:
            tables.append(key_in_archive(archive, name, head.uuid, matches))
        return tables

    def find_in_values(
        self,
        name: TopicName,
        needle: Needle,
        policy: Policy,  # noqa: ARG002  # as above
        *,
        as_of: Instant,  # noqa: ARG002  # as above
        undoable: Collection[str] = (),  # noqa: ARG002  # as above
    ) -> Sequence[ValuePlace]:
        log = self._logs.open(name)
        head = log.head()
        messages = version_of(log.scan()[1], head.end_offsets, head.segments).messages
        places = places_of_messages("log", filter(needle.is_in_message, messages.values()))
        if isinstance(log, DamagedRecords) and (rows := log.count_matching(lambda line: is_only_inside(line, needle))):
            places.append(ValuePlace(table="quarantine", rows=rows, live=0))
        return places

    def erased_tables(
        self, plan: Plan, matches: Matches, _went: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Sequence[ErasedTable]:
        """Search every table of the topic, even tables that the plan does not name.

        A later message of the key may already be damaged or archived.
        """
        found = self.find_key(plan.topic, matches, Policy.from_values(plan.policy), as_of=plan.as_of)
        remains = _REMAINS.get(self._logs.backend)
        return [replace(ErasedTable.searched(table), remains=None if TABLE_KINDS[table.table].by_setting else remains) for table in found]

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:  # noqa: ARG002  # files are written over, or removed
        return ()

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        """Stage nothing, but name the log's content. Raises PlanConflict, and the errors of `find_key`."""
        given.matches()
        log = self._logs.open(plan.topic)
        require(plan, log.head())
        return replace(super().stage(plan), branch=log.content())

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        """Return the gate's frames. Raises PlanConflict if messages have left or come during planning."""
        log, matches = self._logs.open(plan.topic), given.matches()
        head = log.head()
        require(plan, head)
        require_content(plan, staged, log)
        before = version_of(log.scan()[1], dict(plan.requirements.end_offsets), head.segments).messages
        if len(before) != plan.expected.rows_in:
            raise PlanConflict(plan.plan_id, "messages came while it was planned")
        archive, mine = self._archive(head), named(plan, "log")
        # Tables next to the log have no messages of their own.
        tables = [eraser.table_row(0, 0) for _ in plan.rewrites[:-1]]
        tables += [eraser.table_row(len(of_key(before, matches).keys() - mine), len(before)) for _ in plan.rewrites_of("log")]
        matching = [told_in_archive(archive, plan, file.file, matches) for file in plan.erased_of("archive") if archive is not None]
        if isinstance(log, DamagedRecords):
            matching += [log.count_matching(partial(tells_key, matches=matches)) for _ in plan.erased_of("quarantine")]
        rows = [*map(eraser.beside, matching), *(eraser.rewritten(file, before, matches) for file in plan.erased_of("log"))]
        figures = eraser.figures(plan, before.values(), len(mine & before.keys()))
        return self._frames({"rewritten": rows, "tables": tables, "figures": figures})

    def find_published(self, plan: Plan) -> Published | None:
        found = self._logs.open(plan.topic).head().commit_of(plan.plan_id)
        return None if found is None else published_from_commit(plan.plan_id, found)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, matches, ledger = verdict.plan, given.matches(), given.ledger()
        log = self._logs.open(plan.topic)
        with log.lock():
            head = log.head()
            done = head.commit_of(plan.plan_id)
            if done is not None:
                return published_from_commit(plan.plan_id, done)
            require(plan, head)
            require_content(plan, verdict.staged, log)
            self._check_no_new_rows(plan, log, head, matches)
            archive = self._archive(head)
            if archive is not None and plan.rewrites_of("archive"):
                erase_archive(archive, plan.topic, matches)
            if isinstance(log, DamagedRecords):
                log.erase_damaged_lines(partial(tells_key, matches=matches))
            commits = head.with_commit(plan_id=plan.plan_id, removed=plan.expected.removed, files=())
            if log.head() != head:
                # If a lock can lapse, a message of the key may have come after the search.
                raise PlanConflict(plan.plan_id, "the log has changed while it was searched once more")
            log.replace(replace(head, generation=head.generation + 1, ledger=ledger, commits=commits), _removal(plan))
        return published_from_commit(plan.plan_id, commits[-1])

    @staticmethod
    def _check_no_new_rows(plan: Plan, log: RecordLog, head: Head, matches: Matches) -> None:
        messages = version_of(log.scan()[1], head.end_offsets, head.segments).messages
        if of_key(messages, matches).keys() - named(plan, "log"):
            raise PlanConflict(plan.plan_id, "messages of a requested key came since it was planned")

    def _archive(self, head: Head) -> ParquetArchive | None:
        return archive_of(head.settings, self._server)


def _removal(plan: Plan) -> Removal:
    runs: dict[int, list[range]] = {}
    for rows in plan.erased_of("log"):
        runs.setdefault(rows.partition, []).extend(parse_ranges_text(rows.offsets))
    offsets = {partition: merged(found) for partition, found in runs.items()}
    return Removal(plan_id=plan.plan_id, offsets=offsets, rows=plan.expected.removed_rows)
