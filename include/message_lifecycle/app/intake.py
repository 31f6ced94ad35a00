"""Files of a folder into a topic, each taken exactly once; a whole batch becomes visible in one commit, or nothing of it.

Before anything is written the ledger knows which files a batch takes. A run that died leaves its batch open; the next one
looks for it in the table, and finishes it in the ledger or does it again under the same id, so that even a run which only
seemed dead cannot put the same files in twice.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from message_lifecycle.app.erasure_secret import forbidden_keys, secret_of_place
from message_lifecycle.app.ingest_result import CHANGED, IngestResult
from message_lifecycle.app.places import files_at
from message_lifecycle.app.witness import compare
from message_lifecycle.model.erasure import KeyMatch, KeySecret
from message_lifecycle.model.errors import BadInput, LogRolledBack, LogStateLost, Refused, batch_not_open, invalid_append
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.message import known_time
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import SourceFile
from message_lifecycle.model.setting_list import Value, check_messages
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.operations.admission import Refusal, admission
from message_lifecycle.ports import Topic, Topics, Witnesses
from message_lifecycle.sources.selection import EVERY_FILE, PassedOver, Patterns, natural_order

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger
    from message_lifecycle.ledger.intake import InsteadOf
    from message_lifecycle.sources.file_times import Spans
    from message_lifecycle.sources.files import InputFile
    from message_lifecycle.sources.mapping import FieldMapping
    from message_lifecycle.sources.messages import Few, TtlRules
    from message_lifecycle.stores.iceberg.append import Appended
    from message_lifecycle.stores.iceberg.engine import Engine

log = logging.getLogger("lifecycle")

# Spark's own types stay behind `sources` and `stores`: here they are passed on, never looked into.
Frame = Any

SHIFT_DAYS = "shift_days"
TAKEN_BEFORE = "taken before"
REFUSED_BEFORE = "every row was refused before, and the file is as it was: mend it, or replay its rows"
FEW_BYTES = 8 << 20
"""Of a batch that is read without Spark: as many lines as this process reads in the time that Spark takes to start."""
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
    """What an ingest works with. The engine is asked for only when there is something to take that needs it. `few_bytes`: of a batch's files,
    up to which it may do without."""

    topics: Topics
    ledger: Ledger
    server: Mapping[str, Value]
    engine: Callable[[], Engine]
    end_offsets: Callable[[TopicName], Mapping[int, int]]
    witnesses: Witnesses
    key_secret: Callable[[bool], KeySecret] = secret_of_place
    few_bytes: int = FEW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    appended: Appended | None
    quarantined: Mapping[str, int]
    refused_whole: Mapping[str, int]
    unknown_times: int | None
    shift_days: int
    erased: int | None
    absent: Mapping[str, int]
    spans: Spans


def take_files(intake: Intake, name: TopicName, path: str, options: IngestOptions) -> IngestResult:
    """See `ingest.ingest`. Raises InvalidAppend (a mirror), ChangedFile, TopicBusy, and what reading and writing raise."""
    with taking(intake, name) as policy:
        found = files_at(path, options.patterns)
        files = {file.name: file for file in found}
        known = [SourceFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256()) for file in found]
        changed = intake.ledger.changed_files(name, known) if options.skip_changed else ()
        known = [file for file in known if file not in changed]
        taken = take_known(intake, name, files, known, policy, options)
    new = {file.path for fresh, _ in taken.values() for file in fresh}
    refused = intake.ledger.refused_before(name, known)
    before = [
        PassedOver(file=file.path, why=REFUSED_BEFORE if file.path in refused else TAKEN_BEFORE) for file in known if file.path not in new
    ]
    passed_over = (*found.passed_over, *(PassedOver(file=file.path, why=CHANGED) for file in changed), *before)
    changed_paths = tuple(file.path for file in changed)
    return result_of(intake, name, taken, files_before=len(before), changed=changed_paths, passed_over=passed_over)


@contextmanager
def taking(intake: Intake, name: TopicName) -> Iterator[Policy]:
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
) -> Mapping[str, tuple[Sequence[SourceFile], _Taken]]:
    """Take the files that no batch has taken, after a batch that a dead run left; by batch, its files and what came of them.

    Args:
        files: What to read, by the path under which the ledger knows it.
    """
    from message_lifecycle.sources.files import MAX_FILES

    taken: dict[str, tuple[Sequence[SourceFile], _Taken]] = {}
    begun = left_open(intake, name, known)
    starts = range(0, len(known), MAX_FILES)
    plans = ([begun] if begun else []) + [(uuid.uuid4().hex, known[start : start + MAX_FILES]) for start in starts]
    for batch_id, some in plans:
        fresh = intake.ledger.begin_batch(name, batch_id, some, mapping=options.mapping_text, instead_of=options.instead_of)
        if fresh:
            fresh = sorted(fresh, key=lambda file: natural_order(file.path))
            taken[batch_id] = fresh, _take(intake, name, batch_id, [files[f.path] for f in fresh], policy, options)
    return taken


def left_open(intake: Intake, name: TopicName, known: Sequence[SourceFile]) -> tuple[str, Sequence[SourceFile]] | None:
    """End the batch that a dead run left: it is in the table, or its files are not here. Else it is to be done again."""
    from message_lifecycle.stores.iceberg.append import end_of_batch, quarantined
    from message_lifecycle.stores.iceberg.engine import engine_with_sql

    for batch in intake.ledger.open_batches(name):
        engine = engine_with_sql(intake.engine)
        appended = end_of_batch(engine, name, batch.batch_id)
        if appended is not None:
            log.info("%s: batch %s of a run that died is in the table", name, batch.batch_id)
            # Nobody counted which files gave no message: they count as taken.
            refused = sum(quarantined(engine, name, batch.batch_id).values())
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
) -> _Taken:
    """One batch, from its files to the table and the ledger."""
    from message_lifecycle.sources.files import named_failures
    from message_lifecycle.stores.iceberg.session import engine_failures

    def may_commit() -> None:
        if all(batch.batch_id != batch_id for batch in intake.ledger.open_batches(name)):
            raise batch_not_open(batch_id, "abandoned")

    try:
        with engine_failures():
            topic = intake.topics.describe(name)
            # Asked under the topic's lock: whoever forbids a key waits for it (see `erasures`).
            forbidden = forbidden_keys(intake.ledger, intake.key_secret, name)
            few = _few(intake, topic, files, policy, options, forbidden)
            if few is None:
                with named_failures():
                    taken = _append_by_spark(intake, topic, batch_id, files, policy, options, forbidden, may_commit)
            else:
                taken = _append_few(intake, name, batch_id, few, policy, may_commit)
    except (BadInput, Refused):
        # Nothing of it is in the table, and as it stands it never will be.
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
    with suppress(LogStateLost, LogRolledBack):  # the next verb says so; this batch is in the table
        compare(intake.witnesses, intake.ledger, name)
    return taken


def _few(
    intake: Intake, topic: Topic, files: Sequence[InputFile], policy: Policy, options: IngestOptions, forbidden: KeyMatch | None
) -> Few | None:
    """The batch's messages where it is small and none is refused; None: it takes Spark."""
    from message_lifecycle.sources.messages import read_few

    moved = options.shift_to is not None or SHIFT_DAYS in intake.ledger.ingest_settings(topic.name)
    few = sum(file.size_bytes for file in files) <= intake.few_bytes and not any(file.is_packed for file in files)
    if moved or topic.role != "local" or not few:
        return None
    late_after = policy.late_after(intake.ledger.now())
    found = read_few(files, options.mapping, partitions=topic.partitions, ttl=_ttl_rules(policy, topic), late_after=late_after)
    refused = found is None or any(isinstance(admission(message, policy, forbidden), Refusal) for message in found.messages)
    return None if refused else found


