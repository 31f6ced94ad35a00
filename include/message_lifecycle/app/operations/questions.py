"""The question to a person about a waiting plan, as Markdown lines: how much the plan removes, and why it needs an approval."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.instants import format_to_second
from message_lifecycle.model.outcome import Check
from message_lifecycle.model.phrases import amount, short, size
from message_lifecycle.model.plan import Plan

Removed = Sequence[tuple[str, int]]
"""Counts by reason."""


def lines_of_messages(plan: Plan, where: str, going: Removed, failed: Sequence[Check], held: str) -> list[str]:
    """Return the lines. `held`: the words for what a holder keeps, with {} for the partition."""
    return [
        first_line(plan, where, going),
        "",
        *(f"* why approval: {limit}" for limit in limit_lines(plan, failed)),
        *(f"* reason: {count:,} by {reason}" for reason, count in going),
        *(f"* on hold: {entry.rows:,} due {held.format(entry.partition)}: {_escape_markdown(entry.detail)}" for entry in plan.held),
        *(f"* note: {_escape_markdown(warning)}" for warning in plan.warnings),
        last_line(plan),
    ]


def lines_of_documents(plan: Plan, where: str, going: Removed, failed: Sequence[Check]) -> list[str]:
    """Return the lines without any document's name. Airflow keeps the question, and an erasure reaches only the ledger."""
    remarks = [("approval reasons", plan.asks), ("held documents", plan.held), ("warnings", plan.warnings)]
    return [
        first_line(plan, where, going),
        "",
        *(f"* why approval: not true: {check.says}" for check in failed),
        *(f"* reason: {count:,} by {reason}" for reason, count in going),
        *(f"* {amount(len(entries), what)}: `lifecycle ledger show {short(plan.plan_id)}`" for what, entries in remarks if entries),
        last_line(plan),
    ]


def lines_of_space(plan: Plan, lost: str, failed: Sequence[Check]) -> list[str]:
    """Return the question about freeing space. `lost`: a sentence about the data that cannot come back afterwards."""
    return [
        f"**{plan.topic}**: {question_of_space(plan)} {lost}, as of {format_to_second(plan.as_of)}.",
        "",
        *(f"* why approval: {limit}" for limit in limit_lines(plan, failed)),
        *(f"* {amount(len(action.snapshots), 'snapshots')} of {action.table or 'the log'}" for action in plan.forgets),
        *(
            f"* {amount(len(r.files), 'files')} of {change.table or 'the log'}: {r.role}, {size(r.size_bytes)}"
            for change in plan.forgets
            for r in change.files
        ),
        f"* plan: `{plan.plan_id}`",
    ]


def question_of_space(plan: Plan) -> str:
    files = sum(len(removal.files) for removal in plan.file_removals)
    return f"remove {amount(files, 'files')} of {size(plan.expected.removed_bytes)} for good?"


def first_line(plan: Plan, where: str, going: Removed) -> str:
    """Return the line with the size of the removal, in counts and in shares of messages and bytes."""
    rows, expected = sum(count for _, count in going), plan.expected
    share = f" ({percent(rows, expected.rows_in)})" if rows and expected.rows_in else ""
    removal = f"removes {rows:,} of {amount(expected.rows_in, plan.things)}{share}{_bytes(plan)}"
    return f"**{plan.topic}**: {removal}, {where}, as of {format_to_second(plan.as_of)}."


def _bytes(plan: Plan) -> str:
    """Return the size in bytes. Empty for removals without bytes of their own: returning rows, and rows that a view leaves out."""
    gone, there = plan.expected.removed_bytes, plan.expected.bytes_in
    if gone is None:
        return ", of unknown size"
    return f", {size(gone)} of {size(there)} ({percent(gone, there)})" if gone and there else ""


def percent(part: int, whole: int) -> str:
    """Return the share in whole percents. Only exact values become 0 % or 100 %."""
    share = 100 * part / whole
    if 0 < share < 0.5 or 99.5 <= share < 100:  # where it would be rounded to all or nothing
        return "under 1 %" if share < 1 else "over 99 %"
    return f"{share:.0f} %"


def last_line(plan: Plan) -> str:
    return f"* plan: `{plan.plan_id}`; newer {plan.things} are not affected"


def limit_lines(plan: Plan, failed: Sequence[Check]) -> list[str]:
    """Return the reasons for asking a person. The plan's own questions are one check, but one line each."""
    own = "; ".join(plan.asks)
    return [_escape_markdown(line) for check in failed for line in (plan.asks if check.found == own else (check.found,))]


def _escape_markdown(text: str) -> str:
    """Escape text from people, for example a hold's reason, so that it creates no link, image, element or line in Markdown."""
    return " ".join(text.replace("\\", "\\\\").replace("[", "\\[").replace("<", "&lt;").split())
