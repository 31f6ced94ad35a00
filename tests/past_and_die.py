"""Run one plan over the tables of a folder, in a process of its own. The process dies by SIGKILL when it reaches the named step.

The arguments are FOLDER LEDGER_URL STEP OPERATION [ID]. The operation is `reclaim`, `delete`, `undo`, `hold` or `release`. `reclaim` with a
plan's id reclaims the topic that the plan deleted. `hold` and `release` touch only the ledger. A step that comes several times has a number
(`inside_commit 2`). With the step `none` the process survives, and prints how the run ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import event

from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.ledger import tables
from message_lifecycle.model.errors import LifecycleError
from tests import forked
from tests.forked import Forked
from tests.reclaiming import NAME, Past, past_in

_ENDS_WITHIN_SECONDS = 300


def start(folder: Path, ledger_url: str, step: str, *operation: str) -> Forked:
    return forked.start(_main, [str(folder), ledger_url, step, *operation], os.environ)


def dies(folder: Path, ledger_url: str, step: str, *operation: str) -> None:
    """Run the operation, and require that the process dies at the step."""
    run = start(folder, ledger_url, step, *operation)
    _, log = run.communicate(timeout=_ENDS_WITHIN_SECONDS)
    assert run.returncode == -signal.SIGKILL, log


def ended(runs: list[Forked]) -> list[str]:
    """Wait for all runs, and return their last printed words. No run may be killed or fail by a mistake of the test."""
    ends = [(process.communicate(timeout=_ENDS_WITHIN_SECONDS), process.returncode) for process in runs]
    told = [out.split()[-1] if out.split() else log for (out, log), _ in ends]
    assert all(status in (0, 3) for _, status in ends), told
    return told


def _carried_out(past: Past, operation: str, *given_id: str) -> str:
    match operation:
        case "delete":
            return past.delete_whole().name
        case "undo":
            return past.undo(*given_id).name
        case "hold":
            return place_hold(past.services, NAME, by="ada", why="case 7").hold_id
        case "release":
            return release_hold(past.services, *given_id, by="bob", why="case 7 is closed").hold_id
        case _:
            return (past.reclaim_deleted(*given_id) if given_id else past.run()).name


def _tell_of_holds(past: Past, steps: Callable[[str], None]) -> None:
    """Call `steps` around the ledger's writes for a hold, in addition to its usual steps."""
    engine, written = past.ledger._database.engine, []

    def tell(at: str) -> Callable[..., None]:
        def on(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith((f"INSERT INTO {tables.holds}", f"UPDATE {tables.holds}")):
                written.append(statement)
                steps(at)

        return on

    event.listen(engine, "before_cursor_execute", tell("before_write"))
    event.listen(engine, "after_cursor_execute", tell("written"))
    event.listen(engine, "commit", lambda _: steps("before_commit") if written else None)


def _main(arguments: list[str]) -> int:
    folder, ledger_url, last_step, *operation = arguments
    seen: list[str] = []

    def steps(reached: str) -> None:
        seen.append(reached)
        count = seen.count(reached)
        if last_step == (reached if count == 1 else f"{reached} {count}"):
            os.kill(os.getpid(), signal.SIGKILL)

    past = past_in(Path(folder), steps=steps, ledger_url=ledger_url)
    _tell_of_holds(past, steps)
    try:
        done = _carried_out(past, *operation)
        steps("after_commit")
        print(done)
    except LifecycleError as error:
        print(error.code)
        return error.exit_code
    return 0
