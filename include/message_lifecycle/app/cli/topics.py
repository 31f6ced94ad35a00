"""`lifecycle topic`: create topics, change their settings, show them, and delete them whole (DEL-7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from message_lifecycle.app.cli import requests
from message_lifecycle.app.cli.context import find_topic, report_result, services
from message_lifecycle.app.cli.options import (
    ByOption,
    OutputOption,
    TextOption,
    TopicArgument,
    argument,
    complete_setting,
    complete_setting_name,
    consent_of,
    flag,
    option,
    parse_setting_changes,
    parse_settings,
)
from message_lifecycle.app.cli.repair import repair
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.wording import NO_TOPICS
from message_lifecycle.model.errors import BadInput, InvalidSetting
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.setting_list import Value

app = typer.Typer(no_args_is_help=True, help="Make topics, set when their messages go, look at them.")

SetOption = Annotated[
    list[str],
    option(
        "--set",
        "NAME=VALUE",
        "A setting, such as message_expiry=20d (or seconds: 1728000); may be repeated.",
        autocompletion=complete_setting,
    ),
]


@app.command()
def create(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        argument(
            "TOPIC", "The topic: `stream/topic`, or `topic` alone in the stream `default`. Leave it out with --from-iggy, which names it."
        ),
    ] = None,
    settings: SetOption = [],  # noqa: B006 - typer reads it and makes a new list
    partitions: Annotated[
        int | None,
        option("--partitions", None, "How many partitions the log has; by default one, or as many as its origin.", min=1, max=100_000),
    ] = None,
    from_iggy: Annotated[
        str | None,
        option(
            "--from-iggy",
            "HEX",
            "Make the topic that this recorded CreateTopic command of Iggy 0.0.50 describes: its stream (a numeric one is named by its "
            "decimal number), name, partitions and message_expiry (0: never, whatever the server's default).",
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Create a topic; its messages stay for ever unless a setting, for example message_expiry, removes them."""
    from message_lifecycle.app.topics import create_topic
    from message_lifecycle.app.views.topics import altered_view
    from message_lifecycle.model.settings import resolve

    checked = parse_settings(settings, "--set")
    if from_iggy is not None:
        recorded = _read_recorded_topic(from_iggy, topic=topic, partitions=partitions, settings=checked)
        name, partitions, checked = recorded.name, recorded.partitions, {**checked, **recorded.settings}
    elif topic is not None:
        name = TopicName.parse(topic)
    else:
        raise typer.BadParameter("give the topic's name, or --from-iggy HEX", param_hint="TOPIC")
    s = services(ctx)
    made = create_topic(s, name, partitions=partitions, settings=checked)
    emit(output, altered_view(s, made.name, resolve(topic={}, server=s.server)))


