"""Take the files of a folder into a topic, each file exactly once. A batch becomes visible whole, in one commit, or not at all.

The ledger records the files of a batch before anything is written. A run that died leaves its batch open. The next run searches the table
for the batch, and finishes it in the ledger or does it again under the same id. So even a run that only seemed dead cannot take the same
files twice.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app.erasure_secret import configured_secret, forbidden_keys
from message_lifecycle.app.ingest_result import CHANGED, IngestResult
from message_lifecycle.app.places import files_at
from message_lifecycle.app.witness import compare, record_state
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import BadInput, Refused, batch_not_open, invalid_append
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import SourceFile
from message_lifecycle.model.setting_list import Value, check_messages
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.ports import LogIntegrity, Topic, Topics
from message_lifecycle.sources.selection import EVERY_FILE, PassedOver, Patterns, natural_order

if TYPE_CHECKING:
    from message_lifecycle.app.intake_tasks import ReadingRules
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ledger.intake import InsteadOf
    from message_lifecycle.sources.file_times import Spans
    from message_lifecycle.sources.files import InputFile
    from message_lifecycle.sources.mapping import FieldMapping
    from message_lifecycle.sources.reader import Job
    from message_lifecycle.stores.iceberg.append import BatchCommit
    from message_lifecycle.stores.iceberg.engine import Engine

log = logging.getLogger("lifecycle")

SHIFT_DAYS = "shift_days"
TAKEN_BEFORE = "taken before"
REFUSED_BEFORE = "every row was refused before, and the file is as it was: mend it, or replay its rows"
_LOCK_SECONDS = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How files become messages. `shift_to`: move all times by whole days so that the newest ends on that day."""

    mapping: FieldMapping
    shift_to: date | None = None
    allow_implausible_times: bool = False
    skip_changed: bool = False
    patterns: Patterns = EVERY_FILE
    instead_of: InsteadOf | None = None
    """Batches whose messages a plan has removed, and whose files come in again by this."""

    @property
    def mapping_text(self) -> str:
        """The mapping as the ledger keeps it with a batch."""
        return json.dumps(asdict(self.mapping), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """The parts that an ingest needs. The engine starts only when there is something to take."""

    topics: Topics
    ledger: Ledger
    server: Mapping[str, Value]
    engine: Callable[[], Engine]
    end_offsets: Callable[[TopicName], Mapping[int, int]]
    witnesses: LogIntegrity
    key_secret: Callable[[bool], KeySecret] = configured_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchResult:
    appended: BatchCommit | None
    quarantined: Mapping[str, int]
    refused_whole: Mapping[str, int]
    unknown_times: int
    shift_days: int
    erased: int
    absent: Mapping[str, int]
    spans: Spans


def take_files(intake: Intake, name: TopicName, path: str, options: IngestOptions) -> IngestResult:
    """Take new files; see `ingest.ingest`. Raises InvalidAppend (a mirror), ChangedFile, TopicBusy, and errors from reading and writing."""
    with lock_for_ingest(intake, name) as policy:
        found = files_at(path, options.patterns)
        files = {file.name: file for file in found}
        known = [SourceFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256()) for file in found]
        changed = intake.ledger.changed_files(name, known) if options.skip_changed else ()
        known = [file for file in known if file not in changed]
        taken = take_known(intake, name, files, known, policy, options)
    new = {file.path for fresh, _ in taken.values() for file in fresh}
    refused = intake.ledger.find_refused_files(name, known)
    before = [
        PassedOver(file=file.path, why=REFUSED_BEFORE if file.path in refused else TAKEN_BEFORE) for file in known if file.path not in new
    ]
    passed_over = (*found.passed_over, *(PassedOver(file=file.path, why=CHANGED) for file in changed), *before)
    changed_paths = tuple(file.path for file in changed)
    return result_of(intake, name, taken, files_before=len(before), changed=changed_paths, passed_over=passed_over)


