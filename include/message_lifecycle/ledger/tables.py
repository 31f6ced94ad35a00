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


def _key_column(name: str, kind: type[Text] | type[BigInteger] = Text) -> Column[object]:
    # Otherwise SQLite would fill in a lone integer key by itself.
    return Column(name, kind, primary_key=True, nullable=False, autoincrement=False)


def _text_column(name: str, *, null: bool = False) -> Column[object]:
    return Column(name, Text, nullable=null)


def _number_column(name: str, *, null: bool = False) -> Column[object]:
    return Column(name, BigInteger, nullable=null)


META = "lifecycle_meta"

meta = Table(
    META,
    metadata,
    _key_column("id", BigInteger),
    _number_column("version"),
    _text_column("uuid"),
    _number_column("sequence"),
    _number_column("event"),
    CheckConstraint("id = 1"),
)
"""One row. `sequence` is the ledger's age as tables record it. `event` is the number of the newest recorded row."""

topics = Table("lifecycle_topics", metadata, _key_column("topic"), _number_column("last_sequence"))
"""One row per known topic. Writes about the topic's plans lock the row. `last_sequence`: the newest number given to the topic."""

accepted_ledgers = Table(
    "lifecycle_accepted_ledgers", metadata, _key_column("topic"), _key_column("uuid"), _number_column("sequence"), _number_column("at")
)
"""Foreign ledgers that a person accepted, up to a sequence."""

accepted_settings = Table(
    "lifecycle_accepted_settings",
    metadata,
    _key_column("topic"),
    _text_column("settings"),
    _number_column("at"),
    _text_column("accepted_by", null=True),
    _text_column("word", null=True),
)

plans = Table(
    "lifecycle_plans",
    metadata,
    _key_column("plan_id"),
    _text_column("topic"),
    _text_column("operation"),
    _number_column("as_of"),
    _text_column("state"),
    _number_column("event"),
    _number_column("recorded_at"),
    _number_column("expected_rows"),
    _number_column("expected_bytes", null=True),
    _text_column("staged", null=True),
    _text_column("report", null=True),
    _text_column("judgement", null=True),
    _number_column("reported_at", null=True),
    _text_column("approval", null=True),
    _text_column("outcome_name", null=True),
    _number_column("outcome_event", null=True),
    _text_column("requested_by", null=True),
    _number_column("committed_at", null=True),
    _number_column("cleared_at", null=True),
)
"""`committed_at`: when a run first had made every commit of the plan. Null: there is no such commit, or the run died before it recorded the
time. `cleared_at`: when the plan's stage had no leftovers any more. Null: it may have leftovers.
"""
# DEL-1, in case two writers ever pass the topic's row lock.
Index("lifecycle_one_open_plan", plans.c.topic, unique=True, postgresql_where=text("state <> 'closed'"), sqlite_where=text("state <> 'closed'"))  # fmt: skip
Index("lifecycle_plans_by_as_of", plans.c.topic, plans.c.operation, plans.c.as_of)
Index("lifecycle_uncleared_plans", plans.c.topic, postgresql_where=text("state = 'closed' and cleared_at is null"), sqlite_where=text("state = 'closed' and cleared_at is null"))  # fmt: skip

plan_documents = Table(
    "lifecycle_plan_documents", metadata, _key_column("plan_id"), _text_column("document"), _text_column("text_id", null=True)
)
"""Documents of plans, in a table of their own, because a plan may name 60,000 files (8 MB) and lists need no document. `text_id`: the hash
of the present text. Null: the text is unchanged.
"""

plan_ranges = Table(
    "lifecycle_plan_ranges",
    metadata,
    _key_column("topic"),
    _key_column("partition", BigInteger),
    _key_column("last_offset", BigInteger),
    _key_column("first_offset", BigInteger),
    _key_column("plan_id"),
)
"""Offsets that a plan removes, both ends included. The key of the table answers "which plan removed this offset?"."""

outcomes = Table(
    "lifecycle_outcomes",
    metadata,
    _key_column("event", BigInteger),
    _text_column("topic"),
    _text_column("operation"),
    _number_column("as_of"),
    _text_column("name"),
    _text_column("outcome"),
    _number_column("recorded_at"),
)
Index("lifecycle_outcomes_by_topic", outcomes.c.topic, outcomes.c.event)

