"""Taking back what an age took out of the quarantine: the files that it took come back as copies, and stay until a person releases them
(DEL-7, QUA-1)."""

from __future__ import annotations

from collections.abc import Iterable

from message_lifecycle import __version__
from message_lifecycle.model.change import Commit, QuarantinedFile, that_change
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Expected, Plan, Requirements, Selection
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import QuarantineReturning, QuarantineState


def plan(
    state: QuarantineState, found: QuarantineReturning, policy: Policy, undone: Plan, *, as_of: Instant, heeded: tuple[str, ...]
) -> Plan:
    """The plan that takes `undone` back, of which there is something to bring back."""
    files = tuple(
        QuarantinedFile(file=file.name, rows=file.rows, size_bytes=file.size_bytes, oldest_at=oldest, newest_at=newest)
        for file, (oldest, newest) in found.files
    )
    rows = sum(file.rows for file in files)
    return Plan(
        operation="undo",
        topic=undone.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=Requirements(
            table_uuid=state.table_uuid,
            snapshot_id=state.snapshot_id,
            end_offsets=(),
            policy_hash=policy.hash,
            code_version=__version__,
            heeded=heeded,
        ),
        bounds=(),
        changes=that_change(Commit(table="quarantine", files_back=files, source_id=found.source_id)),
        selection=Selection(),
        expected=Expected(
            rows_in=sum(file.rows for file in state.files),
            removed=(),
            removed_bytes=0,
            bytes_in=sum(file.size_bytes for file in state.files),
            segments=0,
        ),
        held=(),
        warnings=tuple(_warnings(found, rows, undone.expected.removed_rows)),
        asks=(f"plan {undone.plan_id} of operation quarantine is taken back: {rows} row(s) come back to the quarantine",),
        more=False,
        due_since=None,
        next_due_at=None,
        parent=undone.plan_id,
    )


def _warnings(found: QuarantineReturning, rows: int, taken: int) -> Iterable[str]:
    if found.present:
        yield f"{found.present} row(s) that the plan took are there again already"
    gone = taken - rows - found.present
    if gone > 0:
        yield f"{gone} row(s) that the plan took are in no file any more and do not come back"