@contextmanager
def lock_for_ingest(intake: Intake, name: TopicName) -> Iterator[Policy]:
    """Hold the topic's lock while messages come in. Raises InvalidAppend (a mirror), LedgerMismatch, TopicBusy."""
    topic = intake.topics.describe(name)
    check_messages(topic.settings, name)
    if topic.role == "mirror":
        raise invalid_append(f"topic {name} is a mirror; it takes messages from its origin alone")
    # A forgetful ledger would take files again that it does not remember.
    intake.ledger.check(name, topic.ledger)
    compare(intake.witnesses, intake.ledger, name)
    policy = resolve(topic=topic.settings, server=intake.server)
    with intake.ledger.lock(name, wait_seconds=_LOCK_SECONDS, purpose="ingest"):
        yield policy


def take_known(
    intake: Intake,
    name: TopicName,
    files: Mapping[str, InputFile],
    known: Sequence[SourceFile],
    policy: Policy,
    options: IngestOptions,
) -> Mapping[str, tuple[Sequence[SourceFile], _BatchResult]]:
    """Finish the batch that a dead run left, then take the files that no batch has taken.

    Args:
        intake: The parts that an ingest needs.
        name: The topic.
        files: The files to read, by their path in the ledger.
        known: The same files, as the ledger records them.
        policy: The topic's policy.
        options: How files become messages.

    Returns:
        By batch, its files and their result.
    """
    from message_lifecycle.sources.files import MAX_FILES

    taken: dict[str, tuple[Sequence[SourceFile], _BatchResult]] = {}
    begun = find_open_batch(intake, name, known)
    starts = range(0, len(known), MAX_FILES)
    plans = ([begun] if begun else []) + [(uuid.uuid4().hex, known[start : start + MAX_FILES]) for start in starts]
    for batch_id, some in plans:
        fresh = intake.ledger.begin_batch(name, batch_id, some, mapping=options.mapping_text, instead_of=options.instead_of)
        if fresh:
            fresh = sorted(fresh, key=lambda file: natural_order(file.path))
            taken[batch_id] = (
                fresh,
                _take(
                    intake,
                    name,
                    batch_id,
                    [files[f.path] for f in fresh],
                    policy,
                    options,
                    again=begun is not None and batch_id == begun[0],
                ),
            )
    return taken


def find_open_batch(intake: Intake, name: TopicName, known: Sequence[SourceFile]) -> tuple[str, Sequence[SourceFile]] | None:
    """End the batch that a dead run left, if the table has it or `known` lacks one of its files. Otherwise return it, to be done again."""
    from message_lifecycle.stores.iceberg.append import end_of_batch
    from message_lifecycle.stores.iceberg.refused_rows import quarantined

    for batch in intake.ledger.open_batches(name):
        appended = end_of_batch(intake.engine(), name, batch.batch_id)
        if appended is not None:
            log.info("%s: batch %s of a run that died is in the table", name, batch.batch_id)
            # The dead run did not record which files gave no message, so every file counts as taken.
            refused = quarantined(name, batch.batch_id).total()
            intake.ledger.finish_batch(
                batch.batch_id, snapshot_id=appended.snapshot_id, rows=appended.rows, quarantined=refused, ranges=appended.ranges
            )
        elif set(batch.files) <= set(known):
            log.info("%s: batch %s of a run that died is done again", name, batch.batch_id)
            return batch.batch_id, batch.files
        else:
            log.warning("%s: batch %s of a run that died is given up: its files are not here", name, batch.batch_id)
            intake.ledger.abandon_batch(batch.batch_id)
    return None


