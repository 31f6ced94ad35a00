"""How far clients have synchronised each document (SNP-3), and settings below the topic's with who owns what (SNP-9).

Read whole by every look at a topic: as many rows as it has documents and clients, so nothing here is slow or loads much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete, select, tuple_, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical
from message_lifecycle.ledger.database import Part, add_if_absent, claim_topic, key_of, put
from message_lifecycle.ledger.errors import corrupt_record
from message_lifecycle.model.document import OwnChanges, OwnSettings, Synced
from message_lifecycle.model.errors import InvalidSetting, invalid_server_seq
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.settings import BY_NAME, OWN_SETTINGS, Value

_synced = tables.synced_seqs
_settings = tables.document_settings
_owners = tables.document_owners
_LEVELS = ("user", "document")
_ROWS_AT_ONCE = 500


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

    def replace_synced(self, topic: TopicName, document: str, client: str, *, seen: Synced | None, to: Synced | None) -> bool:
        """Make the client's row `to`, in one statement and only if it is `seen` until then; whether it was. None is no row, before as
        after: so is a client's that is still at 0, which does not pin (SNP-5).

        `to` is taken as it is, a lower server_seq or an earlier time included: whoever has seen the row knows what it must not be.
        Raises InvalidName, InvalidServerSeq."""
        key = {"topic": key_of(topic), "document": normalise_name(document), "client": normalise_name(client)}
        if to is not None and not 1 <= to.server_seq <= INT64_MAX:
            raise invalid_server_seq(key["document"], to.server_seq, f"1 to {INT64_MAX}")
        was = {} if seen is None else {"server_seq": seen.server_seq, "at": seen.at}
        with self._database.writing() as connection:
            if seen is None and to is None:
                return connection.execute(select(_synced.c.client).filter_by(**key)).first() is None
            if to is None:
                return connection.execute(delete(_synced).filter_by(**key, **was)).rowcount > 0
            if seen is None:
                return add_if_absent(connection, _synced, **key, server_seq=to.server_seq, at=to.at)
            return connection.execute(update(_synced).filter_by(**key, **was).values(server_seq=to.server_seq, at=to.at)).rowcount > 0

    def heard_of(self, topic: TopicName, document: str, client: str, at: Instant) -> bool:
        """The client has asked for something, and is not silent (SNP-3): the time of its row moves on, and what it has proved to have
        stays as it is. Whether there was an older time. Raises InvalidName."""
        key = {"topic": key_of(topic), "document": normalise_name(document), "client": normalise_name(client)}
        with self._database.writing() as connection:
            return connection.execute(update(_synced).filter_by(**key).where(_synced.c.at < at).values(at=at)).rowcount > 0

    def detach(self, topic: TopicName, document: str, client: str) -> bool:
        """Whether there was a row. Raises InvalidName."""
        key = {"topic": key_of(topic), "document": normalise_name(document), "client": normalise_name(client)}
        with self._database.writing() as connection:
            return connection.execute(delete(_synced).filter_by(**key)).rowcount > 0

    def detach_silent(self, topic: TopicName, rows: Sequence[Synced]) -> int:
        """Take these rows away, each only if it is still that one, for its client may have come back since; how many went. A row whose
        time is unknown is never silent, and stays. One transaction, and one statement for each few hundred rows."""
        found = 0
        columns = tuple_(_synced.c.document, _synced.c.client, _synced.c.server_seq, _synced.c.at)
        with self._database.writing() as connection:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                some = [(row.document, row.client, row.server_seq, row.at) for row in rows[start : start + _ROWS_AT_ONCE]]
                gone = delete(_synced).where(_synced.c.topic == key_of(topic), columns.in_(some))
                found += connection.execute(gone).rowcount
        return found

    def own_settings(self, topic: TopicName) -> OwnSettings:
        """Everything that is set below the topic. Raises CorruptRecord."""
        with self._database.reading() as connection:
            return _own_settings(connection, topic)

    def alter_own_settings(self, topic: TopicName, changes: OwnChanges, *, check: Callable[[OwnSettings], None]) -> None:
        """All of it in one transaction, or nothing. `check` is given everything as it will be, and raises where that does not go
        together (SNP-5): what others change at the same time waits, or is part of it. It asks the ledger nothing.

        Raises InvalidName, InvalidSetting, CorruptRecord, and what `check` raises."""
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            for level, named in (("user", changes.users), ("document", changes.documents)):
                for name, settings in named.items():
                    for setting, value in settings.items():
                        _set(connection, topic, level, normalise_name(name), setting, value)
            for document, owner in changes.owners.items():
                _set_owner(connection, topic, document, owner)
            check(_own_settings(connection, topic))


def forget_documents(connection: Connection, topic: TopicName) -> None:
    """A server_seq of a document that is gone names another change now: taken for progress, it would let go what nobody has."""
    for table in (_synced, _settings, _owners):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _value(setting: str, text: str, where: str) -> Value:
    """By hand, as it is read by every look at what is due. Raises CorruptRecord, as what is not understood keeps nothing."""
    known = BY_NAME.get(setting)
    if known is None:
        raise corrupt_record(f"a setting of {where}", f"this program knows no {setting}")
    try:
        return known.check(json.loads(text), where=where)
    except (ValueError, InvalidSetting) as error:
        raise corrupt_record(f"{setting} of {where}", str(error)) from error


def _own_settings(connection: Connection, topic: TopicName) -> OwnSettings:
    found: dict[str, dict[str, dict[str, Value]]] = {level: {} for level in _LEVELS}
    settings = connection.execute(
        select(_settings.c.level, _settings.c.name, _settings.c.setting, _settings.c.value).where(_settings.c.topic == key_of(topic))
    ).all()
    owners = connection.execute(select(_owners.c.document, _owners.c.owner).where(_owners.c.topic == key_of(topic))).all()
    for level, name, setting, text in settings:
        if level not in found:
            raise corrupt_record(f"a setting of {topic}", f"level {level!r}")
        found[level].setdefault(name, {})[setting] = _value(setting, text, f"{level} {name} of {topic}")
    return OwnSettings(users=found["user"], documents=found["document"], owners=dict(owners))


def _set(connection: Connection, topic: TopicName, level: str, name: str, setting: str, value: Value | None) -> None:
    where = f"{level} {name} of {topic}"
    if setting not in OWN_SETTINGS:
        raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
    key = {"topic": key_of(topic), "level": level, "name": name, "setting": setting}
    if value is None:
        connection.execute(delete(_settings).filter_by(**key))
    else:
        put(connection, _settings, **key, value=canonical(BY_NAME[setting].check(value, where=where)))


def _set_owner(connection: Connection, topic: TopicName, document: str, owner: str | None) -> None:
    key = {"topic": key_of(topic), "document": normalise_name(document)}
    if owner is None:
        connection.execute(delete(_owners).filter_by(**key))
    else:
        put(connection, _owners, **key, owner=normalise_name(owner))
