"""Questions of the proof, over `changes` and `snapshots` as they were, both as `staged_`, what differs in them, and `plan`."""

from __future__ import annotations

from collections.abc import Mapping

HEADS = """
CREATE TEMP TABLE heads AS
SELECT document, max(server_seq) FILTER (WHERE digest IS NOT NULL) AS newest, max(epoch) AS epoch FROM staged_snapshots GROUP BY document;
CREATE TEMP TABLE old_epochs AS SELECT document, max(epoch) AS epoch FROM snapshots GROUP BY document;
CREATE TEMP TABLE ends AS SELECT document, max(server_seq) AS seq FROM changes GROUP BY document;
CREATE TEMP TABLE left_over AS
SELECT document, min(server_seq) AS first, max(server_seq) AS last, count(*) AS stored, count(DISTINCT server_seq) AS each
FROM staged_changes GROUP BY document
"""

STREAM = """
SELECT document, 0::TINYINT AS kind, server_seq, state AS content, digest FROM snapshots JOIN plan USING (document)
WHERE digest IS NOT NULL AND server_seq = after
UNION ALL
SELECT document, 1::TINYINT, server_seq, state, digest FROM staged_snapshots JOIN heads USING (document) SEMI JOIN plan USING (document)
WHERE digest IS NOT NULL AND server_seq = newest
UNION ALL
SELECT document, 2::TINYINT, server_seq, payload, NULL FROM changes JOIN plan USING (document) WHERE server_seq > after
UNION ALL
SELECT document, 3::TINYINT, server_seq, payload, NULL FROM staged_changes JOIN heads USING (document) SEMI JOIN plan USING (document)
WHERE server_seq > coalesce(newest, 0)
"""
"""As `proof` takes it."""

_NEW_ROW = (
    "(d.digest IS NOT NULL AND d.server_seq = plan.snapshot OR d.digest IS NULL AND plan.snapshot IS NULL "
    "AND plan.purge_before > plan.purge_from AND d.server_seq = heads.newest)"
)
_GOES = (
    "(d.digest IS NOT NULL AND (d.document, d.server_seq) IN (SELECT (document, server_seq) FROM planned_drops) "
    "OR d.digest IS NULL AND (plan.snapshot IS NOT NULL OR plan.purge_before > plan.purge_from))"
)

TOTALS: Mapping[str, str] = {
    "snapshots_made": "SELECT count(*) FROM snapshots_differ WHERE came AND digest IS NOT NULL",
    "snapshots_dropped": "SELECT count(*) FROM snapshots_differ WHERE NOT came AND digest IS NOT NULL",
    "purged": "SELECT count(*) FROM changes_differ WHERE NOT came",
    "unnamed": "SELECT count(*) FROM changes_differ AS d LEFT JOIN plan ON plan.document = d.document AND d.server_seq >= purge_from "
    "AND d.server_seq < purge_before WHERE came OR plan.document IS NULL",
    "holes": "SELECT count(*) FROM plan LEFT JOIN left_over USING (document) LEFT JOIN heads USING (document) "
    "WHERE CASE WHEN stored IS NULL THEN coalesce(newest, 0) < seq "
    "ELSE last <> seq OR stored <> last - first + 1 OR each <> stored OR first > coalesce(newest, 0) + 1 END",
    "ahead": "SELECT count(*) FROM snapshots_differ AS d LEFT JOIN ends USING (document) "
    "WHERE came AND digest IS NOT NULL AND server_seq > coalesce(seq, 0)",
    "epochs_wrong": "SELECT count(*) FROM plan LEFT JOIN heads USING (document) LEFT JOIN old_epochs USING (document) "
    "WHERE coalesce(heads.epoch, 0) - coalesce(old_epochs.epoch, 0) <> (purge_before > purge_from)::INT",
    "uncovered": "SELECT count(DISTINCT document) FROM changes_differ LEFT JOIN heads USING (document) "
    "WHERE NOT came AND server_seq > coalesce(newest, 0)",
    "snapshots_unnamed": "SELECT count(*) FROM snapshots_differ AS d LEFT JOIN plan USING (document) LEFT JOIN heads USING (document) "
    f"WHERE NOT coalesce(CASE WHEN came THEN d.epoch = plan.epoch AND {_NEW_ROW} ELSE {_GOES} END, false)",
}
"""One number each; see `evidence`."""
