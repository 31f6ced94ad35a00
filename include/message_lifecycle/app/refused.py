"""Refused rows of a topic: which are in its quarantine, which batches need a person (OBL-1), and a person's word that they may stay there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import no_quarantine
from message_lifecycle.model.instants import format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Obligation
from message_lifecycle.model.outcome import RefusedBatch
from message_lifecycle.model.tables import QuarantineFile, RefusedCount, RefusedRow
from message_lifecycle.ports import QuarantineStore


def quarantine_of(s: Services, name: TopicName) -> QuarantineStore:
    """Return the store of the topic's quarantine. Raises NoQuarantine."""
    if s.stores.quarantine is None or name in s.backends:
        raise no_quarantine(str(name))
    return s.stores.quarantine


def count_refused_rows(s: Services, name: TopicName) -> Sequence[RefusedCount]:
    """Return the number of refused rows by batch, file and code. Raises UnknownTopic, NoQuarantine."""
    s.topics.describe(name)
    return quarantine_of(s, name).refused_counts(name)


def read_refused_rows(
    s: Services, name: TopicName, *, batch: str | None = None, file: str | None = None, code: str | None = None, limit: int
) -> Sequence[RefusedRow]:
    """Return the first refused rows of that batch, file and code. Raises UnknownTopic, NoQuarantine."""
    s.topics.describe(name)
    return quarantine_of(s, name).refused_rows(name, batch=batch, file=file, code=code, limit=limit)


def accept(s: Services, name: TopicName, batch_id: str, *, by: str, why: str) -> RefusedBatch:
    """Record that a person leaves the refused rows of a batch as they are. The rows stay until their age.

    Raises:
        UnknownBatch: The batch refused no row of this topic.
    """
    s.topics.describe(name)
    return s.ledger.settle_batch(name, batch_id, "accepted", by=by, why=why)


def rows_in_quarantine(s: Services, name: TopicName) -> int:
    """Return how many rows are in the topic's quarantine, by its metadata."""
    return sum(file.rows for file in _files(s, name))


def needing_a_person(s: Services, name: TopicName) -> Sequence[RefusedBatch]:
    """Return the batches with more than half of their rows refused that nobody has replayed, accepted, mended or removed (OBL-1)."""
    asking = [batch for batch in s.ledger.refused_batches(name) if batch.needs_a_person]
    files = _files(s, name) if asking else ()
    return [batch for batch in asking if any(batch.may_contain(file.oldest_at, file.newest_at) for file in files)]


def obligations(s: Services, name: TopicName) -> Iterator[Obligation]:
    """Yield one obligation for each batch that needs a person."""
    for batch in needing_a_person(s, name):
        how = "was refused whole" if not batch.rows else "was refused for more than half"
        to_do = f"replay, accept or mend it: lifecycle quarantine show {name} --batch {batch.batch_id}"
        said = f"refused: batch {batch.batch_id} of {format_to_second(batch.ended_at)} {how} ({batch.refused:,} rows, {batch.rows:,} taken); {to_do}"
        yield Obligation(
            kind="refused",
            operation="quarantine",
            amount=batch.unsettled,
            unit="rows",
            due_since=batch.ended_at,
            held=(),
            last_run=None,
            looked_at=None,
            problems=(said,),
        )


def _files(s: Services, name: TopicName) -> Sequence[QuarantineFile]:
    if s.stores.quarantine is None or name in s.backends:
        return ()
    state = s.stores.quarantine.quarantine(name)
    return () if state is None else state.files
