"""The ledger's tables. `schema` creates them.

Columns are TEXT and 64-bit integers only, so a row is the same on PostgreSQL, on SQLite and in a backup. Topics are `stream/topic`,
instants are microseconds, JSON is canonical text. `event` numbers rows in the order of their commits.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, Row, Select, Table, Text, text

metadata = MetaData()

Query = Select[*tuple[Any, ...]]
FoundRow = Row[*tuple[Any, ...]]
"""A query of these tables, and a row that it finds: SQLAlchemy knows no types of a table's columns."""


def _key(name: str, kind: type[Text] | type[BigInteger] = Text) -> Column[object]:
    # Otherwise SQLite would fill in a lone integer key by itself.
    return Column(name, kind, primary_key=True, nullable=False, autoincrement=False)


def _text(name: str, *, null: bool = False) -> Column[object]:
    return Column(name, Text, nullable=null)


def _number(name: str, *, null: bool = False) -> Column[object]:
    return Column(name, BigInteger, nullable=null)


META = "lifecycle_meta"

meta = Table(
    META,
    metadata,
    _key("id", BigInteger),
    _number("version"),
    _text("uuid"),
    _number("sequence"),
    _number("event"),
    CheckConstraint("id = 1"),
)
"""One row. `sequence` is the ledger's age as tables record it. `event` is the number of the newest recorded row."""

topics = Table("lifecycle_topics", metadata, _key("topic"), _number("last_sequence"))
"""One row per known topic. Writes about the topic's plans lock the row. `last_sequence`: the newest number given to the topic."""

accepted_ledgers = Table("lifecycle_accepted_ledgers", metadata, _key("topic"), _key("uuid"), _number("sequence"), _number("at"))
"""Foreign ledgers that a person accepted, up to a sequence."""

accepted_settings = Table(
    "lifecycle_accepted_settings",
    metadata,
    _key("topic"),
    _text("settings"),
    _number("at"),
    _text("accepted_by", null=True),
    _text("word", null=True),
)

plans = Table(
    "lifecycle_plans",
    metadata,
    _key("plan_id"),
    _text("topic"),
    _text("operation"),
    _number("as_of"),
    _text("state"),
    _number("event"),
    _number("recorded_at"),
    _number("expected_rows"),
    _number("expected_bytes", null=True),
    _text("staged", null=True),
    _text("report", null=True),
    _text("judgement", null=True),
    _number("reported_at", null=True),
    _text("approval", null=True),
    _text("outcome_name", null=True),
    _number("outcome_event", null=True),
    _text("requested_by", null=True),
    _number("committed_at", null=True),
    _number("cleared_at", null=True),
)
"""`committed_at`: when a run first had made every commit of the plan. Null: there is no such commit, or the run died before it recorded the
time. `cleared_at`: when the plan's stage had no leftovers any more. Null: it may have leftovers.
"""
# DEL-1, in case two writers ever pass the topic's row lock.
Index("lifecycle_one_open_plan", plans.c.topic, unique=True, postgresql_where=text("state <> 'closed'"), sqlite_where=text("state <> 'closed'"))  # fmt: skip
Index("lifecycle_plans_by_as_of", plans.c.topic, plans.c.operation, plans.c.as_of)
Index("lifecycle_uncleared_plans", plans.c.topic, postgresql_where=text("state = 'closed' and cleared_at is null"), sqlite_where=text("state = 'closed' and cleared_at is null"))  # fmt: skip

plan_documents = Table("lifecycle_plan_documents", metadata, _key("plan_id"), _text("document"), _text("text_id", null=True))
"""Documents of plans, in a table of their own, because a plan may name 60,000 files (8 MB) and lists need no document. `text_id`: the hash
of the present text. Null: the text is unchanged.
"""

plan_ranges = Table(
    "lifecycle_plan_ranges",
    metadata,
    _key("topic"),
    _key("partition", BigInteger),
    _key("last_offset", BigInteger),
    _key("first_offset", BigInteger),
    _key("plan_id"),
)
"""Offsets that a plan removes, both ends included. The key of the table answers "which plan removed this offset?"."""

