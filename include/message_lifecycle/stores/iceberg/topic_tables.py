"""All tables of one topic: its own, and those beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from message_lifecycle.model.errors import ForeignTable, UnsafePath, storage_refused
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.document import TableDocument
from message_lifecycle.stores.iceberg.layout import KINDS, STREAM_PROPERTY, TOPIC_PROPERTY
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.table_folder import Within, is_absolute

_WRITTEN_TO = ("write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path")


def documents(tables: Tables, name: TopicName) -> Iterator[tuple[str, TableDocument]]:
    """Kind and metadata of each that is there, the topic's own first. Raises UnknownTopic, ForeignTable, and UnsafePath where another
    table lies within one of them: its files would look like nobody's."""
    for kind in KINDS:
        place = name.namespace, name.table(kind)
        location = tables.location(name) if not kind else tables.pointers.one(place)
        if location is not None:
            found = tables.at(place, location)
            if (found.properties.get(STREAM_PROPERTY), found.properties.get(TOPIC_PROPERTY)) != (name.stream, name.topic):
                raise ForeignTable(str(name), ".".join(place))
            yield kind, found


def check_alone(tables: Tables, name: TopicName) -> None:
    """Raises UnsafePath where another table lies below the location of one of the topic's, or writes there; StorageRefused where nobody
    can tell. Files of the topic's that another table merely names (`add_files`) are not looked for."""
    check_places_alone(
        tables, {(name.namespace, name.table(kind)): Within(str(found.content["location"])) for kind, found in documents(tables, name)}
    )


def check_places_alone(tables: Tables, mine: Mapping[Place, Within]) -> None:
    """As `check_alone`, of these tables with their locations."""
    for place, location in tables.pointers.all(None):
        for own, within in mine.items():
            if place != own and _lies_below(location, within):
                raise UnsafePath(location, f"the metadata of {'.'.join(place)} within the location of {'.'.join(own)}")
        for folder in _folders(location, tuple(sorted(tables.pointers.file_properties.items()))):
            for own, within in mine.items():
                if place != own and _lies_below(f"{folder.rstrip('/')}/_", within):
                    raise UnsafePath(folder, f"files of {'.'.join(place)} within the location of {'.'.join(own)}")


@lru_cache(maxsize=4096)
def _folders(location: str, file_properties: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Where the table writes that has its metadata there, which never change. One whose metadata are gone or damaged nobody reads."""
    try:
        found = TableDocument.read(location, dict(file_properties))
    except (FileNotFoundError, ValueError):
        return ()
    except OSError as error:
        raise storage_refused(location, str(error.strerror or error)) from error
    return (str(found.content["location"]), *(found.properties[key] for key in _WRITTEN_TO if key in found.properties))


def _lies_below(location: str, within: Within) -> bool:
    try:
        return not is_absolute(within.name(location))
    except UnsafePath:
        # Somebody else's way of writing paths is no reason to stop, unless it may lead here.
        return within.may_hold(location)
