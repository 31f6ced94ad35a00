"""Commands that show the state of topics, past work and the reasons: `lifecycle status`, `explain` and `backends` (RET-6)."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from message_lifecycle.app.cli.context import DIFFERENT, instant_of, services
from message_lifecycle.app.cli.options import AsOfOption, OutputOption, argument, parse_position
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.rendering import Table
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic import matrix

_PLAN_ID = re.compile("[0-9a-f]{1,32}")
_MATRIX = Table(
    columns={
        "backend": "backend", "limit": "limit",
        "read filter": lambda one: "refused" if one.refused else "yes" if one.logical else "no", "removed by": lambda one: one.physical or "refused",
    },
)  # fmt: skip


def status(
    ctx: typer.Context,
    topic: Annotated[str | None, argument("[TOPIC]", "The topic; by default every one.")] = None,
    output: OutputOption = Output.text,
) -> int:
    """Say whether every topic is cleaned as it should be; exit status 1 when one is not.

    A topic is not well if due work of its settings or requests is later than its max_overdue, unless a legal hold or an undone plan keeps
    all of it. A topic is not well either if a batch with more than half of its rows refused waits for a person, if its cleaner is disabled,
    or if its last run was blocked, starved or failed. An open question is a failure if it waits for longer than max_overdue, or if it was
    asked again because nobody answered.
    """
    from message_lifecycle.app.views.status import status as judge
    from message_lifecycle.app.views.status import status_blocks

    s = services(ctx)
    names = None
    if topic is not None:
        names = [TopicName.parse(topic)]
        s.topics.describe(names[0])
    with show_progress("looking at every topic"):
        found = judge(s, names)
    emit(output, found, status_blocks(found))
    return 0 if all(entry.ok for entry in found) else DIFFERENT


def metrics(ctx: typer.Context) -> None:
    """Print every topic's state, as in `status`, in Prometheus' text format, for a file that its node exporter collects."""
    from message_lifecycle.app.views.metrics import exposition
    from message_lifecycle.app.views.status import status as judge

    s = services(ctx)
    with show_progress("looking at every topic"):
        found = judge(s)
    typer.echo(exposition(found), nl=False)


def explain(
    ctx: typer.Context,
    subject: Annotated[str, argument("TOPIC|PLAN", "A topic, or the id of a plan.")],
    at_position: Annotated[str | None, argument("[PARTITION:OFFSET]", "With a topic: the message asked about, such as 0:1234.")] = None,
    as_of: AsOfOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Say why a message is still there or which plan removed it; or show a plan and its outcome."""
    from message_lifecycle.app.views.explanation import explain_message
    from message_lifecycle.app.views.plans import plan_page

    s = services(ctx)
    if at_position is None:
        if _PLAN_ID.fullmatch(subject) is None:
            raise typer.BadParameter("name the message, too: lifecycle explain TOPIC PARTITION:OFFSET")
        emit(output, plan_page(s, subject))
        return
    partition, offset = parse_position(at_position)
    name, at = TopicName.parse(subject), instant_of(s, as_of)
    with s.topics.look():
        found = explain_message(s, name, partition, offset, as_of=at)
    emit(output, found)


def backends(output: OutputOption = Output.text) -> None:
    """List every backend and limit: whether a read hides what the limit takes, and how a run removes it.

    A policy with a limit that its backend refuses is refused when it is loaded.
    """
    found = list(matrix())
    emit(output, [{**asdict(support), "refused": support.refused} for support in found], [_MATRIX.of(found)])
