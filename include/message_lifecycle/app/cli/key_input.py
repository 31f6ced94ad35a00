"""A key given to this process alone: on standard input, or asked for without echo on a terminal. Never as an argument.

Arguments stand in the shell's history, in the list of processes, and in whatever records commands.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import sys

from message_lifecycle.model.errors import UnusableKey

MOST_BYTES = 1 << 20


def read_key(*, is_base64: bool, empty_is_a_key: bool) -> bytes:
    """The bytes of one line without its newline, or what they decode to. Raises UnusableKey, which tells nothing of it."""
    line = _line()
    try:
        key = base64.b64decode(line, validate=True) if is_base64 else line
    except binascii.Error:
        raise UnusableKey("it is not base64") from None
    if not key and not empty_is_a_key:
        raise UnusableKey("it is empty; if the empty key is meant, say so by --empty-key")
    return key


def _line() -> bytes:
    if sys.stdin.isatty():
        return getpass.getpass("Key (not shown): ").encode("utf-8", "surrogateescape")
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UnusableKey(f"standard input holds more than {MOST_BYTES:,} bytes")
    line = content.removesuffix(b"\n")
    if b"\n" in line:
        raise UnusableKey("standard input holds more than one line; a key with a newline in it is given with --base64")
    if line.endswith(b"\r"):
        # Half of a line's end as some systems write it: looked for with it, the key would be found nowhere, and that look like success.
        raise UnusableKey("its line ends with a carriage return; end it without one, or give a key that has one with --base64")
    return line
