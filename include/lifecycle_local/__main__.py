"""`python -m lifecycle_local setup|up|class-archive|down|status|exec`: the embedded default by hand."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys

from rich.text import Text

from lifecycle_local import stack
from lifecycle_local.environment import merge_environment, read_environment
from lifecycle_local.layout import find_layout
from lifecycle_local.progress import Progress
from message_lifecycle.model.errors import EXIT_UNAVAILABLE, LifecycleError

INTERRUPTED, TERMINATED = 130, 143


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lifecycle_local", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("setup", help="get Java, jars and the database ready; nothing is left running")
    starting = verbs.add_parser("up", help="start everything and leave it running")
    starting.add_argument("--no-airflow", action="store_true", help="PostgreSQL and configuration only")
    verbs.add_parser("class-archive", help="make the class archive for quick starts of Spark, beside a database that runs")
    verbs.add_parser("down", help="stop everything; the data stays, but for a cluster's")
    verbs.add_parser("status", help="say what runs; exit status 4 when nothing does")
    running = verbs.add_parser("exec", help="run a command in the stack's environment: exec airflow dags list")
    running.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _show(progress: Progress, found: stack.Status) -> None:
    progress.say(f"state          {found.state}")
    progress.say(f"PostgreSQL     {'runs' if found.postgres else 'stopped'}")
    progress.say(f"Redis          {'runs' if found.redis else 'stopped'}")
    for component, runs in {**found.cluster, **found.components}.items():
        progress.say(f"{component:<15}{'runs' if runs else 'stopped'}")
    if found.address:
        progress.say(f"Airflow        {found.address}   logins: {found.logins}")


def _exec(command: list[str]) -> int:
    settings = read_environment(find_layout())
    if settings is None:
        raise LifecycleError("nothing is set up yet. Run: python -m lifecycle_local up")
    environment = merge_environment(settings)
    program = shutil.which(command[0], path=environment["PATH"]) if command else None
    if program is None:
        raise LifecycleError(f"exec: no command {' '.join(command[:1])!r} on the stack's PATH")
    os.execve(program, command, environment)


def main() -> int:
    """Run one verb; the one place that turns an error into a line and a status."""
    arguments = _arguments().parse_args()
    progress = Progress()
    # A polite kill, as of a build server that ran out of time, cleans up like a Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        match arguments.verb:
            case "setup":
                stack.setup(progress=progress)
            case "up":
                bare = arguments.no_airflow
                _show(progress, stack.up(with_airflow=not bare, archive_later=bare, progress=progress))
            case "class-archive":
                stack.archive()
            case "down":
                stack.down(progress=progress)
            case "status":
                found = stack.status()
                _show(progress, found)
                return 0 if found.postgres else EXIT_UNAVAILABLE
            case "exec":
                return _exec(arguments.command)
    except LifecycleError as error:
        progress.say(Text.assemble(("error", "red"), f"   {error}"))
        return error.exit_code
    except KeyboardInterrupt:
        progress.say("interrupted; what this call had started was stopped")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
