"""JSON Merge Patch (RFC 7396): members of the change take the place of the state's, null takes a member away."""

from __future__ import annotations

from message_lifecycle.folds.json_text import JsonFold


def merge(target: object, patch: object) -> object:
    """The algorithm of section 2, on `target` itself where it is an object."""
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


FOLD = JsonFold(step=merge)
