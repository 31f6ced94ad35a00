"""`DurableFiles.java` compiled by the compiler that comes with Spark, so that nobody needs a JDK: `python -m tests.spark.durable_files` writes the
jar beside it anew."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from lifecycle_local.layout import find_layout, spark_home
from lifecycle_local.spark_settings import DURABLE_FILES
from message_lifecycle.stores.iceberg.executors import FIXED_TIME

SOURCE = DURABLE_FILES.with_name("DurableFiles.java")
_JAVA_VERSION = 8
"""Of the class files: the newest that this compiler knows, and every Java reads them."""


def compiled(jvm: Any) -> dict[str, bytes]:
    """The class files by their names in a jar. `jvm`: knows Hadoop, and what is in our folder of jars."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setSourceVersion(_JAVA_VERSION)
    compiler.setTargetVersion(_JAVA_VERSION)
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    found = compiler.getBytecodes()
    return {f"{name.replace('.', '/')}.class": bytes(found[name]) for name in sorted(found)}


def in_jar(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as file:
        return {name: file.read(name) for name in file.namelist()}


def write(jar: Path, classes: dict[str, bytes]) -> None:
    """Equal classes give equal bytes."""
    with zipfile.ZipFile(jar, "w") as file:
        for name, content in classes.items():
            file.writestr(zipfile.ZipInfo(name, FIXED_TIME), content)


if __name__ == "__main__":
    from py4j.java_gateway import JavaGateway

    on_path = [f"{spark_home()}/jars/*", *map(str, find_layout().jars.glob("*.jar"))]
    gateway = JavaGateway.launch_gateway(classpath=":".join(on_path), die_on_exit=True)
    write(DURABLE_FILES, compiled(gateway.jvm))
    gateway.shutdown()
