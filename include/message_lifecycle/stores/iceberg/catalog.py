"""Topics in the table catalog: Iceberg's library creates and alters them; describing and listing them needs no JVM.

Settings, the real names and the number of partitions are table properties, so they travel with the table.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from message_lifecycle.model.errors import (
    CatalogUnavailable,
    ForeignTable,
    InvalidName,
    TableUnreadable,
    UnknownTopic,
    UnsafePath,
    deletion_begun,
    is_a_document_topic,
    not_a_document_topic,
    storage_refused,
    table_not_told,
    topic_exists,
)
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName, catalog_identifier, name_of_identifier, normalise_name
from message_lifecycle.model.setting_list import PROPERTY_PREFIX, Value, settings_have_documents
from message_lifecycle.model.settings import Policy, property_text, resolve
from message_lifecycle.model.topic import check_policy, role_of
from message_lifecycle.operations import expiry
from message_lifecycle.ports import Topic
from message_lifecycle.stores.iceberg import parsed
from message_lifecycle.stores.iceberg.capabilities import capabilities_of_pyiceberg
from message_lifecycle.stores.iceberg.layout import (
    BESIDE,
    CATALOG,
    DELETED_BY,
    FOLD_PROPERTY,
    KINDS,
    LEDGER,
    LEDGER_MARK,
    LIVE,
    PARTITIONER,
    PARTITIONER_PROPERTY,
    PARTITIONS_PROPERTY,
    ROLE_PROPERTY,
    SCRATCH_PROPERTY,
    STREAM_PROPERTY,
    TABLE_PROPERTIES,
    TOPIC_PROPERTY,
    LogSummary,
    own_properties,
    partitions_of,
    settings_of,
)
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.pointers import UNREADABLE, CatalogPointers, Place, Pointers, SqlPointers, look, reaching_catalog
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import TORN, TableDocument, Within, is_absolute, reason_of
from message_lifecycle.stores.iceberg.witness import Witness

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from message_lifecycle.stores.iceberg.new_table import TableShape

_FILES = {"py-io-impl": "message_lifecycle.stores.iceberg.lake_io.LakeFileIO"}
Read = TypeVar("Read")
Role = Literal["local", "source", "mirror"]
UNDO_PROPERTY = "history.expire.max-snapshot-age-ms"


class Tables:
    """The tables of catalog `lake`, opened on first use. A table is read again only after it has changed."""

    def __init__(self) -> None:
        self._documents: dict[Place, TableDocument] = {}

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog. Raises CatalogUnavailable."""
        from pyiceberg.catalog import load_catalog

        with reaching_catalog():
            return load_catalog(CATALOG, **{**_FILES, **self._configured()})

    @cached_property
    def pointers(self) -> Pointers:
        properties = self._configured()
        if capabilities_of_pyiceberg(properties).has_sql_rows:
            return SqlPointers(properties, {**_FILES, **properties})
        return CatalogPointers(self.catalog)

    def _configured(self) -> dict[str, Any]:
        from pyiceberg.utils.config import Config

        found = Config().get_catalog_config(CATALOG)
        if not found:
            raise CatalogUnavailable(
                f"PyIceberg's configuration has no catalog {CATALOG!r}",
                advice="PYICEBERG_HOME names the folder of the `.pyiceberg.yaml` that has it (embedded: `lifecycle up` writes both).",
            )
        return {str(key): value if isinstance(value, dict) else str(value) for key, value in found.items()}

    def file_io(self, location: str) -> FileIO:
        """Return the catalog's own I/O for a location. For an existing table, `pointers.file_io` returns the table's I/O."""
        from pyiceberg.io import load_file_io

        return load_file_io(properties=self.catalog.properties, location=location)

    def metadata_location(self, name: TopicName, *, kind: str = "") -> str:
        """Return the current location of the table's metadata, which changes with every commit. Raises UnknownTopic."""
        found = self.pointers.one((name.namespace, name.table(kind)))
        if found is None:
            raise UnknownTopic(str(name))
        return found

    def document(self, name: TopicName, *, kind: str = "") -> TableDocument:
        """Return the table's metadata as written.

        Raises:
            UnknownTopic: The topic does not exist.
            ForeignTable: The table is not this topic's. Another writer may have made it.
        """
        document = self.at((name.namespace, name.table(kind)), self.metadata_location(name, kind=kind))
        if not kind and (document.properties.get(STREAM_PROPERTY), document.properties.get(TOPIC_PROPERTY)) != (name.stream, name.topic):
            raise ForeignTable(str(name), f"{name.namespace}.{name.table(kind)}")
        return document

    def places_beside(self, name: TopicName) -> Iterator[Place]:
        """Yield the topic's tables whose deletions can be undone, without its own table and without other topics' tables of such names."""
        for kind in KINDS[1:]:
            place = name.namespace, name.table(kind)
            found = self.find(place)
            if found is not None and (found.properties.get(STREAM_PROPERTY), found.properties.get(TOPIC_PROPERTY)) == (
                name.stream,
                name.topic,
            ):
                yield place

    def document_topic(self, name: TopicName) -> TableDocument:
        """Return the table's metadata like `document`. Raises NotADocumentTopic."""
        document = self.document(name)
        if FOLD_PROPERTY not in document.properties:
            raise not_a_document_topic(str(name))
        return document

    def message_topic(self, name: TopicName) -> TableDocument:
        """Return the table's metadata like `document`. Raises IsADocumentTopic."""
        document = self.document(name)
        if FOLD_PROPERTY in document.properties:
            raise is_a_document_topic(str(name))
        return document

    def log(self, name: TopicName) -> Table:
        """Return the table of a topic's messages. Raises the errors of `of_messages`."""
        self.message_topic(name)
        return self.load(name)

    def find(self, place: Place) -> TableDocument | None:
        """Return the metadata of the current table at a place; None without a table.

        Raises:
            TableUnreadable: The metadata are missing or damaged, or the catalog cannot deliver them.
        """
        location = self.pointers.one(place)
        try:
            return None if location is None else self.at(place, location)
        except UnknownTopic:
            return None  # dropped since; or it never existed, and the catalog's first answer was an error

    def at(self, place: Place, location: str) -> TableDocument:
        """Return the table's metadata at a location, or at its newer location if the table has changed since.

        Raises:
            UnknownTopic: The table was dropped since.
            TableUnreadable: The metadata are missing or damaged.
        """
        seen = self._documents.get(place)
        if seen is None or seen.location != location:
            seen = self._documents[place] = self._read(self.pointers.read, place, location)
        return seen

    def _read(self, read: Callable[[Place, str], Read], place: Place, location: str) -> Read:
        while True:
            try:
                with reaching_catalog():
                    return read(place, location)
            except (OSError, *TORN) as error:
                asked, location = location, self._moved(place)
                if location == asked:
                    raise _unreadable(place, location, error) from error

    def _moved(self, place: Place) -> str:
        """Return the current location of the metadata, from the catalog. Raises UnknownTopic."""
        location = self.pointers.newest(place)
        if location is None:
            raise UnknownTopic(".".join(place))
        return location

    def load(self, name: TopicName, *, kind: str = "") -> Table:
        """Return the table, to read its manifests and data. Raises the errors of `document`."""
        try:
            return self.table((name.namespace, name.table(kind)), self.document(name, kind=kind))
        except UnknownTopic:
            raise UnknownTopic(str(name)) from None

    def table(self, place: Place, document: TableDocument) -> Table:
        """Return the table of this metadata, to read its manifests and data. Raises the errors of `at`."""
        return self._read(self.pointers.table, place, document.location)


