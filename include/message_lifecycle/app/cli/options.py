"""The arguments and options of several commands, and how a command reads them."""

from __future__ import annotations

import base64
import binascii
import getpass
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from message_lifecycle.app.cli.screen import Output
from message_lifecycle.model.errors import BadInput, unusable_key
from message_lifecycle.model.instants import Instant, parse_instant
from message_lifecycle.model.people import person_of
from message_lifecycle.model.setting_list import SETTINGS, Value
from message_lifecycle.model.settings import parse_topic_settings, topic_changes

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Approver


MOST_BYTES = 1 << 20
"""Of standard input, where a key is read from it."""
IN_VALUES = typer.Option(
    "--in-values", help="Look for the keys in the values and headers of other messages, too, and name the places. Nothing there is changed."
)
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_POSITION = re.compile(r"([0-9]{1,10}):(-1|[0-9]{1,19})")


def argument(metavar: str, text: str, **more: Any) -> object:
    """Return a Typer argument. `text` is its help, and names the default in words."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


def option(name: str, metavar: str | None, text: str, **more: Any) -> object:
    """Typer's option; `text`, its help, says what is meant where none is given."""
    return typer.Option(name, metavar=metavar, help=text, show_default=False, **more)


def flag(name: str, text: str) -> object:
    """An option without a value."""
    return typer.Option(name, metavar="", help=text)


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return `name=` of every topic setting, to complete a line in the shell."""
    return [(f"{name}=", text) for name, text in complete_setting_name(incomplete)]


def complete_setting_name(incomplete: str) -> list[tuple[str, str]]:
    return [(s.name, s.help) for s in SETTINGS if s.on_topic and s.name.startswith(incomplete)]


TopicArgument = Annotated[str, argument("TOPIC", "The topic: `stream/topic`, or `topic` alone in the stream `default`.")]
PlanArgument = Annotated[str, argument("PLAN", "The plan's id, or a unique beginning of it.")]
AsOfOption = Annotated[
    str | None,
    option(
        "--as-of", "TIME", "Judge ages by this time, as 2026-11-21T00:00:00Z; by default the ledger's clock now. A time to come is refused."
    ),
]
AtOption = Annotated[str | None, option("--at", "TIME", "When that was; by default the ledger's clock now.")]
ByOption = Annotated[str, option("--by", "NAME", "Your name, kept in the ledger.")]
TextOption = Annotated[str, option("--why", "WHY", "Why; kept in the ledger with your name.")]
YesOption = Annotated[
    str | None,
    option("--why", "WHY", "Approve in advance, with the reason, what the gate leaves to a person; without it such a plan waits."),
]
ApproverOption = Annotated[str | None, option("--by", "NAME", "Who approves; needed with --why.")]
DryRunOption = Annotated[bool, flag("--dry-run", "Only show the plan; record nothing.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, the newest first.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Print text for people or JSON for programs.")]


def invalid_position(text: str) -> BadInput:
    """Not `PARTITION:OFFSET`."""
    return BadInput(
        f"{text!r} is not a position in a log. Allowed: PARTITION:OFFSET, two whole numbers such as 0:1234.", code="InvalidPosition"
    )


def parse_position(text: str, *, before_first: bool = False) -> tuple[int, int]:
    """Read `PARTITION:OFFSET`. The offset -1 needs `before_first`. Raises InvalidPosition."""
    found = _POSITION.fullmatch(text)
    if found is None or (found[2] == "-1" and not before_first):
        raise invalid_position(text)
    return int(found[1]), int(found[2])


def instant(text: str) -> Instant:
    """Read ISO 8601, or integer microseconds. Raises InvalidInstant."""
    return parse_instant(int(text) if _INTEGER.fullmatch(text) else text)


def parse_settings(texts: list[str], where: str) -> dict[str, Value]:
    """Read `NAME=VALUE` of a topic's settings, each name at most once. Raises InvalidSetting and similar errors."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as message_expiry=3600", param_hint=where)
        if name.strip() in found:
            raise typer.BadParameter(f"{name.strip()!r} is given twice", param_hint=where)
        found[name.strip()] = value.strip()
    return parse_topic_settings(found, where=where)


