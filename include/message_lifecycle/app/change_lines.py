"""Changes of documents as JSON lines, as `lifecycle document add` reads them.

A line is one JSON object: `document`, `server_seq`, `client`, `payload`, and optionally `at`. The payload is JSON for the topic's fold. For
the fold `yjs` it is `{"base64": "..."}`, the bytes of an update.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import NoReturn

from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import BadInput, InvalidInstant, InvalidName, invalid_change_line
from message_lifecycle.model.instants import INT64_MAX, Instant, parse_instant
from message_lifecycle.model.names import normalise_name

_NEEDED = ("document", "server_seq", "client", "payload")
_KNOWN = (*_NEEDED, "at")
# Enough of a wrong value to know it by.
_SHOWN = 80


def read_changes(lines: Iterable[bytes], *, where: str, fold: str) -> Iterator[Change]:
    """Yield the changes in the order of the lines, without empty lines. `where` is the file's name for errors. Raises InvalidChangeLine."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _Line(f"{where}:{number}", line).parse_change(fold)


class _Line:
    """One line and its place, which errors name so that a person can correct the line."""

    def __init__(self, place: str, line: bytes) -> None:
        self._place = place
        try:
            found = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise self._invalid_field("line", line.decode(errors="backslashreplace").strip(), f"a JSON object ({error})") from error
        if not isinstance(found, dict):
            raise self._invalid_field("line", found, f"a JSON object with {', '.join(_KNOWN)}")
        self._fields: dict[str, object] = found

    def parse_change(self, fold: str) -> Change:
        for name in self._fields:
            if name not in _KNOWN:
                raise self._invalid_field(name, self._fields[name], f"only {', '.join(_KNOWN)}")
        for name in _NEEDED:
            if name not in self._fields:
                raise self._invalid_field(name, None, "it must be there")
        return Change(
            document=self._name("document"),
            server_seq=self._server_seq(),
            client=self._name("client"),
            at=self._read_time(),
            payload=self._update() if fold == "yjs" else self._json(),
        )

    def _name(self, field: str) -> str:
        given = self._fields[field]
        if not isinstance(given, str):
            raise self._invalid_field(field, given, "text")
        try:
            return normalise_name(given)
        except InvalidName as error:
            raise self._invalid_field(field, given, str(error)) from error

    def _server_seq(self) -> int:
        given = self._fields["server_seq"]
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= INT64_MAX:
            raise self._invalid_field("server_seq", given, f"a whole number from 1 to {INT64_MAX}")
        return given

    def _read_time(self) -> Instant | None:
        given = self._fields.get("at")
        if given is None:
            return None
        try:
            return parse_instant(given)
        except InvalidInstant as error:
            raise self._invalid_field("at", given, str(error)) from error

    def _json(self) -> bytes:
        try:
            return json.dumps(self._fields["payload"], separators=(",", ":"), allow_nan=False).encode()
        except ValueError:
            raise self._invalid_field("payload", self._fields["payload"], "JSON with numbers that a float can hold") from None

    def _update(self) -> bytes:
        given = self._fields["payload"]
        if isinstance(given, dict) and set(given) == {"base64"} and isinstance(given["base64"], str):
            try:
                return base64.b64decode(given["base64"], validate=True)
            except binascii.Error as error:
                raise self._invalid_field("payload", given, f"base64 ({error})") from error
        raise self._invalid_field("payload", given, '{"base64": "..."}: the fold is yjs')

    def _invalid_field(self, field: str, found: object, allowed: str) -> BadInput:
        text = found if field == "line" and isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return invalid_change_line(self._place, field, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...", allowed)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