def messages_in(intake: Intake, name: TopicName, files: Sequence[InputFile], policy: Policy, options: IngestOptions) -> int:
    """Return how many records of the files are messages by this mapping. Raises what reading them raises, and nothing is taken."""
    from message_lifecycle.sources.files import MAX_FILES, named_failures
    from message_lifecycle.sources.messages import check_found, read_messages, survey
    from message_lifecycle.stores.iceberg.session import engine_failures

    topic = intake.topics.describe(name)
    few = _few(intake, topic, files, policy, options, None)
    if few is not None:
        return len(few.messages)
    good = 0
    for start in range(0, len(files), MAX_FILES):
        some = files[start : start + MAX_FILES]
        with engine_failures(), named_failures():
            rules = _ttl_rules(policy, topic)
            found = survey(
                read_messages(intake.engine().session, some, options.mapping, partitions=topic.partitions, ttl=rules), options.mapping
            )
        check_found(found, some, options.mapping, allow_implausible_times=options.allow_implausible_times)
        good += int(found["rows"]) - int(found["refused"])
    return good


def _append_few(intake: Intake, name: TopicName, batch_id: str, few: Few, policy: Policy, may_commit: Callable[[], None]) -> _Taken:
    """In this process: most of a small batch's time would be Spark's start."""
    from message_lifecycle.stores.iceberg.catalog import ledger_text
    from message_lifecycle.stores.iceberg.layout import LEDGER
    from message_lifecycle.stores.iceberg.writer import append_few

    properties = {LEDGER: ledger_text(intake.ledger.next_identity())}
    appended, _ = append_few(
        intake.engine(),
        name,
        few.messages,
        policy,
        batch_id=batch_id,
        properties=properties,
        may_commit=may_commit,
        late_after=policy.late_after(intake.ledger.now()),
    )
    unknown = sum(known_time(message.append_time) is None for message in few.messages)
    return _Taken(
        appended=appended,
        quarantined={},
        refused_whole={},
        unknown_times=unknown,
        shift_days=0,
        erased=0,
        absent=few.absent,
        spans=few.spans,
    )