outcomes = Table(
    "lifecycle_outcomes",
    metadata,
    _key("event", BigInteger),
    _text("topic"),
    _text("operation"),
    _number("as_of"),
    _text("name"),
    _text("outcome"),
    _number("recorded_at"),
)
Index("lifecycle_outcomes_by_topic", outcomes.c.topic, outcomes.c.event)

runs = Table(
    "lifecycle_runs",
    metadata,
    _key("run_id"),
    _number("event"),
    _number("recorded_at"),
    _number("as_of", null=True),
    _text("detail"),
)
"""`as_of` and `detail` have values if a run found nothing due at all, or was a preview."""
Index("lifecycle_runs_by_event", runs.c.event)

run_topics = Table(
    "lifecycle_run_topics",
    metadata,
    _key("run_id"),
    _key("topic"),
    _key("plan_id"),
    _number("event"),
    _number("outcome_event", null=True),
)
"""Topics of a run. An empty `plan_id`: the run's own outcome, without a plan."""

consumers = Table(
    "lifecycle_consumers",
    metadata,
    _key("topic"),
    _key("consumer"),
    _key("partition", BigInteger),
    _number("offset"),
    _number("at", null=True),
    _number("replica"),
)
"""`offset` -1: nothing yet. `replica`: 1 for a source or mirror of the topic, by its name `stream/topic`. Otherwise 0."""

due_states = Table(
    "lifecycle_due_states",
    metadata,
    _key("topic"),
    _text("marker"),
    _text("policy_hash"),
    _number("next_due_at", null=True),
    _text("holders"),
)

batches = Table(
    "lifecycle_batches",
    metadata,
    _key("batch_id"),
    _text("topic"),
    _text("state"),
    _number("event"),
    _number("begun_at"),
    _number("ended_at", null=True),
    _number("snapshot_id", null=True),
    _number("rows", null=True),
    _number("quarantined", null=True),
    _number("unsettled", null=True),
    _text("settled_as", null=True),
    _number("settled_at", null=True),
    _text("settled_by", null=True),
    _text("settled_why", null=True),
    _text("mapping", null=True),
    _text("ranges", null=True),
    _text("remap_plan", null=True),
    _text("instead_of", null=True),
)
"""`mapping`, `ranges`: JSON. `remap_plan`: the plan that removes the batch's messages, so that its files come in again. `instead_of`: the
same plan, in the batch that ingests the files again. `unsettled`: refused rows that nobody has replayed, accepted or ingested again in a
mended file.
"""
Index("lifecycle_one_open_batch", batches.c.topic, unique=True, postgresql_where=text("state = 'open'"), sqlite_where=text("state = 'open'"))  # fmt: skip

batch_files = Table(
    "lifecycle_batch_files",
    metadata,
    _key("topic"),
    _key("path"),
    _text("sha256"),
    _number("size_bytes"),
    _text("batch_id"),
)
"""Files of batches, from the begin of a batch on. Abandoning the batch deletes its rows."""
Index("lifecycle_batch_files_by_batch", batch_files.c.batch_id)

refused_files = Table(
    "lifecycle_refused_files",
    metadata,
    _key("topic"),
    _key("path"),
    _key("batch_id"),
    _text("sha256"),
    _number("rows"),
)
"""Files that a batch refused whole. The topic ingests a mended file of that name, but not the same content again."""

ingest_settings = Table("lifecycle_ingest_settings", metadata, _key("topic"), _key("name"), _text("value"))

accepted_views = Table("lifecycle_accepted_views", metadata, _key("topic"), _text("settings"))
"""The settings that shaped a topic's compacted view. A topic without a row was never compacted."""

synced_seqs = Table(
    "lifecycle_synced_seqs",
    metadata,
    _key("topic"),
    _key("document"),
    _key("client"),
    _number("server_seq"),
    _number("at", null=True),
)
"""The newest proved server_seq of each client of a document, and the time of its last proof (SNP-3)."""

document_settings = Table(
    "lifecycle_document_settings", metadata, _key("topic"), _key("level"), _key("name"), _key("setting"), _text("value")
)
"""Settings of users and of single documents, below the topic's (SNP-9). `level`: user or document. `value`: JSON."""

document_owners = Table("lifecycle_document_owners", metadata, _key("topic"), _key("document"), _text("owner"))

