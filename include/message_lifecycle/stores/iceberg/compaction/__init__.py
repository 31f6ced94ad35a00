"""Two-pass compaction of a topic's log into its compacted table (PIP-14; CMP-1 to CMP-8).

The classes here describe the work of one compaction and its results, per partition. The driver and the tasks exchange them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg.shares import NO_LIMITS, ResourceLimits
from message_lifecycle.stores.iceberg.tasks import HERE, InputFile, Store, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """One partition's messages to compact into the view: after `after`, up to and including `through`.

    Attributes:
        after: The horizon so far; -1: none.
        view: The view's files, in the order of their offsets.
        tail: The log's files, in the order of their offsets.
        rewrite: True: write the whole view again. False: write only new rows, and mark removed rows of the view in deletion vectors.
        whole_tail: True: every message of the tail's files is to be compacted, so no row's offset needs a check. False: unknown.
    """

    partition: int
    after: int
    through: int
    view: tuple[InputFile, ...]
    tail: tuple[InputFile, ...]
    rewrite: bool
    whole_tail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """The compaction of one topic.

    Attributes:
        run: The beginning of the names of the new files.
        data_folder: The folder of the compacted table's data files.
        rates: Limits for all tasks together (CMP-11).
    """

    run: str
    data_folder: str
    rules: CompactionRules
    partitions: tuple[PartitionJob, ...]
    rates: ResourceLimits = NO_LIMITS
    store: Store = HERE
    description: str = "compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult(Written):
    """The result for one partition. Always `view_rows + tail_rows == rows_out` + removed.

    Attributes:
        keys: How many keys the tail has.
        dropped: Files of the old view without any row in the new view.
    """

    through: int
    view_rows: int
    tail_rows: int
    keys: int
    rows_out: int
    removed: Mapping[ViewReason, int] = field(default_factory=dict)
