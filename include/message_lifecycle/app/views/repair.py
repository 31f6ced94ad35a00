"""What is left of the state of a topic's log, and what a repair changed, as the command shows it (MSG-4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.app.rendering import Document
from message_lifecycle.app.witness import Repair

if TYPE_CHECKING:
    from message_lifecycle.app.cli.screen import Screen


def repair_view(done: Repair) -> Document:
    return {
        "topic": str(done.topic),
        "ok": not any(one.problem and one.table not in done.repaired for one in done.found),
        "tables": [
            {
                "table": one.table,
                "kind": one.kind or "log",
                "offsets": "horizons" if one.kind else "end offsets",
                "problem": one.problem or None,
                "rolled_back": one.rolled_back,
                "head": one.head_id,
                "offsets_by_witness": {who: None if known is None else _by_partition(known) for who, known in one.witnesses.items()},
                "offsets_after_repair": _by_partition(one.offsets),
                "repaired": one.table in done.repaired,
            }
            for one in done.found
        ],
        "consumers_set_back": [
            {"consumer": consumer, "partition": partition, "from": offset} for consumer, partition, offset in done.set_back
        ],
        "files_to_take_again": list(done.files),
    }


def show_repair(screen: Screen, repair: Document) -> None:
    screen.line(repair["topic"], style="bold")
    if not repair["tables"]:
        screen.sentence("No other engine can change the log of this topic: there is nothing to repair.")
    for table in repair["tables"]:
        what = table["offsets"]
        screen.heading(f"{table['table']}: {what} of each witness")
        screen.table(
            ("witness", what),
            [
                *((who, "missing" if known is None else _text(known)) for who, known in table["offsets_by_witness"].items()),
                ("after a repair", _text(table["offsets_after_repair"])),
            ],
        )
        if table["repaired"]:
            screen.sentence("Repaired: the table and the ledger have this state now.")
        elif table["problem"]:
            screen.notes([table["problem"]], style="red")
        else:
            screen.sentence("The witnesses agree.")
    if repair["consumers_set_back"]:
        screen.heading("Consumers set back to what they have read and is still there")
        screen.table(
            ("consumer", "partition", "was at"),
            [(row["consumer"], str(row["partition"]), str(row["from"])) for row in repair["consumers_set_back"]],
            right=("partition", "was at"),
        )
    if repair["files_to_take_again"]:
        screen.heading("Files whose messages the rollback took away: `lifecycle ingest` takes them again")
        for path in repair["files_to_take_again"]:
            screen.line(path)


def _by_partition(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _text(offsets: Mapping[str, int]) -> str:
    return ", ".join(f"{partition}: {offset}" for partition, offset in offsets.items()) or "none"
