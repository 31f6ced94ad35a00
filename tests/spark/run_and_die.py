"""One run of the message cleaner, or of another operation, in a process of its own, which dies by SIGKILL when it reaches the step that is named.

`python -m tests.spark.run_and_die TOPIC AS_OF STEP [OPERATION [ID]]`, the plan's id for `undo`, the request's for `erasure`; with the step `none` it
lives. `view:STEP` is the compacted view's, where the log has the same. Exit status as of the command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from message_lifecycle.app import steps
from message_lifecycle.app.applications import run_application
from message_lifecycle.app.operations.registry import Work, undoable_operations
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals, IcebergViewReturns, IcebergViewStore
from message_lifecycle.stores.iceberg.documents.store import IcebergChangeReturns, IcebergChanges, IcebergSnapshotReturns, IcebergSnapshots
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine, IcebergQuarantineReturns
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore


def main(arguments: Sequence[str]) -> int:
    topic, as_of, last_step, *operation = arguments

    def die(step: str) -> None:
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def die_of_view(step: str) -> None:
        die(step)
        die(f"view:{step}")

    services = lake()
    stores = replace(
        services.stores,
        log=IcebergStore(engine_of_process, steps=die),
        log_return=IcebergLogReturns(engine_of_process, steps=die),
        view=IcebergViewStore(engine_of_process, steps=die_of_view),
        view_removal=IcebergViewRemovals(engine_of_process, steps=die_of_view),
        view_return=IcebergViewReturns(engine_of_process, steps=die_of_view),
        snapshots=IcebergSnapshots(engine_of_process, steps=die),
        snapshots_return=IcebergSnapshotReturns(engine_of_process, steps=die),
        changes=IcebergChanges(engine_of_process, steps=die),
        changes_return=IcebergChangeReturns(engine_of_process, steps=die),
        rewrite=IcebergEraser(undoable=undoable_operations, steps=die),
        quarantine=IcebergQuarantine(engine_of_process, steps=die),
        quarantine_return=IcebergQuarantineReturns(engine_of_process, steps=die),
    )
    services = replace(services, stores=stores)
    works: dict[str, Work] = {"compaction": "compaction", "snapshot_with_purge": "snapshot_with_purge", "quarantine": "quarantine"}
    if operation and operation[0] == "erasure":
        works["erasure"] = EraseKey(request_id=operation[1])
    if operation and operation[0] == "undo":
        works["undo"] = UndoPlan(plan_id=operation[1])
    outcome = steps.run(
        services,
        TopicName.parse(topic),
        as_of=Instant(int(as_of)),
        approver=lambda _plan, _report: (True, "tester", "as expected"),
        work=works[operation[0]] if operation else "message_cleaner",
    )
    print(outcome.name)
    return 0


if __name__ == "__main__":
    run_application(lambda: main(sys.argv[1:]))
