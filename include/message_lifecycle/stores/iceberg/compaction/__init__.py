"""Two-pass compaction of a topic's log into its compacted table (PIP-14; CMP-1 to CMP-8).

Here is what one compaction of one topic does, per partition, and what came of it: values that cross between driver and tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.operations.compaction import FoldRules
from message_lifecycle.stores.iceberg.shares import NO_LIMITS, Rates
from message_lifecycle.stores.iceberg.tasks import HERE, InputFile, Store, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """Messages after `after` (the horizon so far, -1: none) up to `through`, that one included, are compacted into the view.

    Files are in the order of their offsets. `rewrite`: the view is written anew; else only what is new is written, and rows of the
    view that go are marked in deletion vectors. `whole_tail`: the tail's files hold nothing but messages that are to be compacted,
    which saves asking every row for its offset; False: that is not known."""

    partition: int
    after: int
    through: int
    view: tuple[InputFile, ...]
    tail: tuple[InputFile, ...]
    rewrite: bool
    whole_tail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """`data_folder`: where the compacted table keeps data files; `run`: begins the names of the new ones. `rates`: of all tasks together
    (CMP-11)."""

    run: str
    data_folder: str
    rules: FoldRules
    partitions: tuple[PartitionJob, ...]
    rates: Rates = NO_LIMITS
    store: Store = HERE
    description: str = "compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult(Written):
    """`keys`: of the tail. `dropped`: files of the view of which nothing is left in the new one. Always `view_rows + tail_rows == rows_out` + removed."""

    through: int
    view_rows: int
    tail_rows: int
    keys: int
    rows_out: int
    removed: Mapping[ViewReason, int] = field(default_factory=dict)
