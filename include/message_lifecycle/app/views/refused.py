"""Refused rows of a topic, by batch and one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from message_lifecycle.app import refused
from message_lifecycle.app.rendering import Block, Count, Line, Notes, Table, View, hidden, source
from message_lifecycle.app.services import Services
from message_lifecycle.app.wording import count, reasons
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import SettledAs
from message_lifecycle.model.tables import RefusedRow


class FileView(View):
    """The refused rows of a file, by code."""

    file: str
    codes: Mapping[str, int]
    batch: str = hidden("")

    table = Table(columns={"batch": "batch", "file": "file", "refused rows": lambda one: reasons(one.codes)}, wrap=("file",))


class RefusedBatchView(View):
    """The refused rows of a batch in the quarantine. `taken` counts the batch's messages; None: the ledger does not know the batch."""

    batch: str
    at: Instant
    rows: Count
    taken: Count | None
    needs_a_person: bool
    settled_as: SettledAs | None
    files: tuple[FileView, ...]

    table = Table(
        columns={
            "batch": "batch", "refused at": "at", "taken": "taken", "refused": "rows",
            "state": lambda one: "needs a person" if one.needs_a_person else one.settled_as or "",
        },
    )  # fmt: skip


class RefusedView(View):
    """The refused rows of a topic, by batch."""

    topic: TopicName
    rows: Count
    batches: tuple[RefusedBatchView, ...]

    def screen_blocks(self) -> Iterator[Block]:
        if not self.rows:
            yield f"{self.topic}: no refused rows"
            return
        yield RefusedBatchView.table.of(self.batches)
        yield ""
        yield FileView.table.of(file for batch in self.batches for file in batch.files)
        yield Notes([f"to see the rows: lifecycle quarantine show {self.topic} --batch BATCH"])


def refused_view(s: Services, name: TopicName) -> RefusedView:
    """Return the refused rows that are in the quarantine, by batch, file and code. Raises UnknownTopic, NoQuarantine."""
    counts = refused.count_refused_rows(s, name)
    known = {batch.batch_id: batch for batch in s.ledger.refused_batches(name)}
    asking = {batch.batch_id for batch in refused.needing_a_person(s, name)}
    batches = []
    for (at, batch_id), of_batch in groupby(counts, key=lambda one: (one.at, one.batch)):
        found, batch = list(of_batch), known.get(batch_id)
        by_file = groupby(found, key=lambda one: one.file)
        batches.append(
            RefusedBatchView(
                batch=batch_id,
                at=at,
                rows=sum(one.rows for one in found),
                taken=None if batch is None else batch.rows,
                needs_a_person=batch_id in asking,
                settled_as=None if batch is None else batch.settled_as,
                files=tuple(
                    FileView(file=file, codes={one.code: one.rows for one in of_file}, batch=batch_id) for file, of_file in by_file
                ),
            )
        )
    return RefusedView(topic=name, rows=sum(one.rows for one in counts), batches=tuple(batches))


class RowsView(View):
    """Some refused rows of a topic."""

    topic: TopicName
    rows: tuple[RefusedRow, ...]
    more: bool

    def screen_blocks(self) -> Iterator[Block]:
        if not self.rows:
            yield f"{self.topic}: no such refused rows"
        for row in self.rows:
            yield Line(f"{row.file}:{row.position}  {row.code}: {row.reason or 'no reason was kept'}", style="bold")
            yield Line("(no raw text was kept)" if row.raw is None else row.raw, wraps=True)
        if self.more:
            yield Notes([f"only the first {count(len(self.rows))} rows: --limit shows more"])


def rows_view(s: Services, name: TopicName, *, batch: str | None, file: str | None, code: str | None, limit: int) -> RowsView:
    """Return the first refused rows of that batch, file and code. Raises UnknownTopic, NoQuarantine."""
    found = refused.read_refused_rows(s, name, batch=batch, file=file, code=code, limit=limit + 1)
    return RowsView(topic=name, rows=tuple(found[:limit]), more=len(found) > limit)


class SettledView(View):
    """How a person settled the refused rows of a batch."""

    topic: TopicName
    batch: str = source("batch_id")
    taken: Count = source("rows")
    refused: Count
    unsettled: Count
    settled_as: SettledAs | None
    settled_at: Instant | None
    settled_by: str | None
    settled_why: str | None

    def screen_blocks(self) -> Iterator[Block]:
        yield f"{self.topic}: {count(self.refused)} refused rows of batch {self.batch}: {self.settled_as} by {self.settled_by}"