def _take(
    intake: Intake,
    name: TopicName,
    batch_id: str,
    files: Sequence[InputFile],
    policy: Policy,
    options: IngestOptions,
    *,
    again: bool,
) -> _BatchResult:
    """Take one batch, from its files to the table and the ledger. `again`: an earlier run of the batch died."""
    from message_lifecycle.stores.iceberg.session import engine_failures

    try:
        with engine_failures():
            taken = _append(intake, intake.topics.describe(name), batch_id, files, policy, options, again=again)
    except (BadInput, Refused):
        # The table has no message of this batch, and the same files would be refused again.
        intake.ledger.abandon_batch(batch_id)
        raise
    appended = taken.appended
    intake.ledger.finish_batch(
        batch_id,
        snapshot_id=None if appended is None else appended.snapshot_id,
        rows=0 if appended is None else appended.rows,
        quarantined=sum(taken.quarantined.values()),
        refused=taken.refused_whole,
        ranges=() if appended is None else appended.ranges,
    )
    record_state(intake.witnesses, intake.ledger, name)
    return taken


def messages_in(intake: Intake, name: TopicName, files: Sequence[InputFile], policy: Policy, options: IngestOptions) -> int:
    """Return how many records of the files are messages by this mapping, without taking them. Raises errors from reading."""
    from message_lifecycle.app.intake_tasks import ReadingRules, read_files
    from message_lifecycle.sources.files import MAX_FILES
    from message_lifecycle.sources.messages import check_found
    from message_lifecycle.stores.iceberg.session import engine_failures

    reading = ReadingRules(job=_job(intake.topics.describe(name), policy, options), description=f"remap of {name}")
    good = 0
    for start in range(0, len(files), MAX_FILES):
        some = files[start : start + MAX_FILES]
        with engine_failures():
            found = read_files(intake.engine(), some, reading).found
        check_found(found, some, options.mapping, allow_implausible_times=options.allow_implausible_times)
        good += found.messages.total()
    return good


def _append(
    intake: Intake,
    topic: Topic,
    batch_id: str,
    files: Sequence[InputFile],
    policy: Policy,
    options: IngestOptions,
    *,
    again: bool,
) -> _BatchResult:
    from message_lifecycle.app.intake_tasks import ReadingRules, read_files, remove_scratch, write_refused_rows
    from message_lifecycle.sources.messages import check_found
    from message_lifecycle.stores.iceberg.append import append_batch, new_files_place, store_of
    from message_lifecycle.stores.iceberg.incoming import CutRules
    from message_lifecycle.stores.iceberg.refused_rows import quarantine, quarantined

    def may_commit() -> None:
        if all(batch.batch_id != batch_id for batch in intake.ledger.open_batches(name)):
            raise batch_not_open(batch_id, "abandoned")

    engine, mapping, name = intake.engine(), options.mapping, topic.name
    clock = policy.latest_allowed_time(intake.ledger.now())
    plain = ReadingRules(
        job=_job(topic, policy, options),
        # Read the forbidden keys under the topic's lock: an erasure that forbids a key waits for this lock (see `erasures`).
        forbidden=forbidden_keys(intake.ledger, intake.key_secret, name),
        description=f"ingest of {name}, batch {batch_id[:8]}",
    )
    days = _shift_days(intake, engine, name, plain, files, options)
    latest_allowed_time = Instant(clock - days * 86_400 * MICROS_PER_SECOND)
    reading = replace(plain, job=replace(plain.job, latest_allowed_time=latest_allowed_time), shift_days=days)
    store = store_of(name)
    place = new_files_place(engine.table(name), store, batch_id)
    try:
        read = read_files(engine, files, reading, place)
        found = read.found
        absent = check_found(found, files, mapping, allow_implausible_times=options.allow_implausible_times)
        if days and SHIFT_DAYS not in intake.ledger.ingest_settings(name):
            intake.ledger.set_ingest_setting(name, SHIFT_DAYS, days)
        refused = found.refused
        if refused:
            bad, at = [file for file in files if file.name in {path for path, _ in refused}], intake.ledger.now()
            whole = replace(plain, job=replace(plain.job, for_quarantine=True))
            write = partial(write_refused_rows, engine, bad, whole, batch_id=batch_id, at=at)
            if not quarantine(engine, name, write, batch_id=batch_id, may_commit=may_commit, again=again):
                refused = quarantined(name, batch_id)
        appended = append_batch(
            engine,
            name,
            read.parts,
            store=store,
            batch_id=batch_id,
            rules=CutRules.of(policy, latest_allowed_time=clock),
            ledger=intake.ledger.next_identity(name),
            may_commit=may_commit,
            again=again,
        )
    finally:
        remove_scratch(place, files)
    by_code: Counter[str] = Counter()
    by_file: Counter[str] = Counter()
    for (file, code), count in refused.items():
        by_code[code] += count
        by_file[file] += count
    return _BatchResult(
        appended=appended,
        quarantined=by_code,
        refused_whole={
            file.name: by_file[file.name] for number, file in enumerate(files) if file.name in by_file and not found.messages[number]
        },
        unknown_times=found.unknown_times,
        shift_days=days,
        erased=found.erased,
        absent=absent,
        spans=found.spans,
    )


