"""What staged markers are held to (MRK-1, MRK-3 to MRK-5).

Frames: `markers`, one row per staged marker; `unmarked`, one row per key that the change empties and that has none; `marked`, one
row about all of them.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import AllAre, Same, Suite, Within, count, rule
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import MARKING, Plan
from message_lifecycle.model.settings import Policy


def markers_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    made = 0 if staged.markers is None else staged.markers.count
    wanted = plan.operation in MARKING and policy.marker_ttl_us is not None and not plan.is_empty
    looked = rule(
        "markers_looked_for",
        "Markers were looked for where the topic makes them, and nowhere else.",
        "markers",
        Same(found="looked for" if staged.markers is not None else "not looked for", wanted="looked for" if wanted else "not looked for"),
    )
    always = (
        looked,
        rule("markers", "As many markers are staged as were made.", "markers staged", count("markers", made)),
        rule("unmarked", "Every key that the run empties has a marker.", "emptied keys without a marker", count("unmarked", 0)),
        rule(
            "marked", "The markers are told as one row, where any were looked for.", "rows about all markers", count("marked", int(wanted))
        ),
    )
    if not wanted:
        return always
    every = (
        *always,
        rule(
            "markers_same",
            "The staged markers are those that were made: topic, key, headers and time, all of them.",
            "digest of the markers",
            AllAre(frame="marked", column="as_made", value=True),
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
            "markers of keys that live on",
            AllAre(frame="markers", column="emptied", value=True),
        ),
        rule(
            "markers_single",
            "No key has more than one marker of this run.",
            "markers beside another of their key",
            AllAre(frame="markers", column="single", value=True),
        ),
        rule(
            "markers_caused",
            "Each marker's reason is that of the newest message of its key that goes.",
            "markers with another reason",
            AllAre(frame="markers", column="caused", value=True),
        ),
        rule(
            "markers_formed",
            "Each marker is empty, carries reason, TTL and rollup, and the right time.",
            "markers of another form",
            AllAre(frame="markers", column="formed", value=True),
        ),
    )
