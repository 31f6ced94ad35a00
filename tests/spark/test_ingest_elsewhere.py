"""Files in an object store come in as the same files on a disk do: messages, their order, what is refused and where it stood, and what is told
of a file that cannot be read."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.effort import sample
from tests.errors import raises
from tests.spark.lake import Lake
from tests.spark.landing import KEYED, Landing
from tests.spark.test_ingest import ROWS, as_csv, as_json, as_parquet

from lifecycle_local.cluster import store_settings
from lifecycle_local.s3_server import Refused, S3Request, S3Server, Serve, s3_server
from message_lifecycle.app import intake_tasks
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.tasks import Store

ODD_LINES = (
    b"\xef\xbb\xbf"
    + b'{"k":"first","v":"1","at":"2024-05-01T12:00:00Z"}\r\n'
    + b'{"k":"Z\xfcrich","v":"2","at":"2024-05-01T12:00:01Z"}\r'
    + b"\n\n   \n"
    + b"no record\n"
    + b'{"k":"last, without a line\'s end","v":"\xc3\xa9","at":"2024-05-01T12:00:02Z"}'
)
TYPED = pa.table(
    {
        "k": pa.array(["a", None, "c"], pa.large_string()),
        "v": pa.array(
            [{"u8": 255, "ns": [10**18 + 1]}, None, {"u8": 0, "ns": []}], pa.struct({"u8": pa.uint8(), "ns": pa.list_(pa.int64())})
        ),
        "at": pa.array([1, -1, None], pa.timestamp("ns", "Europe/Vienna")),
        "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "u32": pa.array([2**32 - 1, 0, None], pa.uint32()),
        "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
        "plain time": pa.array([1_714_521_600_000, None, None], pa.timestamp("ms")),
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int16())),
        "wide": pa.array([Decimal("1.50"), None, None], pa.decimal256(50, 2)),
        "price": pa.array([Decimal("1.50"), None, None], pa.decimal128(9, 2)),
        "path": pa.array([1.5, None, float("nan")], pa.float32()),
        "duration": pa.array([1, None, 10**9 + 1], pa.duration("ns")),
        "pairs": pa.array([[1, 255], None, [0, 0]], pa.list_(pa.uint8(), 2)),
        "binary": pa.array([b"\xff", None, b""], pa.large_binary()),
    }
)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        made.files.create_dir("landing")
        yield made


@pytest.fixture
def landing(lake: Lake, tmp_path: Path, store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Landing:
    """The lake's catalog has a key for one folder of the store."""
    found = Store(settings=tuple(store_settings(store.uri, store.create_access_key("/landing/")).items()))
    monkeypatch.setattr(Store, "of_catalog", lambda _: found)
    return Landing(lake, tmp_path)


def up(store: S3Server, folder: Path) -> str:
    """Where the folder is in the store."""
    place = f"landing/{token_hex(4)}"
    for path in folder.rglob("*"):
        if path.is_file():
            with store.files.open_output_stream(f"{place}/{path.relative_to(folder)}", compression=None) as out:
                out.write(path.read_bytes())
    return f"s3://{place}"


def typed(**options: object) -> bytes:
    out = pa.BufferOutputStream()
    parquet.write_table(TYPED, out, row_group_size=2, **options)
    return bytes(out.getvalue())


CASES: dict[str, tuple[FieldMapping, dict[str, bytes]]] = {
    "every kind": (
        KEYED,
        {
            "a_jsonl": as_json(ROWS[:9]),
            "b.jsonl_gz": gzip.compress(as_json(ROWS[9:20])),
            "c_csv": as_csv(ROWS[20:30]),
            "d_parquet": as_parquet(ROWS[30:], row_group=3),
        },
    ),
    "odd lines": (KEYED, {"a_jsonl": ODD_LINES, "b_jsonl": as_json(ROWS[:3])}),
    "every type": (replace(KEYED, value=None), {"a_parquet": typed(store_schema=False), "b_parquet": typed()}),
    "another encoding": (
        replace(KEYED, encoding="cp1252"),
        {"a_csv": "at,k,v\r\n,Zürich,\x81\r\n,€,1\r\n".encode("latin-1", "replace")},
    ),
}


@pytest.mark.parametrize("case", sample(CASES, "every kind"))
def test_they_come_in_as_from_a_disk(landing: Landing, store: S3Server, case: str) -> None:
    mapping, files = CASES[case]
    folder = landing.source(**files)
    (folder / "_SUCCESS").touch()
    here, there = landing.topic(partitions=2), landing.topic(partitions=2)
    wanted = landing.take(here, folder, mapping, allow_implausible_times=True)
    found = landing.take(there, up(store, folder), mapping, allow_implausible_times=True)
    assert (found.files, found.rows, found.quarantined) == (wanted.files, wanted.rows, wanted.quarantined)
    assert found.rows
    assert landing.messages(there) == landing.messages(here)
    if wanted.quarantined:
        assert landing.quarantine(there) == landing.quarantine(here)


