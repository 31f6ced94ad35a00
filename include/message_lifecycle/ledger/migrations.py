"""Versioned steps that make the ledger's tables; each is one transaction and is never edited once it was released.

A step is plain SQL of its own day, not the tables of `tables`: those move on, a step must not.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from uuid import uuid4

from sqlalchemy import Connection, inspect, select, text, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import ledger_not_migrated, ledger_too_new
from message_lifecycle.ledger.database import Database

Step = Callable[[Connection], None]


def _first(connection: Connection) -> None:
    _run(connection, _FIRST)
    if connection.dialect.name == "postgresql":
        # Not compressed by the server: that took most of the time of recording a plan of 60,000 files (0.2 of 0.35 s) and saved half.
        connection.exec_driver_sql("alter table lifecycle_plan_documents alter column document set storage external")
    connection.exec_driver_sql(f"insert into lifecycle_meta (id, version, uuid, sequence, event) values (1, 1, '{uuid4()}', 0, 0)")


_FIRST = """
create table lifecycle_meta (
    id bigint not null primary key check (id = 1), version bigint not null, uuid text not null, sequence bigint not null,
    event bigint not null);
create table lifecycle_topics (topic text not null primary key, last_sequence bigint not null);
create table lifecycle_accepted_ledgers (
    topic text not null, uuid text not null, sequence bigint not null, at bigint not null, primary key (topic, uuid));
create table lifecycle_accepted_settings (
    topic text not null primary key, settings text not null, at bigint not null, accepted_by text, word text);
create table lifecycle_plans (
    plan_id text not null primary key, topic text not null, operation text not null, as_of bigint not null,
    state text not null, event bigint not null, recorded_at bigint not null, expected_rows bigint not null,
    expected_bytes bigint, staged text, report text, judgement text, reported_at bigint, approval text,
    outcome_name text, outcome_event bigint);
create unique index lifecycle_one_open_plan on lifecycle_plans (topic) where state <> 'closed';
create index lifecycle_plans_by_as_of on lifecycle_plans (topic, operation, as_of);
create table lifecycle_plan_documents (plan_id text not null primary key, document text not null);
create table lifecycle_plan_ranges (
    topic text not null, partition bigint not null, last_offset bigint not null, first_offset bigint not null,
    plan_id text not null, primary key (topic, partition, last_offset, first_offset, plan_id));
create table lifecycle_outcomes (
    event bigint not null primary key, topic text not null, operation text not null, as_of bigint not null,
    name text not null, outcome text not null, recorded_at bigint not null);
create index lifecycle_outcomes_by_topic on lifecycle_outcomes (topic, event);
create table lifecycle_runs (
    run_id text not null primary key, event bigint not null, recorded_at bigint not null, as_of bigint,
    detail text not null);
create index lifecycle_runs_by_event on lifecycle_runs (event);
create table lifecycle_run_topics (
    run_id text not null, topic text not null, plan_id text not null, event bigint not null, outcome_event bigint,
    primary key (run_id, topic, plan_id));
create table lifecycle_consumers (
    topic text not null, consumer text not null, partition bigint not null, "offset" bigint not null, at bigint,
    primary key (topic, consumer, partition));
create table lifecycle_due_states (
    topic text not null primary key, marker text not null, policy_hash text not null, next_due_at bigint,
    holders text not null);
create table lifecycle_batches (
    batch_id text not null primary key, topic text not null, state text not null, event bigint not null,
    begun_at bigint not null, ended_at bigint, snapshot_id bigint, rows bigint, quarantined bigint);
create unique index lifecycle_one_open_batch on lifecycle_batches (topic) where state = 'open';
create table lifecycle_batch_files (
    topic text not null, path text not null, sha256 text not null, size_bytes bigint not null, batch_id text not null,
    primary key (topic, path));
create index lifecycle_batch_files_by_batch on lifecycle_batch_files (batch_id);
create table lifecycle_ingest_settings (
    topic text not null, name text not null, value text not null, primary key (topic, name));
"""


def _replicas(connection: Connection) -> None:
    """Whoever was registered before is no replica: there were none."""
    connection.exec_driver_sql("alter table lifecycle_consumers add column replica bigint not null default 0")


def _swept(connection: Connection) -> None:
    connection.exec_driver_sql("create table lifecycle_swept (topic text not null primary key, snapshot_id bigint not null)")


def _views(connection: Connection) -> None:
    connection.exec_driver_sql("create table lifecycle_accepted_views (topic text not null primary key, settings text not null)")


def _documents(connection: Connection) -> None:
    _run(connection, _DOCUMENTS)


_DOCUMENTS = """
create table lifecycle_synced_seqs (
    topic text not null, document text not null, client text not null, server_seq bigint not null, at bigint,
    primary key (topic, document, client));
create table lifecycle_document_settings (
    topic text not null, level text not null, name text not null, setting text not null, value text not null,
    primary key (topic, level, name, setting));
