"""The embedded cluster (`LIFECYCLE_STACK=cluster`): an object store, a REST catalog, and Spark's machines.

The machines share no folder with the driver. One process serves store and catalog. The process keeps all objects in memory, and they end
with it. The catalog gives out keys for the tables' files; the settings hold a key for landing files alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from lifecycle_local import processes, spark_cluster
from lifecycle_local.environment import merge_environment
from lifecycle_local.java import Java
from lifecycle_local.layout import Layout, venv_python
from lifecycle_local.postgres import Address
from lifecycle_local.processes import LOOPBACK, Component, choose_port, last_port
from lifecycle_local.spark_settings import CATALOG, Lake, catalog_settings
from message_lifecycle.app.private_files import secret

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SERVER = "lake-server"
PROGRAM = "lifecycle_local.lake_server"
"""By name: it needs Iceberg's Java library, of which this package knows nothing."""
READY = "serves store and catalog"
REGION = "us-east-1"
DATABASE, BUCKET, LANDING = "lake", "lake", "landing"
STORE, REST = "object-store", "rest-catalog"
"""Under these names their ports are kept."""
_PREFIX = f"spark.sql.catalog.{CATALOG}"
_IO = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
_START_SECONDS, _STOP_SECONDS = 60.0, 5.0
# Several applications at a time, each on both workers: one waits in Airflow while another runs by hand.
_CORES, _MEMORY = 8, "6g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Opens `below`, a path with its bucket; `until` of the monotonic clock, in seconds."""

    name: str = field(default_factory=lambda: token_hex(8))
    secret: str = field(default_factory=lambda: token_hex(16), repr=False)
    token: str | None = field(default=None, repr=False)
    below: str = "/"
    until: float = inf


def components_running(layout: Layout) -> dict[str, bool]:
    """Return whether each component runs."""
    return {SERVER: is_serving(layout), **spark_cluster.components_running(layout)}


def is_serving(layout: Layout) -> bool:
    """True if the store runs. If the store is gone, the contents of all tables and landing folders are gone."""
    return processes.find_component(layout, SERVER) is not None


def root_key(layout: Layout) -> Key:
    """Opens all of the store; the server's own."""
    return Key(name="root", secret=secret(layout.secrets / "store-root"))


def landing_key(layout: Layout) -> Key:
    """Opens the bucket of landing files."""
    return Key(name=LANDING, secret=secret(layout.secrets / "store-landing"), below=f"/{LANDING}/")


def token(layout: Layout) -> str:
    """Return the token that gives access to the catalog."""
    return secret(layout.secrets / "catalog-token")


def store_settings(uri: str, key: Key) -> dict[str, str]:
    """Return the settings of Java and PyIceberg for the store and this key."""
    s3 = {
        "s3.endpoint": uri,
        "s3.path-style-access": "true",
        "s3.access-key-id": key.name,
        "s3.secret-access-key": key.secret,
        "client.region": REGION,
        "s3.region": REGION,
    }
    return s3 if key.token is None else {**s3, "s3.session-token": key.token}


def served_catalog_settings(layout: Layout, address: Address, store: str) -> dict[str, str]:
    """Return Spark's settings for the catalog in its own server. `store`: the URI of the object store."""
    own = {**_IO, "warehouse": f"s3://{BUCKET}/tables", **store_settings(store, root_key(layout))}
    return catalog_settings(CATALOG, address, layout.warehouse) | {f"{_PREFIX}.{name}": value for name, value in own.items()}


def start(layout: Layout, java: Java, jars: tuple[Path, ...], store_jars: tuple[Path, ...], environment: Mapping[str, str]) -> Lake:
    """Start the missing parts of the cluster, and return the lake when all parts run.

    Args:
        layout: The paths of the project and of its state.
        java: The Java runtime of Spark's machines.
        jars: Jars that every lake needs.
        store_jars: Jars that a lake in an object store needs, too.
        environment: The environment of the embedded default's processes.

    Raises:
        ComponentFailed: A part of the cluster ended before it was ready, or took too long.
        NoMachinesApart: This machine forbids mounts of one's own.
    """
    server = processes.find_component(layout, SERVER) or _serve(layout, environment)
    processes.wait_for_match(layout, server, READY, seconds=_START_SECONDS)
    store, catalog = (f"http://{LOOPBACK}:{last_port(layout.ports_file, name)}" for name in (STORE, REST))
    settings = spark_cluster.start(layout, java, (*jars, *store_jars), cores=_CORES, memory=_MEMORY)
    landing = store_settings(store, landing_key(layout))
    catalog_settings = {"type": "rest", "uri": catalog, "token": token(layout), **landing}
    # Else Iceberg warns at each start that it guesses these.
    of_java = {"rest.auth.type": "oauth2", "oauth2-server-uri": f"{catalog}/v1/oauth/tokens", **_IO}
    of_java["lifecycle.atomic-transactions"] = "true"  # all tables of a commit are swapped in one transaction of the database
    return Lake(
        java={
            _PREFIX: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{_PREFIX}.{name}": value for name, value in {**catalog_settings, **of_java}.items()},
            **settings,
            "spark.cores.max": f"{spark_cluster.WORKERS}",
            "spark.executor.cores": "1",
            "spark.executor.memory": "1g",
            # An executor's Java passes work to Python and computes little. The second compiler and parallel collection take more than they give.
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.pyspark.python": spark_cluster.python_of_machines(layout),
            "spark.pyspark.driver.python": str(venv_python()),
        },
        python=catalog_settings,
        # Settings that hold for this machine alone.
        without=("spark.local.dir", "spark.python.daemon.module"),
    )


def _serve(layout: Layout, environment: Mapping[str, str]) -> Component:
    for name in (STORE, REST):
        choose_port(layout.ports_file, name)
    return processes.launch(layout, SERVER, [venv_python(), "-m", PROGRAM], merge_environment(environment), identity="")


def land(layout: Layout, folder: Path) -> str:
    """Put the files of a folder into the bucket of landing files; the URI of the folder there."""
    store = files(layout, landing_key(layout))
    for file in sorted(folder.iterdir()):
        with store.open_output_stream(f"{LANDING}/{folder.name}/{file.name}") as target:
            target.write(file.read_bytes())
    return f"s3://{LANDING}/{folder.name}"


def bytes_of_tables(layout: Layout) -> int:
    """Return the bytes of all objects of tables."""
    from pyarrow.fs import FileSelector

    return sum(file.size or 0 for file in files(layout, root_key(layout)).get_file_info(FileSelector(BUCKET, recursive=True)))


def files(layout: Layout, key: Key) -> S3FileSystem:
    """Return the store's file system, with the rights of the key."""
    return files_at(f"http://{LOOPBACK}:{last_port(layout.ports_file, STORE)}", key)


def files_at(uri: str, key: Key) -> S3FileSystem:
    """The same of the store at this address; buckets are made where the key may."""
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(access_key=key.name, secret_key=key.secret, endpoint_override=uri, region=REGION, allow_bucket_creation=True)


def stop(layout: Layout) -> None:
    """End the cluster. The store loses all of its contents."""
    spark_cluster.stop(layout)
    processes.stop(layout, [SERVER], polite_seconds=_STOP_SECONDS)
