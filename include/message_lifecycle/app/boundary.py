"""The one error boundary of the Spark applications, and the watch over their parent.

A driver whose parent died must not go on writing: its task has been failed, and another try may run. So a thread leaves as
soon as the parent process changes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from message_lifecycle.model.errors import EXIT_INTERNAL, LifecycleError

_POLL_SECONDS = 0.5
EXIT_ORPHANED = 137

log = logging.getLogger("lifecycle")


def watch_parent(leave: Callable[[int], None] = os._exit, parent: Callable[[], int] = os.getppid) -> threading.Thread:
    """Leave at once (status 137) when the parent process is gone. Start this before anything else."""
    first = parent()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_POLL_SECONDS):
            if parent() != first:
                print("lifecycle: the parent process is gone; leaving before anything else is written", file=sys.stderr)
                leave(EXIT_ORPHANED)
                return

    thread = threading.Thread(target=watch, name="parent-watch", daemon=True)
    thread.start()
    return thread


def run_application(main: Callable[[], int]) -> None:
    """Run a Spark application's main function and leave with its status; our errors print what to do, others their trace."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "pyiceberg", "great_expectations"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    watch_parent()
    try:
        status = main()
    except LifecycleError as error:
        log.error("%s: %s", error.code, error)
        status = error.exit_code
    except Exception:
        log.exception("internal error; nothing is retried, the ledger and the table tell what was done")
        status = EXIT_INTERNAL
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of the JVM gateway would keep the process for seconds after the work is done.
    os._exit(status)
