"""The embedded default: start it, stop it, see it work."""

from __future__ import annotations

from typing import Annotated

import typer

from message_lifecycle.app.cli.context import OutputOption
from message_lifecycle.app.cli.screen import Output, Screen, emit


def demo() -> int:
    """Load real topics, let Airflow remove what is old, show what went and why, stop everything again."""
    from message_lifecycle.app import demo as job

    return job.main()


def up(
    no_airflow: Annotated[bool, typer.Option("--no-airflow", metavar="", help="Only PostgreSQL and the configuration.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Start PostgreSQL and Airflow on this machine and leave them running; prints address and login."""
    from message_lifecycle.app import embedded
    from message_lifecycle.local.progress import Progress

    found = embedded.up(with_airflow=not no_airflow, progress=Progress())
    told = {
        "state": str(found.state),
        "postgres": found.postgres,
        "redis": found.redis,
        "components": dict(found.components),
        "address": found.address,
        "logins": str(found.logins),
    }

    def render(screen: Screen) -> None:
        screen.facts(
            [
                ("state", str(found.state)),
                ("PostgreSQL", "runs" if found.postgres else "stopped"),
                ("Redis", "runs" if found.redis else "stopped"),
                *((name, "runs" if runs else "stopped") for name, runs in found.components.items()),
                ("Airflow", found.address or ""),
                ("logins", str(found.logins) if found.address else ""),
            ]
        )

    emit(output, told, render)


def down() -> None:
    """Stop everything that was started; the data stays."""
    from message_lifecycle.local import stack
    from message_lifecycle.local.progress import Progress

    stack.down(progress=Progress())
