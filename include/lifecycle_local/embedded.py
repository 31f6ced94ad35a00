"""The embedded default as the project uses it: servers by `local`, and the ledger brought to its newest version."""

from __future__ import annotations

import os

from lifecycle_local import stack
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import Layout
from lifecycle_local.progress import QUIET, Progress
from message_lifecycle.app.config import LEDGER_URL, backends_file
from message_lifecycle.ledger import migrate_ledger


def up(layout: Layout | None = None, *, with_airflow: bool = True, archive_later: bool = False, progress: Progress = QUIET) -> stack.Status:
    """Start what does not run yet, migrate the ledger, and put its environment into this process; see `stack.up`."""

    def prepare_ledger() -> None:
        load_environment()
        with progress.step("Ledger"):
            migrate_ledger(os.environ[LEDGER_URL])

    return stack.up(
        layout,
        with_airflow=with_airflow,
        with_redis=_wants_redis(),
        archive_later=archive_later,
        once_database_runs=prepare_ledger,
        progress=progress,
    )


def _wants_redis() -> bool:
    """True if a configured backend uses the embedded Redis."""
    return any(backend.is_embedded for backend in backends_file())
