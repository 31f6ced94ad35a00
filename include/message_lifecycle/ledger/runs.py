"""Outcomes and runs, and what each run of an ingest took."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, from_json, settings_from_json, to_json
from message_lifecycle.ledger.database import Part, add, add_rows, claim_topic, key_of, lock_row, next_event, put, topic_of
from message_lifecycle.model.errors import UnknownPlan, batch_not_open, changed_file, open_batch, repeated_file, unknown_batch
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Batch, Outcome, Run, RunEntry, SourceFile
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.setting_list import Value

# Outcomes and runs: what every run came to, also where there was nothing to do.
#
# A run is named by whoever started it (Airflow's run id, or the command line's); it links topics, plans and outcomes.


_met = tables.run_topics
_NO_PLAN = ""


class Runs(Part):
    """Runs and the history of outcomes."""

    def link_run(self, run: str | None, plan_id: str) -> None:
        """Note that the run works on a plan that is there already. No run: nothing to note. Raises UnknownPlan."""
        if run is None:
            return
        with self._database.writing() as connection:
            query = select(tables.plans.c.topic).where(tables.plans.c.plan_id == plan_id)
            topic = connection.execute(query).scalar_one_or_none()
            if topic is None:
                raise UnknownPlan(plan_id)
            link(connection, run, topic_of(topic), plan_id, at=self._database.now(connection))

    def claim(self, run: str, topic: TopicName, *, since: Instant) -> str | None:
        """Take the topic for the run, before there is a plan; the run that has taken it since then, if there is one (and nothing
        was changed). A claim ends with the run's plan or outcome for the topic."""
        planned = _met.alias("planned")
        claims = (
            select(_met.c.run_id)
            .join(tables.runs, tables.runs.c.run_id == _met.c.run_id)
            .where(
                _met.c.topic == key_of(topic),
                _met.c.plan_id == _NO_PLAN,
                _met.c.outcome_event.is_(None),
                _met.c.run_id != run,
                tables.runs.c.recorded_at > since,
                ~exists().where(planned.c.run_id == _met.c.run_id, planned.c.topic == _met.c.topic, planned.c.plan_id != _NO_PLAN),
            )
            .order_by(_met.c.event)
        )
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            holder = connection.execute(claims.limit(1)).scalar_one_or_none()
            if holder is None:
                link(connection, run, topic, None, at=self._database.now(connection))
        return holder

    def record_idle_run(self, run: str, *, as_of: Instant, detail: str) -> None:
        """A run that takes nothing, and what it has to say of each topic: why none is due, or what would go (a preview). The newest word of
        the run stands."""
        with self._database.writing() as connection:
            _know(connection, run, at=self._database.now(connection))
            told = update(tables.runs).where(tables.runs.c.run_id == run).values(as_of=as_of, detail=detail)
            connection.execute(told)

    def record_run_outcome(self, run: str | None, outcome: Outcome) -> Outcome:
        """What a run came to for a topic, without closing a plan: nothing to do, starved, failed. Returned as it was given.

        The same again adds nothing; another one for the same topic (the run was tried again) is kept beside the first in the
        history, and takes its place in the run. Without a run it stands in the history alone.
        """
        with self._database.writing() as connection:
            claim_topic(connection, outcome.topic)
            at = self._database.now(connection)
            if run is None:
                write_outcome(connection, outcome, at=at)
                return outcome
            link(connection, run, outcome.topic, outcome.plan_id, at=at)
            here = (
                _met.c.run_id == run,
                _met.c.topic == key_of(outcome.topic),
                _met.c.plan_id == (outcome.plan_id or _NO_PLAN),
            )
            last = select(tables.outcomes.c.outcome).join(_met, _met.c.outcome_event == tables.outcomes.c.event)
            if connection.execute(last.where(*here)).scalar_one_or_none() != to_json(outcome):
                event = write_outcome(connection, outcome, at=at)
                connection.execute(update(_met).where(*here).values(outcome_event=event))
        return outcome

    def run_entries(self, run: str) -> Sequence[RunEntry]:
        """Topics, plans and outcomes of a run, in the order they were met; nothing for a run that is not known."""
        with self._database.reading() as connection:
            return [entry for _, entry in _entries(connection, _met.c.run_id == run)]

    def runs_of(self, plan_id: str) -> Sequence[str]:
        """Names of the runs that have worked on the plan, the first first."""
        return [str(row.run_id) for row in self._rows(select(_met.c.run_id).where(_met.c.plan_id == plan_id).order_by(_met.c.event))]

    def runs(self, run: str | None = None, *, limit: int = 50) -> Sequence[Run]:
        """Newest first; or the one of that name, if there is one."""
        query = select(tables.runs).order_by(tables.runs.c.event.desc()).limit(limit)
        if run is not None:
            query = query.where(tables.runs.c.run_id == run)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            entries: dict[str, list[RunEntry]] = {row.run_id: [] for row in rows}
            for run, entry in _entries(connection, _met.c.run_id.in_(entries)):
                entries[run].append(entry)
        return [
            Run(
                run_id=row.run_id,
                recorded_at=row.recorded_at,
                as_of=row.as_of,
                detail=row.detail,
                entries=tuple(entries[row.run_id]),
            )
            for row in rows
        ]

    def history(
        self, topic: TopicName | None = None, *, limit: int | None = None, operations: Collection[Operation] | None = None
    ) -> Sequence[tuple[Instant, Outcome]]:
        """Outcomes, newest first, with the time of recording; of these operations, or of all. `limit` None: however many there are."""
        outcomes = tables.outcomes
        query = select(outcomes.c.recorded_at, outcomes.c.outcome).order_by(outcomes.c.event.desc()).limit(limit)
        if topic is not None:
            query = query.where(outcomes.c.topic == key_of(topic))
        if operations is not None:
            query = query.where(outcomes.c.operation.in_(operations))
        rows = self._rows(query)
        return [(Instant(row.recorded_at), from_json(Outcome, row.outcome)) for row in rows]

    def newest(self, topic: TopicName) -> Mapping[str, Sequence[tuple[Instant, Outcome]]]:
        """Of each operation the newest outcome of each name, the newest first, with the time of recording."""
        outcomes = tables.outcomes
        last = select(func.max(outcomes.c.event)).where(outcomes.c.topic == key_of(topic)).group_by(outcomes.c.operation, outcomes.c.name)
        query = select(outcomes.c.recorded_at, outcomes.c.outcome).where(outcomes.c.event.in_(last)).order_by(outcomes.c.event.desc())
        found: dict[str, list[tuple[Instant, Outcome]]] = {}
        for row in self._rows(query):
            outcome = from_json(Outcome, row.outcome)
            found.setdefault(outcome.operation, []).append((Instant(row.recorded_at), outcome))
        return found


