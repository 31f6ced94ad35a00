"""JSON Patch (RFC 6902), by the library `jsonpatch`: a change is a list of operations, all of which must apply."""

from __future__ import annotations

import jsonpatch
import jsonpointer

from message_lifecycle.folds.json_state import JsonFold


def patch(state: object, change: object) -> object:
    """In place: a copy for each change would make long histories of large documents slow."""
    if not isinstance(change, list):
        raise ValueError(f"{type(change).__name__} is no list of operations")
    try:
        return jsonpatch.JsonPatch(change).apply(state, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise ValueError(str(error) or type(error).__name__) from error


FOLD = JsonFold(step=patch)