def _unreadable(place: Place, location: str, error: Exception) -> TableUnreadable:
    return TableUnreadable(".".join(place), location, reason_of(error))


class IcebergTopics(WithNamedErrors):
    """Implements `ports.Topics` on the catalog.

    Args:
        server: Settings of the server file. A table carries some of them.
        scratch: Create and list only a scenario's topics, which no other list shows.
    """

    def __init__(self, tables: Tables | None = None, *, server: Mapping[str, Value] | None = None, scratch: bool = False) -> None:
        self._tables = tables or Tables()
        self._server = dict(server or {})
        self._scratch = scratch

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic:
        """Create the topic with an empty log. Its ledger is the ledger that creates it.

        Raises:
            TopicExists: The topic exists.
            ForeignTable: A table has the name, and is not this topic's.
            UnsupportedLimit: Tables do not support one of the settings.
        """
        self._check(name, settings)
        from message_lifecycle.stores.iceberg import new_table

        place = name.namespace, name.table()
        of_table, shape, empty = _shape(settings, partitions)
        properties = {
            **of_table,
            **own_properties(settings),
            STREAM_PROPERTY: name.stream,
            TOPIC_PROPERTY: name.topic,
            PARTITIONS_PROPERTY: str(partitions),
            PARTITIONER_PROPERTY: PARTITIONER,
            ROLE_PROPERTY: role_of(settings),
            UNDO_PROPERTY: self._undo_ms(settings),
            **({SCRATCH_PROPERTY: "true"} if self._scratch else {}),
        }
        summary = {**empty.to_properties(), LEDGER: ledger_text(ledger)}
        if self._tables.find(place) is not None or not new_table.create(place, shape, properties=properties, summary=summary):
            self._tables.document(name)
            raise topic_exists(str(name))
        return self.describe(name)

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        """Set the given settings; None removes a setting. The log does not change.

        The tables next to the log keep their history as long as the log does.

        Raises:
            UnsupportedLimit: Tables do not support one of the settings.
        """
        from message_lifecycle.stores.iceberg.table_metadata import TableGone, change_metadata, set_properties

        topic = self.describe(name)
        after = {key: value for key, value in {**topic.settings, **settings}.items() if value is not None}
        self._check(name, after)
        window = {UNDO_PROPERTY: self._undo_ms(after)}
        own = {f"{PROPERTY_PREFIX}{key}": None if value is None else property_text(value) for key, value in settings.items()}
        places: list[tuple[Place, Mapping[str, str | None]]] = [
            ((name.namespace, name.table()), {**own, **window}),
            *((place, window) for place in self._tables.places_beside(name)),
        ]
        for place, changes in places:
            with suppress(TableGone):  # `describe` at the end reports a missing table of the topic itself
                change_metadata(place, partial(set_properties, changes=changes), what=f"altering {'.'.join(place)}")
        return self.describe(name)

    def _check(self, name: TopicName, own: Mapping[str, Value]) -> None:
        check_policy("iceberg", resolve(topic=own, server=self._server), own, where=f"topic {name}")

    def describe(self, name: TopicName) -> Topic:
        document = self._tables.document(name)
        properties = document.properties
        return Topic(
            name=name,
            uuid=document.uuid,
            partitions=partitions_of(properties),
            role=_role(properties),
            settings=settings_of(properties, where=f"table {name.namespace}.{name.table()}"),
            ledger=ledger_of(document),
            updated_at=_updated_at(document),
            live_view=None if self._scratch or FOLD_PROPERTY in properties else ".".join((CATALOG, name.namespace, name.table(LIVE))),
        )

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        from message_lifecycle.stores.iceberg.table_metadata import TableGone

        self._tables.document(name)  # raises before another topic's table changes
        try:
            write_ledger_mark((name.namespace, name.table()), ledger)
        except TableGone:
            raise UnknownTopic(str(name)) from None

    def list(self, stream: str | None = None) -> Sequence[TopicName]:
        """Return the topics by name, without tables of other writers and tables next to a topic.

        The list includes an unreadable table under the topic name that its table name encodes.
        """
        namespace = None if stream is None else catalog_identifier(normalise_name(stream))
        return sorted(
            name for place, location in self._tables.pointers.all(namespace) if (name := self._topic_at(place, location)) is not None
        )

    def look(self) -> AbstractContextManager[None]:
        return look()

    def update_live_view(self, name: TopicName, policy: Policy) -> str | None:
        """Update the live view and return its name. A scenario's topic and a topic of documents have none.

        Raises:
            CatalogUnavailable: The catalog has no views, or does not answer. See `ports.Topics` for other errors.
        """
        from message_lifecycle.stores.iceberg import view_file
        from message_lifecycle.stores.iceberg.columns import SCHEMA

        if self._scratch or FOLD_PROPERTY in self._tables.document(name).properties:
            return None
        columns = ", ".join(field.name for field in SCHEMA.fields)
        text = f"SELECT {columns} FROM {sql_table(name)} WHERE {view_file.rule_opposite(expiry.hiding_rule(policy))}"
        place = name.namespace, name.table(LIVE)
        view_file.write_view(self._tables, place, text)
        return ".".join((CATALOG, *place))

    def _topic_at(self, place: Place, location: str) -> TopicName | None:
        if place[1].endswith(tuple(f"__{kind}" for kind in BESIDE)):
            return None
        try:
            properties = self._tables.at(place, location).properties
            name = TopicName(stream=normalise_name(properties[STREAM_PROPERTY]), topic=normalise_name(properties[TOPIC_PROPERTY]))
        except (KeyError, InvalidName, UnknownTopic):
            return None  # another writer's table, or dropped since the listing
        except TableUnreadable:
            return None if self._scratch else _encoded(place)
        if (SCRATCH_PROPERTY in properties) is not self._scratch:
            return None
        return name if (name.namespace, name.table()) == place else None

    def _undo_ms(self, settings: Mapping[str, Value]) -> str:
        return str(resolve(topic=settings, server=self._server).undo_window_us // 1000)


def _encoded(place: Place) -> TopicName | None:
    stream, topic = map(name_of_identifier, place)
    return None if stream is None or topic is None else TopicName(stream=stream, topic=topic)


def _shape(settings: Mapping[str, Value], partitions: int) -> tuple[Mapping[str, str], TableShape, LogSummary]:
    """Return the properties, shape and first state of a new topic's table: of messages, or of documents' changes (SNP-10)."""
    from message_lifecycle.stores.iceberg import shapes

    if settings_have_documents(settings):
        return shapes.CHANGES_PROPERTIES, shapes.CHANGES_SHAPE, LogSummary()
    each = range(partitions)
    empty = LogSummary(end_offsets=dict.fromkeys(each, 0), active={p: ActiveSegment(base_offset=0) for p in each})
    return TABLE_PROPERTIES, shapes.MESSAGES_SHAPE, empty


def ledger_of(document: TableDocument) -> tuple[str, int] | None:
    """Return the ledger of the newest commit, or of the mark, whichever is newer."""
    said = document.newest(LEDGER)
    if said is None:  # another engine has expired the snapshots with the ledger
        witness = Witness.read(document.properties, document.location)
        said = None if witness is None else witness.state.get(LEDGER)
    committed, marked = _ledger(said, LEDGER), _ledger(document.properties.get(LEDGER_MARK), LEDGER_MARK)
    if committed is None or marked is None:
        return committed or marked
    # Another ledger marks the table when it takes the table on, so a mark of another ledger is newer than the commit.
    return marked if marked[0] != committed[0] else max(committed, marked)


def _updated_at(document: TableDocument) -> Instant | None:
    """Return when the table last changed; None if its metadata do not record the time."""
    found = document.content.get("last-updated-ms")
    return Instant(found * 1_000) if type(found) is int else None


def _ledger(text: str | None, where: str) -> tuple[str, int] | None:
    if text is None:
        return None
    ledger_uuid, _, sequence = str(text).rpartition(":")
    return ledger_uuid, parsed.whole(sequence, where)


def write_ledger_mark(place: Place, ledger: tuple[str, int]) -> None:
    """Write the ledger's number into the table's properties. Raises TableGone."""
    from message_lifecycle.stores.iceberg.table_metadata import change_metadata, set_properties

    change_metadata(place, partial(set_properties, changes={LEDGER_MARK: ledger_text(ledger)}), what=f"marking {'.'.join(place)}")


def _role(properties: Mapping[str, str]) -> Role:
    return cast(Role, parsed.one_of(properties.get(ROLE_PROPERTY, "local"), get_args(Role), ROLE_PROPERTY))


def ledger_text(ledger: tuple[str, int]) -> str:
    """Return `uuid:sequence`, the form in a commit's summary."""
    return f"{ledger[0]}:{ledger[1]}"


# The tables of one topic: its own, and the tables next to it.


_WRITTEN_TO = ("write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path")
_METADATA = (".metadata.json", ".metadata.json.gz")


def documents(tables: Tables, name: TopicName) -> Iterator[tuple[str, TableDocument]]:
    """Yield the kind and metadata of each existing table of the topic, its own first.

    Raises:
        UnknownTopic: The topic does not exist.
        ForeignTable: A table with such a name is not this topic's.
    """
    for kind in KINDS:
        place = name.namespace, name.table(kind)
        found = tables.find(place) if kind else tables.at(place, tables.metadata_location(name))
        if found is not None:
            if (found.properties.get(STREAM_PROPERTY), found.properties.get(TOPIC_PROPERTY)) != (name.stream, name.topic):
                raise ForeignTable(str(name), ".".join(place))
            yield kind, found


def side_table_properties(name: TopicName, log: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table next to the log: its topic, and settings that it shares with the log.

    The table keeps its history as long as the log does, and travels with the topic.

    Args:
        name: The topic.
        log: The log's properties.

    Raises:
        DeletionBegun: The topic is being deleted.
    """
    if DELETED_BY in log:
        raise deletion_begun(str(name), log[DELETED_BY])
    kept = {key: log[key] for key in (SCRATCH_PROPERTY, UNDO_PROPERTY) if key in log}
    return {STREAM_PROPERTY: name.stream, TOPIC_PROPERTY: name.topic, **kept}


def check_no_shared_folders(tables: Tables, name: TopicName, *, by_names: bool = False) -> None:
    """Check that no other table has files below the locations of the topic's tables.

    Files of the topic that another table merely names (`add_files`) do not count.

    Args:
        tables: The tables of the catalog.
        name: The topic.
        by_names: If the catalog cannot name the location of another table, check the names of the topic's own files instead. Only for
            callers that choose files by their content.

    Raises:
        UnsafePath: Another table lies below a location of the topic, or writes there.
        TableNotTold: The catalog could not name the location of a table. A later try may succeed.
        StorageRefused: The storage refused to read the metadata of another table.
    """
    from message_lifecycle.stores.iceberg.table_files import list_files  # imports the part with Java, which most calls do not need

    mine = {(name.namespace, name.table(kind)): (kind, str(found.content["location"])) for kind, found in documents(tables, name)}

    def names(place: Place) -> Iterator[str]:
        kind, location = mine[place]
        return (file.name for file in list_files(tables.load(name, kind=kind).io, location))

    check_places_not_shared(tables, {place: Within(location) for place, (_, location) in mine.items()}, names if by_names else None)


def check_places_not_shared(tables: Tables, mine: Mapping[Place, Within], names: Callable[[Place], Iterable[str]] | None = None) -> None:
    """Check the given tables and their locations like `check_no_shared_folders`.

    Args:
        tables: The tables of the catalog.
        mine: The given tables, with their locations.
        names: Returns the names of the files below one of the tables. Used if the catalog cannot name the location of another table.
    """
    for place, location in tables.pointers.all(None):
        if place not in mine and location.startswith(UNREADABLE):
            if names is None:
                raise table_not_told(".".join(place))
            for own in mine:
                if other := next((name for name in names(own) if _is_anothers(name)), None):
                    raise UnsafePath(other, f"metadata within the location of {'.'.join(own)}, which may be those of {'.'.join(place)}")
            continue
        for own, within in mine.items():
            if place != own and _lies_below(location, within):
                raise UnsafePath(location, f"the metadata of {'.'.join(place)} within the location of {'.'.join(own)}")
        try:
            folders = _folders(tables.pointers, place, location)
        except (UnknownTopic, FileNotFoundError, *TORN):
            continue  # no reader can use a table that is gone, or has lost its metadata
        for folder in folders:
            for own, within in mine.items():
                if place != own and _lies_below(f"{folder.rstrip('/')}/_", within):
                    raise UnsafePath(folder, f"files of {'.'.join(place)} within the location of {'.'.join(own)}")


def _is_anothers(name: str) -> bool:
    """Return whether a file below a table's location is the metadata of another table: a table keeps its own metadata in one folder."""
    return name.endswith(_METADATA) and name.rpartition("/")[0] != "metadata"


@lru_cache(maxsize=4096)
def _folders(pointers: Pointers, place: Place, location: str) -> tuple[str, ...]:
    """Return the folders that a table writes to. The cache is safe, because the metadata at a location never change."""
    try:
        found = pointers.read(place, location)
    except (FileNotFoundError, gzip.BadGzipFile):
        raise
    except OSError as error:
        raise storage_refused(location, str(error.strerror or error)) from error
    return (str(found.content["location"]), *(found.properties[key] for key in _WRITTEN_TO if key in found.properties))


def _lies_below(location: str, within: Within) -> bool:
    try:
        return not is_absolute(within.name(location))
    except UnsafePath:
        # An unknown form of a path is an error only if it may lead here.
        return within.may_contain(location)
