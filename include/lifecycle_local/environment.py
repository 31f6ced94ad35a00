"""The variables under which everything of the embedded default runs: one mapping, one file, and nothing that was inherited by accident.

Every command reads them, so this module imports little.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle_local.layout import CLUSTER, DISK, STACK, Layout, find_layout, spark_home, venv_bin, venv_python
from message_lifecycle.app.private_files import write_private

if TYPE_CHECKING:
    from lifecycle_local.java import Java
    from lifecycle_local.postgres import Address

MASTER = "local[2]"
LEDGER = "LIFECYCLE_LEDGER_URL"
LAST = "SPARK_DIST_CLASSPATH"
"""Spark's own word for jars that come last on its class path. The class archive is tied to what comes before: between that they would end it."""
DIRECT = ("127.0.0.1", "localhost")
# Left over from a user's own installations, these would send our processes to other code or another database.
NOT_INHERITED = ("AIRFLOW_", "SPARK_", "PYSPARK_", "PYICEBERG_", "PYTHONPATH", "PYTHONHOME", "PGHOST", "PGPORT")


def environment(
    layout: Layout, *, java: Java, address: Address, airflow_port: int, master: str = MASTER, last: Sequence[Path] = ()
) -> dict[str, str]:
    """Return the variables to set. PATH has only the folders that come before the caller's own.

    Args:
        layout: The paths of the project and of its state.
        java: The Java runtime to use.
        address: The address of the database.
        airflow_port: The port of Airflow's API server.
        master: Spark's master, for Airflow.
        last: Jars that only this lake needs.
    """
    return {
        "PATH": str(venv_bin()),
        "TZ": "UTC",
        "LIFECYCLE_HOME": str(layout.state),
        "LIFECYCLE_TOOLS": str(layout.tools),
        STACK: CLUSTER if layout.is_cluster else DISK,
        LEDGER: address.url("ledger"),
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(layout.spark_conf),
        # The name of the machine need not resolve: it does not on many laptops and in most containers without a network.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "PYSPARK_PYTHON": str(venv_python()),
        "PYSPARK_DRIVER_PYTHON": str(venv_python()),
        "PYICEBERG_HOME": str(layout.state),
        "AIRFLOW_HOME": str(layout.project),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
        # Expanded by airflow.cfg.
        "LIFECYCLE_AIRFLOW_DB_URL": address.url("airflow"),
        "LIFECYCLE_AIRFLOW_PORT": str(airflow_port),
        "GX_ANALYTICS_ENABLED": "False",
        **({LAST: ":".join(map(str, last))} if last else {}),
    }


def write_environment(layout: Layout, settings: Mapping[str, str]) -> None:
    """Keep the mapping for `load_environment`, readable by its owner alone."""
    write_private(layout.environment_file, json.dumps(dict(settings), indent=2, sort_keys=True) + "\n")


def read_environment(layout: Layout) -> dict[str, str] | None:
    """The mapping that the last `up` wrote."""
    if not layout.environment_file.is_file():
        return None
    found = json.loads(layout.environment_file.read_text(encoding="utf-8"))
    return {str(key): str(value) for key, value in found.items()}


def merge_environment(settings: Mapping[str, str], inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A whole environment for a child process: the caller's, without what would mislead, with ours over it."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(NOT_INHERITED)}
    path = [settings["PATH"], *(part for part in kept.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":") if part != settings["PATH"])]
    # A proxy for the outside must not be asked for our own loopback, neither by Airflow's workers nor by its clients.
    direct = {name: ",".join(dict.fromkeys([*filter(None, kept.get(name, "").split(",")), *DIRECT])) for name in ("no_proxy", "NO_PROXY")}
    return kept | direct | dict(settings) | {"PATH": ":".join(path)}


def load_environment(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Make this process one of the embedded stack's, unless the caller names a ledger of their own; True when it was done."""
    if environ.get(LEDGER):
        return False
    settings = read_environment(find_layout(environ))
    if settings is None:
        return False
    enter(settings, environ)
    return True


def enter(settings: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables in this process, so that it runs in this environment."""
    whole = merge_environment(settings, environ)
    for name in set(environ) - set(whole):
        del environ[name]
    environ.update(whole)
    if environ is os.environ:
        time.tzset()
