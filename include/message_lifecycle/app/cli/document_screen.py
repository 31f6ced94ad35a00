"""How documents look on a screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from message_lifecycle.app.cli.results import ROWS
from message_lifecycle.app.cli.screen import Screen, View
from message_lifecycle.app.cli.words import count


def added(screen: Screen, told: View) -> None:
    left_out = f", {count(told['erased'])} left out: their documents were erased and may not come in again" if told["erased"] else ""
    screen.line(f"{told['topic']}: {count(told['changes'])} changes added{left_out}")
    screen.table(("document", "now at"), [(name, count(seq)) for name, seq in told["newest"].items()], right=("now at",), most=ROWS)


def pulled(screen: Screen, found: View) -> None:
    """What a client gets, and the epoch it is to bring along."""
    screen.line(f"{found['document']}: at change {count(found['seq'])}, epoch {found['epoch']}", style="bold")
    snapshot = found["snapshot"]
    if snapshot is not None:
        screen.line(f"snapshot at {count(snapshot['server_seq'])}: {_json(snapshot['state'])}")
    if found["changes"]:
        screen.table(
            ("change", "client", "at", "payload"),
            [(str(c["server_seq"]), c["client"], screen.when(c["at"]), _json(c["payload"])) for c in found["changes"]],
            right=("change",),
        )
    elif snapshot is None:
        screen.line("nothing is new")


def synced(screen: Screen, told: View) -> None:
    if not told["server_seq"]:
        screen.line(f"{told['document']}: {told['client']} has nothing yet, so nothing is kept for it")
        return
    kept = f"changes from {count(told['server_seq'])} on are kept for it"
    screen.line(f"{told['document']}: {told['client']} has everything up to {count(told['server_seq'])} of epoch {told['epoch']}; {kept}")


def history(screen: Screen, document: str, entries: Iterable[View], following: Callable[[], int | None]) -> None:
    """Each as it comes, so no table, whose columns are as wide as their widest cell. `following`: asked at the end, where to go on."""
    none = True
    for entry in entries:
        if none:
            screen.line("change  the document after it", style="dim")
        none = False
        screen.line(f"{entry['server_seq']:>6}  {_json(entry['state'])}")
    if none:
        screen.line(f"{document}: no change is there from which on the history can be shown")
    goes_on_from = following()
    if goes_on_from is not None:
        screen.line(f"More: --from {goes_on_from}")


def documents(screen: Screen, found: View) -> None:
    """All documents of a topic."""
    screen.line(f"{found['topic']}: {count(len(found['documents']))} documents, folded as {found['fold']}", style="bold")
    screen.facts(
        [
            ("changes", count(found["changes"])),
            ("snapshots", count(found["snapshots"])),
            ("clients", count(found["clients"])),
            ("purged before", f"{count(found['purged'])} documents"),
        ]
    )
    if found["documents"]:
        screen.heading("Documents")
        screen.table(
            ("document", "owner", "changes", "newest snapshot", "epoch", "lowest synced", "clients"),
            [
                (
                    entry["document"],
                    entry["owner"] or "",
                    _stored(entry),
                    str(entry["snapshots"][-1]) if entry["snapshots"] else "none",
                    str(entry["epoch"]),
                    _lowest(entry),
                    count(len(entry["clients"])),
                )
                for entry in found["documents"]
            ],
            right=("changes", "newest snapshot", "epoch", "lowest synced", "clients"),
            wrap=("document",),
            most=ROWS,
        )
    if found["own_settings"]:
        screen.heading("Settings below the topic's")
        screen.table(
            ("of", "setting", "value"),
            [(f"{own['level']} {own['name']}", own["setting"], _value(own["value"])) for own in found["own_settings"]],
            most=ROWS,
        )


def document(screen: Screen, found: View) -> None:
    """One document."""
    screen.line(f"{found['topic']}: {found['document']}", style="bold")
    screen.facts(
        [
            ("owner", found["owner"] or "nobody"),
            ("at change", count(found["seq"])),
            ("stored", _stored(found)),
            ("snapshots", ", ".join(str(seq) for seq in found["snapshots"]) or "none yet"),
            ("epoch", str(found["epoch"])),
            ("lowest synced", f"{_lowest(found)}{'' if found['lowest_synced'] is not None else ': nothing is purged'}"),
        ]
    )
    if found["clients"]:
        screen.heading("Clients")
        screen.table(
            ("client", "has", "behind", "last request", "keeps changes", "falls silent"),
            [
                (
                    client["client"],
                    str(client["server_seq"]),
                    count(client["lag"]),
                    screen.when(client["at"]),
                    "yes" if client["keeps"] else "no, silent for too long",
                    screen.when(client["falls_silent_at"]) or "never",
                )
                for client in found["clients"]
            ],
            right=("has", "behind"),
            wrap=("client",),
        )
    screen.heading("Settings that act on it")
    screen.table(("setting", "value"), [(name, _value(value)) for name, value in found["settings"].items()])


def altered(screen: Screen, told: View) -> None:
    screen.line(f"{told['level']} {told['name']} of {told['topic']}", style="bold")
    screen.facts([("owner", told["owner"] or ""), *((name, _value(value)) for name, value in told["settings"].items())])
    if not told["settings"]:
        screen.line("no settings of its own")


def _stored(entry: View) -> str:
    return "none" if entry["first"] is None else f"{entry['first']}..{entry['seq']}"


def _lowest(entry: View) -> str:
    return "nobody" if entry["lowest_synced"] is None else str(entry["lowest_synced"])


def _value(value: object) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
