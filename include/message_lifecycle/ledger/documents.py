"""How far clients have synchronised each document (SNP-3), and settings below the topic's with who owns what (SNP-9).

Read whole by every look at a topic: as many rows as it has documents and clients, so nothing here is slow or loads much.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical
from message_lifecycle.ledger.database import lock_row, put
from message_lifecycle.ledger.errors import CorruptRecord
from message_lifecycle.ledger.part import Part, key_of
from message_lifecycle.model.document import OwnSettings, Synced
from message_lifecycle.model.errors import InvalidServerSeq, InvalidSetting
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.settings import BY_NAME, OWN_SETTINGS, Value

_synced = tables.synced_seqs
_settings = tables.document_settings
_owners = tables.document_owners
_LEVELS = ("user", "document")


class Documents(Part):
    """Names of documents, clients and users are normalised here, whoever gives them (NAME-1)."""

    def synced(self, topic: TopicName, document: str | None = None) -> Sequence[Synced]:
        """Grouped by document, clients of one in order; of one document, or of all."""
        query = select(_synced.c.document, _synced.c.client, _synced.c.server_seq, _synced.c.at).where(_synced.c.topic == key_of(topic))
        if document is not None:
            query = query.where(_synced.c.document == normalise_name(document))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(_synced.c.document, _synced.c.client)).all()
        return [Synced(document=name, client=client, server_seq=seq, at=at) for name, client, seq, at in rows]

    def set_synced(self, topic: TopicName, entry: Synced) -> None:
        """Record what the client has proved to have (SNP-3); lower than before is taken as it is: it needs those changes again.

        `at` never moves back, as a request that comes late must not make a client look silent; None (unknown) stays for as long as
        it is given, and never falls silent. A server_seq of 0 takes the row away (SNP-5). Raises InvalidName, InvalidServerSeq."""
        document, client = normalise_name(entry.document), normalise_name(entry.client)
        if not 0 <= entry.server_seq <= INT64_MAX:
            raise InvalidServerSeq(document, entry.server_seq, f"0 to {INT64_MAX}")
        if entry.server_seq == 0:
            self.detach(topic, document, client)
            return
        key = {"topic": key_of(topic), "document": document, "client": client}
        with self._database.writing() as connection:
            lock_row(connection, _synced, **key, server_seq=entry.server_seq, at=entry.at)
            before = connection.execute(select(_synced.c.at).filter_by(**key)).scalar_one()
            latest = entry.at if entry.at is None or before is None else Instant(max(entry.at, before))
            put(connection, _synced, **key, server_seq=entry.server_seq, at=latest)

    def detach(self, topic: TopicName, document: str, client: str, *, seen: Synced | None = None) -> bool:
        """Whether there was a row. `seen`: only if it is still that one, for the client may have come back since. Raises InvalidName."""
        key: dict[str, object] = {"topic": key_of(topic), "document": normalise_name(document), "client": normalise_name(client)}
        if seen is not None:
            key |= {"server_seq": seen.server_seq, "at": seen.at}
        with self._database.writing() as connection:
            return connection.execute(delete(_synced).filter_by(**key)).rowcount > 0

    def own_settings(self, topic: TopicName) -> OwnSettings:
        """Everything that is set below the topic. Raises CorruptRecord."""
        found: dict[str, dict[str, dict[str, Value]]] = {level: {} for level in _LEVELS}
        with self._database.reading() as connection:
            settings = connection.execute(
                select(_settings.c.level, _settings.c.name, _settings.c.setting, _settings.c.value).where(
                    _settings.c.topic == key_of(topic)
                )
            ).all()
            owners = connection.execute(select(_owners.c.document, _owners.c.owner).where(_owners.c.topic == key_of(topic))).all()
        for level, name, setting, text in settings:
            if level not in found:
                raise CorruptRecord(f"a setting of {topic}", f"level {level!r}")
            found[level].setdefault(name, {})[setting] = _value(setting, text, f"{level} {name} of {topic}")
        return OwnSettings(users=found["user"], documents=found["document"], owners=dict(owners))

    def set_own_setting(self, topic: TopicName, level: str, name: str, setting: str, value: Value | None) -> None:
        """`level`: user or document; None unsets. What settings must be together is checked by who knows all levels.

        Raises InvalidName, InvalidSetting."""
        name = normalise_name(name)
        where = f"{level} {name} of {topic}"
        if level not in _LEVELS:
            raise InvalidSetting(where=str(topic), key="level", value=level, allowed=" or ".join(_LEVELS))
        if setting not in OWN_SETTINGS:
            raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
        key = {"topic": key_of(topic), "level": level, "name": name, "setting": setting}
        with self._database.writing() as connection:
            if value is None:
                connection.execute(delete(_settings).filter_by(**key))
            else:
                put(connection, _settings, **key, value=canonical(BY_NAME[setting].check(value, where=where)))

    def set_owner(self, topic: TopicName, document: str, owner: str | None) -> None:
        """The user whose settings count for the document; None: nobody's. Raises InvalidName."""
        key = {"topic": key_of(topic), "document": normalise_name(document)}
        with self._database.writing() as connection:
            if owner is None:
                connection.execute(delete(_owners).filter_by(**key))
            else:
                put(connection, _owners, **key, owner=normalise_name(owner))


def forget_documents(connection: Connection, topic: TopicName) -> None:
    """A server_seq of a document that is gone names another change now: taken for progress, it would let go what nobody has."""
    for table in (_synced, _settings, _owners):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _value(setting: str, text: str, where: str) -> Value:
    """By hand, as it is read by every look at what is due. Raises CorruptRecord, as what is not understood keeps nothing."""
    known = BY_NAME.get(setting)
    if known is None:
        raise CorruptRecord(f"a setting of {where}", f"this program knows no {setting}")
    try:
        return known.check(json.loads(text), where=where)
    except (ValueError, InvalidSetting) as error:
        raise CorruptRecord(f"{setting} of {where}", str(error)) from error
