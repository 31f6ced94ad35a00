"""Checks that several operations on messages share: single rows of the log and the view, limits, archives, markers."""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    Same,
    Suite,
    Within,
    all_values_equal,
    column_sum_equals,
    no_errors_rule,
    row_count_equals,
    row_count_rules,
    rule,
)
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import RemovalReason, is_limit
from message_lifecycle.model.settings import Policy


def rows_suite(plan: Plan, staged: Staged, *reasons: RemovalReason) -> Suite:
    """Check that exactly the named messages leave, each for the plan's reason (CNT-1, TTL-7).

    Frame `rows`: one row per file that loses single messages.

    Args:
        plan: The plan that names the messages.
        staged: The change as the store has staged it.
        reasons: The reasons of the operation. No other reason counts, whatever the plan says.
    """
    removals = plan.log_commit.mark + staged.superseded
    files, foreign = len({action.file for action in removals}), set(plan.reasons).difference(reasons)
    return row_count_rules(
        "rows",
        files,
        "Single messages are removed from exactly the planned files.",
        "files that lose single messages",
        rule(
            "rows_rows",
            "Exactly as many single messages are removed as the plan names.",
            "single messages removed",
            column_sum_equals("rows", "rows", sum(action.rows for action in removals)),
        ),
        no_errors_rule("rows", "unnamed", "The plan names every removed single message.", "messages not named", id="rows_named"),
        rule(
            "rows_justified",
            "The plan's reason applies to every removed single message.",
            "messages without a reason",
            column_sum_equals("rows", "unjustified", 0)
            if not foreign
            else Same(found=f"for {', '.join(sorted(foreign))}", wanted=f"for {', '.join(reasons) or 'none'}"),
        ),
        rule(
            "rows_active",
            "No message expires out of a segment that still takes messages.",
            "files of active segments",
            all_values_equal("rows", "active", False),
        ),
    )


def purged_suite(plan: Plan) -> Suite:
    """Check that a purge removes messages of one key only. The plan does not hold the key, and the check does not need it (PRG-1).

    Frame `purged`: one row about the keys of all purged messages.
    """
    if not any(action.reason == "purged" for action in plan.log_commit.mark):
        return (rule("purged", "No key is purged.", "purges", row_count_equals("purged", 0)),)
    return (
        rule("purged", "The keys of all purged messages were read.", "purges", row_count_equals("purged", 1)),
        rule(
            "purged_key",
            "All messages of a purge have the same key.",
            "keys that lose messages",
            Within(frame="purged", column="keys", minimum=1, maximum=1),
        ),
        no_errors_rule("purged", "keyless", "A purge removes no message without a key.", "files that lose messages without a key"),
    )


def view_removals_suite(plan: Plan) -> Suite:
    """Check that exactly the named messages leave the compacted view (PRG-1, CMP-9).

    Frame `view_removals`: one row per partition that loses messages.
    """
    if not plan.view_removal.mark:
        return ()
    return (
        rule(
            "view",
            "The view loses messages of the planned partitions.",
            "partitions",
            row_count_equals("view_removals", len(plan.view_removal.mark)),
        ),
        rule(
            "view_rows",
            "Exactly as many messages are removed from the view as the plan names.",
            "messages removed from the view",
            column_sum_equals("view_removals", "rows", sum(action.rows for action in plan.view_removal.mark)),
        ),
        no_errors_rule("view_removals", "unnamed", "The plan names each removed message.", "messages not named", id="view_named"),
        no_errors_rule("view_removals", "added", "Nothing comes into the view.", "messages that came", id="view_added"),
    )


def older_rows_suite(plan: Plan) -> Suite:
    """Check that no older message returns when an age removes messages before their compaction (CMP-9, P3).

    Frame `outlived`: one row.
    """
    if not plan.past_horizon:
        return ()
    return (
        rule("outlived", "The keys of messages removed past the horizon were read.", "looks", row_count_equals("outlived", 1)),
        no_errors_rule(
            "outlived",
            "in_view",
            "The view keeps no older message of a key that loses a message past the horizon.",
            "messages removed before an older message in the view",
            id="outlived_view",
        ),
        no_errors_rule(
            "outlived",
            "in_log",
            "No message past the horizon is removed before an older message of its key.",
            "messages removed before an older message in the log",
            id="outlived_log",
        ),
    )


