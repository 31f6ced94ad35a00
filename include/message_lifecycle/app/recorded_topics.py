"""Topics as another system's recorded commands describe them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from message_lifecycle.model.errors import BadInput, InvalidSetting
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.settings import Value
from message_lifecycle.wire.iggy import decode_create_topic

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
    """What is needed to make the topic: everything that the command says, its numeric topic id apart, for topics here have names."""

    name: TopicName
    partitions: int
    settings: dict[str, Value]

    @classmethod
    def from_iggy(cls, text: str) -> RecordedTopic:
        """Read a CreateTopic command in hexadecimal (EXP-1). A stream that is given by its number has that number as its name.

        The expiry is the topic's own in any case: a command without one says "never", not "as the server does".
        Raises InvalidHex, WireError, and InvalidSetting for a topic without partitions.
        """
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
