"""`lifecycle up`, `down` and `demo`: start the embedded default, stop it, see it work."""

from __future__ import annotations

from typing import Annotated

from message_lifecycle.app.cli.options import OutputOption, flag
from message_lifecycle.app.cli.screen import Output, emit


def demo() -> int:
    """Load real topics, let Airflow remove what is old, show what went and why, stop everything again."""
    from lifecycle_local import demo as job

    return job.main()


def up(
    no_airflow: Annotated[bool, flag("--no-airflow", "Only PostgreSQL and the configuration.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Start PostgreSQL and Airflow on this machine and leave them running; prints address and login."""
    from lifecycle_local import embedded
    from lifecycle_local.progress import Progress

    found = embedded.up(with_airflow=not no_airflow, archive_later=no_airflow, progress=Progress())
    answer = {
        "state": str(found.state),
        "postgres": found.postgres,
        "redis": found.redis,
        "cluster": dict(found.cluster),
        "components": dict(found.components),
        "address": found.address,
        "logins": str(found.logins),
    }

    running = {"PostgreSQL": found.postgres, "Redis": found.redis, **found.cluster, **found.components}
    shown = {"state": str(found.state), **{name: "runs" if runs else "stopped" for name, runs in running.items()}}
    emit(output, answer, [{**shown, "Airflow": found.address, "logins": str(found.logins) if found.address else ""}])


def down() -> None:
    """Stop everything that was started. The data stays, except for the data that the embedded cluster keeps in memory."""
    from lifecycle_local import stack
    from lifecycle_local.progress import Progress

    stack.down(progress=Progress())
