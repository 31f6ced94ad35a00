"""The branch that an erasure leaves for a published plan whose undo window is still open (DEL-7).

An erasure ends the table's history at once, and with it the snapshot that undo takes rows from. So before it does, it makes the branch
`undo_<first 16 characters of the plan id>`. Its head is what the table was just before the plan's commit: the same data files and
deletion vectors, but for the files that held an erased key. Those are there as copies without the rows of that key, under new names and
with vectors for the new positions. So:

- whatever the plan took is reached through the head, by (partition, offset); names of files in the plan may not be found there;
- an offset that the plan took and that the head does not have was erased, and never comes back;
- what came after the plan's commit is not in it; what main has beside it stands on main.

A second erasure writes the branch's head again like every other ref. The branch ends with the undo, and by itself when a whole window has
passed since the erasure was planned (`max-ref-age-ms`), which is not before the plan's own window ends.
"""

from __future__ import annotations

_PREFIX = "undo_"


def undo_ref(plan_id: str) -> str:
    """Name of the branch."""
    return f"{_PREFIX}{plan_id[:16]}"


def is_undo_ref(name: str) -> bool:
    return name.startswith(_PREFIX)
