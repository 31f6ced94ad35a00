"""JSON Patch (RFC 6902), by the library `jsonpatch`. A change is a list of operations, and every operation must apply."""

from __future__ import annotations

import jsonpatch
import jsonpointer

from message_lifecycle.folds.json_text import DEPTH, check_depth, depth_of


def patch(state: object, change: object) -> object:
    """Apply the change in place: a copy for each change would make long histories of large documents slow."""
    if not isinstance(change, list):
        raise ValueError(f"{type(change).__name__} is no list of operations")
    try:
        patched: object = jsonpatch.JsonPatch(change).apply(state, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if any(map(_may_deepen, change)):
        check_depth(patched)
    return patched


def _may_deepen(operation: dict[str, object]) -> bool:
    """Return True if the state may now be too deep. Looks at the operation only, because the state may be large."""
    below = str(operation["path"]).count("/")
    match operation["op"]:
        case "add" | "replace":
            return below + depth_of(operation["value"]) > DEPTH
        case "move" | "copy":
            return below > str(operation["from"]).count("/")
        case _:
            return False