def _append_by_spark(
    intake: Intake,
    topic: Topic,
    batch_id: str,
    files: Sequence[InputFile],
    policy: Policy,
    options: IngestOptions,
    forbidden: KeyMatch | None,
    may_commit: Callable[[], None],
) -> _Taken:
    from message_lifecycle.sources.messages import (
        ERASED,
        UNREADABLE_LINE,
        check_found,
        observed,
        observed_spans,
        read_messages,
        refused,
        shifted,
        survey,
        with_deadlines,
    )
    from message_lifecycle.stores.iceberg.append import append_batch, quarantine, quarantined
    from message_lifecycle.stores.iceberg.engine import engine_with_sql
    from message_lifecycle.stores.iceberg.incoming import CutRules, mark_forbidden

    engine, mapping, name = engine_with_sql(intake.engine), options.mapping, topic.name
    clock = policy.late_after(intake.ledger.now())

    def reading(*, for_quarantine: bool = False, late_after: Instant | None = None) -> Frame:
        rules = _ttl_rules(policy, topic)
        found = read_messages(
            engine.session, files, mapping, partitions=topic.partitions, ttl=rules, for_quarantine=for_quarantine, late_after=late_after
        )
        return found if forbidden is None else mark_forbidden(found, forbidden, code=ERASED, keyless=UNREADABLE_LINE)

    days = _shift_days(intake, name, reading, files, options)
    read = reading(late_after=Instant(clock - days * 86_400 * MICROS_PER_SECOND))
    met: Callable[[], Mapping[str, object]] = dict
    found: Mapping[str, Any] = {}
    absent: dict[str, int] = {}

    def messages() -> Frame:
        nonlocal met
        good, met = observed(read, mapping)
        # A lifetime counts from the time that the message has in the log.
        return with_deadlines(shifted(good, days))

    def staged(rows: int) -> None:
        nonlocal found, absent
        # Where no message is good Spark skips what it was to observe.
        found = met() if rows else survey(read, mapping)
        absent = check_found(found, files, mapping, allow_implausible_times=options.allow_implausible_times)
        if days and SHIFT_DAYS not in intake.ledger.ingest_settings(name):
            intake.ledger.set_ingest_setting(name, SHIFT_DAYS, days)
        if found["refused"]:
            bad = refused(reading(for_quarantine=True))
            quarantine(engine, name, bad, batch_id=batch_id, at=intake.ledger.now(), may_commit=may_commit)

    appended = append_batch(
        engine,
        name,
        messages,
        batch_id=batch_id,
        rules=CutRules.of(policy, late_after=clock),
        ledger=intake.ledger.next_identity(),
        may_commit=may_commit,
        staged=staged,
    )
    unknown, erased = found.get("unknown_times"), found.get("erased")
    any_refused = bool(found.get("refused", 1))
    return _Taken(
        appended=appended,
        quarantined=quarantined(engine, name, batch_id) if any_refused else {},
        refused_whole=_refused_whole(engine, name, batch_id, read, files, appended) if any_refused else {},
        unknown_times=unknown if isinstance(unknown, int) else None,
        shift_days=days,
        erased=erased if isinstance(erased, int) else None,
        absent=absent,
        spans=observed_spans(found),
    )


