"""An ingest that is killed at a given point: `python -m tests.spark.dying_ingest POINT LEDGER TOPIC FOLDER`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

from tests.spark.landing import KEYED

from message_lifecycle.app import intake as intaking
from message_lifecycle.app import intake_tasks
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import append
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity

FILE_LIMIT = 1_000_000


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(point: str, ledger: str, topic: str, folder: str) -> None:
    commit = append.commit_staged

    def dying_commit(*args: Any, **named: Any) -> None:
        of_the_log = named.get("state") is not None  # the quarantine's commit comes before
        if of_the_log and point == "staged":
            die()
        commit(*args, **named)
        if of_the_log and point == "committed":
            die()

    vars(append)["commit_staged"] = dying_commit
    if point == "begun":
        vars(intake_tasks)["read_files"] = die
    if point == "disk full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
    intake = intaking.Intake(
        topics=IcebergTopics(Tables()),
        ledger=open_ledger(ledger),
        server={},
        engine=engine_of_process,
        end_offsets=lambda _: {},
        witnesses=IcebergLogIntegrity(Tables(), engine_of_process),
    )
    try:
        intaking.take_files(intake, TopicName.parse(topic), folder, intaking.IngestOptions(mapping=KEYED))
    except LifecycleError as error:
        print(f"{error.code}: {error}", flush=True)
        os._exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
