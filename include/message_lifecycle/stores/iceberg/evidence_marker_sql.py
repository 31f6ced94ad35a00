"""What the gate asks about staged markers, in DuckDB's SQL, of relations of `snapshot_rows`: `was_there` and `is_there` where messages went from,
before and after; `after`, all that is staged; `staged`, its files that may hold new messages."""

from __future__ import annotations

from message_lifecycle.stores.iceberg.marks_sql import CAUSES_NONE, IS_MARKER

# The keys that the removal left without a live message, as the snapshots tell it.
EMPTIED = f"""
    CREATE OR REPLACE TABLE emptied AS
    WITH newest AS (
        -- What went by number or size makes no marker (DEL-9), but may be what speaks against one.
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := causes_none)) AS last,
               max(struct_pack(partition := partition, "offset" := "offset", reason := reason)) FILTER (reason NOT IN ('retention_count', 'retention_bytes')) AS cause
        FROM (
            -- What was there and is not, but for older markers that a new one replaces.
            SELECT b.partition, b."offset", b.key, {CAUSES_NONE} AS causes_none, coalesce(l.reason, 'expiry') AS reason
            FROM (FROM was_there ANTI JOIN is_there USING (partition, "offset")) AS b
            LEFT JOIN listed AS l ON l.partition = b.partition AND l."offset" = b."offset"
            WHERE b.key IS NOT NULL AND coalesce(l.reason, '') <> 'superseded'
        ) GROUP BY key
    )
    SELECT key, last.partition AS partition, last."offset" AS "offset", cause.reason AS reason FROM newest
    ANTI JOIN (SELECT key FROM after WHERE key IS NOT NULL AND NOT {IS_MARKER}) USING (key)
    WHERE NOT last.causes_none AND cause IS NOT NULL
"""

# A row for each staged marker, with the older markers that it replaces, and one without `offset` for each emptied key that has none.
# `new`: which offsets the plan's snapshot had not; `times`: the newest of each partition, where it is later than `as_of`.
JUDGED = f"""
    WITH markers AS (
        SELECT t.partition, t."offset", t.key, t.value, t.headers, epoch_us(t.append_time) AS appended, t.file
        FROM staged AS t WHERE ({{new}}) AND {IS_MARKER}
    ), older AS (
        SELECT t.key, list(struct_pack(partition := t.partition, "offset" := t."offset")) AS renewed
        FROM was_there AS t JOIN listed AS l ON l.partition = t.partition AND l."offset" = t."offset"
        WHERE l.reason = 'superseded' AND {IS_MARKER} GROUP BY t.key
    )
    SELECT coalesce(m.partition, e.partition) AS partition, m."offset", m.key, m.headers, m.appended, f.path AS file, o.renewed,
           f.rows = count(*) OVER (PARTITION BY m.file) AS alone,
           e.key IS NOT NULL AS emptied,
           count(*) OVER (PARTITION BY m.key) = 1 AS single,
           coalesce(m.headers[1].value = (CASE e.reason WHEN 'removed' THEN 'Remove' WHEN 'purged' THEN 'Purge' ELSE 'MaxAge' END)::BLOB, false) AS caused,
           coalesce(octet_length(m.value) = 0 AND len(m.headers) = 3
                    AND m.headers[1].name = 'Nats-Marker-Reason'
                    AND m.headers[2].name = 'Nats-TTL' AND m.headers[2].value = '{{ttl}}'::BLOB
                    AND m.headers[3].name = 'Nats-Rollup' AND m.headers[3].value = 'sub'::BLOB
                    AND m.appended = greatest({{as_of}}, coalesce(n.newest, {{as_of}})), false) AS formed
    FROM markers AS m
    FULL JOIN emptied AS e ON e.key = m.key
    LEFT JOIN staged_files AS f ON f.file = m.file
    LEFT JOIN times AS n ON n.partition = m.partition
    LEFT JOIN older AS o ON o.key = m.key
    ORDER BY 1, 2
"""
