"""Ports on the loopback: picked once, kept in a file, picked anew only when someone else has taken one."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from message_lifecycle.local.errors import NoFreePort
from message_lifecycle.local.private_files import write_private

LOOPBACK = "127.0.0.1"
# Below the range that kernels give to outgoing connections: a port of ours is not lost to one of those while we are down.
FIRST, LAST = 20000, 32000
ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _candidates() -> Iterator[int]:
    # Random, so that two clones on one machine rarely want the same.
    chance = random.SystemRandom()
    return (chance.randint(FIRST, LAST) for _ in range(ATTEMPTS))


def _kept(file: Path) -> dict[str, int]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return {}
    return {name: port for name, port in found.items() if isinstance(port, int)} if isinstance(found, dict) else {}


def kept_port(file: Path, name: str) -> int | None:
    """The port this service was given last time, free or not."""
    return _kept(file).get(name)


def choose_port(file: Path, name: str) -> int:
    """A port for a service about to start: the one it had if that is free, else a new one, written down."""
    kept = _kept(file)
    had = kept.get(name)
    if had is not None and is_free(had):
        return had
    others = {port for service, port in kept.items() if service != name}
    for port in _candidates():
        if port not in others and is_free(port):
            write_private(file, json.dumps(kept | {name: port}, indent=2, sort_keys=True) + "\n")
            return port
    raise NoFreePort(FIRST, LAST)