@app.command()
def alter(
    ctx: typer.Context,
    topic: TopicArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    unset: Annotated[
        list[str],
        option(
            "--unset",
            "NAME",
            "Take the topic's own value away, so that the server's counts; may be repeated.",
            autocompletion=complete_setting_name,
        ),
    ] = [],  # noqa: B006 - typer copies it
    accept: Annotated[
        str | None,
        option(
            "--accept",
            "TEXT",
            "Your word, with the reason, that messages may go by the new settings; without it the first run that removes more waits for an approval.",
        ),
    ] = None,
    by: Annotated[str | None, option("--by", "NAME", "Who gives that word.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Change a topic's settings, and show what a run would remove now; the first removal by tighter settings needs an approval."""
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.topics import alter_topic
    from message_lifecycle.app.views.topics import altered_view

    changes = parse_setting_changes(settings, unset, "--set")
    if not changes and accept is None:
        raise typer.BadParameter("no change given. Give --set NAME=VALUE or --unset NAME")
    if (accept is None) != (by is None) or accept == "" or by == "":
        raise typer.BadParameter("--accept WHY and --by NAME belong together")
    s, name = find_topic(ctx, topic)
    before = policy_of(s, name)
    alter_topic(s, name, changes, accept=(by, accept) if by is not None and accept is not None else None)
    accepted = s.ledger.accepted(name)
    asks = () if accepted is None else policy_of(s, name).tightened_since(accepted)
    emit(output, altered_view(s, name, before, asks))


@app.command()
def describe(
    ctx: typer.Context,
    topic: TopicArgument,
    every: Annotated[bool, flag("--all", "Show settings with their built-in values, too. JSON always has every setting.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show a topic: its obligations and how late they are, its effective settings and their origin, partitions, end offsets, role."""
    from message_lifecycle.app.views.topics import described_topic

    s = services(ctx)
    emit(output, described_topic(s, TopicName.parse(topic), every=every))


@app.command()
def copy(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Copy new messages from the origin of a source or mirror; the origin keeps messages until they are copied."""
    from message_lifecycle.app.topics import copy_topic
    from message_lifecycle.operations.admission import span_doubled

    s, name = find_topic(ctx, topic)
    with show_progress(f"{name}: copying"):
        done = copy_topic(s, name)
    doubled = "" if done.span_seconds is None else f"; {span_doubled(done.span_seconds)}"
    emit(output, done, f"{name}: copied {amount(done.messages, 'new messages')} from {done.origin}{doubled}")


@app.command("view")
def view_(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Make or renew the view that hides dead messages from every reader at once, and print its name.

    Creating a topic, altering it, and every run update the view, too. Use this command between a change of the server's settings and the
    next run.
    """
    from message_lifecycle.app.topics import update_live_view

    s, name = find_topic(ctx, topic)
    found = update_live_view(s, name)
    emit(output, {"topic": str(name), "view": found}, found or "topics of this store have no view")


@app.command("list")
def list_(
    ctx: typer.Context,
    stream: Annotated[str | None, option("--stream", None, "Only topics of this stream.")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that were deleted, and until when that can be undone.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """List the topics, also unreadable topics, and missing topics that nobody has deleted: `lifecycle status` says which."""
    s = services(ctx)
    wanted = None if stream is None else normalise_name(stream)
    if deleted:
        from message_lifecycle.app.requests import deleted_topics
        from message_lifecycle.app.views.topics import deleted_blocks, deleted_view

        found = [deleted_view(s, topic) for topic in deleted_topics(s) if wanted in (None, topic.topic.stream)]
        emit(output, found, deleted_blocks(found))
        return
    from message_lifecycle.app.known import all_topics

    shown = [str(name) for name in all_topics(s) if wanted in (None, name.stream)]
    emit(output, shown, shown or NO_TOPICS)


@app.command()
def delete(ctx: typer.Context, topic: TopicArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Delete a topic with all its tables: planned, gated and recorded like every deletion, with your --by and --why as its approval.

    `lifecycle undo PLAN_ID --by NAME --why WHY` brings the topic back while its undo_window lasts. A legal hold on any part of
    the topic refuses the deletion.
    """
    from message_lifecycle.app.requests import delete_topic

    word = consent_of(by, text)
    s, name = find_topic(ctx, topic)
    with show_progress(f"{name}: plan, stage, gate, publish, verify"):
        outcome = delete_topic(s, name, by=word[1], text=word[2])
    if outcome.plan_id is None:
        return report_result(s, output, outcome)
    return report_result(s, output, outcome, s.ledger.record(outcome.plan_id).plan.things)


@app.command()
def forget(ctx: typer.Context, topic: TopicArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Say that a topic is meant to be gone, after another program has dropped its tables; until then it is missing, and status fails.

    A legal hold on any part of the topic refuses this.
    """
    from message_lifecycle.app.known import forget_topic

    word = consent_of(by, text)
    s = services(ctx)
    return report_result(s, output, forget_topic(s, TopicName.parse(topic), by=word[1], text=word[2]))


# `truncate` is a request like `message` and `key`, but people look for it among the topic commands.
app.command()(requests.truncate)
app.command()(repair)


def _read_recorded_topic(text: str, *, topic: str | None, partitions: int | None, settings: Mapping[str, Value]) -> RecordedTopic:
    """Return the topic of the recorded command. Refuse every option that the recorded command already sets."""
    given = {"TOPIC": topic is not None, "--partitions": partitions is not None, "--set message_expiry": "message_expiry" in settings}
    repeated = [name for name, is_given in given.items() if is_given]
    if repeated:
        raise typer.BadParameter(
            f"the command that is recorded says {' and '.join(repeated)} already: leave it out", param_hint="--from-iggy"
        )
    return RecordedTopic.from_iggy(text)


# Topics as another system's recorded commands describe them.


_SHOWN = 40
_SPACE = re.compile(r"\s", re.ASCII)
_NO_DIGIT = re.compile(r"[^0-9a-fA-F\s]", re.ASCII)


def invalid_hex(text: str, reason: str) -> BadInput:
    """Text that is not bytes in hexadecimal."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return BadInput(
        f"{shown!r} is not hexadecimal: {reason}. Allowed: two digits (0-9, a-f) for each byte; white space does not count.",
        code="InvalidHex",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTopic:
    """The values to create the topic: every value of the recorded command except its numeric topic id, because topics here have names."""

    name: TopicName
    partitions: int
    settings: dict[str, Value]

    @classmethod
    def from_iggy(cls, text: str) -> RecordedTopic:
        """Read a CreateTopic command in hexadecimal (EXP-1). If the command names the stream by number, that number becomes its name.

        The expiry is always the topic's own setting: a command without expiry means "never", not "as the server does".

        Raises:
            InvalidHex, WireError: The text is not a CreateTopic command.
            InvalidSetting: The topic has no partitions.
        """
        from message_lifecycle.wire.iggy import decode_create_topic

        command = decode_create_topic(_from_hex(text))
        name = TopicName(stream=normalise_name(str(command.stream_id)), topic=command.name)
        if command.partitions_count == 0:
            raise InvalidSetting(
                where=f"CreateTopic of {name}",
                key="partitions_count",
                value=0,
                allowed="1 to 100000: a topic of Iggy may have no partition yet, one here has all of its partitions from the beginning",
            )
        return cls(name=name, partitions=command.partitions_count, settings={"message_expiry": command.message_expiry or 0})


def _from_hex(text: str) -> bytes:
    wrong = _NO_DIGIT.search(text)
    if wrong is not None:
        raise invalid_hex(text, f"{wrong[0]!r} at position {wrong.start()} is no digit")
    digits = _SPACE.sub("", text)
    if len(digits) % 2:
        raise invalid_hex(text, f"{len(digits)} digits are half a byte too many or too few")
    return bytes.fromhex(digits)
