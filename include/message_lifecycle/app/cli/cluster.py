"""A lake and a cluster of your own: `lifecycle doctor`, which looks whether all works together, and `lifecycle cluster pack`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from message_lifecycle.app.cli.context import DIFFERENT
from message_lifecycle.app.cli.options import OutputOption, argument
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.rendering import Table
from message_lifecycle.model.phrases import size

app = typer.Typer(no_args_is_help=True, help="What a cluster's machines need to run tasks.")
_SAID = {True: "ok", False: "not ok", None: "-"}
_PARTS = Table(
    columns={"": lambda one: _SAID[one.ok], "part": "part", "seconds": lambda one: f"{one.seconds:.1f}", "found": "found"},
    right=("seconds",),
)


@app.callback()
def _group() -> None:
    """Keeps `cluster` a group while it has one command."""


@app.command()
def pack(
    file: Annotated[Path, argument("FILE", "The archive to write: its name ends in .tar.gz.")],
    output: OutputOption = Output.text,
) -> None:
    """Write the archive for spark.archives: the packages that tasks need, in the versions of this installation.

    The archive serves executors with the same minor version of Python, kind of machine and system library. The executors need no package
    of their own. The package `message_lifecycle` is not in the archive, because each run sends its own.
    """
    from message_lifecycle.stores.iceberg.executors import pack as write

    with show_progress("packing"):
        packages = write(file)
    settings = {
        "spark.archives": f"{file.absolute()}#env",
        "spark.pyspark.python": "./env/bin/python",
        "spark.pyspark.driver.python": sys.executable,  # else spark-submit takes the executors' for the driver's, too
    }
    answer = {"file": str(file), "bytes": file.stat().st_size, "packages": packages, "settings": settings}
    emit(output, answer, [f"{file}: {size(file.stat().st_size)}, {len(packages)} packages. In spark-defaults.conf:", settings])


def doctor(output: OutputOption = Output.text) -> int:
    """Look whether settings, ledger, catalog, tables, tasks and Airflow work together; exit status 1 when one does not.

    The command creates a topic of its own, removes a message from it, brings the message back, and deletes the topic. If tasks run on a
    cluster, each executor reports its versions and packages, and reads a file of that topic.
    """
    from message_lifecycle.app.doctor import examine
    from message_lifecycle.app.wiring import iceberg_world

    with show_progress("looking at every part"):
        found = list(examine(iceberg_world))
    emit(output, found, _PARTS)
    return DIFFERENT if any(one.ok is False for one in found) else 0