def test_a_file_is_taken_once_and_one_that_changed_is_refused(landing: Landing, store: S3Server) -> None:
    topic, folder = landing.topic(), landing.source(a_jsonl=as_json(ROWS[:3]))
    place = up(store, folder)
    assert landing.take(topic, f"{place}/a.jsonl").files == ("a.jsonl",)
    assert landing.take(topic, f"{place}/").files == ()
    with store.files.open_output_stream(f"{place.removeprefix('s3://')}/a.jsonl") as out:
        out.write(as_json(ROWS[:4]))
    with raises("ChangedFile"):
        landing.take(topic, place)
    assert len(landing.messages(topic)) == 3


@pytest.mark.parametrize(
    ("files", "code", "told"),
    [
        ({}, "NoInput", "the folder holds no file"),
        ({"a_txt": b"x"}, "NoInput", r"every file is passed over: a\.txt \(its kind is not known"),
        ({"a_parquet": b"PAR1 and no more"}, "UnreadableFile", "no Parquet file"),
        (
            {"a.jsonl_gz": gzip.compress(as_json(ROWS) * 400)[:-9]},
            "UnreadableFile",
            r"s3://landing/.*/a\.jsonl\.gz cannot be read: .*end-of-stream",
        ),
        ({"a_parquet": as_parquet(ROWS)[:200] + b"\0" * 300 + as_parquet(ROWS)[500:]}, "UnreadableFile", r"s3://landing/.*/a\.parquet"),
        ({"a#b_jsonl": as_json(ROWS)}, "UnreadableFile", "holds '#', at which a URI is cut"),
    ],
    ids=["nothing", "another kind", "torn", "torn in its middle", "damaged in its middle", "a name that is cut"],
)
def test_what_cannot_be_read_is_named_and_nothing_is_taken(
    landing: Landing, store: S3Server, files: dict[str, bytes], code: str, told: str
) -> None:
    topic = landing.topic()
    with raises(code, match=told):
        landing.take(topic, up(store, landing.source(**files)))
    assert landing.messages(topic) == []


@pytest.mark.parametrize("asks", ["the driver", "a task"])
def test_a_store_that_hands_a_file_out_no_more_is_no_bad_file(
    landing: Landing, store: S3Server, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is well is not to be mended or moved away: the next run takes it."""
    topic = landing.topic()
    place = up(store, landing.source(a_jsonl=as_json(ROWS)))

    def refuse(asked: S3Request, serve: Serve) -> Any:
        return Refused(HTTPStatus.FORBIDDEN, "AccessDenied") if asked.method == "GET" and asked.path.endswith(".jsonl") else serve()

    checked = intake_tasks.check_heads

    def later(*args: Any) -> None:
        checked(*args)
        store.around = refuse

    if asks == "the driver":
        store.around = refuse
    else:
        monkeypatch.setattr(intake_tasks, "check_heads", later)
    with raises("StorageRefused", match=r"a\.jsonl"):
        landing.take(topic, place)
    store.around = lambda _, serve: serve()
    monkeypatch.setattr(intake_tasks, "check_heads", checked)
    assert landing.take(topic, f"{place}//").rows == len(ROWS)


def test_an_empty_folder_that_an_object_stands_for_holds_nothing(landing: Landing, store: S3Server) -> None:
    place = f"landing/{token_hex(4)}"
    store.files.create_dir(place)
    for name in (f"s3://{place}", f"s3://{place}/"):
        with raises("NoInput"):
            landing.take(landing.topic(), name)


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1/x", "s3://", "s3:///x", "s3://[x/y", "file:///tmp#b", "file:///tmp?b", "file://nas/export"]
)
def test_a_place_that_cannot_be_is_named(landing: Landing, place: str) -> None:
    with raises("StorageRefused", "NoInput"):
        landing.take(landing.topic(), place)


def test_a_local_uri_is_a_path(landing: Landing) -> None:
    folder = landing.source(a_jsonl=as_json(ROWS[:2]))
    topic = landing.topic()
    assert landing.take(topic, folder.as_uri()).rows == 2
    assert landing.take(topic, f"file:{folder}/a.jsonl").files_before == 1


def test_a_place_that_its_key_does_not_open_is_told(landing: Landing) -> None:
    with raises("StorageRefused", match="another"):
        landing.take(landing.topic(), "s3://another/folder")