runs = Table(
    "lifecycle_runs",
    metadata,
    _key_column("run_id"),
    _number_column("event"),
    _number_column("recorded_at"),
    _number_column("as_of", null=True),
    _text_column("detail"),
)
"""`as_of` and `detail` have values if a run found nothing due at all, or was a preview."""
Index("lifecycle_runs_by_event", runs.c.event)

run_topics = Table(
    "lifecycle_run_topics",
    metadata,
    _key_column("run_id"),
    _key_column("topic"),
    _key_column("plan_id"),
    _number_column("event"),
    _number_column("outcome_event", null=True),
)
"""Topics of a run. An empty `plan_id`: the run's own outcome, without a plan."""

consumers = Table(
    "lifecycle_consumers",
    metadata,
    _key_column("topic"),
    _key_column("consumer"),
    _key_column("partition", BigInteger),
    _number_column("offset"),
    _number_column("at", null=True),
    _number_column("replica"),
)
"""`offset` -1: nothing yet. `replica`: 1 for a source or mirror of the topic, by its name `stream/topic`. Otherwise 0."""

due_states = Table(
    "lifecycle_due_states",
    metadata,
    _key_column("topic"),
    _text_column("marker"),
    _text_column("policy_hash"),
    _number_column("next_due_at", null=True),
    _text_column("holders"),
)

batches = Table(
    "lifecycle_batches",
    metadata,
    _key_column("batch_id"),
    _text_column("topic"),
    _text_column("state"),
    _number_column("event"),
    _number_column("begun_at"),
    _number_column("ended_at", null=True),
    _number_column("snapshot_id", null=True),
    _number_column("rows", null=True),
    _number_column("quarantined", null=True),
    _number_column("unsettled", null=True),
    _text_column("settled_as", null=True),
    _number_column("settled_at", null=True),
    _text_column("settled_by", null=True),
    _text_column("settled_why", null=True),
    _text_column("mapping", null=True),
    _text_column("ranges", null=True),
    _text_column("remap_plan", null=True),
    _text_column("instead_of", null=True),
)
"""`mapping`, `ranges`: JSON. `remap_plan`: the plan that removes the batch's messages, so that its files come in again. `instead_of`: the
same plan, in the batch that ingests the files again. `unsettled`: refused rows that nobody has replayed, accepted or ingested again in a
mended file.
"""
Index("lifecycle_one_open_batch", batches.c.topic, unique=True, postgresql_where=text("state = 'open'"), sqlite_where=text("state = 'open'"))  # fmt: skip

batch_files = Table(
    "lifecycle_batch_files",
    metadata,
    _key_column("topic"),
    _key_column("path"),
    _text_column("sha256"),
    _number_column("size_bytes"),
    _text_column("batch_id"),
)
"""Files of batches, from the begin of a batch on. Abandoning the batch deletes its rows."""
Index("lifecycle_batch_files_by_batch", batch_files.c.batch_id)

refused_files = Table(
    "lifecycle_refused_files",
    metadata,
    _key_column("topic"),
    _key_column("path"),
    _key_column("batch_id"),
    _text_column("sha256"),
    _number_column("rows"),
)
"""Files that a batch refused whole. The topic ingests a mended file of that name, but not the same content again."""

ingest_settings = Table("lifecycle_ingest_settings", metadata, _key_column("topic"), _key_column("name"), _text_column("value"))

accepted_views = Table("lifecycle_accepted_views", metadata, _key_column("topic"), _text_column("settings"))
"""The settings that shaped a topic's compacted view. A topic without a row was never compacted."""

synced_seqs = Table(
    "lifecycle_synced_seqs",
    metadata,
    _key_column("topic"),
    _key_column("document"),
    _key_column("client"),
    _number_column("server_seq"),
    _number_column("at", null=True),
)
"""The newest proved server_seq of each client of a document, and the time of its last proof (SNP-3)."""

document_settings = Table(
    "lifecycle_document_settings",
    metadata,
    _key_column("topic"),
    _key_column("level"),
    _key_column("name"),
    _key_column("setting"),
    _text_column("value"),
)
"""Settings of users and of single documents, below the topic's (SNP-9). `level`: user or document. `value`: JSON."""

document_owners = Table("lifecycle_document_owners", metadata, _key_column("topic"), _key_column("document"), _text_column("owner"))

