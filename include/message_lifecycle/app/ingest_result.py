"""The result of an ingest, as the command, the Spark application and their functions return it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from message_lifecycle.app.rendering import ABSENT, Block, Heading, Line, Notes, View, source
from message_lifecycle.app.wording import SHORT, count, ends, reasons
from message_lifecycle.model.names import TopicName, safe
from message_lifecycle.operations.admission import span_doubled
from message_lifecycle.sources.selection import PassedOver

if TYPE_CHECKING:
    from message_lifecycle.app.views.state import OutcomeView
    from message_lifecycle.sources.file_times import GoingBack

CHANGED = "changed since it was taken"
_NAMES_SHOWN = 10


class RemapView(View):
    """The batches that were taken again by another mapping, and how the plan ended that removed their messages."""

    batches: tuple[str, ...]
    removal: OutcomeView | None

    def shown(self) -> Iterator[Block]:
        if not self.batches:
            yield Notes(["no batch of these files was taken by another mapping"])
        elif self.removal is not None:
            by = f"plan {(self.removal.plan_id or '')[:SHORT]} removed {count(self.removal.removed_messages)} messages that it had brought"
            yield Notes([f"taken again under this mapping: batch {', '.join(self.batches)}; {by}"])


class IngestResult(View):
    """The messages and files that one call took.

    Attributes:
        files: Empty if every file was taken before; the call then changed nothing.
        quarantined: Refused rows by code.
        end_offsets: The log's end offsets afterwards.
        segments: The number of segments that got messages.
        unknown_times: Messages without a known append time, which never expire (CLK-4).
        shift_days: All times were moved by this number of days.
        erased: Messages that were not taken, and are kept nowhere, because their key was erased (`erase --forbid`).
        changed: Files that were skipped, because they were taken before with other content.
        span_seconds: The doubled `segment_max_seconds`, if a batch would have opened too many segments. None: as set (EXP-3).
        absent: Fields that some records of JSON lines do not have, with the number of these records.
    """

    topic: TopicName
    batch_ids: tuple[str, ...]
    files: tuple[str, ...]
    files_before: int
    rows: int = source(key="messages")
    quarantined: Mapping[str, int]
    end_offsets: Mapping[int, int]
    segments: int
    unknown_times: int
    shift_days: int
    erased: int = 0
    changed: tuple[str, ...] = ()
    span_seconds: int | None = None
    refused_whole: tuple[str, ...] = ()
    """Files with every row refused. A corrected file may come in again under the same name."""
    refused_batches: tuple[str, ...] = ()
    """Batches with refused rows and no message taken. A person must resolve them."""
    passed_over: tuple[PassedOver, ...] = ()
    """Files below the folder that were not taken, with the reasons: hidden, of another kind, excluded, changed, or taken before."""
    absent: Mapping[str, int] = field(default_factory=dict, metadata={"key": "absent_fields"})
    going_back: tuple[GoingBack, ...] = ()
    """Files whose times are all before the times of an earlier file, in the order of the files (CLK-4: known times only)."""
    remapped: RemapView = ABSENT
    """Which batches were taken again by another mapping."""
    removal: OutcomeView = ABSENT
    """How the run ended that removes replayed rows from the quarantine."""

    def shown(self) -> Iterator[Block]:
        if self.remapped:
            yield from self.remapped.shown()
        yield Notes([f"not taken, for it has changed since it was: {path}" for path in self.changed])
        passed_over = Notes(_passed_over_lines([one for one in self.passed_over if one.why != CHANGED]))
        if not self.files:
            yield f"{self.topic}: nothing new, {count(self.files_before)} files were taken before"
            yield passed_over
            return
        yield Line(f"{self.topic}: {count(self.rows)} messages out of {count(len(self.files))} files", style="green")
        yield {
            "segments": count(self.segments),
            "end offsets": ends(self.end_offsets),
            "quarantined": reasons(self.quarantined),
            "refused whole": _shortened(self.refused_whole),
            "erased": f"{count(self.erased)} messages of keys that may not come in, not taken" if self.erased else "",
            "unknown times": f"{count(self.unknown_times)} messages, which never expire" if self.unknown_times else "",
            "without a field": ", ".join(f"{name}: {count(number)} records" for name, number in self.absent.items()),
            "shifted by": f"{self.shift_days} days" if self.shift_days else "",
        }
        yield Notes(self._warnings(), style="yellow")
        yield passed_over
        if self.removal:
            yield Heading("Replayed rows leave the quarantine")
            yield from self.removal.shown()
        if self.refused_batches:
            yield Notes(
                ["nothing was taken of this batch: mend its files and ingest them again, or replay or accept its rows"], style="red"
            )
        if self.quarantined:
            yield Notes([f"to see the refused rows: lifecycle quarantine show {self.topic}"])

    def _warnings(self) -> list[str]:
        from message_lifecycle.sources.file_times import going_back_line

        found = [going_back_line(self.going_back)] if self.going_back else []
        return found if self.span_seconds is None else [*found, span_doubled(self.span_seconds)]


def _passed_over_lines(passed_over: Sequence[PassedOver]) -> list[str]:
    """Return one line for each reason, with the names of the first files that were passed over for it."""
    names: dict[str, list[str]] = {}
    for one in passed_over:
        names.setdefault(one.why, []).append(one.file)
    return [f"passed over, {why}: {_shortened(some)}" for why, some in names.items()]


def _shortened(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(map(safe, names[:_NAMES_SHOWN]))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"
