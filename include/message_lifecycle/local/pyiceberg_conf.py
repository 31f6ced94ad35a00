"""PyIceberg's configuration for the same catalog, under the same name: it reads what Spark commits only if the names are equal."""

from __future__ import annotations

import json

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.postgres import Address
from message_lifecycle.local.private_files import write_private
from message_lifecycle.local.spark_conf import CATALOG


def write_pyiceberg_conf(layout: Layout, address: Address) -> None:
    """`.pyiceberg.yaml` in the folder that PYICEBERG_HOME names."""
    settings = {"type": "sql", "uri": address.url("lake"), "warehouse": str(layout.warehouse)}
    # PyIceberg's reader refuses YAML's flow style, so only the values are JSON: that quotes any path right.
    lines = ["catalog:", f"  {CATALOG}:", *(f"    {key}: {json.dumps(value)}" for key, value in settings.items())]
    write_private(layout.state / ".pyiceberg.yaml", "\n".join(lines) + "\n")