def _job(topic: Topic, policy: Policy, options: IngestOptions) -> Job:
    from message_lifecycle.sources.reader import Job, TtlRules

    ttl = TtlRules(allow_msg_ttl=policy.allow_msg_ttl, reject_zero=policy.reject_zero_ttl, copies=topic.role != "local")
    return Job(mapping=options.mapping, partitions=topic.partitions, ttl=ttl)


def _shift_days(
    intake: Intake, engine: Engine, name: TopicName, reading: ReadingRules, files: Sequence[InputFile], options: IngestOptions
) -> int:
    """Return the days to shift all times by. A recorded shift wins, so that later files keep their distance to earlier files."""
    from message_lifecycle.app.intake_tasks import read_files
    from message_lifecycle.sources.messages import check_found

    kept = intake.ledger.ingest_settings(name).get(SHIFT_DAYS)
    if kept is not None:
        return int(kept)
    if options.shift_to is None:
        return 0
    found = read_files(engine, files, reading).found
    check_found(found, files, options.mapping, allow_implausible_times=options.allow_implausible_times)
    return 0 if found.newest is None else (options.shift_to - (_EPOCH + timedelta(microseconds=found.newest)).date()).days


def result_of(
    intake: Intake,
    name: TopicName,
    taken: Mapping[str, tuple[Sequence[SourceFile], _BatchResult]],
    *,
    files_before: int,
    changed: tuple[str, ...],
    passed_over: tuple[PassedOver, ...],
) -> IngestResult:
    """Return the sum of the batches' results."""
    from message_lifecycle.sources.file_times import find_going_back

    batches = [batch for _, batch in taken.values()]
    appended = [batch.appended for batch in batches if batch.appended is not None]
    quarantined: Counter[str] = Counter()
    absent: Counter[str] = Counter()
    for batch in batches:
        quarantined.update(batch.quarantined)
        absent.update(batch.absent)
    return IngestResult(
        topic=name,
        batch_ids=tuple(taken),
        files=tuple(file.path for files, _ in taken.values() for file in files),
        files_before=files_before,
        rows=sum(batch.rows for batch in appended),
        quarantined=dict(quarantined),
        end_offsets=appended[-1].state.end_offsets if appended else intake.end_offsets(name),
        segments=sum(batch.segments for batch in appended),
        unknown_times=sum(batch.unknown_times for batch in batches),
        shift_days=batches[0].shift_days if batches else int(intake.ledger.ingest_settings(name).get(SHIFT_DAYS, 0)),
        erased=sum(batch.erased for batch in batches),
        changed=changed,
        passed_over=passed_over,
        refused_whole=tuple(sorted((file for batch in batches for file in batch.refused_whole), key=natural_order)),
        refused_batches=tuple(
            batch_id for batch_id, (_, batch) in taken.items() if batch.quarantined and (batch.appended is None or not batch.appended.rows)
        ),
        span_seconds=max((batch.span_seconds for batch in appended if batch.span_seconds is not None), default=None),
        absent=dict(absent),
        going_back=find_going_back(
            (file.path, batch.spans.get(number, {}).values()) for files, batch in taken.values() for number, file in enumerate(files)
        ),
    )
