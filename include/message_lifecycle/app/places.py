"""The place of an ingest's files: a folder on this machine, or in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from message_lifecycle.sources.selection import Patterns

if TYPE_CHECKING:
    from message_lifecycle.sources.files import Found


def files_at(place: str, patterns: Patterns) -> Found:
    """Return the files below a folder of this machine, or of a store that the lake's catalog has keys for.

    Raises:
        NoInput, UnreadableFile, StorageRefused
    """
    from message_lifecycle.sources.files import files_of, find_files, no_input
    from message_lifecycle.stores.iceberg.table_folder import is_local, local_path

    if "://" not in place and not place.startswith("file:"):
        return find_files(place, patterns)
    try:
        parts = urlsplit(place)
    except ValueError as error:
        raise no_input(place, str(error)) from error
    if is_local(place):
        if parts.query or parts.fragment or parts.netloc not in ("", "localhost"):
            raise no_input(place, "a URI of this machine has no host, and neither ? nor # in it: give the path as it is")
        return find_files(local_path(place), patterns)
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.tasks import Store

    store, folder = Store.of_catalog(Tables().catalog), place.rstrip("/")
    return files_of(folder, store.listed(folder), store, patterns)
