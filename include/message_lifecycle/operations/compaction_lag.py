"""The way out where compaction has stopped: past `max_compaction_lag` the cleaner no longer waits for it (CMP-9).

What is dead past the horizon then goes as anywhere else, and in the same plan, before it, what is older of its keys in the view.
A message stays while an older one of its key, past the horizon too, does: compaction, once it runs again, would take that for the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from message_lifecycle.model.facts import Facts, Lift, Progress
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.plan import DropSegments, Plan, RemoveRows, RemoveViewRows, ViewRequirements
from message_lifecycle.model.rows import AgeReason, ranges_of, ranges_text
from message_lifecycle.model.view import NOTHING, Outlived, ViewState
from message_lifecycle.operations.barriers import READER


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far compaction is behind. `oldest`: by partition, the oldest known append_time past the horizon; unknown is not old.
    `limit_us`: above 0; a message that is exactly so old may wait."""

    view: ViewState
    oldest: Mapping[int, Instant]
    limit_us: int
    as_of: Instant

    @property
    def exceeded(self) -> dict[int, int]:
        """Age in microseconds of the oldest message past the horizon, where it is greater than the limit; by partition."""
        ages = ((partition, self.as_of - oldest) for partition, oldest in sorted(self.oldest.items()))
        return {partition: age for partition, age in ages if age > self.limit_us}

    def lifted(self, facts: Facts, cuts: Mapping[int, int]) -> Facts:
        """The facts by which compaction keeps nothing any more where it is too far behind. `cuts`: from which offset on it does."""
        readers = [reader for reader in facts.consumers if reader.kind != "compaction"]
        ends = facts.log.end_offsets
        return replace(facts, consumers=(*readers, *(self._reader(partition, ends[partition], cuts) for partition in sorted(ends))))

    def _reader(self, partition: int, end: int, cuts: Mapping[int, int]) -> Progress:
        horizon, age = self.view.horizon(partition), self.exceeded.get(partition)
        reader = Progress(consumer=READER, partition=partition, offset=horizon, at=None, kind="compaction")
        if age is None:
            return reader
        cut = cuts.get(partition)
        waits = "nothing waits for it any more" if cut is None else f"from offset {cut} on all waits for it, because {_BACK}"
        through = (end if cut is None else cut) - 1
        return replace(reader, lift=Lift(through=through, reason=f"{_reached(horizon)}, and {self._told(age)}: {waits}"))

    def _told(self, age: int) -> str:
        return f"the oldest message past that is {_seconds(age)} s old, more than max_compaction_lag = {_seconds(self.limit_us)} s"

    def completed(self, made: Plan, outlived: Outlived) -> Plan:
        """The plan with what goes from the view, and what a person should know."""
        warnings = tuple(
            f"partition {partition}: compaction {_reached(self.view.horizon(partition))}, and {self._told(age)}; what is dead past it goes "
            "without being compacted (CMP-9)"
            for partition, age in self.exceeded.items()
        )
        made = replace(made, warnings=(*made.warnings, *warnings), next_due_at=self._next_due(made))
        if not takes_past(made, self.view):
            return made
        view = self.view
        return replace(
            made,
            actions=(*_of_view(outlived), *made.actions),
            view=ViewRequirements(table_uuid=view.table_uuid, snapshot_id=view.snapshot_id, rows=view.rows),
        )

    def _next_due(self, made: Plan) -> Instant | None:
        """What compaction holds now may go once it is too far behind."""
        held = {entry.partition for entry in made.held if entry.holder == "compaction"}
        begins = (Instant(self.oldest[partition] + self.limit_us + 1) for partition in held if partition in self.oldest)
        times = [made.next_due_at, *(begin for begin in begins if begin > self.as_of)]
        return min((time for time in times if time is not None), default=None)


_BACK = "a message there would go before an older one of its key, which would then come back"


def takes_past(made: Plan, view: ViewState) -> bool:
    """Whether the plan takes anything past a horizon; of a whole segment it may say so though all that is left in it is compacted."""
    dropped = (action for action in made.actions if isinstance(action, DropSegments))
    return any(action.last_offset > view.horizon(action.partition) for action in dropped) or any(
        _first_past(action, view) is not None for action in made.row_removals
    )


def cuts_of(made: Plan, view: ViewState, outlived: Outlived) -> dict[int, int]:
    """By partition, the first message that goes and must wait for compaction all the same."""
    cuts = dict(outlived.in_log)
    for action in made.row_removals:
        # What an age takes is dead to the view, too. Any other limit bounds the log alone: what lives must be compacted first.
        first = None if action.reason in get_args(AgeReason) else _first_past(action, view)
        if first is not None:
            cuts[action.partition] = min(first, cuts.get(action.partition, first))
    return cuts


def _first_past(action: RemoveRows, view: ViewState) -> int | None:
    """The first message past the horizon that the action takes."""
    start = view.horizon(action.partition) + 1
    return next((max(run.start, start) for run in ranges_of(action.offsets) if run.stop > start), None)


def _of_view(outlived: Outlived) -> Iterator[RemoveViewRows]:
    for partition, offsets in sorted(outlived.of_view.items()):
        if offsets:
            yield RemoveViewRows(partition=partition, offsets=ranges_text(offsets), rows=len(offsets), reason="superseded")


def _reached(horizon: int) -> str:
    return "has compacted nothing here yet" if horizon <= NOTHING else f"has compacted up to offset {horizon}"


def _seconds(us: int) -> str:
    whole, micros = divmod(us, MICROS_PER_SECOND)
    return f"{whole}.{micros:06}".rstrip("0").rstrip(".")
