"""The questions about keys and markers, in DuckDB's SQL. `before` and `after` are snapshots of a topic, `listed` the single messages that
go, with their reasons; all are relations of `snapshot_rows`."""

from __future__ import annotations

from message_lifecycle.model.marker import KV_HEADER, REASON_HEADER, REASONS

IS_MARKER = f"coalesce(list_contains(list_transform(headers, lambda h: h.name), '{REASON_HEADER}'), false)"
CAUSES_NONE = f"({IS_MARKER} OR coalesce(list_contains(headers, struct_pack(name := '{KV_HEADER}', value := 'PURGE'::BLOB)), false))"
_CAUSES = ", ".join(f"'{reason}'" for reason in REASONS)

# Per key the newest message that goes, and the newest that an age rule or a request takes (MRK-3). `dropped`: the segments that go whole.
EMPTIED = f"""
    CREATE OR REPLACE TABLE emptied AS
    SELECT last.partition AS partition, last."offset" AS "offset", key, cause.reason AS reason
    FROM (
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := causes_none)) AS last,
               max(struct_pack(partition := partition, "offset" := "offset", reason := reason)) FILTER (reason IN ({_CAUSES})) AS cause
        FROM (
            SELECT t.partition, t."offset", t.key, {CAUSES_NONE} AS causes_none, 'expiry' AS reason
            FROM before AS t WHERE t.key IS NOT NULL AND ({{dropped}})
            UNION ALL
            SELECT t.partition, t."offset", t.key, {CAUSES_NONE} AS causes_none, l.reason
            FROM before AS t JOIN listed AS l ON l.partition = t.partition AND l."offset" = t."offset" WHERE t.key IS NOT NULL
        ) GROUP BY key
    ) WHERE NOT last.causes_none AND cause IS NOT NULL
"""

# What another writer took of keys that it left without a live message, in one snapshot: `was` and `removal`, each in the files in which
# they differ, and `rest`, the removal's snapshot whole.
LEFT_EMPTY = f"""
    INSERT INTO left_empty
    WITH gone AS (
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := {CAUSES_NONE})) AS last
        FROM was AS w ANTI JOIN removal AS r ON r.partition = w.partition AND r."offset" = w."offset"
        WHERE key IS NOT NULL GROUP BY key
    )
    SELECT key, last FROM gone
    ANTI JOIN (SELECT key FROM rest SEMI JOIN gone USING (key) GROUP BY key HAVING NOT bool_and({IS_MARKER})) USING (key)
"""
LEFT_EMPTIES = 'CREATE OR REPLACE TABLE left_empty (key BLOB, last STRUCT(partition INTEGER, "offset" BIGINT, causes_none BOOLEAN))'

# Of those, the keys that have no live message now either, and no marker that came after.
OWED = f"""
    CREATE OR REPLACE TABLE emptied AS
    WITH newest AS (SELECT key, max(last) AS last FROM left_empty GROUP BY key)
    SELECT last.partition AS partition, last."offset" AS "offset", key, 'removed' AS reason FROM newest
    ANTI JOIN (
        SELECT b.key FROM now AS b JOIN newest AS n ON n.key = b.key
        GROUP BY b.key HAVING bool_or(NOT {IS_MARKER} OR b."offset" > n.last."offset")
    ) USING (key)
    WHERE NOT last.causes_none
"""

# The emptied keys in the order of their markers, and where older markers of each lie; a key of which anything but a marker stays is not
# emptied (MRK-3). Whether a message is a marker is asked where the key is one of those.
MARKED = f"""
    WITH met AS (
        SELECT key, bool_and({IS_MARKER}) AS empty,
               list(struct_pack(partition := partition, segment := segment, file := path, "offset" := "offset")) FILTER ({IS_MARKER}) AS older
        FROM (FROM after SEMI JOIN emptied USING (key)) JOIN after_files USING (file) GROUP BY key
    )
    SELECT e.partition, e."offset", e.key, e.reason, m.older
    FROM emptied AS e LEFT JOIN met AS m ON m.key = e.key
    WHERE coalesce(m.empty, true) ORDER BY e.partition, e."offset"
"""

# The newest time of each partition; of those that are later than a time, which their files tell, the others do not matter.
NEWEST = "SELECT partition, max(epoch_us(append_time)) AS newest FROM late GROUP BY partition"

# Keys of a list that another writer's messages have met since the plan.
ARRIVED = f"SELECT DISTINCT key FROM appended SEMI JOIN keys USING (key) WHERE NOT {IS_MARKER}"

# Markers among the messages that the plan's snapshot has not.
STAGED = f"""
    SELECT partition, "offset", key, headers, epoch_us(append_time) AS appended FROM staged AS t WHERE {IS_MARKER} AND ({{new}})
    ORDER BY partition, "offset"
"""
