"""The suites of checks for operations on messages and for compaction: pure functions of plan, stage and policy (DEL-2)."""

from __future__ import annotations

from message_lifecycle.gates.rows import (
    archive_suite,
    kept_suite,
    markers_suite,
    older_rows_suite,
    purged_suite,
    rows_suite,
    view_removals_suite,
)
from message_lifecycle.gates.suite import (
    FIGURES,
    DeclaredCheck,
    RowCount,
    Same,
    Suite,
    Within,
    all_values_equal,
    asks_rule,
    column_sum_equals,
    figure_equals,
    figures_row_rule,
    limit,
    nothing_else_differs,
    row_count_equals,
    rows_left,
    rule,
    same_settings,
    tightened_limit,
)
from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import RemovalReason, cleaner_reasons, limit_reasons, request_reasons
from message_lifecycle.model.settings import Policy

# A suite counts rows before it judges them.


# A share is a quotient of two counts below 2^53. Its error is far below any limit that a person would set.
_ROUNDING = 1e-9


def message_cleaner_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of the message cleaner's staged change (EXP-4, EXP-5, CNT-1, DEL-2, DEL-3, DEL-6).

    Frames:
        going: One row per file of the segments that leave whole.
        rows: One row per file that loses single messages.
        difference, order: The errors that were found.
        sample: Some of the messages that leave.
        left: One row per segment with overdue messages that stay.
        figures: One row.
        markers, unmarked: See `rows.markers_suite`.
        view, outlived: See `rows`.
    """
    return (
        same_settings(plan, policy),
        *view_removals_suite(plan),
        *older_rows_suite(plan),
        *_removed_segment_checks(plan, policy),
        *rows_suite(plan, staged, *cleaner_reasons()),
        *_sample_checks(plan),
        nothing_else_differs(),
        rule(
            "order",
            "Messages are removed from the front only, except for named cases.",
            "segments out of order",
            row_count_equals("order", 0),
        ),
        *_overdue_checks(plan, *cleaner_reasons(), enabled=policy.cleaner_enabled),
        *kept_suite(plan, policy, enabled=policy.cleaner_enabled),
        *archive_suite(plan, policy),
        *_count_checks(plan, staged),
        *markers_suite(plan, staged, policy),
        *_limits(plan, policy),
    )


def retention_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of `retention`: the cleaner's checks without expiry of segments (RET-5)."""
    return (
        same_settings(plan, policy),
        rule("going", "No whole segment is removed, only single messages.", "files removed", row_count_equals("going", 0)),
        *rows_suite(plan, staged, *limit_reasons()),
        *_sample_checks(plan),
        nothing_else_differs(),
        *_overdue_checks(plan, *limit_reasons()),
        *kept_suite(plan, policy),
        *archive_suite(plan, policy),
        *_count_checks(plan, staged),
        *markers_suite(plan, staged, policy),
        *_limits(plan, policy),
    )


def message_request_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of a requested removal: all named messages leave, and no others (MRK-2, PRG-1).

    The suite has one more frame than the cleaner's: `purged`, one row about the keys of all purged messages.
    """
    return (
        rule("going", "No whole segment is removed, only single messages.", "files removed", row_count_equals("going", 0)),
        *view_removals_suite(plan),
        *rows_suite(plan, staged, *request_reasons()),
        *purged_suite(plan),
        *_sample_checks(plan),
        nothing_else_differs(),
        *_count_checks(plan, staged),
        *markers_suite(plan, staged, policy),
        *_limits(plan, policy),
    )


def marker_generation_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of a sweep: it makes the missing markers and changes only older markers of their keys (MRK-2)."""
    return (
        rule("going", "No segment is removed.", "files removed", row_count_equals("going", 0)),
        *rows_suite(plan, staged),
        nothing_else_differs(),
        *_count_checks(plan, staged),
        *markers_suite(plan, staged, policy),
    )