def link(connection: Connection, run: str, topic: TopicName, plan_id: str | None, *, at: Instant) -> None:
    """Within the caller's transaction; a link that is there stays."""
    event = _know(connection, run, at=at)
    lock_row(connection, _met, run_id=run, topic=key_of(topic), plan_id=plan_id or _NO_PLAN, event=event)


def _know(connection: Connection, run: str, *, at: Instant) -> int:
    event = next_event(connection)
    lock_row(connection, tables.runs, run_id=run, event=event, recorded_at=at, detail="")
    return event


def write_outcome(connection: Connection, outcome: Outcome, *, at: Instant) -> int:
    """Within the caller's transaction; returns its event."""
    event = next_event(connection)
    add(
        connection,
        tables.outcomes,
        event=event,
        topic=key_of(outcome.topic),
        operation=outcome.operation,
        as_of=outcome.as_of,
        name=outcome.name,
        outcome=to_json(outcome),
        recorded_at=at,
    )
    return event


def _entries(connection: Connection, which: ColumnElement[bool]) -> Iterator[tuple[str, RunEntry]]:
    plans, of_plan, of_run = tables.plans, tables.outcomes.alias("of_plan"), tables.outcomes.alias("of_run")
    query = (
        select(
            _met.c.run_id,
            _met.c.topic,
            _met.c.plan_id,
            plans.c.state,
            plans.c.judgement,
            of_plan.c.outcome.label("of_plan"),
            of_run.c.outcome.label("of_run"),
        )
        .outerjoin(plans, plans.c.plan_id == _met.c.plan_id)
        .outerjoin(of_plan, of_plan.c.event == plans.c.outcome_event)
        .outerjoin(of_run, of_run.c.event == _met.c.outcome_event)
        .where(which)
        .order_by(_met.c.event)
    )
    for row in connection.execute(query).all():
        # A plan's own outcome is final; until there is one, the run's word about it (failed) counts.
        text = row.of_plan or row.of_run
        yield (
            row.run_id,
            RunEntry(
                topic=topic_of(row.topic),
                plan_id=row.plan_id or None,
                state=row.state,
                judgement=row.judgement,
                outcome=None if text is None else from_json(Outcome, text),
            ),
        )


