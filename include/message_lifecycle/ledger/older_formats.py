"""Plans, what is staged, and outcomes as earlier versions recorded them, taken from format to format up to today's fields.

Only decoded content is touched: the text, and the id that is its hash, stay as they are. A step adds what the later format says and the
earlier could not, or says the same otherwise. Nothing recorded is lost. A field without a certain value is None: unknown. A step is never
edited once it was released. It knows what its time called operations, tables and changes, and tells them apart by these words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from message_lifecycle.model.outcome import Approval, GateReport, Outcome, Staged
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


_SAID_TWICE = ("kind", "first_offset", "last_offset")
"""Of rows: their place among the changes says what they are, and their offsets say the others."""
_OF_ROWS = ("remove_rows", "restore_rows")
_PARTS = {
    "seal_segment": ("log", "seal"),
    "drop_segments": ("log", "drop"),
    "remove_rows": ("log", "mark"),
    "restore_rows": ("log", "back"),
    "compact_partition": ("view", "compact"),
    "remove_view_rows": ("view", "mark"),
    "restore_view_rows": ("view", "back"),
    "snapshot_document": ("snapshots", "documents"),
    "drop_quarantined": ("quarantine", "files"),
    "restore_quarantined": ("quarantine", "files_back"),
}
"""By the kind of an action, the table of its commit and the part of it."""
_COMMIT = ("seal", "drop", "mark", "back", "sweep", "compact", "documents", "documents_back", "files", "files_back")
_MOVES = {"delete_table": "away", "return_table": "back", "drop_table": "gone"}
_NO_FILE: Content = {"file": "", "base_offset": 0}
_MORE: Mapping[str, Content] = {
    "remove_view_rows": _NO_FILE,
    "restore_view_rows": {**_NO_FILE, "size_bytes": 0, "standing": False},
    "delete_table": {"location": "", "metadata": ""},
    "return_table": {"location": "", "metadata": ""},
    "drop_table": {"size_bytes": 0},
}
"""What a part says that an action did not."""


def changes_of(actions: Sequence[Content], source_id: object, *, gives_back: bool) -> list[Content]:
    """The actions of format 5 as changes: those of one table together, in the order of their commits (`operations`). Raises NeverWritten."""
    commits: dict[str, Content] = {}
    others: list[Content] = []
    tables: dict[str, Content] = {}
    erased: dict[str, list[Content]] = {}

    def commit_on(table: str) -> Content:
        empty: Content = {part: [] for part in _COMMIT}
        return commits.setdefault(table, {"kind": "commit", "table": table, "source_id": None, "keep": None, **empty})

    for action in actions:
        kind = action.get("kind")
        said = {name: value for name, value in action.items() if name not in (_SAID_TWICE if kind in _OF_ROWS else ("kind",))}
        said |= _MORE.get(str(kind), {})
        if kind in _PARTS:
            table, part = _PARTS[kind]
            change = commit_on(table)
            change["source_id"] = said.pop("source_id", change["source_id"])
            change[part].append(said)
        elif kind == "sweep_markers":
            commit_on("log")["sweep"] += said.pop("removals")
        elif kind == "restore_document":
            _documents_back(said, commit_on, source_id)
        elif kind == "erase_rows":
            erased.setdefault(str(said.pop("table", "")), []).append(said)
        elif kind == "erase_table":
            others.append({**said, "kind": "rewrite", "rows": erased.pop(str(said.get("table")), [])})
        elif kind == "expire_snapshots":
            others.append(tables.setdefault(str(said.get("table")), {**said, "kind": "forget", "files": []}))
        elif kind == "remove_files":
            table, uuid = said.pop("table", None), said.pop("table_uuid", None)
            empty = {"kind": "forget", "table": table, "table_uuid": uuid, "snapshots": [], "refs": [], "kept": [], "files": []}
            if str(table) not in tables:
                others.append(tables.setdefault(str(table), empty))
            tables[str(table)]["files"].append(said)
        elif kind in _MOVES:
            if not others or others[0]["kind"] != "move":
                others.insert(0, {"kind": "move", "to": _MOVES[kind], "tables": []})
            others[0]["tables"].append(said)
        else:
            raise NeverWritten(f"it says {kind!r} of an action")
    if erased:
        raise NeverWritten("rows of a table are erased that is not written again")
    for table in ("log", "quarantine"):
        if table in commits and gives_back:
            commits[table]["source_id"] = source_id
    order = ("log", "view", "changes", "snapshots", "quarantine") if gives_back else ("view", "log", "snapshots", "quarantine")
    return [*(commits[table] for table in order if table in commits), *others]


def _documents_back(said: Content, commit_on: Callable[[str], Content], source_id: object) -> None:
    of_snapshots = said.pop("source_id", None)
    if said.get("changes_before"):
        change = commit_on("changes")
        change["documents_back"].append({**said, "snapshots": []})
        change["source_id"] = source_id
    if said.get("snapshots"):
        change = commit_on("snapshots")
        change["documents_back"].append({**said, "changes_from": 0, "changes_before": 0})
        change["source_id"] = of_snapshots


_OF_LIMITS = ("retention_age", "retention_count", "retention_bytes")
_REASONS = {
    "message_cleaner": ("expiry", "ttl", *_OF_LIMITS),
    "retention": _OF_LIMITS,
    "message_request": ("removed", "purged"),
    "purge_compacted": ("compacted",),
}


def _to_6(plan: Content) -> None:
    actions = plan.pop("actions", None)
    if len(_objects(actions)) != len(actions if isinstance(actions, list) else "none"):
        raise NeverWritten("it has no list of actions")
    changes = changes_of(_objects(actions), plan.pop("source_id", None), gives_back=plan.get("operation") == "undo")
    reasons = list(_REASONS.get(str(plan.get("operation")), ()))
    settings = dict(plan.get("policy") or ())
    for change in changes if "retention_age" in reasons and (plan.get("expected") or {}).get("removed") else ():
        if change["kind"] == "commit" and change["table"] == "log":
            change["keep"] = settings.get("archive_to")
    _add(plan, changes=changes, reasons=reasons if "expiry" not in reasons or settings.get("enabled", True) else [])


PLAN_STEPS: Mapping[int, Callable[[Content], None]] = {3: _to_4, 4: _to_5, 5: _to_6}
"""By the format that a step begins from.

