"""Tables of many segments without data: the files are named in the metadata and exist nowhere.

For figures, and to prove that no data file is opened. The loop runs in the JVM, compiled by the Janino that Spark ships.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import LogSummary

_APPEND = """
org.apache.iceberg.Table t = (org.apache.iceberg.Table) table;
org.apache.iceberg.AppendFiles op = t.newFastAppend();
org.apache.iceberg.PartitionSpec spec = t.spec();
Integer iOffset = Integer.valueOf(2), iTime = Integer.valueOf(3);
for (int p = 0; p < partitions; p++) {
  for (int i = 0; i < segments; i++) {
    long base = first + (long) i * rows;
    long oldest = start + i * step;
    java.util.HashMap lower = new java.util.HashMap(), upper = new java.util.HashMap(), counts = new java.util.HashMap(), nulls = new java.util.HashMap();
    Integer[] ids = new Integer[] {iOffset, iTime};
    for (int k = 0; k < 2; k++) { counts.put(ids[k], Long.valueOf(rows)); nulls.put(ids[k], Long.valueOf(0L)); }
    nulls.put(Integer.valueOf(10), Long.valueOf(rows)); nulls.put(Integer.valueOf(11), Long.valueOf(rows));
    counts.put(Integer.valueOf(10), Long.valueOf(rows)); counts.put(Integer.valueOf(11), Long.valueOf(rows));
    org.apache.iceberg.types.Type L = (org.apache.iceberg.types.Type) org.apache.iceberg.types.Types.LongType.get();
    lower.put(iOffset, org.apache.iceberg.types.Conversions.toByteBuffer(L, Long.valueOf(base)));
    upper.put(iOffset, org.apache.iceberg.types.Conversions.toByteBuffer(L, Long.valueOf(base + rows - 1)));
    lower.put(iTime, org.apache.iceberg.types.Conversions.toByteBuffer(L, Long.valueOf(oldest)));
    upper.put(iTime, org.apache.iceberg.types.Conversions.toByteBuffer(L, Long.valueOf(oldest + step - 1)));
    org.apache.iceberg.PartitionData data = new org.apache.iceberg.PartitionData(spec.partitionType());
    data.set(0, Integer.valueOf(p));
    data.set(1, Long.valueOf(base));
    op.appendFile(org.apache.iceberg.DataFiles.builder(spec)
      .withPath(t.location() + "/data/partition=" + p + "/segment=" + base + "/00000-" + p + "-" + i + "-0-00001.parquet")
      .withFormat("parquet").withFileSizeInBytes(bytes + i).withPartition(data)
      .withMetrics(new org.apache.iceberg.Metrics(Long.valueOf(rows), null, counts, nulls, null, lower, upper)).build());
  }
}
java.util.Map map = (java.util.Map) properties;
for (java.util.Iterator it = map.entrySet().iterator(); it.hasNext();) {
  java.util.Map.Entry e = (java.util.Map.Entry) it.next();
  op.set((String) e.getKey(), (String) e.getValue());
}
op.commit();
return null;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Per partition: `segments` segments of `rows` messages and one file each, one every `step_us` from `start_us`; the last is active.

    Offsets begin at `first`; the metadata declare a little over `file_bytes` for each file.
    """

    partitions: int = 1
    segments: int
    rows: int = 10
    first: int = 0
    file_bytes: int = 1_000
    start_us: int = 1_000_000
    step_us: int = 1_000_000


def append_segments(session: SparkSession, name: TopicName, shape: Shape) -> None:
    """Append a log of that shape to a topic that ends at its first offset, in one commit."""
    jvm: Any = engine_of_process().jvm
    gateway: Any = session.sparkContext._gateway
    run = jvm.org.codehaus.janino.ScriptEvaluator()
    long_class, int_class, object_class = jvm.Long.TYPE, jvm.Integer.TYPE, jvm.Class.forName("java.lang.Object")
    names = ["table", "partitions", "segments", "rows", "start", "step", "first", "bytes", "properties"]
    types = [object_class, int_class, int_class, *[long_class] * 5, object_class]
    run.setParameters(_array(gateway, jvm.String, names), _array(gateway, jvm.Class, types))
    run.setReturnType(object_class)
    run.cook(_APPEND)
    properties = jvm.java.util.HashMap()
    for key, value in end_state(shape).to_properties().items():
        properties.put(key, value)
    values = [
        engine_of_process().table(name),
        shape.partitions,
        shape.segments,
        *map(jvm.Long.valueOf, (shape.rows, shape.start_us, shape.step_us, shape.first, shape.file_bytes)),
        properties,
    ]
    run.evaluate(_array(gateway, jvm.Object, values))


def write_segment(table: Path, shape: Shape, segment: int) -> None:
    """Write the file of one segment of partition 0, for a reader that opens it. `table`: the folder of the table."""
    base, oldest, names = shape.first + segment * shape.rows, shape.start_us + segment * shape.step_us, SCHEMA.as_arrow()
    offsets = range(base, base + shape.rows)
    columns = {
        "partition": pa.array([0] * shape.rows, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "append_time": pa.array([oldest + at * shape.step_us // shape.rows for at in range(shape.rows)], names.field("append_time").type),
        "segment": pa.array([base] * shape.rows, pa.int64()),
    }
    every = [columns.get(field.name, pa.nulls(shape.rows, field.type)) for field in names]
    file = table / "data" / "partition=0" / f"segment={base}" / f"00000-0-{segment}-0-00001.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(every, names=names.names), file)


def end_state(shape: Shape) -> LogSummary:
    from message_lifecycle.model.facts import ActiveSegment
    from message_lifecycle.model.instants import Instant

    last = shape.segments - 1
    active = ActiveSegment(
        base_offset=shape.first + last * shape.rows,
        size_bytes=shape.file_bytes + last,
        rows=shape.rows,
        newest_at=Instant(shape.start_us + shape.segments * shape.step_us - 1),
    )
    return LogSummary(
        end_offsets=dict.fromkeys(range(shape.partitions), shape.first + shape.segments * shape.rows),
        active=dict.fromkeys(range(shape.partitions), active),
    )


def _array(gateway: Any, of: Any, values: list[Any]) -> Any:
    array = gateway.new_array(of, len(values))
    for position, value in enumerate(values):
        array[position] = value
    return array
