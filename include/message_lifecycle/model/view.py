"""The compacted view of a topic: each key's latest message, up to a horizon per partition (CMP-1 to CMP-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.rows import ViewReason

NOTHING = -1
"""The horizon of a partition of which nothing has been compacted yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """A message in the view, as the log has it.

    `delete_horizon`: of a retained tombstone, the instant from which on it may go (CMP-7). `remembered`: not a message any more but
    the memory of one that was dropped, until its `delete_horizon`, so that a late older event brings no key back (CMP-12)."""

    message: Message
    delete_horizon: Instant | None = None
    remembered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The view at one snapshot, by metadata alone.

    `rows`: messages in it; `hidden_rows`: of its files, superseded and not yet rewritten. `due_at`: when a message in it may go by its
    age at the earliest; it may be earlier than the truth, never later."""

    table_uuid: str
    snapshot_id: int
    horizons: Mapping[int, int]
    """The last offset compacted, per partition; a partition that is not there has none yet."""
    rows: int
    hidden_rows: int
    size_bytes: int
    due_at: Instant | None
    settings_hash: str
    """Of the settings by which its messages were judged and `due_at` was told (`Policy.view_hash`); empty where not all by the same."""

    def horizon(self, partition: int) -> int:
        return self.horizons.get(partition, NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlived:
    """What would be seen again if a plan took messages from past the horizon as it stands (CMP-9). Messages without a key hide none.

    Ascending offsets by partition. `of_view`: of messages in the view of whose key a newer one goes. `in_log`: of messages that go from
    past the horizon although an older one of their key stays there."""

    of_view: Mapping[int, Sequence[int]]
    in_log: Mapping[int, Sequence[int]]


NONE_OUTLIVED = Outlived(of_view={}, in_log={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What lies past a partition's horizon, up to the end point of a run (CMP-1). `size_bytes`: of the files that hold it, a share each."""

    partition: int
    after: int
    through: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedView:
    """What a plan has made of the view, on the branch, before anybody sees it.

    rows of the view before + rows of the tail == `rows` + all of `removed` (CNT-1)."""

    view_rows: int
    tail_rows: int
    rows: int
    removed: tuple[tuple[ViewReason, int], ...]
    bytes_read: int
    bytes_written: int
    engine: str
    took_ms: int = 0
    snapshot_id: int | None = None
    """Of the view's table, on the plan's branch."""