def purge_compacted_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of a purge of compacted messages: only whole segments leave, and the view covers them (CMP-9)."""
    return (
        _files_going(len(plan.selection.files)),
        *(
            (
                _rows_going(plan),
                rule(
                    "going_compacted",
                    "Every removed message is at or below its partition's horizon.",
                    "files past the horizon",
                    all_values_equal("going", "compacted", True),
                ),
                *_whole_segment_checks(),
            )
            if plan.selection.files
            else ()
        ),
        *rows_suite(plan, staged, "compacted"),
        nothing_else_differs(),
        *_count_checks(plan, staged),
        *markers_suite(plan, staged, policy, owed=False),
        *_limits(plan, policy),
    )


def _files_going(files: int) -> DeclaredCheck:
    return rule("going", "Exactly the files of the planned segments are removed.", "files removed", row_count_equals("going", files))


def _rows_going(plan: Plan) -> DeclaredCheck:
    rows = sum(action.rows for action in plan.log_commit.drop)
    return rule(
        "going_rows",
        "Exactly the messages of the planned segments are removed.",
        "messages removed",
        column_sum_equals("going", "rows", rows),
    )


def _whole_segment_checks() -> Suite:
    return (
        rule(
            "going_active",
            "Nothing is removed from a segment that still takes messages.",
            "files of active segments",
            all_values_equal("going", "active", False),
        ),
        rule("going_planned", "The plan names every removed file.", "files not named", all_values_equal("going", "planned", True)),
    )


def _removed_segment_checks(plan: Plan, policy: Policy) -> Suite:
    if not (policy.cleaner_enabled and policy.message_expiry_us):
        return (
            rule(
                "going",
                "No segment is removed, because no message expires under these settings.",
                "files removed",
                row_count_equals("going", 0),
            ),
        )
    by_row = {action.file for action in plan.log_commit.mark}
    counted = _files_going(len(plan.selection.files) - len(by_row & set(plan.selection.files)))
    if not plan.log_commit.drop:
        return (counted,)
    # Dead iff as_of >= newest + expiry, and a deadline at the end of time is never due (CLK-2, CLK-3).
    newest_allowed = min(plan.as_of, INT64_MAX - 1) - policy.message_expiry_us
    return (
        counted,
        _rows_going(plan),
        rule(
            "going_expired",
            "Every removed message is expired.",
            "newest removed time",
            Within(frame="going", column="newest_at", minimum=None, maximum=newest_allowed, shown_as="instant"),
        ),
        rule(
            "going_kept",
            "No removed segment has a message that its own lifetime keeps.",
            "files with such a message",
            all_values_equal("going", "any_kept", False),
        ),
        *_whole_segment_checks(),
    )


def _sample_checks(plan: Plan) -> Suite:
    # A segment whose messages have all left one by one keeps files without messages.
    if not any(run.rows for run in plan.log_commit.drop):
        says = "No whole segment is removed, so there is nothing to sample. Every single message is checked."
        return (rule("sample", says, "messages sampled", row_count_equals("sample", 0)),)
    return (
        rule("sample", "Some of the removed messages were read.", "messages sampled", RowCount(frame="sample", minimum=1, maximum=None)),
        rule(
            "sample_expired",
            "No sampled message is younger than the plan says.",
            "sampled messages too young",
            all_values_equal("sample", "too_young", False),
        ),
        rule(
            "sample_bounds",
            "Every sampled message lies within the bounds its file states.",
            "sampled messages outside",
            all_values_equal("sample", "outside_bounds", False),
        ),
    )


def _overdue_checks(plan: Plan, *reasons: RemovalReason, enabled: bool = True) -> Suite:
    """Return the checks of overdue messages that stay, by the operation's `reasons`. The plan must have judged every reason."""
    what = "segments with overdue messages that stay"
    if not enabled:
        return (
            rule("left", "The cleaner is disabled, so overdue messages may stay.", what, RowCount(frame="left", minimum=0, maximum=None)),
        )
    if unasked := set(reasons).difference(plan.reasons):
        return (
            rule(
                "left", "Overdue messages were searched for.", what, Same(found=f"not for {', '.join(sorted(unasked))}", wanted="for all")
            ),
        )
    if not plan.held:
        return (rule("left", "No overdue message stays, because the plan names no holder.", what, row_count_equals("left", 0)),)
    return (
        rule("left", "Overdue messages stay, as the plan says.", what, RowCount(frame="left", minimum=1, maximum=None)),
        rule(
            "left_rows",
            "Exactly the overdue messages stay that the plan has on hold.",
            "overdue messages that stay",
            column_sum_equals("left", "rows", sum(held.rows for held in plan.held)),
        ),
        rule(
            "left_named",
            "Every overdue message that stays has a holder named in the plan.",
            "segments with overdue messages and no holder",
            all_values_equal("left", "named", True),
        ),
    )


def _count_checks(plan: Plan, staged: Staged) -> Suite:
    expected = plan.expected
    removed = sum(count for _, count in staged.removed(plan))
    share = removed / expected.rows_in if expected.rows_in else 0.0
    return (
        figures_row_rule(),
        rule(
            "rows_in", "The log has as many messages as when it was planned.", "messages before", figure_equals("rows_in", expected.rows_in)
        ),
        rule("rows_removed", "As many messages are removed as planned.", "messages removed", figure_equals("rows_removed", removed)),
        rows_left("message", expected.rows_in - removed),
        rule(
            "fraction_rows",
            "The removed share of messages matches the counts.",
            "share of messages",
            Within(frame=FIGURES, column="fraction_rows", minimum=share - _ROUNDING, maximum=share + _ROUNDING),
        ),
        asks_rule(plan),
    )


