"""A Spark application that runs a little of everything, so that a class archive can record the loaded classes.

spark-submit runs it once; nothing imports it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

TABLE = "warm_up.recorded.log"


def main() -> None:
    """Create, write, delete from, branch and read a table like a topic's in a catalog of its own, and drop it."""
    spark = SparkSession.builder.appName("warm_up").getOrCreate()
    spark.sql("create namespace if not exists warm_up.recorded")
    spark.sql(f"drop table if exists {TABLE}")
    spark.sql(
        f"create table {TABLE} (partition int, offset bigint, append_time timestamp, key binary, headers array<struct<name: string, value: binary>>, "
        "segment bigint) using iceberg partitioned by (partition, segment) tblproperties ('format-version' = '3', "
        "'write.delete.mode' = 'merge-on-read', 'write.delete.isolation-level' = 'snapshot')"
    )
    rows = spark.range(1000).selectExpr(
        "cast(id % 2 as int) partition", "id offset", "timestamp_micros(id) append_time", "cast(cast(id as string) as binary) key",
        "array(named_struct('name', 'h', 'value', cast('v' as binary))) headers", "id div 100 segment",
    )  # fmt: skip
    rows.sortWithinPartitions("partition", "segment", "offset").writeTo(TABLE).append()
    spark.sql(f"alter table {TABLE} create branch staged")
    spark.createDataFrame([(0, 4), (1, 5)], "partition int, offset bigint").createOrReplaceTempView("planned")
    spark.sql(
        f"delete from {TABLE}.branch_staged t where exists (select 1 from planned p where p.partition = t.partition and p.offset = t.offset)"
    )
    spark.sql(f"select segment, count(*), max(append_time) from {TABLE}.branch_staged group by segment order by segment").toPandas()
    spark.sql(f"select content, lower_bounds, record_count from {TABLE}.all_files").collect()
    spark.sql(f"select snapshot_id, operation, summary from {TABLE}.snapshots").collect()
    jvm = spark._jvm
    assert jvm is not None, "recorded in a session of its own, never over Connect"
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, TABLE)
    files = table.newScan().planFiles()
    table.newDelete().deleteFile(files.iterator().next().file()).validateFilesExist().commit()
    files.close()
    # A compaction: tasks in Python, then files that the tasks wrote in one commit on a branch.
    spark.sparkContext.parallelize([1, 2], 2).map(abs).collect()
    made = table.currentSnapshot().addedDataFiles(table.io()).iterator()
    file = made.next() if made.hasNext() else table.newScan().planFiles().iterator().next().file()
    iceberg = jvm.org.apache.iceberg
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(file.location()), iceberg.MetricsConfig.forTable(table))
    table.manageSnapshots().createBranch("compacted", table.currentSnapshot().snapshotId()).setMaxRefAgeMs("compacted", 86_400_000).commit()
    again = iceberg.DataFiles.builder(table.spec()).copy(file).withPath(f"{file.location()}.copy").withMetrics(metrics).build()
    change = table.newRowDelta().toBranch("compacted").validateFromSnapshot(table.currentSnapshot().snapshotId())
    change.addRows(again).removeRows(file).set("recorded", "compaction").commit()
    table.refresh()
    changes = iceberg.SnapshotChanges.builderFor(table).snapshot(table.snapshot("compacted")).build()
    changes.removedDataFiles(), changes.addedDataFiles(), changes.addedDeleteFiles()
    table.manageSnapshots().removeBranch("compacted").commit()
    spark.catalog.refreshTable(TABLE)
    spark.sql(f"drop table {TABLE} purge")
    spark.sql("drop namespace warm_up.recorded")
    spark.stop()


if __name__ == "__main__":
    main()