def kept_suite(plan: Plan, policy: Policy, *, enabled: bool = True) -> Suite:
    """Check the limits by number and size on the messages that stay (RET-1 to RET-4, P5).

    The kept messages satisfy every limit, the next older message would break one, and all messages beyond leave or are held. Messages that
    a rule of age removes do not count (DEL-9).

    Frame `limits`: one row about all groups of the scope.
    """
    limits = policy.limits
    if limits is None or not enabled:
        return ()  # no message leaves by them, or `rows_justified` would fail
    beyond = sum(rows for reason, rows in plan.expected.removed if is_limit(reason))
    held = sum(entry.rows for entry in plan.held if is_limit(entry.reason))
    return (
        rule("limits", "The limits of all groups were checked.", "rows about limits", row_count_equals("limits", 1)),
        rule(
            "limits_records",
            "No group keeps more messages than max_records.",
            "most messages kept of a group",
            Within(frame="limits", column="most_records", minimum=0, maximum=limits.max_records),
        ),
        rule(
            "limits_bytes",
            "No group keeps more bytes than max_total_bytes, except for a single message that min_keep keeps.",
            "most bytes kept of a group",
            Within(frame="limits", column="most_bytes", minimum=0, maximum=limits.max_total_bytes),
        ),
        no_errors_rule(
            "limits",
            "within",
            "No message within the limits by number or size is removed.",
            "removed messages within the limits",
        ),
        rule(
            "limits_beyond",
            "Exactly the messages beyond the limits are removed, or on hold.",
            "messages beyond the limits",
            column_sum_equals("limits", "beyond", beyond + held),
        ),
    )


def archive_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that the archive has all removed messages unchanged (RET-7).

    Frame `archive`: one row about the plan's file. There are no checks if the policy deletes or no message leaves. Requested removals are
    never archived.
    """
    if policy.archive_to is None or not plan.expected.removed_rows:
        return ()
    kept = plan.log_commit.keep == policy.archive_to
    return (
        rule(
            "archive",
            "The archive has the plan's file.",
            "files of the archive",
            row_count_equals("archive", 1) if kept else Same(found=str(plan.log_commit.keep), wanted=policy.archive_to),
        ),
        rule(
            "archive_rows",
            "The archive has as many messages as the plan removes.",
            "messages in the archive",
            column_sum_equals("archive", "rows", plan.expected.removed_rows),
        ),
        rule(
            "archive_same",
            "The digests of the archived and the removed messages are equal.",
            "files that differ",
            all_values_equal("archive", "same", True),
        ),
    )


def markers_suite(plan: Plan, staged: Staged, policy: Policy, *, owed: bool = True) -> Suite:
    """Check that every key which loses its last message gets its marker (MRK-1, MRK-3 to MRK-5).

    Frames:
        markers: One row per staged marker.
        unmarked: One row per emptied key without a marker.
        marked: One row about all markers.

    Args:
        plan: The plan that empties the keys.
        staged: The change as the store has staged it, with its markers.
        policy: The topic's policy.
        owed: The removed messages require markers.
    """
    made = 0 if staged.markers is None else staged.markers.count
    wanted = owed and policy.marker_ttl_us is not None and not plan.is_empty
    always = (
        rule(
            "markers_looked_for",
            "Markers were searched for only if the topic makes them.",
            "markers",
            Same(
                found="looked for" if staged.markers is not None else "not looked for", wanted="looked for" if wanted else "not looked for"
            ),
        ),
        rule("markers", "As many markers are staged as were made.", "markers staged", row_count_equals("markers", made)),
        rule("unmarked", "Every key that the run empties has a marker.", "emptied keys without a marker", row_count_equals("unmarked", 0)),
        rule(
            "marked",
            "The markers are one row of figures, if any were searched for.",
            "rows about all markers",
            row_count_equals("marked", int(wanted)),
        ),
    )
    if not wanted:
        return always
    every = (
        *always,
        rule(
            "markers_same",
            "The staged markers are the planned markers: topic, key, headers and time.",
            "digest of the markers",
            all_values_equal("marked", "as_made", True),
        ),
        rule(
            "markers_known", "The count is of whole numbers.", "markers", Within(frame="marked", column="rows", minimum=made, maximum=made)
        ),
    )
    if not made:
        return every
    return (
        *every,
        rule(
            "markers_emptied",
            "Each marker's key has no live message left.",
            "markers of keys with messages",
            all_values_equal("markers", "emptied", True),
        ),
        rule(
            "markers_single",
            "No key has more than one marker of this run.",
            "second markers of a key",
            all_values_equal("markers", "single", True),
        ),
        rule(
            "markers_caused",
            "Each marker has the reason of the newest removed message of its key.",
            "markers with another reason",
            all_values_equal("markers", "caused", True),
        ),
        rule(
            "markers_formed",
            "Each marker is empty, and has reason, TTL, rollup and the right time.",
            "markers of another form",
            all_values_equal("markers", "formed", True),
        ),
    )
