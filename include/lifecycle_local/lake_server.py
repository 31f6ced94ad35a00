"""`python -m lifecycle_local.lake_server`: run the object store and the REST catalog of the embedded cluster.

The process runs until a signal ends it. The catalog is Iceberg's own, over the embedded PostgreSQL. An answer about a table includes a key
for the table's files alone.
"""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from threading import Event
from typing import Any, Protocol

from lifecycle_local import cluster, postgres
from lifecycle_local.cluster import Key, store_settings
from lifecycle_local.java import JARS, STORE_JARS, ensure_jars, find_java
from lifecycle_local.layout import Layout, find_layout
from lifecycle_local.processes import last_port
from lifecycle_local.rest_server import RestCatalog, serve_catalog
from lifecycle_local.s3_server import s3_server
from lifecycle_local.spark_settings import session_settings
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.stores.iceberg import java
from message_lifecycle.stores.iceberg.java import Java, Jvm


class Store(Protocol):
    """An object store whose keys the catalog gives out."""

    uri: str

    def create_access_key(self, below: str) -> Key: ...


class GivesKeys(RestCatalog):
    """Adds to each answer about a table a key for the table's files alone. `seconds`: the stated lifetime of the key; None: not stated."""

    def __init__(self, jvm: Jvm, *, s3: Store, **given: Any) -> None:
        super().__init__(jvm, **given)
        self._s3 = s3
        self.seconds: float | None = None

    def _json_text(self, response: Java) -> str:
        if response.getClass().getSimpleName() != "LoadTableResponse":
            return super()._json_text(response)
        found = response.tableMetadata()
        below = str(found.location()).removeprefix("s3:/")
        given = store_settings(self._s3.uri, self._s3.create_access_key(f"{below}/"))
        if self.seconds is not None:
            given["s3.session-token-expires-at-ms"] = str(int((time.time() + self.seconds) * 1000))
        return super()._json_text(response.builder().withTableMetadata(found).addAllConfig(given).build())


def main() -> int:
    """Serve until the signal to end."""
    layout = find_layout()
    keys = (cluster.root_key(layout), cluster.landing_key(layout))
    with s3_server(*keys, port=last_port(layout.ports_file, cluster.STORE) or 0, remembers=False) as store:
        for bucket in (cluster.BUCKET, cluster.LANDING):
            store.files.create_dir(bucket)
        return serve(layout, store)


def serve(layout: Layout, store: Store) -> int:
    """The catalog over what the store has, until the signal to end. Raises Unavailable where the embedded PostgreSQL does not run."""
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    address = postgres.find_running(layout)
    if address is None:
        raise Unavailable("the embedded PostgreSQL does not run: it keeps what the catalog says. Run `make up STACK=cluster`.")
    jars = ensure_jars(layout, find_java(layout), jars=(*JARS, *STORE_JARS))
    jvm = java.Jvm({**session_settings(layout, jars, ""), **cluster.served_catalog_settings(layout, address, store.uri)})
    try:
        catalog = GivesKeys(jvm, s3=store, token=cluster.token(layout), database=partial(address.connect, cluster.DATABASE))
        catalog.at_once = "all or none"
        with serve_catalog(catalog, port=last_port(layout.ports_file, cluster.REST) or 0):
            print(cluster.READY, flush=True)
            ended.wait()
    finally:
        jvm.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
