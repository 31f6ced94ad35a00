"""`lifecycle scenario`: a policy on small data that a file states, by the same code as production."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from message_lifecycle.app.cli.context import DIFFERENT, wiring_of
from message_lifecycle.app.cli.options import OutputOption, argument
from message_lifecycle.app.cli.screen import Output, Screen, emit_line
from message_lifecycle.app.rendering import Line, Notes

scenario = typer.Typer(
    no_args_is_help=True,
    help="Try a policy on data that a file states, before it touches yours.\n\n"
    "A file is one JSON object (or, as .jsonl, one a line) with the fields id, server, stream, topic, config, store, topics and steps. "
    "Each step has one verb: append, seal, commit, copy, configure, delete, foreign_delete, hold, release, corrupt, run, read or expect, "
    "of documents change, sync or detach; "
    "expect says what the step before must have left.",
)


class Store(StrEnum):
    """The store for a scenario's messages."""

    memory = "memory"
    iceberg = "iceberg"
    json_file = "json_file"
    rotating_file = "rotating_file"
    redis_streams = "redis_streams"


@scenario.callback()
def _group() -> None:
    """Keeps `scenario` a group while it has one command."""


@scenario.command()
def run(
    ctx: typer.Context,
    files: Annotated[list[Path], argument("FILE...", "Scenario files: .json holds one, .jsonl one a line.")],
    store: Annotated[
        Store,
        typer.Option(
            "--store",
            help="Where the scenario's messages lie: in memory, in Iceberg tables of a lake that is made for this run, in scratch files of "
            "JSON lines, or in scratch streams of the embedded Redis.",
        ),
    ] = Store.memory,
    output: OutputOption = Output.text,
) -> int:
    """Run scenario files; every `expect` in them must hold.

    With --output json, one object per step. Exit status 0: every expectation held; 1: one did not (step, field, expected and found are printed); 2: a file is wrong.
    """
    from message_lifecycle.app.scenario.file import load
    from message_lifecycle.app.scenario.run import ScenarioRun

    # Read every file first, so that a wrong file is found before anything runs.
    loaded = [(file, tried) for file in files for tried in load(file)]
    make_world = wiring_of(ctx).worlds[store.value]
    screen = Screen()
    failed = 0
    for file, tried in loaded:
        differences = []
        for result in ScenarioRun(tried, make_world, file=str(file)).results():
            if output is Output.json:
                emit_line(asdict(result))
            if not result.ok:
                differences += [f"step {result.step} ({result.verb}): {difference}" for difference in result.differences]
        failed += bool(differences)
        if output is Output.text:
            ended = "failed" if differences else "ok    "
            screen.draw([Line(f"{ended}  {tried.id}  ({file.name})", style="red" if differences else None), Notes(differences)])
    if output is Output.text:
        screen.draw([f"{len(loaded) - failed} of {len(loaded)} scenarios passed"])
    return DIFFERENT if failed else 0