def parse_setting_changes(settings: list[str], unset: list[str], where: str) -> dict[str, Value | None]:
    """Return the changed settings: the new value of each given setting, None for each setting of --unset."""
    given = parse_settings(settings, where)
    both = sorted(set(given) & set(unset))
    if both:
        raise typer.BadParameter(f"{both[0]!r} is both set and unset", param_hint="--unset")
    return {**given, **topic_changes(dict.fromkeys(unset), where="--unset")}


def consent_of(by: str, text: str, of: str = "a request") -> tuple[bool, str, str]:
    """Return a person's consent with name and reason, in the form of a plan's approval. `of` names the approved thing in errors."""
    if not by.strip() or not text.strip():
        raise typer.BadParameter(f"{of} has a name and a reason: --by NAME --why WHY")
    return True, person_of(by), text.strip()


def approver_of(yes: str | None, by: str | None) -> Approver | None:
    """Return an approver with the consent that a person has given in advance. None: a plan that needs approval waits."""
    if (yes is None) != (by is None) or (yes is not None and by is not None and not (yes.strip() and by.strip())):
        raise typer.BadParameter("--why WHY and --by NAME belong together: an approval has a name and a reason")
    if yes is None or by is None:
        return None
    word = (True, person_of(by), yes.strip())
    return lambda _plan, _report: word


def key_of(text: str, *, is_base64: bool, where: str) -> bytes:
    """Return the bytes of a key from the command line."""
    try:
        return base64.b64decode(text, validate=True) if is_base64 else text.encode()
    except binascii.Error as error:
        raise typer.BadParameter(f"not base64: {error}", param_hint=where) from None


def read_key(*, is_base64: bool, empty_is_a_key: bool) -> bytes:
    """Read one key, as `read_keys`. Raises UnusableKey also for more than one line."""
    keys = read_keys(is_base64=is_base64, empty_is_a_key=empty_is_a_key)
    if len(keys) > 1:
        raise unusable_key("standard input holds more than one line; a key with a newline in it is given with --base64")
    return keys[0]


def read_keys(*, is_base64: bool, empty_is_a_key: bool) -> tuple[bytes, ...]:
    """Read keys from standard input, one a line, or ask for one without echo on a terminal.

    A key is never an argument, because the shell's history, the process list and command records show arguments.

    Returns:
        The bytes of each line without its newline, decoded if `is_base64`. One key or more, as often as given.

    Raises:
        UnusableKey: A line is no key. The error names the line's number and does not show the line.
    """
    if sys.stdin.isatty():
        lines = [getpass.getpass("Key (not shown): ").encode("utf-8", "surrogateescape")]
    else:
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise unusable_key(f"standard input holds more than {MOST_BYTES:,} bytes")
        lines = content.removesuffix(b"\n").split(b"\n")
    return tuple(
        _key_of_line(line, "it" if len(lines) == 1 else f"line {number}", is_base64=is_base64, empty_is_a_key=empty_is_a_key)
        for number, line in enumerate(lines, 1)
    )


def _key_of_line(line: bytes, name: str, *, is_base64: bool, empty_is_a_key: bool) -> bytes:
    if line.endswith(b"\r"):
        # Some systems end a line with "\r\n". A search for the key with "\r" would find nothing, and that would look like success.
        raise unusable_key(f"{name} ends with a carriage return; end it without one, or give a key that has one with --base64")
    try:
        key = base64.b64decode(line, validate=True) if is_base64 else line
    except binascii.Error:
        raise unusable_key(f"{name} is not base64") from None
    if not key and not empty_is_a_key:
        raise unusable_key(f"{name} is empty; if the empty key is meant, say so by --empty-key")
    return key
