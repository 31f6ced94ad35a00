"""What is kept per topic between runs: the settings last accepted (DEL-3), what is due next, what ingest goes on with."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, select

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, pairs_from_json, settings_from_json, settings_to_json
from message_lifecycle.ledger.database import put
from message_lifecycle.ledger.part import Part, key_of, topic_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value
from message_lifecycle.ports import DueState


class TopicState(Part):
    """Each value replaces the one before."""

    def set_accepted(self, topic: TopicName, values: Mapping[str, Value | None], *, by: str | None = None, text: str | None = None) -> None:
        """Keep the settings under which the topic's removals are accepted now; `by`, `text`: a person's word for them (DEL-3)."""
        with self._database.writing() as connection:
            at = self._database.now(connection)
            put(
                connection,
                tables.accepted_settings,
                topic=key_of(topic),
                settings=settings_to_json(values),
                at=at,
                accepted_by=by,
                word=text,
            )

    def accepted(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """None: not known, so that the first removal needs a person's word."""
        kept = tables.accepted_settings.c
        with self._database.reading() as connection:
            text = connection.execute(select(kept.settings).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return None if text is None else settings_from_json(text)

    def set_accepted_view(self, topic: TopicName, values: Mapping[str, Value | None] | None) -> None:
        """Keep the settings under which the topic's compacted view is as it is; None: forget that there was one."""
        with self._database.writing() as connection:
            connection.execute(delete(tables.accepted_views).where(tables.accepted_views.c.topic == key_of(topic)))
            if values is not None:
                put(connection, tables.accepted_views, topic=key_of(topic), settings=settings_to_json(values))

    def accepted_view(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """None: nothing of the topic was ever compacted, as far as this ledger knows."""
        kept = tables.accepted_views.c
        with self._database.reading() as connection:
            text = connection.execute(select(kept.settings).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return None if text is None else settings_from_json(text)

    def set_swept(self, topic: TopicName, snapshot_id: int) -> None:
        """Keep up to which snapshot markers owed for other writers' removals have been made (MRK-2)."""
        with self._database.writing() as connection:
            put(connection, tables.swept, topic=key_of(topic), snapshot_id=snapshot_id)

    def swept(self, topic: TopicName) -> int | None:
        """None: no sweep yet."""
        kept = tables.swept.c
        with self._database.reading() as connection:
            found: int | None = connection.execute(select(kept.snapshot_id).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return found

    def set_due_state(self, topic: TopicName, state: DueState) -> None:
        with self._database.writing() as connection:
            put(
                connection,
                tables.due_states,
                topic=key_of(topic),
                marker=state.marker,
                policy_hash=state.policy_hash,
                next_due_at=state.next_due_at,
                holders=canonical(state.holders),
            )

    def due_states(self) -> Mapping[TopicName, DueState]:
        """All topics in one query: the due check must stay cheap."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.due_states)).all()
        return {
            topic_of(row.topic): DueState(
                marker=row.marker,
                policy_hash=row.policy_hash,
                next_due_at=row.next_due_at,
                holders=pairs_from_json(row.holders),
            )
            for row in rows
        }

    def set_ingest_setting(self, topic: TopicName, name: str, value: Value) -> None:
        """Keep what later runs of the topic's ingest must go on with, such as `shift_us`."""
        with self._database.writing() as connection:
            put(connection, tables.ingest_settings, topic=key_of(topic), name=name, value=canonical(value))

    def ingest_settings(self, topic: TopicName) -> Mapping[str, Value]:
        kept = tables.ingest_settings.c
        with self._database.reading() as connection:
            rows = connection.execute(select(kept.name, kept.value).where(kept.topic == key_of(topic))).all()
        found = settings_from_json("{" + ",".join(f"{canonical(row.name)}:{row.value}" for row in rows) + "}")
        return {name: value for name, value in found.items() if value is not None}


def forget_ingest_settings(connection: Connection, topic: TopicName) -> None:
    """Within the caller's transaction: a topic of that name is made anew."""
    connection.execute(delete(tables.ingest_settings).where(tables.ingest_settings.c.topic == key_of(topic)))
