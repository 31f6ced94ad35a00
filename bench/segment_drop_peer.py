"""The obvious way in Spark, in a plain application: `DELETE` by a range of segments, then `expire_snapshots`.

Run: `python -m bench.segment_drop_peer CATALOG NAMESPACE TABLE SEGMENT`. The peer drops the segments below SEGMENT.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def drop(session: SparkSession, catalog: str, namespace: str, table: str, segment: int) -> None:
    session.sql(f"DELETE FROM `{catalog}`.`{namespace}`.`{table}` WHERE partition = 0 AND segment < {segment}")
    session.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{namespace}.{table}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    ).collect()


if __name__ == "__main__":
    session = SparkSession.builder.appName("peer").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    catalog, namespace, table, last = sys.argv[1:]
    drop(session, catalog, namespace, table, int(last))
    session.stop()
