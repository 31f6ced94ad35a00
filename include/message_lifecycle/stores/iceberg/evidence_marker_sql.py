"""What the gate asks about staged markers."""

from __future__ import annotations

from message_lifecycle.stores.iceberg.marks_sql import CAUSES_NONE, IS_MARKER

# The keys that the removal left without a live message, as the snapshots tell it.
EMPTIED = f"""
    SELECT n.key, n.last.partition AS partition, n.last.offset AS offset, n.cause.reason AS reason
    FROM (
        -- What went by number or size makes no marker (DEL-9), but may be what speaks against one.
        SELECT key, max(struct(partition, offset, causes_none)) AS last,
               max(struct(partition, offset, reason)) FILTER (WHERE reason NOT IN ('retention_count', 'retention_bytes')) AS cause
        FROM (
            -- What was there and is not, but for older markers that a new one replaces.
            SELECT b.partition, b.offset, b.key, b.causes_none, coalesce(l.reason, 'expiry') AS reason
            FROM (SELECT t.partition, t.offset, t.key, {CAUSES_NONE} AS causes_none
                  FROM {{table}} VERSION AS OF {{before}} t WHERE t.key IS NOT NULL AND ({{reach}})) b
            LEFT ANTI JOIN (SELECT t.partition, t.offset FROM {{table}} VERSION AS OF {{after}} t WHERE {{reach}}) a
                   ON a.partition = b.partition AND a.offset = b.offset
            LEFT JOIN {{listed}} l ON l.partition = b.partition AND l.offset = b.offset
            WHERE coalesce(l.reason, '') <> 'superseded'
        ) GROUP BY key
    ) n
    LEFT ANTI JOIN (SELECT t.key FROM {{table}} VERSION AS OF {{after}} t WHERE t.key IS NOT NULL AND NOT {IS_MARKER}) live
           ON live.key = n.key
    WHERE NOT n.last.causes_none AND n.cause IS NOT NULL
"""

# One question, for each costs a planning and a job whatever it is asked of. A row for each staged marker, with the older markers that it
# replaces, and one without `offset` for each emptied key that has none.
JUDGED = f"""
    WITH markers AS (
        SELECT t.partition, t.offset, t.key, t.value, t.headers, unix_micros(t.append_time) AS appended, t._file AS file
        FROM {{table}} VERSION AS OF {{after}} t WHERE ({{new}}) AND {IS_MARKER}
    ), emptied AS ({{emptied}}),
    times AS (
        SELECT partition, greatest(CAST({{as_of}} AS bigint), coalesce(max(unix_micros(append_time)), {{as_of}})) AS at
        FROM {{table}} VERSION AS OF {{before}} GROUP BY partition
    ), older AS (
        SELECT t.key, collect_list(struct(t.partition, t.offset)) AS renewed
        FROM {{table}} VERSION AS OF {{before}} t
        JOIN {{listed}} l ON l.partition = t.partition AND l.offset = t.offset
        WHERE l.reason = 'superseded' AND {IS_MARKER} GROUP BY t.key
    ), files AS (
        SELECT file_path, record_count, {{ttl!r}} AS ttl FROM {{table}}.files VERSION AS OF {{after}}
    )
    SELECT coalesce(m.partition, e.partition) AS partition, m.offset, m.key, m.headers, m.appended, m.file, o.renewed,
           f.record_count = count(*) OVER (PARTITION BY m.file) AS alone,
           e.key IS NOT NULL AS emptied,
           count(*) OVER (PARTITION BY m.key) = 1 AS single,
           coalesce(CAST(m.headers[0].value AS string) = CASE e.reason WHEN 'removed' THEN 'Remove' WHEN 'purged' THEN 'Purge' ELSE 'MaxAge' END, false) AS caused,
           coalesce(length(m.value) = 0 AND size(m.headers) = 3
                    AND m.headers[0].name = 'Nats-Marker-Reason'
                    AND m.headers[1].name = 'Nats-TTL' AND CAST(m.headers[1].value AS string) = f.ttl
                    AND m.headers[2].name = 'Nats-Rollup' AND CAST(m.headers[2].value AS string) = 'sub'
                    AND m.appended = n.at, false) AS formed
    FROM markers m
    FULL JOIN emptied e ON e.key = m.key
    LEFT JOIN files f ON f.file_path = m.file
    LEFT JOIN times n ON n.partition = m.partition
    LEFT JOIN older o ON o.key = m.key
    ORDER BY partition, offset
"""
