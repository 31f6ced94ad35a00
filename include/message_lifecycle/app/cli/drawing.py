"""How plans, judgements and outcomes look on a screen, and how a person answers a waiting plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from message_lifecycle.app.cli.context import of_outcome
from message_lifecycle.app.cli.screen import Output, Screen, emit
from message_lifecycle.app.rendering import ROWS, SHORT, Block, Document, as_json, count, reasons, share, size
from message_lifecycle.model.outcome import Outcome

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Operation


def plan(screen: Screen, view: Document) -> None:
    """A plan, from what goes to what is to be done next."""
    removes = view["removes"]
    of_documents = [action for action in view["actions"] if action["action"] == "restore_document"]
    screen.line(f"Plan {view['plan_id']}{': undone' if view.get('undone') else ''}", style="bold")
    screen.facts(
        [
            ("undone by", f"plan {view['undone_by']}: what it removed is back" if view.get("undone") else ""),
            ("topic", view["topic"]),
            ("operation", view["operation"]),
            ("judged as of", view["as_of"]),
            ("asked for by", view.get("requested_by") or ""),
            ("takes back", f"{view['takes_back']}: {count(view['restores'])} {view['things']} come back" if view["takes_back"] else ""),
            ("removes", _what(view)),
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
    _tables(screen, [action for action in view["actions"] if action["action"] in ("expire_snapshots", "remove_files")])
    _moved(screen, [action for action in view["actions"] if action["action"] in ("delete_table", "return_table")])
    _returned(screen, of_documents)
    if view["documents"] is None:
        _going(screen, view["actions"])
    else:
        _documents(screen, view)
    _bounds(screen, view["bounds"])
    from message_lifecycle.app.views.state import HeldView

    screen.draw([HeldView.table.of(view["held"])])
    screen.titled("Warnings", view["warnings"])
    screen.titled("A person's word is needed", view["asks"])
    if "names" in removes["files"]:
        screen.titled("Data files", removes["files"]["names"])
    _fate(screen, view)


def _tables(screen: Screen, actions: list[Document]) -> None:
    """What of tables' past goes, and what stays and why."""
    if not actions:
        return
    screen.heading("Goes from the tables' past")
    screen.table(
        ("table", "what", "number", "size", "stays"),
        [
            (a["table"], "snapshots", count(len(a["snapshots"])), "", ", ".join(f"{n} by {why}" for why, n in a["kept"].items()))
            if a["action"] == "expire_snapshots"
            else (a["table"], f"files: {a['role']}", count(a["files"]), size(a["bytes"]), "")
            for a in actions
        ],
        right=("number", "size"),
        wrap=("stays",),
    )


def _moved(screen: Screen, actions: list[Document]) -> None:
    """The tables of a whole topic."""
    if not actions:
        return
    screen.heading("The topic goes whole" if actions[0]["action"] == "delete_table" else "The topic comes back")
    rows = [(a["table"], count(a["rows"]), size(a["bytes"])) for a in actions]
    screen.table(("table", "rows", "size"), rows, right=("rows", "size"))


def _returned(screen: Screen, actions: list[Document]) -> None:
    """What comes back of documents."""
    if not actions:
        return
    screen.heading("Comes back")
    screen.table(
        ("document", "changes", "snapshots"),
        [
            (a["document"], f"{a['from']}..{a['to']}" if a["changes"] else "", ", ".join(str(seq) for seq in a["snapshots"]))
            for a in actions
        ],
        most=ROWS,
    )


def _going(screen: Screen, actions: list[Document]) -> None:
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
        "restore_rows": "bring back",
        "restore_view_rows": "bring back to the view",
        "erase_rows": "erase",
    }
    kinds = {action["action"] for action in actions}
    comes_back = kinds & {"restore_rows", "restore_view_rows"}
    screen.heading("Comes back, with what goes" if comes_back else "Goes" if kinds != {"compact_partition"} else "Is compacted")
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


def _documents(screen: Screen, view: Document) -> None:
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


def obligations(screen: Screen, obliged: Sequence[Document]) -> None:
    """What a topic obliges (OBL-1): how much is due, since when, who holds the rest, when somebody last looked."""
    rows = [
        (
            one["state"],
            one["kind"],
            "" if one["amount"] is None else f"{count(one['amount'])} {one['unit']}",
            screen.when(one["due_since"]) if one["due_since"] else "",
            ", ".join(sorted({entry.holder for entry in one["held"]})),
            f"{one['last_run']['outcome']} {screen.when(one['last_run']['at'])}" if one["last_run"] else "none",
        )
        for one in obliged
    ]
    if rows:
        screen.table(("", "obliges", "due", "since", "held by", "last run"), rows, right=("due",), wrap=("held by",))