holds = Table(
    "lifecycle_holds",
    metadata,
    _key("hold_id"),
    _text("topic"),
    _text("kind"),
    _text("held_key", null=True),
    _text("key_digest", null=True),
    _number("partition", null=True),
    _number("first_offset", null=True),
    _number("last_offset", null=True),
    _text("placed_by"),
    _text("why"),
    _number("placed_at"),
    _text("released_by", null=True),
    _text("released_why", null=True),
    _number("released_at", null=True),
)
"""Legal holds (DEL-8). `kind`: topic, key or range. `held_key`: base64, and null after the release. `last_offset` null: no end."""
Index("lifecycle_holds_by_topic", holds.c.topic, holds.c.placed_at)

log_witnesses = Table(
    "lifecycle_log_witnesses",
    metadata,
    _key("table_uuid"),
    _text("topic"),
    _text("kind"),
    _number("snapshot_id"),
    _number("sequence_number"),
    _text("offsets"),
    _text("state"),
    _number("at"),
    _text("repaired_by", null=True),
    _text("word", null=True),
    _number("repaired_at", null=True),
)
"""Our newest recorded commit on each table of a topic (MSG-4). `kind`: empty for the log, `compacted` for a view. `offsets`: JSON, end
offsets or horizons by partition. `state`: JSON, the whole state in the commit's summary. `repaired_by`, `word`, `repaired_at`: the
person who repaired the state or accepted a rollback, and why.
"""
Index("lifecycle_log_witnesses_by_topic", log_witnesses.c.topic)

tables_beside = Table(
    "lifecycle_tables_beside",
    metadata,
    _key("table_uuid"),
    _text("topic"),
    _text("kind"),
    _number("missed_at", null=True),
    _text("given_up_by", null=True),
    _text("word", null=True),
    _number("given_up_at", null=True),
)
"""Every recorded table that the catalog ever had next to a topic's log (DEL-7). `missed_at`: when a search of the topic last missed it.
`given_up_by`, `word`, `given_up_at`: the person who gave up a missing table, and why.
"""
Index("lifecycle_tables_beside_by_topic", tables_beside.c.topic)

swept = Table("lifecycle_swept", metadata, _key("topic"), _number("snapshot_id"))
"""The last snapshot of the topic's table that the sweep for markers has checked (MRK-2)."""

looks = Table("lifecycle_looks", metadata, _key("topic"), _key("operation"), _number("looked_at"), _number("settled_at", null=True))
"""When a scheduled run of the operation last looked at the topic, and when one last found nothing due and nothing held (OBL-1)."""

erasures = Table(
    "lifecycle_erasures",
    metadata,
    _key("request_id"),
    _number("event"),
    _text("keys"),
    _text("secret"),
    _text("topics"),
    _number("forbid"),
    _text("requested_by"),
    _text("why"),
    _number("requested_at"),
    _text("state"),
    _text("detail"),
    _text("lifted", null=True),
    _text("in_values", null=True),
)
"""Requests of erasure. `in_values`: JSON, where a search found a key inside values. `keys`: JSON list, each key's keyed hash and mark (see
`KeyDigest`). `secret`: the fingerprint of their secret. `topics`: JSON list, empty: all topics. `forbid`: 1 or 0.
"""

erasure_receipts = Table("lifecycle_erasure_receipts", metadata, _key("request_id"), _text("receipt"), _number("at"))
"""The newest receipt of each request, as JSON: evidence of removed data."""

undone = Table(
    "lifecycle_undone",
    metadata,
    _key("plan_id"),
    _text("topic"),
    _text("undone_by"),
    _number("undone_at"),
    _number("released_at", null=True),
    _text("released_by", null=True),
    _text("word", null=True),
)
"""Undone plans (DEL-7), and the plan that undid each. Until `released_at` no plan removes their messages again."""
Index("lifecycle_undone_by_topic", undone.c.topic)

undone_ranges = Table(
    "lifecycle_undone_ranges",
    metadata,
    _key("plan_id"),
    _key("partition", BigInteger),
    _key("first_offset", BigInteger),
    _number("last_offset"),
)
"""Restored offsets, both ends included."""
