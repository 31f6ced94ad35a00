"""What earlier versions recorded, as today's program reads it: plans by their format, the records beside them by the fields they lack.

A plan's text stays as it was recorded, and so does its id, which is the text's hash. Here its decoded content is taken from format to
format, up to today's. A step adds what the later format says and the earlier could not. It drops nothing and changes nothing, so nothing
recorded is lost. A field without a certain value is None: unknown. A step is never edited once it was released.

| plan format | what it says otherwise than the next one |
|---|---|
| 1, 2 | No version that was released wrote them. Their fields are not known, and nothing is guessed. |
| 3 | No `snapshots`: there were no documents, and no retention by number and size. |
| 4 | No `spared`, `erasure`, `source_id`, no `requirements.heeded`: there was no undo, erasure, reclaim, hold, and no deletion of topics. |
| 5 | Today's. |

Within a format the fields stayed, and values came: with format 4 the operation retention, the reasons `retention_count` and
`retention_bytes`, and `superseded` in the view. A plan says as well which settings it was made under. A setting that came later is not
among them, and then did what its default does (`Policy`).

| record | what earlier versions wrote it without |
|---|---|
| Staged | `documents`, with format 3 |
| Outcome | `restored`, `marker_offsets`, `reclaimed_files`, `reclaimed_bytes`, with formats 3 and 4; `archived`, with 3 and the first of 4 |
| GateReport, Approval, receipts | nothing |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from message_lifecycle.model.outcome import Outcome, Staged
from message_lifecycle.model.plan import PLAN_FORMAT

Content = dict[str, Any]
"""Decoded JSON."""


class NeverWritten(ValueError):
    """No version has written such a content. The text says why."""


def _to_4(plan: Content) -> None:
    _add(plan, snapshots=None)  # there were no documents


def _to_5(plan: Content) -> None:
    _add(plan, erasure=None, source_id=None)  # nothing was erased, nothing taken back
    _add(plan, spared=[])  # nobody could hold anything back from the rules
    requirements = plan.get("requirements")
    if not isinstance(requirements, dict):
        raise NeverWritten("it has no requirements")
    _add(requirements, heeded=[])  # there were no legal holds; one that is placed since stops the plan


PLAN_STEPS: Mapping[int, Callable[[Content], None]] = {3: _to_4, 4: _to_5}
"""By the format that a step begins from."""
OLDEST_PLAN_FORMAT = min(PLAN_STEPS)

_CAME_WITH: Mapping[int, frozenset[str]] = {
    4: frozenset(("snapshot_with_purge", "retention", "snapshot_document")),
    5: frozenset(
        (
            "erasure", "undo", "reclaim", "quarantine", "topic_delete", "erase_rows", "erase_table", "restore_rows", "restore_view_rows",
            "restore_document", "expire_snapshots", "remove_files", "drop_quarantined", "restore_quarantined", "delete_table",
            "return_table", "drop_table",
        )
    ),
}  # fmt: skip
"""Operations, and kinds of actions, by their first format."""


def update_plan(plan: Content) -> None:
    """From its own format to today's fields, in place; its `format` still says the recorded one. Raises NeverWritten.

    The format is one of `PLAN_STEPS`."""
    for before in range(plan["format"], PLAN_FORMAT):
        named = [plan.get("operation"), *(action.get("kind") for action in _objects(plan.get("actions")))]
        later = sorted(_CAME_WITH[before + 1].intersection(name for name in named if isinstance(name, str)))
        if later:
            raise NeverWritten(f"it says {', '.join(later)}")
        PLAN_STEPS[before](plan)


def _objects(found: object) -> list[Content]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _older_staged(staged: Content) -> None:
    _add(staged, documents=None)  # there were none


def _before_undo(outcome: Content) -> None:
    # Where markers lie was not kept. An undo takes them away, so it must know all of them or be refused.
    _add(outcome, marker_offsets=None if outcome.get("markers") else [])
    _add(outcome, restored=0, reclaimed_files=None, reclaimed_bytes=None)


def _before_archives(outcome: Content) -> None:
    _before_undo(outcome)
    _add(outcome, archived=0)  # nothing was archived


_LACKING: Mapping[str, Sequence[tuple[frozenset[str], Callable[[Content], None]]]] = {
    Staged.__name__: ((frozenset(("documents",)), _older_staged),),
    Outcome.__name__: (
        (frozenset(("restored", "marker_offsets", "reclaimed_files", "reclaimed_bytes")), _before_undo),
        (frozenset(("restored", "marker_offsets", "reclaimed_files", "reclaimed_bytes", "archived")), _before_archives),
    ),
}
"""By record: the fields that a version wrote it without, all of them or none, and what it is with them."""


def update_record(kind: str, record: Content, fields: frozenset[str]) -> None:
    """To today's `fields`, in place. Raises NeverWritten where it lacks others than an earlier version did."""
    lacking = fields - record.keys()
    for fields_lacking, update in _LACKING.get(kind, ()):
        if lacking == fields_lacking:
            update(record)
            return
    raise NeverWritten(f"it has no {', '.join(sorted(lacking))}" if lacking else "it holds more than this program knows")


def _add(content: Content, **fields: object) -> None:
    """Raises NeverWritten where one is there: then its version knew more than it says."""
    there = sorted(content.keys() & fields.keys())
    if there:
        raise NeverWritten(f"it says {', '.join(there)}")
    content.update(fields)