def _of_documents(found: Document | None) -> str:
    if found is None:
        return ""
    blocked = f", {count(len(found['blocked']))} blocked" if found["blocked"] else ""
    made = f"{count(found['snapshots_made'])} snapshots made, {count(found['snapshots_dropped'])} dropped"
    return f"{count(found['documents'])}, {made}, {count(found['purged_documents'])} purged{blocked}"


def _bounds(screen: Screen, bounds: list[Document]) -> None:
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


def _what(view: Document) -> str:
    removes = view["removes"]
    if not _operation(view).counts_messages:
        return f"{size(removes['bytes'])} of {size(removes['of_bytes'])} for good" if view["actions"] else "nothing"
    return _removes(removes, view["things"]) if view["documents"] is None else _purges(removes)


def _operation(view: Document) -> Operation:
    from message_lifecycle.app.operations.registry import named

    return named(view["operation"])


def _removes(removes: Document, things: str) -> str:
    if removes["messages"] is None:
        return f"what is found superseded or dead of {count(removes['of_messages'])} messages, when it is staged"
    if not removes["messages"]:
        return f"nothing of {count(removes['of_messages'])} {things}"
    return (
        f"{count(removes['messages'])} of {count(removes['of_messages'])} {things} ({share(removes['share'])}), "
        f"{size(removes['bytes'])} of {size(removes['of_bytes'])} ({share(removes['byte_share'])}), {count(removes['segments'])} segments"
    )


def _purges(removes: Document) -> str:
    return f"{count(removes['messages'])} of {count(removes['of_messages'])} changes ({share(removes['share'])})"


def _fate(screen: Screen, view: Document) -> None:
    """How far a recorded plan has come, and what is next."""
    screen.line()
    if "state" not in view:
        screen.line("Nothing was recorded: this was a dry run.")
        return
    if view["gate"] is not None:
        screen.line(f"gate report {view['gate']['gate_id']}: {view['gate']['judgement']}")
        failed_checks(screen, view["gate"])
    if view["approval"] is not None:
        word = view["approval"]
        screen.line(f"{'approved' if word['granted'] else 'refused'} by {word['by']} at {word['at']}: {word['text']}")
    if view["outcome"] is not None:
        screen.draw(view["outcome"].headline())
    elif view["waits_until"] is not None:
        from message_lifecycle.app.views.state import how_to_answer

        screen.draw(how_to_answer(view["plan_id"], view["operation"], view["topic"]))
        screen.line(f"The question lapses at {view['waits_until']}.")
    else:
        # Whether it is committed the table tells: `publish` finds the commit, or goes on to it.
        following = {"planned": "stage", "staged": "gate"}.get(view["state"], "publish")
        screen.line(f"State: {view['state']}. Next: lifecycle {following} {view['plan_id'][:SHORT]}")


def ended(output: Output, result: Outcome, things: str = "messages", *, then: str = "", after: Sequence[Block] = (), **beside: Any) -> int:
    """Print a topic's result and return the exit status. `things`: what the plan counts; `then`: a line after a published one; `after`: what
    follows; `beside`: further fields for programs."""
    from message_lifecycle.app.views.state import outcome_view

    view = outcome_view(result, things=things)
    following = [then] if then and result.name == "published" else []
    emit(output, {**as_json(view), **beside}, lambda screen, _told: screen.draw([*view.shown(), *following, *after]))
    return of_outcome(result.name)


def judged(screen: Screen, page: Document) -> None:
    """A gate's report: how it judged, and what did not hold."""
    gate = page["gate"]
    screen.line(f"Plan {page['plan_id']} of {page['topic']}: {gate['judgement']}", style="bold")
    passed = sum(check["passed"] for check in gate["checks"])
    evaluated = f"{gate['evaluated']} of {gate['declared']} evaluated, {passed} hold; --output json lists each"
    screen.facts([("gate report", gate["gate_id"]), ("checks", evaluated)])
    failed_checks(screen, gate)
    if gate["judgement"] == "needs_approval" and page["outcome"] is None and page["approval"] is None:
        from message_lifecycle.app.views.state import how_to_answer

        screen.draw(how_to_answer(page["plan_id"], page["operation"], page["topic"]))
    elif gate["judgement"] == "passed" and page["outcome"] is None:
        screen.line(f"Next: lifecycle publish {page['plan_id'][:SHORT]}")


def failed_checks(screen: Screen, gate: Document) -> None:
    """The checks that did not hold; those that did are in the JSON."""
    failed = [check for check in gate["checks"] if not check["passed"]]
    if failed:
        screen.table(
            ("check", "says", "found"),
            [(c["id"], c["says"], c["found"] if c["evaluated"] else f"not evaluated: {c['found']}") for c in failed],
            wrap=("says", "found"),
        )