holds = Table(
    "lifecycle_holds",
    metadata,
    _key_column("hold_id"),
    _text_column("topic"),
    _text_column("kind"),
    _text_column("held_key", null=True),
    _text_column("key_digest", null=True),
    _number_column("partition", null=True),
    _number_column("first_offset", null=True),
    _number_column("last_offset", null=True),
    _text_column("placed_by"),
    _text_column("why"),
    _number_column("placed_at"),
    _text_column("released_by", null=True),
    _text_column("released_why", null=True),
    _number_column("released_at", null=True),
)
"""Legal holds (DEL-8). `kind`: topic, key or range. `held_key`: base64, and null after the release. `last_offset` null: no end."""
Index("lifecycle_holds_by_topic", holds.c.topic, holds.c.placed_at)

log_witnesses = Table(
    "lifecycle_log_witnesses",
    metadata,
    _key_column("table_uuid"),
    _text_column("topic"),
    _text_column("kind"),
    _number_column("snapshot_id"),
    _number_column("sequence_number"),
    _text_column("offsets"),
    _text_column("state"),
    _number_column("at"),
    _text_column("repaired_by", null=True),
    _text_column("word", null=True),
    _number_column("repaired_at", null=True),
)
"""Our newest recorded commit on each table of a topic (MSG-4). `kind`: empty for the log, `compacted` for a view. `offsets`: JSON, end
offsets or horizons by partition. `state`: JSON, the whole state in the commit's summary. `repaired_by`, `word`, `repaired_at`: the
person who repaired the state or accepted a rollback, and why.
"""
Index("lifecycle_log_witnesses_by_topic", log_witnesses.c.topic)

tables_beside = Table(
    "lifecycle_tables_beside",
    metadata,
    _key_column("table_uuid"),
    _text_column("topic"),
    _text_column("kind"),
    _number_column("missed_at", null=True),
    _text_column("given_up_by", null=True),
    _text_column("word", null=True),
    _number_column("given_up_at", null=True),
)
"""Every recorded table that the catalog ever had next to a topic's log (DEL-7). `missed_at`: when a search of the topic last missed it.
`given_up_by`, `word`, `given_up_at`: the person who gave up a missing table, and why.
"""
Index("lifecycle_tables_beside_by_topic", tables_beside.c.topic)

swept = Table("lifecycle_swept", metadata, _key_column("topic"), _number_column("snapshot_id"))
"""The last snapshot of the topic's table that the sweep for markers has checked (MRK-2)."""

looks = Table(
    "lifecycle_looks",
    metadata,
    _key_column("topic"),
    _key_column("operation"),
    _number_column("looked_at"),
    _number_column("settled_at", null=True),
)
"""When a scheduled run of the operation last looked at the topic, and when one last found nothing due and nothing held (OBL-1)."""

erasures = Table(
    "lifecycle_erasures",
    metadata,
    _key_column("request_id"),
    _number_column("event"),
    _text_column("keys"),
    _text_column("secret"),
    _text_column("topics"),
    _number_column("forbid"),
    _text_column("requested_by"),
    _text_column("why"),
    _number_column("requested_at"),
    _text_column("state"),
    _text_column("detail"),
    _text_column("lifted", null=True),
    _text_column("in_values", null=True),
)
"""Requests of erasure. `in_values`: JSON, where a search found a key inside values. `keys`: JSON list, each key's keyed hash and mark (see
`KeyDigest`). `secret`: the fingerprint of their secret. `topics`: JSON list, empty: all topics. `forbid`: 1 or 0.
"""

erasure_receipts = Table("lifecycle_erasure_receipts", metadata, _key_column("request_id"), _text_column("receipt"), _number_column("at"))
"""The newest receipt of each request, as JSON: evidence of removed data."""

undone = Table(
    "lifecycle_undone",
    metadata,
    _key_column("plan_id"),
    _text_column("topic"),
    _text_column("undone_by"),
    _number_column("undone_at"),
    _number_column("released_at", null=True),
    _text_column("released_by", null=True),
    _text_column("word", null=True),
)
"""Undone plans (DEL-7), and the plan that undid each. Until `released_at` no plan removes their messages again."""
Index("lifecycle_undone_by_topic", undone.c.topic)

undone_ranges = Table(
    "lifecycle_undone_ranges",
    metadata,
    _key_column("plan_id"),
    _key_column("partition", BigInteger),
    _key_column("first_offset", BigInteger),
    _number_column("last_offset"),
)
"""Restored offsets, both ends included."""
