"""How outcomes and judgements look on a screen, and how a person answers a waiting plan."""

from __future__ import annotations

from message_lifecycle.app.cli.screen import Screen, View
from message_lifecycle.app.cli.words import count, reasons, size

SHORT = 12
"""Of a plan's id so many characters are shown where it is to be typed."""
ROWS = 20
"""Of a long table so many rows are shown."""
_STYLES = {"published": "green", "blocked": "red", "failed": "red", "starved": "red", "needs_approval": "yellow"}


def outcome(screen: Screen, view: View, things: str = "messages") -> None:
    """One topic's result, and what a person should know beside it. `things`: see `headline`."""
    headline(screen, view, things)
    held(screen, view["held"])
    screen.titled("Warnings", view["warnings"])
    if view["outcome"] == "needs_approval":
        how_to_answer(screen, view)
    if view["more"]:
        screen.line("More is due: the next run goes on.")


def headline(screen: Screen, view: View, things: str = "messages") -> None:
    """The result in a line, and by which plan. `things`: what the plan counts, where that can be other than messages (`Plan.things`)."""
    if view["operation"] == "reclaim" and view["reclaimed_bytes"] is not None:
        files, back = count(view["reclaimed_files"]), size(view["reclaimed_bytes"])
        ended = "" if view["outcome"] == "published" else f"{view['outcome']}, "
        _told(screen, view, f"{ended}{back} came back, {files} files are gone")
        return
    said = {
        "published": _done(view, things),
        "no_op": "nothing to do",
        "needs_approval": "waits for a person, nothing removed",
    }.get(view["outcome"], f"{view['outcome']}, nothing removed")
    if view["outcome"] == "failed":
        said = f"failed after removing {reasons(view['removed']) or 'nothing'}"
    kept = f", {count(view['messages_kept'])} kept" if view["messages_kept"] is not None else ""
    _told(screen, view, f"{said}{kept}")


def _told(screen: Screen, view: View, said: str) -> None:
    screen.sentence(f"{view['topic']}: {said}, as of {view['as_of']}", style=_STYLES.get(view["outcome"]))
    screen.facts(
        [
            ("  plan", view["plan_id"] or ""),
            ("  snapshot", str(view["snapshot_id"] or "")),
            ("  archived", f"{count(view['archived'])} messages" if view["archived"] else ""),
            ("  markers", _markers(view)),
            ("  done before by", view["first_plan_id"] or ""),
            ("  also" if view["outcome"] == "published" else "  why", view["detail"]),
        ]
    )


def _done(view: View, things: str) -> str:
    removed = reasons(view["removed"])
    if view["operation"] == "undo":
        return f"brought back {count(view['restored'])} {things}" + (f", removed {removed}" if removed else "")
    if view["operation"] == "topic_delete":
        return f"deleted, with {count(view['removed_messages'])} {things}"
    verb = "compacted, left out" if view["operation"] == "compaction" else "removed"
    return f"{verb} {removed or 'nothing'}"


def _markers(view: View) -> str:
    if not view["markers"] and not view["cancelled_markers"]:
        return ""
    cancelled = f", {count(view['cancelled_markers'])} needless by newer messages" if view["cancelled_markers"] else ""
    return f"{count(view['markers'])} made{cancelled}"


def judged(screen: Screen, page: View) -> None:
    """A gate's report: how it judged, and what did not hold."""
    gate = page["gate"]
    screen.line(f"Plan {page['plan_id']} of {page['topic']}: {gate['judgement']}", style="bold")
    passed = sum(check["passed"] for check in gate["checks"])
    evaluated = f"{gate['evaluated']} of {gate['declared']} evaluated, {passed} hold; --output json lists each"
    screen.facts([("gate report", gate["gate_id"]), ("checks", evaluated)])
    failed_checks(screen, gate)
    if gate["judgement"] == "needs_approval" and page["outcome"] is None and page["approval"] is None:
        how_to_answer(screen, page)
    elif gate["judgement"] == "passed" and page["outcome"] is None:
        screen.line(f"Next: lifecycle publish {page['plan_id'][:SHORT]}")


def failed_checks(screen: Screen, gate: View) -> None:
    """The checks that did not hold; those that did are in the JSON."""
    failed = [check for check in gate["checks"] if not check["passed"]]
    if failed:
        screen.table(
            ("check", "says", "found"),
            [(c["id"], c["says"], c["found"] if c["evaluated"] else f"not evaluated: {c['found']}") for c in failed],
            wrap=("says", "found"),
        )


def held(screen: Screen, entries: list[View]) -> None:
    """What is overdue and stays, and what holds it."""
    if not entries:
        return
    screen.heading("Overdue, and held")
    screen.table(
        ("partition", "offsets", "messages", "overdue since", "held by", "because"),
        [
            (
                str(e["partition"]),
                f"{e['from']}..{e['to']}",
                count(e["messages"]),
                screen.when(e["overdue_since"]),
                e["holder"],
                e["detail"],
            )
            for e in entries
        ],
        right=("partition", "messages"),
        most=ROWS,
    )


def goes_on(view: View) -> str:
    """The command that carries an approved plan out. Another operation's would make a plan of its own in its place."""
    by_topic = {"message_cleaner": "run", "snapshot_with_purge": "run", "compaction": "compact", "quarantine": "quarantine"}.get(
        view["operation"]
    )
    return f"lifecycle publish {view['plan_id'][:SHORT]}" if by_topic is None else f"lifecycle {by_topic} {view['topic']}"


def how_to_answer(screen: Screen, view: View) -> None:
    """The commands by which a person decides. `view`: of a plan, or of an outcome."""
    plan_id = view["plan_id"]
    screen.line()
    screen.line("This plan waits for a person:", style="yellow")
    screen.line(f"  look     lifecycle explain {plan_id[:SHORT]}")
    screen.line(f"  approve  lifecycle approve {plan_id[:SHORT]} --by NAME --text WHY")
    screen.line(f"           {goes_on(view)}")
    screen.line(f"  refuse   lifecycle refuse {plan_id[:SHORT]} --by NAME --text WHY")