| plan format | what it says otherwise than the next one |
|---|---|
| 1, 2 | No version that was released wrote them. Their fields are not known, and nothing is guessed. |
| 3 | No `snapshots`: there were no documents, and no retention by number and size. |
| 4 | No `spared`, `erasure`, `source_id`, no `requirements.heeded`: there was no undo, erasure, reclaim, hold, and no deletion of topics. |
| 5 | No `changes` and no `reasons`, but a list of `actions`, and one `source_id` for all that comes back. |
| 6 | Today's. |

Within a format the fields stayed, and values came: with format 4 the operation retention, the reasons `retention_count` and
`retention_bytes`, and `superseded` in the view. A plan says as well which settings it was made under. A setting that came later is not
among them, and then did what its default does (`Policy`).
"""
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
    named = [plan.get("operation"), *(action.get("kind") for action in _objects(plan.get("actions")))]
    for before in range(plan["format"], PLAN_FORMAT):
        later = sorted(_CAME_WITH.get(before + 1, frozenset()).intersection(name for name in named if isinstance(name, str)))
        if later:
            raise NeverWritten(f"it says {', '.join(later)}")
        PLAN_STEPS[before](plan)


def _objects(found: object) -> list[Content]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _before_changes(staged: Content) -> None:
    """Older markers were written down as actions of a plan."""
    for row in _objects((staged.get("markers") or {}).get("superseded")):
        for name in _SAID_TWICE:
            row.pop(name, None)


def _before_documents(staged: Content) -> None:
    _before_changes(staged)
    _add(staged, documents=None)  # there were none


def _before_undo(outcome: Content) -> None:
    # Where markers lie was not kept. An undo takes them away, so it must know all of them or be refused.
    _add(outcome, marker_offsets=None if outcome.get("markers") else [])
    _add(outcome, restored=0, reclaimed_files=None, reclaimed_bytes=None)


def _before_archives(outcome: Content) -> None:
    _before_undo(outcome)
    _add(outcome, archived=0)  # nothing was archived


def _before_frozen(approval: Content) -> None:
    _add(approval, gate_id=None)  # it stood for the only report that there was
    _before_seals(approval)


def _before_seals(record: Content) -> None:
    _add(record, seal=None)


_LACKING: Mapping[str, Sequence[tuple[frozenset[str], Callable[[Content], None]]]] = {
    Staged.__name__: ((frozenset(), _before_changes), (frozenset(("documents",)), _before_documents)),
    Outcome.__name__: (
        (frozenset(("restored", "marker_offsets", "reclaimed_files", "reclaimed_bytes")), _before_undo),
        (frozenset(("restored", "marker_offsets", "reclaimed_files", "reclaimed_bytes", "archived")), _before_archives),
    ),
    Approval.__name__: ((frozenset(("gate_id", "seal")), _before_frozen), (frozenset(("seal",)), _before_seals)),
    GateReport.__name__: ((frozenset(("seal",)), _before_seals),),
}
"""By record: the fields that a version wrote it without, all of them or none, and what it is with them.

| record | what earlier versions wrote it without |
|---|---|
| Staged | `documents`, with format 3; up to format 5 it has more of older markers: what they are, and their first and last offset |
| Outcome | `restored`, `marker_offsets`, `reclaimed_files`, `reclaimed_bytes`, with formats 3 and 4; `archived`, with 3 and the first of 4 |
| Approval | `gate_id`, up to the first versions of format 6; `seal`, with format 6 |
| GateReport | `seal`, with format 6 |
| receipts | nothing |
"""


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
