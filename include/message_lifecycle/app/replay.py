"""Refused rows of a batch taken again, each exactly once, by the way that files come in.

The rows' raw texts make files of their own, which the ledger remembers as it remembers others: `replay BATCH/FILE`. So a replay that died
is finished or done again, and a second replay of the same batch takes nothing. A row that is refused again is in the quarantine of the new
batch.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, Intake, lock_for_ingest, result_of, take_known
from message_lifecycle.ledger.intake import ledger_path_of_replay
from message_lifecycle.model.errors import nothing_to_replay, unreplayable_rows
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import SourceFile
from message_lifecycle.model.tables import RefusedRow
from message_lifecycle.sources.selection import natural_order, source_kind

if TYPE_CHECKING:
    from message_lifecycle.sources.files import InputFile

_MOST_ROWS = 1_000_000
"""Refused rows of one batch that this process holds."""
_BYTES = "base64:"
"""Before the raw text of a line that was no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The batch whose refused rows come in again, and the requester. `header`: the header line of CSV files, which rows do not contain."""

    batch_id: str
    by: str | None = None
    why: str | None = None
    header: str | None = None


def replay_batch(intake: Intake, name: TopicName, replay: Replay, options: IngestOptions) -> IngestResult:
    """Take the refused rows of a batch again, and record that the batch is settled.

    Rows of a file that came in mended stay out, because its messages are in the log.

    Raises:
        NothingToReplay: The batch has no refused rows in the quarantine, was replayed, or all its files came in mended.
        UnreplayableRows: The raw text of a row does not suffice to read it again.
    """
    with lock_for_ingest(intake, name) as policy, TemporaryDirectory(prefix="lifecycle-replay-") as folder:
        rows = _rows_to_take(intake, name, replay.batch_id)
        files: dict[str, InputFile] = {}
        known: list[SourceFile] = []
        for file, of_file in groupby(rows, key=lambda row: row.file):
            path = ledger_path_of_replay(replay.batch_id, file)
            files[path], source = _write_replay_file(Path(folder) / str(len(files)), path, list(of_file), replay, options.mapping.encoding)
            known.append(source)
        taken = take_known(intake, name, files, known, policy, options)
        intake.ledger.settle_batch(name, replay.batch_id, "replayed", by=replay.by, why=replay.why)
    before = len(known) - sum(len(fresh) for fresh, _ in taken.values())
    return result_of(intake, name, taken, files_before=before, changed=(), passed_over=())


def _rows_to_take(intake: Intake, name: TopicName, batch_id: str) -> Sequence[RefusedRow]:
    from message_lifecycle.model.errors import UnknownTopic
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.layout import QUARANTINE
    from message_lifecycle.stores.iceberg.refused_rows import rows_of

    settled = next((batch.settled_as for batch in intake.ledger.refused_batches(name) if batch.batch_id == batch_id), None)
    if settled == "replayed":
        raise nothing_to_replay(str(name), batch_id, "its rows were replayed before")
    try:
        found = rows_of(Tables().load(name, kind=QUARANTINE), {"batch": batch_id}, limit=_MOST_ROWS + 1)
    except UnknownTopic:
        found = ()
    if not found:
        raise nothing_to_replay(str(name), batch_id, "no row of it is in the quarantine")
    if len(found) > _MOST_ROWS:
        raise unreplayable_rows(f"batch {batch_id} has more than {_MOST_ROWS:,} refused rows", "mend its files and ingest them again")
    taken = intake.ledger.find_batches_of_files(name, {row.file for row in found})
    rows = [row for row in found if taken.get(row.file, batch_id) == batch_id]
    if not rows:
        raise nothing_to_replay(str(name), batch_id, "all its files came in mended")
    return sorted(rows, key=lambda row: (natural_order(row.file), row.position))


def _write_replay_file(place: Path, path: str, rows: Sequence[RefusedRow], replay: Replay, encoding: str) -> tuple[InputFile, SourceFile]:
    from message_lifecycle.sources.files import InputFile

    file = rows[0].file
    kind = source_kind(file)
    if kind is None or kind == "parquet":
        raise unreplayable_rows(f"rows of {file} are no lines of text", "mend the file and ingest it under another name")
    if kind == "csv" and replay.header is None:
        raise unreplayable_rows(f"rows of {file} are lines of CSV without their header", "give it with --header 'FIELD,FIELD'")
    digest = hashlib.sha256()
    place = place.with_suffix(".csv" if kind == "csv" else ".jsonl")
    with place.open("wb") as content:
        if kind == "csv" and replay.header is not None:
            content.write(replay.header.encode(encoding, "strict") + b"\n")
        for row in rows:
            line = _replay_line(row, encoding)
            digest.update(len(line).to_bytes(8) + line)
            content.write(line + b"\n")
    size = place.stat().st_size
    return (
        InputFile(name=file, path=str(place), kind=kind, size_bytes=size),
        SourceFile(path=path, size_bytes=size, sha256=digest.hexdigest()),
    )


def _replay_line(row: RefusedRow, encoding: str) -> bytes:
    if row.raw is None:
        raise unreplayable_rows(f"of {row.file}:{row.position} no raw text was kept", "mend the file and ingest it under another name")
    found = _bytes_of(row.raw)
    return row.raw.encode(encoding, "surrogateescape") if found is None else found


def _bytes_of(raw: str) -> bytes | None:
    """Return the bytes of a line that was no text. None: the raw text is the line itself, even if it begins like encoded bytes."""
    try:
        found = base64.b64decode(raw.removeprefix(_BYTES), validate=True) if raw.startswith(_BYTES) else b""
        found.decode()
    except UnicodeDecodeError:
        return found
    except ValueError:
        return None
    return None
