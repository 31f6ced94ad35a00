"""The parent process of Spark's Python workers on the embedded default (`spark.python.daemon.module`); never imported.

Spark puts its own Python code first on the path, as an archive of sources. Python compiles that code again at each start. For each task,
Python reads the archive's list of files again, and the list of a Spark jar without Python code. The installed packages have the same code,
compiled, so this process removes the archive and the jars from the path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def without_archives(path: list[str], spark_home: str) -> list[str]:
    """The path for imports without Spark's own archives and jars."""
    archives, jars = Path(spark_home, "python", "lib"), Path(spark_home, "jars")
    return [entry for entry in path if (Path(entry).suffix, Path(entry).parent) not in ((".zip", archives), (".jar", jars))]


def main() -> None:
    sys.path[:] = without_archives(sys.path, os.environ.get("SPARK_HOME", ""))
    for entry in set(sys.path_importer_cache) - set(sys.path):
        if entry.endswith((".zip", ".jar")):
            del sys.path_importer_cache[entry]
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]  # PySpark gives its daemon no types


if __name__ == "__main__":
    main()
