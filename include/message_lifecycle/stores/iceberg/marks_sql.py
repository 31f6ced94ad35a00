"""The questions about keys and markers. `table` is a topic; `before` and `after` are snapshots of it; `listed` names the single
messages that go, with their reasons, `dropped` the segments that go whole."""

from __future__ import annotations

from message_lifecycle.model.marker import REASONS

IS_MARKER = "exists(coalesce(headers, array()), h -> h.name = 'Nats-Marker-Reason')"
CAUSES_NONE = f"({IS_MARKER} OR exists(coalesce(headers, array()), h -> h.name = 'KV-Operation' AND h.value = CAST('PURGE' AS binary)))"
_CAUSES = ", ".join(f"'{reason}'" for reason in REASONS)

# Per key the newest message that goes, and the newest that an age rule or a request takes; a key of which anything but a marker stays is
# not emptied (MRK-3).
EMPTIED = f"""
    WITH going AS (
        SELECT t.partition, t.offset, t.key, t.headers, 'expiry' AS reason
        FROM {{table}} VERSION AS OF {{before}} t WHERE t.key IS NOT NULL AND ({{dropped}})
        UNION ALL
        SELECT t.partition, t.offset, t.key, t.headers, l.reason
        FROM {{table}} VERSION AS OF {{before}} t JOIN {{listed}} l ON l.partition = t.partition AND l.offset = t.offset
        WHERE t.key IS NOT NULL
    ), newest AS (
        SELECT key, max(struct(partition, offset, {CAUSES_NONE} AS causes_none)) AS last,
               max(CASE WHEN reason IN ({_CAUSES}) THEN struct(partition, offset, reason) END) AS cause
        FROM going GROUP BY key
    )
    SELECT last.partition AS partition, last.offset AS offset, n.key AS key, cause.reason AS reason
    FROM newest n LEFT ANTI JOIN (
        SELECT key FROM {{table}} VERSION AS OF {{after}} WHERE key IS NOT NULL AND NOT {IS_MARKER}
    ) a ON a.key = n.key
    WHERE NOT last.causes_none AND cause IS NOT NULL
"""

# What another writer took of keys that it left without a live message, in one snapshot.
LEFT_EMPTY = f"""
    SELECT g.key, max(struct(g.partition, g.offset, 'removed' AS reason, g.causes_none)) AS last
    FROM (
        SELECT t.partition, t.offset, t.key, {CAUSES_NONE} AS causes_none
        FROM {{table}} VERSION AS OF {{parent}} t
        LEFT ANTI JOIN (SELECT partition, offset FROM {{table}} VERSION AS OF {{removal}}) a
               ON a.partition = t.partition AND a.offset = t.offset
        WHERE t.key IS NOT NULL
    ) g
    LEFT ANTI JOIN (SELECT key FROM {{table}} VERSION AS OF {{removal}} WHERE key IS NOT NULL AND NOT {IS_MARKER}) l ON l.key = g.key
    GROUP BY g.key
"""

# Of those, the keys that have no live message now either, and no marker that came after.
OWED = f"""
    WITH newest AS (SELECT key, max(last) AS last FROM ({{left_empty}}) GROUP BY key)
    SELECT n.last.partition AS partition, n.last.offset AS offset, n.key AS key, n.last.reason AS reason
    FROM newest n LEFT ANTI JOIN (
        SELECT key, offset, {IS_MARKER} AS is_marker FROM {{table}} VERSION AS OF {{before}} WHERE key IS NOT NULL
    ) a ON a.key = n.key AND (NOT a.is_marker OR a.offset > n.last.offset)
    WHERE NOT n.last.causes_none
"""

# All that their markers are made of, in one question, for each costs a planning and a job whatever it is asked of: the emptied keys in
# the order of their markers, the newest time of the partition, and where older markers of the key lie.
MARKED = f"""
    SELECT e.partition, e.offset, e.key, e.reason, w.newest, o.older
    FROM ({{emptied}}) e
    LEFT JOIN (
        SELECT partition, max(unix_micros(append_time)) AS newest FROM {{table}} VERSION AS OF {{before}} GROUP BY partition
    ) w ON w.partition = e.partition
    LEFT JOIN (
        SELECT t.key, collect_list(struct(t.partition, t.segment, t._file AS file, t.offset)) AS older
        FROM {{table}} VERSION AS OF {{after}} t WHERE t.key IS NOT NULL AND {IS_MARKER} GROUP BY t.key
    ) o ON o.key = e.key
    ORDER BY partition, offset
"""

# Keys of a list that another writer's messages have met since the plan.
ARRIVED = f"""
    SELECT DISTINCT a.key FROM {{appended}} a LEFT SEMI JOIN {{keys}} k ON k.key = a.key WHERE NOT {IS_MARKER}
"""

STAGED = f"""
    SELECT t.partition, t.offset, t.key, t.value, t.headers, unix_micros(t.append_time) AS appended, t._file AS file
    FROM {{table}} VERSION AS OF {{after}} t WHERE {IS_MARKER} AND ({{new}})
    ORDER BY partition, offset
"""