# Ingest: each file of a source is taken exactly once per topic, in batches; and what later runs go on with.
#
# A file is known by its path within the source folder; its SHA-256 tells whether it is still the same file. So: the same path
# with the same content was taken; the same path with other content is an error (ChangedFile), for a file that grows or is
# written again cannot be taken in part; the same content under another path is another file, and is taken, for two days may
# well bring the same lines.


_batches = tables.batches
_files = tables.batch_files
_settings = tables.ingest_settings
_NAMES_AT_ONCE = 5_000


class Ingest(Part):
    """open -> done (its commit is in the table) or abandoned (it is not, and never will be)."""

    def begin_batch(self, topic: TopicName, batch_id: str, files: Iterable[SourceFile]) -> Sequence[SourceFile]:
        """Open a batch of those files that no batch has taken, and return them; none left: no batch, an empty answer.

        The same open batch again returns its files. Raises OpenBatch where another one of the topic is open (its commit may
        be in the table: look there, then finish or abandon it), BatchNotOpen for a done one with files left, ChangedFile,
        RepeatedFile.
        """
        wanted = _by_path(topic, files)
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            same = _find(connection, batch_id)
            if same is not None and same.state == "open":
                return _files_of(connection, batch_id)
            _refuse_second(connection, topic)
            fresh = _not_taken(connection, topic, wanted)
            if not fresh:
                return ()
            if same is not None and same.state == "done":
                raise batch_not_open(batch_id, "done")
            put(
                connection,
                _batches,
                batch_id=batch_id,
                topic=key_of(topic),
                state="open",
                begun_at=self._database.now(connection),
                ended_at=None,
                event=next_event(connection),
            )
            rows = [
                {
                    "topic": key_of(topic),
                    "path": file.path,
                    "sha256": file.sha256,
                    "size_bytes": file.size_bytes,
                    "batch_id": batch_id,
                }
                for file in fresh
            ]
            add_rows(connection, _files, rows)
            return fresh

    def changed_files(self, topic: TopicName, files: Iterable[SourceFile]) -> Sequence[SourceFile]:
        """Those that a batch has taken with other content, in order of their path. Raises RepeatedFile."""
        wanted = _by_path(topic, files)
        with self._database.reading() as connection:
            return tuple(wanted[row.path] for row in _taken(connection, topic, wanted) if row.sha256 != wanted[row.path].sha256)

    def open_batches(self, topic: TopicName) -> Sequence[Batch]:
        """Batches whose end is not known: at most one."""
        query = select(_batches).where(_batches.c.topic == key_of(topic), _batches.c.state == "open")
        with self._database.reading() as connection:
            return [
                Batch(
                    batch_id=row.batch_id,
                    topic=topic,
                    begun_at=Instant(row.begun_at),
                    files=_files_of(connection, row.batch_id),
                )
                for row in connection.execute(query).all()
            ]

    def finish_batch(self, batch_id: str, *, snapshot_id: int | None, rows: int, quarantined: int) -> None:
        """Its commit is in the table. `snapshot_id` None: every row went to quarantine. The same again changes nothing.
        Raises UnknownBatch, BatchNotOpen."""
        self._end(batch_id, "done", snapshot_id=snapshot_id, rows=rows, quarantined=quarantined)

    def abandon_batch(self, batch_id: str) -> None:
        """Its commit is not in the table: its files may be taken again. Raises UnknownBatch, BatchNotOpen."""
        self._end(batch_id, "abandoned")

    def set_ingest_setting(self, topic: TopicName, name: str, value: Value) -> None:
        """Keep what later runs of the topic's ingest must go on with, such as `shift_us`."""
        with self._database.writing() as connection:
            put(connection, _settings, topic=key_of(topic), name=name, value=canonical(value))

    def ingest_settings(self, topic: TopicName) -> Mapping[str, Value]:
        kept = _settings.c
        rows = self._rows(select(kept.name, kept.value).where(kept.topic == key_of(topic)))
        found = settings_from_json("{" + ",".join(f"{canonical(row.name)}:{row.value}" for row in rows) + "}")
        return {name: value for name, value in found.items() if value is not None}

    def _end(self, batch_id: str, state: str, **result: int | None) -> None:
        with self._database.writing() as connection:
            row = _find(connection, batch_id)
            if row is None:
                raise unknown_batch(batch_id)
            if row.state == state:
                return
            if row.state != "open":
                raise batch_not_open(batch_id, row.state)
            if state == "abandoned":
                connection.execute(delete(_files).where(_files.c.batch_id == batch_id))
            values = {"state": state, "ended_at": self._database.now(connection), **result}
            connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(values))


