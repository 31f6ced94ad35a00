"""Spark's workers take its code from the installed packages, and nothing else from another place than before."""

from __future__ import annotations

from message_lifecycle.stores.iceberg.worker_daemon import without_archives


def test_only_sparks_own_archives_are_left_out() -> None:
    path = [
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/spark-core_2.13.jar",
        "/job/package.zip",
        "/job/package.jar",
        "/spark/python/lib",
        "/site-packages",
    ]
    assert without_archives(path, "/spark") == ["/job/package.zip", "/job/package.jar", "/spark/python/lib", "/site-packages"]
    assert without_archives(path, "") == path
