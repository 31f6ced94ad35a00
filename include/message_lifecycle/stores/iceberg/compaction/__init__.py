"""Two-pass compaction of a topic's log into its compacted table (PIP-14; CMP-1 to CMP-8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import ViewReason
from message_lifecycle.model.rules import Either, Rule

# What one compaction of one topic does, per partition, and what came of it: values that cross between driver and tasks.


MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector: a blob of `length` bytes at `offset` of a Puffin file."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A Parquet file of the log or of the view, by absolute path or `file:` URI.

    `may_be_due`: whether its bounds leave it possible that a row is dead, or past its delete horizon, at the rules' `as_of`; False
    saves reading the columns of times."""

    path: str
    vector: Vector | None = None
    may_be_due: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`ages`: make a row dead, in the order in which the first that holds is the reason (CMP-8). `tombstones_until`: stamped as `delete_horizon` on tombstones that are new in this run; None:
    they are left out at once (CMP-7)."""

    as_of: Instant
    ages: tuple[tuple[ViewReason, Rule], ...] = ()
    empty_is_value: bool = False
    retain_null_key: bool = True
    tombstones_until: Instant | None = None

    @property
    def dead(self) -> Rule:
        """Whether any of them holds."""
        return Either(tuple(rule for _, rule in self.ages))


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
class Resources:
    """Of one task: `memory_bytes` before it spills to `spill_folder`; new data files have about `file_bytes` at the most. Rates: 0 is
    none (CMP-11)."""

    threads: int = 1
    memory_bytes: int = 512 * MEBIBYTE
    spill_folder: str
    file_bytes: int = 256 * MEBIBYTE
    read_bytes_per_second: int = 0
    write_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """`data_folder`: where the compacted table keeps data files; `run`: begins the names of the new ones. Rates: of all tasks
    together, 0 is none (CMP-11)."""

    run: str
    data_folder: str
    rules: Rules
    partitions: tuple[PartitionJob, ...]
    read_bytes_per_second: int = 0
    write_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVector:
    """Takes the place of the data file's earlier vector: its `rows` marks include those."""

    data_file: str
    puffin: NewFile
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What changes in one partition of a table. `dropped`: paths of data files that go whole; `unmarked`: of those that lose their vector and
    get none. `rows`: how many go or come, where that is the question."""

    partition: int
    files: tuple[NewFile, ...] = ()
    vectors: tuple[NewVector, ...] = ()
    dropped: tuple[str, ...] = ()
    unmarked: tuple[str, ...] = ()
    rows: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.vectors or self.dropped or self.unmarked)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult(Written):
    """`keys`: of the tail. `dropped`: files of the view of which nothing is left in the new one. Always `view_rows + tail_rows == rows_out` + removed."""

    through: int
    view_rows: int
    tail_rows: int
    keys: int
    rows_out: int
    removed: Mapping[ViewReason, int] = field(default_factory=dict)
