"""The result of an ingest, as the command, the Spark application and their functions return it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from message_lifecycle.app.rendering import ABSENT, Block, Heading, Line, Notes, View, source
from message_lifecycle.app.wording import count, end_offsets_text, reasons
from message_lifecycle.model.names import TopicName, safe
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.operations.admission import span_doubled
from message_lifecycle.sources.selection import PassedOver

if TYPE_CHECKING:
    from message_lifecycle.app.views.state import OutcomeView
    from message_lifecycle.sources.file_times import GoingBack

CHANGED = "changed since its ingest"
_NAMES_SHOWN = 10


class RemapView(View):
    """The batches that were taken again by another mapping, and how the plan ended that removed their messages."""

    batches: tuple[str, ...]
    removal: OutcomeView | None

    def screen_blocks(self) -> Iterator[Block]:
        if not self.batches:
            yield Notes(["no earlier batch of these files used another mapping"])
        elif self.removal is not None:
            removed = f"plan {short(self.removal.plan_id or '')} removed {amount(self.removal.removed_messages, 'earlier messages')}"
            yield Notes([f"ingested again with this mapping: batch {', '.join(self.batches)}", removed])


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

    def screen_blocks(self) -> Iterator[Block]:
        if self.remapped:
            yield from self.remapped.screen_blocks()
        yield Notes([f"skipped, changed since its ingest: {path}" for path in self.changed])
        passed_over = Notes(_passed_over_lines([one for one in self.passed_over if one.why != CHANGED]))
        if not self.files:
            yield f"{self.topic}: no new files ({count(self.files_before)} already ingested)"
            yield passed_over
            return
        yield Line(f"{self.topic}: ingested {amount(self.rows, 'messages')} from {amount(len(self.files), 'files')}", style="green")
        yield {
            "segments": count(self.segments),
            "end offsets": end_offsets_text(self.end_offsets),
            "quarantined": reasons(self.quarantined),
            "refused files": _shorten_names(self.refused_whole),
            "rejected": f"{amount(self.erased, 'messages')} of forbidden keys" if self.erased else "",
            "unknown times": f"{amount(self.unknown_times, 'messages')}, which never expire" if self.unknown_times else "",
            "without a field": ", ".join(f"{name}: {amount(number, 'records')}" for name, number in self.absent.items()),
            "shifted by": amount(self.shift_days, "days") if self.shift_days else "",
        }
        yield Notes(self._warnings(), style="yellow")
        yield passed_over
        if self.removal:
            yield Heading("Replayed rows leave the quarantine")
            yield from self.removal.screen_blocks()
        if self.refused_batches:
            yield Notes(
                ["This batch ingested no message. Correct its files and ingest them again, or replay or accept its rows."], style="red"
            )
        if self.quarantined:
            yield f"Refused rows: lifecycle quarantine show {self.topic}"

    def _warnings(self) -> list[str]:
        from message_lifecycle.sources.file_times import going_back_line

        found = [going_back_line(self.going_back)] if self.going_back else []
        return found if self.span_seconds is None else [*found, span_doubled(self.span_seconds)]


def _passed_over_lines(passed_over: Sequence[PassedOver]) -> list[str]:
    """Return one line for each reason, with the names of the first files that were passed over for it."""
    names: dict[str, list[str]] = {}
    for one in passed_over:
        names.setdefault(one.why, []).append(one.file)
    return [f"skipped, {why}: {_shorten_names(some)}" for why, some in names.items()]


def _shorten_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(map(safe, names[:_NAMES_SHOWN]))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"
