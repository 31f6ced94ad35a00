"""Refused rows of a topic, by batch and one by one."""

from __future__ import annotations

from itertools import groupby

from message_lifecycle.app import refused
from message_lifecycle.app.rendering import Document
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import when
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import RefusedBatch


def refused_view(s: Services, name: TopicName) -> Document:
    """Return the refused rows that are in the quarantine, by batch, file and code. Raises UnknownTopic, NoQuarantine."""
    counts = refused.counts(s, name)
    known = {batch.batch_id: batch for batch in s.ledger.refused_batches(name)}
    asking = {batch.batch_id for batch in refused.needing_a_person(s, name)}
    batches = []
    for (at, batch_id), of_batch in groupby(counts, key=lambda one: (one.at, one.batch)):
        found = list(of_batch)
        batch = known.get(batch_id)
        batches.append(
            {
                "batch": batch_id,
                "at": when(at),
                "rows": sum(one.rows for one in found),
                "taken": None if batch is None else batch.rows,
                "needs_a_person": batch_id in asking,
                "settled_as": None if batch is None else batch.settled_as,
                "files": [
                    {"file": file, "codes": {one.code: one.rows for one in of_file}}
                    for file, of_file in groupby(found, key=lambda one: one.file)
                ],
            }
        )
    return {"topic": str(name), "rows": sum(one.rows for one in counts), "batches": batches}


def rows_view(s: Services, name: TopicName, *, batch: str | None, file: str | None, code: str | None, limit: int) -> Document:
    """Return the first refused rows of that batch, file and code. Raises UnknownTopic, NoQuarantine."""
    found = refused.rows(s, name, batch=batch, file=file, code=code, limit=limit + 1)
    rows = [
        {
            "batch": row.batch,
            "at": when(row.at),
            "file": row.file,
            "position": row.position,
            "code": row.code,
            "reason": row.reason,
            "raw": row.raw,
        }
        for row in found[:limit]
    ]
    return {"topic": str(name), "rows": rows, "more": len(found) > limit}


def batch_view(batch: RefusedBatch) -> Document:
    """Return what the ledger knows of a batch's refused rows."""
    return {
        "batch": batch.batch_id,
        "taken": batch.rows,
        "refused": batch.refused,
        "unsettled": batch.unsettled,
        "settled_as": batch.settled_as,
        "settled_at": when(batch.settled_at),
        "settled_by": batch.settled_by,
        "settled_why": batch.settled_why,
    }