def _limits(plan: Plan, policy: Policy) -> Suite:
    share = policy.max_removed_fraction
    expected = plan.expected
    # If the plan knows the bytes, a store that reports a smaller share of them is wrong. The gate requires both shares, because such a
    # store would ask no person.
    at_least = expected.removed_bytes / expected.bytes_in - _ROUNDING if expected.removed_bytes and expected.bytes_in else 0.0
    return (
        rule(
            "fraction_bytes",
            "The removed share of bytes is at least the share of the named files.",
            "share of bytes",
            Within(frame=FIGURES, column="fraction_bytes", minimum=at_least, maximum=1.0 + _ROUNDING),
        ),
        limit(
            "much_rows",
            "The removed share of the log's messages is within the limit.",
            "removed share of messages",
            Within(frame=FIGURES, column="fraction_rows", minimum=None, maximum=share, shown_as="share"),
        ),
        limit(
            "much_bytes",
            "The removed share of the log's bytes is within the limit.",
            "removed share of bytes",
            Within(frame=FIGURES, column="fraction_bytes", minimum=None, maximum=share, shown_as="share"),
        ),
        limit(
            "emptied",
            "Some messages of the log stay.",
            "messages kept",
            Within(frame=FIGURES, column="rows_kept", minimum=1 if expected.removed_rows else 0, maximum=None),
        ),
        tightened_limit(plan),
    )


# The checks of a staged compacted view (CMP-1 to CMP-4, CMP-7, CMP-8, CNT-1, DEL-2).
#
# Frames: `partitions` has one row per compacted partition with counts of errors; `figures` has one row.


_WRONG = (
    ("repeated_keys", "The view has one message per key.", "second messages of a key"),
    (
        "unwanted",
        "Every message in the view is the latest of its key, alive, and not a deletion that may be dropped.",
        "messages that do not belong",
    ),
    ("missing", "The latest message of every live key is in the view.", "keys that are missing"),
    ("null_keys_missing", "Every kept message without a key is in the view.", "messages without a key that are missing"),
    ("changed", "Every message in the view is the same as in the log.", "messages that differ"),
    ("disordered", "Offsets ascend.", "messages out of order"),
    ("beyond", "No message in the view is past the new horizon.", "messages past the horizon"),
)


def compaction_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of a compaction."""
    view = staged.view
    # An empty plan stages nothing, so the view stays as it is.
    rows_in = plan.expected.rows_in if view is None else view.view_rows + view.tail_rows
    kept = plan.expected.rows_in if view is None else view.rows
    removed = 0 if view is None else sum(rows for _, rows in view.removed)
    lowered = [action.partition for action in plan.view_commit.compact if action.through < action.after]
    return (
        same_settings(plan, policy),
        rule("horizons", "No horizon moves back.", "partitions with a lower horizon", Same(found=",".join(map(str, lowered)), wanted="")),
        rule(
            "partitions",
            "Every partition of the plan was checked.",
            "partitions",
            row_count_equals("partitions", len(plan.view_commit.compact)),
        ),
        *(
            rule(column, says, what, column_sum_equals("partitions", column, 0))
            for column, says, what in (_WRONG if plan.view_commit.compact else ())
        ),
        figures_row_rule(),
        rule(
            "rows_in",
            "The input is the earlier view and the messages past its horizon, as planned.",
            "messages in",
            figure_equals("rows_in", plan.expected.rows_in),
        ),
        rule("rows_told", "The engine read as many messages.", "messages in", figure_equals("rows_in", rows_in)),
        rule("rows_kept", "The view has as many messages as the engine says.", "messages in the view", figure_equals("rows_kept", kept)),
        rule(
            "rows_removed",
            "Every input message is in the view, or counted with the reason for its absence.",
            "messages not in the view",
            figure_equals("rows_removed", removed),
        ),
        asks_rule(plan),
        limit(
            "much_lost",
            "The share of the view removed without a newer message is within the limit.",
            "removed share of the view",
            Within(frame=FIGURES, column="fraction_lost", minimum=None, maximum=policy.max_removed_fraction, shown_as="share"),
        ),
        limit(
            "emptied",
            "Some messages of the view stay.",
            "messages in the view",
            Within(frame=FIGURES, column="rows_kept", minimum=1 if plan.view is not None and plan.view.rows else 0, maximum=None),
        ),
        tightened_limit(plan),
    )
