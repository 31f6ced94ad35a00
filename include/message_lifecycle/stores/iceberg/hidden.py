"""How much of a table's disk only its past needs, by summaries alone: a figure for `status`, not a plan."""

from __future__ import annotations

from message_lifecycle.stores.iceberg.document import TableDocument


def hidden_bytes(document: TableDocument) -> int:
    """Bytes of data and delete files that snapshots still remember and the newest does not show.

    Every file was added by one of the snapshots, or was there at the first of them; what the newest shows is taken off. A file that is
    added again counts again, so the figure may be too high, and manifests are not in it."""
    snapshots = document.content.get("snapshots") or ()
    if not snapshots:
        return 0
    first, *others = sorted(snapshots, key=lambda snapshot: snapshot.get("sequence-number", 0))
    held = _number(first, "total-files-size") + sum(_number(snapshot, "added-files-size") for snapshot in others)
    shown = next((_number(snapshot, "total-files-size") for snapshot in snapshots if snapshot["snapshot-id"] == document.current_id), 0)
    return max(0, held - shown)


def _number(snapshot: dict[str, object], key: str) -> int:
    summary = snapshot.get("summary")
    return int(str(summary.get(key, 0))) if isinstance(summary, dict) else 0