create table lifecycle_document_owners (
    topic text not null, document text not null, owner text not null, primary key (topic, document));
"""


def _erasures(connection: Connection) -> None:
    _run(connection, _ERASURES)


_ERASURES = """
create table lifecycle_erasures (
    request_id text not null primary key, event bigint not null, digest text not null, secret text not null, topics text not null,
    forbid bigint not null, requested_by text not null, why text not null, requested_at bigint not null, state text not null,
    detail text not null, lifted text);
create table lifecycle_erasure_receipts (request_id text not null primary key, receipt text not null, at bigint not null);
"""


def _holds(connection: Connection) -> None:
    _run(connection, _HOLDS)


_HOLDS = """
create table lifecycle_holds (
    hold_id text not null primary key, topic text not null, kind text not null, held_key text, key_digest text,
    partition bigint, first_offset bigint, last_offset bigint, placed_by text not null, why text not null,
    placed_at bigint not null, released_by text, released_why text, released_at bigint);
create index lifecycle_holds_by_topic on lifecycle_holds (topic, placed_at);
"""


def _undone(connection: Connection) -> None:
    _run(connection, _UNDONE)


_UNDONE = """
create table lifecycle_undone (
    plan_id text not null primary key, topic text not null, undone_by text not null, undone_at bigint not null,
    released_at bigint, released_by text, word text);
create index lifecycle_undone_by_topic on lifecycle_undone (topic);
create table lifecycle_undone_ranges (
    plan_id text not null, partition bigint not null, first_offset bigint not null, last_offset bigint not null,
    primary key (plan_id, partition, first_offset));
"""


def _requested_by(connection: Connection) -> None:
    """Who asked for earlier plans was not kept."""
    connection.exec_driver_sql("alter table lifecycle_plans add column requested_by text")


def _text_id(connection: Connection) -> None:
    connection.exec_driver_sql("alter table lifecycle_plan_documents add column text_id text")


def _plan_format(connection: Connection) -> None:
    """Of open plans alone it is asked for. Documents of many MB are not read here: the database looks into them."""
    connection.exec_driver_sql("alter table lifecycle_plans add column format bigint")
    connection.execute(
        text(
            "update lifecycle_plans set format = 5 where state <> 'closed' and plan_id in "
            "(select plan_id from lifecycle_plan_documents where document like :said)"
        ),
        {"said": '%"format":5,%'},
    )


def _looks(connection: Connection) -> None:
    """Earlier looks were not kept: nobody is blamed for the time before."""
    _run(connection, _LOOKS)


_LOOKS = """
create table lifecycle_looks (
    topic text not null, operation text not null, looked_at bigint not null, settled_at bigint, primary key (topic, operation));
insert into lifecycle_looks (topic, operation, looked_at)
    select topic, '', max(at) from (
        select topic, at from lifecycle_accepted_settings union all select topic, at from lifecycle_accepted_ledgers
        union all select topic, (select max(recorded_at) from lifecycle_runs) from lifecycle_accepted_settings
        union all select topic, (select max(recorded_at) from lifecycle_runs) from lifecycle_accepted_ledgers) as known
    group by topic;
"""


def _cleared_at(connection: Connection) -> None:
    """Nobody knows what plans that were closed before have left; their branches end by themselves."""
    connection.exec_driver_sql("alter table lifecycle_plans add column cleared_at bigint")
    connection.exec_driver_sql("update lifecycle_plans set cleared_at = 0 where state = 'closed'")
    connection.exec_driver_sql(
        "create index lifecycle_uncleared_plans on lifecycle_plans (topic) where state = 'closed' and cleared_at is null"
    )


def _key_looks(connection: Connection) -> None:
    _run(connection, _KEY_LOOKS)


_KEY_LOOKS = """
create table lifecycle_key_looks (
    topic text not null primary key, table_uuid text not null, snapshot_id bigint, marker text not null, read_below text not null,
    whole bigint not null, found_partition bigint, found_offset bigint, looked_at bigint not null);
"""


def _unsearched(connection: Connection) -> None:
    """Erasures ended as erased though a topic could not be read: what a request covers and none of its plans has searched is searched once more.
    When a topic was made is not known of those from before that was kept; they count as having been there."""
    erased = connection.execute(text(_ERASED)).all()
    searched: dict[str, set[str]] = {}
    for topic, document in connection.execute(text(_SEARCHED)) if erased else ():
        for request_id in _OF_REQUEST.findall(document):
            searched.setdefault(request_id, set()).add(topic)
    for request_id, topics, requested_at in erased:
        there = {row.topic for row in connection.execute(text(_THERE), {"requested_at": requested_at})}
        left = sorted((there & set(json.loads(topics)) if json.loads(topics) else there) - searched.get(request_id, set()))
        if left:
            detail = f"it ended as erased, and no plan of it has searched {', '.join(left)}: carry it out once more"
            again = text("update lifecycle_erasures set state = 'requested', detail = :detail where request_id = :request_id")
            connection.execute(again, {"detail": detail, "request_id": request_id})


_ERASED = "select request_id, topics, requested_at from lifecycle_erasures where state = 'erased'"
_THERE = """
select known.topic from (
    select topic, max(at) as at from (
        select topic, at from lifecycle_accepted_settings union all select topic, at from lifecycle_accepted_ledgers) as said
    group by topic) as known
