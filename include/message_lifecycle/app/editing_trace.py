"""A real document: how one program text was typed, transaction by transaction (Joseph Gentle, `editing-traces`, CC BY 4.0).

Each transaction is a change of the fold `text_splice`; all of them, in order, give `text`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib.resources import files

from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import parse_instant

_FILE = "sveltecomponent.json.gz"
TRANSACTIONS = 18_335


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`changes`: server_seq 1 and on, by one client. `text`: what they end in, as whoever recorded them says."""

    changes: tuple[Change, ...]
    text: str


def editing_trace(*, document: str, client: str) -> Trace:
    """The whole history, as changes of that document."""
    packed = (files("message_lifecycle") / "data" / _FILE).read_bytes()
    found = json.loads(gzip.decompress(packed))
    return Trace(
        changes=tuple(
            Change(
                document=document,
                server_seq=number,
                client=client,
                at=parse_instant(transaction["time"]),
                payload=json.dumps(transaction["patches"], separators=(",", ":")).encode(),
            )
            for number, transaction in enumerate(found["txns"], start=1)
        ),
        text=found["endContent"],
    )
