"""How a plan looks on a screen."""

from __future__ import annotations

from message_lifecycle.app.cli.results import ROWS, SHORT, failed_checks, headline, held, how_to_answer
from message_lifecycle.app.cli.screen import Screen, View
from message_lifecycle.app.cli.words import count, reasons, share, size


def plan(screen: Screen, view: View) -> None:
    """A plan, from what goes to what is to be done next."""
    removes = view["removes"]
    screen.line(f"Plan {view['plan_id']}", style="bold")
    screen.facts(
        [
            ("topic", view["topic"]),
            ("operation", view["operation"]),
            ("judged as of", view["as_of"]),
            ("removes", _removes(removes) if view["documents"] is None else _purges(removes)),
            ("by reason", reasons(removes["by_reason"])),
            ("documents", _of_documents(view["documents"])),
            (
                "data files",
                f"{count(removes['files']['count'])}, digest {removes['files']['digest'][:16]}" if removes["files"]["count"] else "",
            ),
            ("next removal", "at " + view["next_due_at"] if view["next_due_at"] and not removes["messages"] else ""),
            ("more", "yes: the next pass goes on" if view["more"] else ""),
        ]
    )
    if view["documents"] is None:
        _going(screen, view["actions"])
    else:
        _documents(screen, view)
    _bounds(screen, view["bounds"])
    held(screen, view["held"])
    screen.titled("Warnings", view["warnings"])
    screen.titled("A person's word is needed", view["asks"])
    if "names" in removes["files"]:
        screen.titled("Data files", removes["files"]["names"])
    _fate(screen, view)


def _going(screen: Screen, actions: list[View]) -> None:
    # A sweep names snapshots, and takes nothing.
    actions = [action for action in actions if "partition" in action]
    if not actions:
        return
    names = {
        "drop_segments": "drop",
        "drop_segment_keeping_late": "drop, keeping late ones",
        "seal_segment": "seal",
        "remove_rows": "remove messages",
        "remove_view_rows": "remove from the view",
        "compact_partition": "compact",
    }
    screen.heading("Goes" if any(a["action"] != "compact_partition" for a in actions) else "Is compacted")
    screen.table(
        ("action", "partition", "offsets", "segments", "messages", "size", "newest message"),
        [
            (
                names[a["action"]],
                str(a["partition"]),
                f"{a['from']}..{a['to']}" if "from" in a else "",
                count(a["segments"]) if a.get("segments") else "",
                count(a["messages"]) if "messages" in a else "",
                size(a["bytes"]) if a.get("bytes") is not None else "",
                screen.when(a.get("newest_at")),
            )
            for a in actions
        ],
        right=("partition", "segments", "messages", "size"),
        most=ROWS,
    )


def _documents(screen: Screen, view: View) -> None:
    """What happens to each document, and by which bounds; those that are left as they are come first."""
    screen.titled("Blocked", [f"{entry['document']}: {entry['reason']}" for entry in view["documents"]["blocked"] or ()])
    if not view["actions"]:
        return
    screen.heading("Documents")
    screen.table(
        ("document", "at", "snapshot", "drops snapshots", "changes go", "reason", "epoch", "lowest that stays, by bound"),
        [
            (
                a["document"],
                str(a["seq"]),
                "" if a["snapshot"] is None else str(a["snapshot"]),
                ", ".join(str(seq) for seq in a["dropped_snapshots"]),
                f"{a['from']}..{a['to']}" if a["changes"] else "",
                a["reason"] or "",
                str(a["epoch"]),
                ", ".join(f"{bound['bound']} {bound['stops_at']}" for bound in a["bounds"]),
            )
            for a in view["actions"]
        ],
        right=("at", "snapshot", "epoch"),
        wrap=("document", "lowest that stays, by bound"),
        most=ROWS,
    )


def _of_documents(found: View | None) -> str:
    if found is None:
        return ""
    blocked = f", {count(len(found['blocked']))} blocked" if found["blocked"] else ""
    made = f"{count(found['snapshots_made'])} snapshots made, {count(found['snapshots_dropped'])} dropped"
    return f"{count(found['documents'])}, {made}, {count(found['purged_documents'])} purged{blocked}"


def _bounds(screen: Screen, bounds: list[View]) -> None:
    if not bounds:
        return
    screen.heading("Bounds: nothing at or above goes")
    screen.table(
        ("partition", "offset", "bound", "because"),
        [(str(b["partition"]), offset(b["stops_at"]), b["bound"], b["reason"]) for b in bounds],
        right=("partition", "offset"),
        most=ROWS,
    )


def offset(bound: int | None) -> str:
    """Where a bound lies."""
    return "none" if bound is None else str(bound)


def _removes(removes: View) -> str:
    if removes["messages"] is None:
        return f"what is found superseded or dead of {count(removes['of_messages'])} messages, when it is staged"
    if not removes["messages"]:
        return f"nothing of {count(removes['of_messages'])} messages"
    return (
        f"{count(removes['messages'])} of {count(removes['of_messages'])} messages ({share(removes['share'])}), "
        f"{size(removes['bytes'])} of {size(removes['of_bytes'])} ({share(removes['byte_share'])}), {count(removes['segments'])} segments"
    )


def _purges(removes: View) -> str:
    return f"{count(removes['messages'])} of {count(removes['of_messages'])} changes ({share(removes['share'])})"


def _fate(screen: Screen, view: View) -> None:
    """How far a recorded plan has come, and what is next."""
    screen.line()
    if "state" not in view:
        screen.line("Nothing was recorded: this was a dry run.")
        return
    if view["gate"] is not None:
        judged_at = f"gate report {view['gate']['gate_id']}: {view['gate']['judgement']}"
        screen.line(judged_at)
        failed_checks(screen, view["gate"])
    if view["approval"] is not None:
        word = view["approval"]
        screen.line(f"{'approved' if word['granted'] else 'refused'} by {word['by']} at {word['at']}: {word['text']}")
    if view["outcome"] is not None:
        headline(screen, view["outcome"])
    elif view["waits_until"] is not None:
        how_to_answer(screen, view)
        screen.line(f"The question lapses at {view['waits_until']}.")
    else:
        following = {"planned": "stage", "staged": "gate", "gated": "publish", "publishing": "verify"}.get(view["state"], "verify")
        screen.line(f"State: {view['state']}. Next: lifecycle {following} {view['plan_id'][:SHORT]}")