where not exists (
    select 1 from lifecycle_looks as made where made.topic = known.topic and made.operation = '' and made.settled_at > :requested_at)
and not exists (
    select 1 from lifecycle_plans as gone join lifecycle_outcomes as told on told.event = gone.outcome_event
    where gone.topic = known.topic and gone.operation = 'topic_delete' and gone.outcome_name = 'published' and told.recorded_at >= known.at
    and not exists (select 1 from lifecycle_undone as back where back.plan_id = gone.plan_id))
"""
_SEARCHED = """
select made.topic, kept.document from lifecycle_plans as made join lifecycle_plan_documents as kept on kept.plan_id = made.plan_id
where made.operation = 'erasure' and made.outcome_name in ('published', 'no_op')
"""
_OF_REQUEST = re.compile(r'"request_id":"([^"]*)"')


def _refused_files(connection: Connection) -> None:
    """Batches of before keep their refused rows without a question: whether a file was refused whole was not recorded."""
    _run(connection, _REFUSED_FILES)


_REFUSED_FILES = """
alter table lifecycle_batches add column unsettled bigint;
alter table lifecycle_batches add column settled_as text;
alter table lifecycle_batches add column settled_at bigint;
alter table lifecycle_batches add column settled_by text;
alter table lifecycle_batches add column settled_why text;
create table lifecycle_refused_files (
    topic text not null, path text not null, batch_id text not null, sha256 text not null, rows bigint not null,
    primary key (topic, path, batch_id));
"""


def _log_witnesses(connection: Connection) -> None:
    _run(connection, _LOG_WITNESSES)


_LOG_WITNESSES = """
create table lifecycle_log_witnesses (
    table_uuid text not null primary key, topic text not null, kind text not null, snapshot_id bigint not null, sequence_number bigint not null,
    offsets text not null, state text not null, at bigint not null, repaired_by text, word text, repaired_at bigint);
create index lifecycle_log_witnesses_by_topic on lifecycle_log_witnesses (topic);
"""


def _in_values(connection: Connection) -> None:
    _run(connection, "alter table lifecycle_erasures add column in_values text")


def _run(connection: Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)


STEPS: tuple[Step, ...] = (
    _first,
    _replicas,
    _swept,
    _views,
    _documents,
    _erasures,
    _holds,
    _undone,
    _requested_by,
    _text_id,
    _plan_format,
    _looks,
    _cleared_at,
    _key_looks,
    _unsearched,
    _refused_files,
    _log_witnesses,
    _in_values,
)


def version(connection: Connection) -> int:
    """The ledger's version; 0: there is none yet."""
    if not inspect(connection).has_table(tables.META):
        return 0
    # Of this one table every version has these columns.
    return int(connection.execute(select(tables.meta.c.version)).scalar_one())


def migrate(database: Database, *, steps: Sequence[Step] = STEPS) -> tuple[int, int]:
    """Bring the ledger to the newest version; returns (found, reached). Harmless when it is there. Raises LedgerTooNew.

    Each step is a transaction of its own: one that fails leaves the ledger at the version before it.
    """
    first: int | None = None
    while True:
        with database.writing(alone=True) as connection:
            found = version(connection)
            first = found if first is None else first
            if found > len(steps):
                raise ledger_too_new(database.place, found, len(steps))
            if found == len(steps):
                return first, found
            advance(connection, steps[found], found + 1)


def make_scratch(database: Database) -> None:
    """The newest version in an empty database in memory, as a copy of one that this process keeps: every scenario has a ledger of its own."""
    _driver(_scratch()).backup(_driver(database))
    with database.writing() as connection:
        connection.execute(update(tables.meta).values(uuid=str(uuid4())))


@cache
def _scratch() -> Database:
    database = Database("sqlite://")
    migrate(database)
    return database


def _driver(database: Database) -> sqlite3.Connection:
    with closing(database.engine.raw_connection()) as connection:
        driver = connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def advance(connection: Connection, step: Step, to: int) -> None:
    """One step, within the caller's transaction."""
    step(connection)
    connection.execute(update(tables.meta).values(version=to))


def require_current(database: Database) -> None:
    """Raises LedgerNotMigrated or LedgerTooNew where this program's tables are not there."""
    with database.reading() as connection:
        found = version(connection)
    if found > len(STEPS):
        raise ledger_too_new(database.place, found, len(STEPS))
    if found < len(STEPS):
        raise ledger_not_migrated(database.place, found, len(STEPS))