def forget_ingest(connection: Connection, topic: TopicName) -> None:
    """Within the caller's transaction: a topic of that name is made anew: it has nothing of any file, and goes on with nothing."""
    for table in (_files, _batches, _settings):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _by_path(topic: TopicName, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    for file in files:
        if file.path in found:
            raise repeated_file(str(topic), file.path)
        found[file.path] = file
    return found


def _find(connection: Connection, batch_id: str) -> Row[Any] | None:
    return connection.execute(select(_batches).where(_batches.c.batch_id == batch_id).with_for_update()).first()


def _files_of(connection: Connection, batch_id: str) -> tuple[SourceFile, ...]:
    rows = connection.execute(select(_files).where(_files.c.batch_id == batch_id).order_by(_files.c.path))
    return tuple(SourceFile(path=row.path, size_bytes=row.size_bytes, sha256=row.sha256) for row in rows)


def _refuse_second(connection: Connection, topic: TopicName) -> None:
    query = select(_batches).where(_batches.c.topic == key_of(topic), _batches.c.state == "open")
    other = connection.execute(query).first()
    if other is not None:
        raise open_batch(str(topic), other.batch_id, format_instant(other.begun_at))


def _not_taken(connection: Connection, topic: TopicName, wanted: dict[str, SourceFile]) -> tuple[SourceFile, ...]:
    """Those that stand in no batch, in order of their path. Raises ChangedFile."""
    taken: set[str] = set()
    for row in _taken(connection, topic, wanted):
        if row.sha256 != wanted[row.path].sha256:
            raise changed_file(str(topic), row.path, row.batch_id)
        taken.add(row.path)
    return tuple(wanted[path] for path in sorted(wanted) if path not in taken)


def _taken(connection: Connection, topic: TopicName, wanted: Iterable[str]) -> Iterator[Any]:
    """The rows of those paths that stand in a batch, in order of their path."""
    paths = sorted(wanted)
    for start in range(0, len(paths), _NAMES_AT_ONCE):
        some = paths[start : start + _NAMES_AT_ONCE]
        yield from connection.execute(
            select(_files).where(_files.c.topic == key_of(topic), _files.c.path.in_(some)).order_by(_files.c.path)
        )