def _refused_whole(
    engine: Engine, name: TopicName, batch_id: str, read: Frame, files: Sequence[InputFile], appended: Appended | None
) -> Mapping[str, int]:
    """By file, the refused rows of each file that gave no message."""
    from message_lifecycle.sources.files import AT_BITS
    from message_lifecycle.stores.iceberg.append import files_with_messages, quarantined_files

    refused = quarantined_files(engine, name, batch_id)
    # Files are read once more only where the batch has messages and refused rows.
    gave = files_with_messages(read, at_bits=AT_BITS) if appended is not None and refused else frozenset()
    return {file.name: refused[file.name] for number, file in enumerate(files) if file.name in refused and number not in gave}


def _ttl_rules(policy: Policy, topic: Topic) -> TtlRules:
    from message_lifecycle.sources.messages import TtlRules

    return TtlRules(allow_msg_ttl=policy.allow_msg_ttl, reject_zero=policy.reject_zero_ttl, copies=topic.role != "local")


def _shift_days(intake: Intake, name: TopicName, reading: Callable[[], Frame], files: Sequence[InputFile], options: IngestOptions) -> int:
    """The topic's own shift once it has one, so that later files keep their distance to earlier ones."""
    from message_lifecycle.sources.messages import check_found, survey

    kept = intake.ledger.ingest_settings(name).get(SHIFT_DAYS)
    if kept is not None:
        return int(kept)
    if options.shift_to is None:
        return 0
    found = survey(reading(), options.mapping)
    check_found(found, files, options.mapping, allow_implausible_times=options.allow_implausible_times)
    newest = found["newest"]
    return (options.shift_to - (_EPOCH + timedelta(microseconds=newest)).date()).days if isinstance(newest, int) else 0


def result_of(
    intake: Intake,
    name: TopicName,
    taken: Mapping[str, tuple[Sequence[SourceFile], _Taken]],
    *,
    files_before: int,
    changed: tuple[str, ...],
    passed_over: tuple[PassedOver, ...],
) -> IngestResult:
    """Sum up what the batches took."""
    from message_lifecycle.sources.file_times import find_going_back

    batches = [batch for _, batch in taken.values()]
    appended = [batch.appended for batch in batches if batch.appended is not None]
    quarantined: Counter[str] = Counter()
    absent: Counter[str] = Counter()
    for batch in batches:
        quarantined.update(batch.quarantined)
        absent.update(batch.absent)
    unknown, erased = [batch.unknown_times for batch in batches], [batch.erased for batch in batches]
    return IngestResult(
        topic=name,
        batch_ids=tuple(taken),
        files=tuple(file.path for files, _ in taken.values() for file in files),
        files_before=files_before,
        rows=sum(batch.rows for batch in appended),
        quarantined=dict(quarantined),
        end_offsets=appended[-1].state.end_offsets if appended else intake.end_offsets(name),
        segments=sum(batch.segments for batch in appended),
        unknown_times=None if None in unknown else sum(count for count in unknown if count is not None),
        shift_days=batches[0].shift_days if batches else int(intake.ledger.ingest_settings(name).get(SHIFT_DAYS, 0)),
        erased=None if None in erased else sum(count for count in erased if count is not None),
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
