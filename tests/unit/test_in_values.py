"""What counts as a key inside a value; how large the answer may get; and tasks that search as this process does."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.in_values import find_in_values
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.in_values import MOST_PLACES, MOST_RANGES, InValues, Needle, ValuePlace, topic_values, value_place
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.stores.iceberg.erasure.in_values import ValueRowFinder
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

KEY = b"customer-17"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@given(st.binary(min_size=1, max_size=12), st.binary(max_size=8), st.binary(max_size=8))
def test_a_key_is_found_between_any_bytes(key: bytes, before: bytes, after: bytes) -> None:
    around = (before, after) if len(key) >= 4 else (before + b" ", b" " + after)
    assert Needle(frozenset([key])).is_found_in(around[0] + key + around[1])
    assert not Needle(frozenset([key])).is_found_in(b"")


@given(st.text(min_size=4, max_size=12))
def test_a_key_is_found_in_the_text_of_json(key: str) -> None:
    try:
        needle = Needle(frozenset([key.encode()]))
    except UnicodeEncodeError:
        return
    for ascii_only in (True, False):
        assert needle.is_found_in(json.dumps({"to": [f"<{key}>"]}, ensure_ascii=ascii_only).encode())


def test_no_text_of_the_needle_tells_the_key() -> None:
    needle = Needle(frozenset([KEY]))
    assert KEY.decode() not in f"{needle!r} {needle.is_found_in!r} {ValueRowFinder(needle)!r}"


def test_many_places_are_cut_and_counted() -> None:
    place = value_place("log", 0, range(0, 1000, 2), live=1)
    assert (place.rows, place.offsets.count(",") + 1, place.is_cut) == (500, MOST_RANGES, True)
    found = topic_values("a/b", [ValuePlace(table="log", partition=n, rows=1, live=1) for n in range(MOST_PLACES + 7)])
    assert (len(found.places), found.more) == (MOST_PLACES, 7)
    kept = InValues(searched_at=Instant(5), topics=(found,))
    assert InValues.from_json(kept.to_json()) == kept


def test_a_task_finds_what_this_process_finds(tmp_path: Path) -> None:
    values = [b"x", b"of customer-17", None, b"customer-18", b"customer-17"]
    headers = [[("h", b"v")], [], None, [("a", b"1"), ("customer-17", b"2")], [("h", None)]]
    keys = [b"a", b"b", b"c", b"d", KEY]
    pairs = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    rows = [None if some is None else [{"name": name, "value": value} for name, value in some] for some in headers]
    table = pa.table({"offset": [5, 6, 7, 8, 9], "key": keys, "value": pa.array(values, pa.binary()), "headers": pa.array(rows, pairs)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    search = pickle.loads(pickle.dumps(ValueRowFinder(Needle(frozenset([KEY])))))
    assert search(LakeFileIO(), str(tmp_path / "a.parquet"), "log").tolist() == [1, 3]


def test_refused_rows_are_found_where_an_erasure_leaves_them(tmp_path: Path) -> None:
    """A record of up to 256 bytes is taken for any part of it."""
    raws = ['{"k":"a","v":"mycustomer-17s"' + "x" * 300, "customer-17 torn", None, "base64:/2N1c3RvbWVyLTE3eA==", "base64:AAAA"]
    reasons = pa.nulls(len(raws), pa.string())
    pq.write_table(pa.table({"file": ["a"] * 5, "position": range(5), "reason": reasons, "raw": raws}), tmp_path / "a.parquet")
    found = ValueRowFinder(Needle(frozenset([KEY])))(LakeFileIO(), str(tmp_path / "a.parquet"), "quarantine")
    assert found.tolist() == [0], "the others tell the key as a part of their own, and an erasure takes them"


def test_copies_are_searched_and_one_that_cannot_be_stops_no_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, other = lake.topic("one"), lake.topic("two"), lake.topic("other")
    for name in (one, two, other):
        lake.world.writer.append(name, [NewMessage(append_time=NOW, key=b"k", value=b"of " + KEY)], policy_of(lake.services, name))
    monkeypatch.setattr(lake.services.ledger, "replicas", lambda: [(one, two)])
    rewrite = lake.services.stores.rewrite
    assert rewrite is not None
    real = rewrite.find_in_values
    monkeypatch.setattr(rewrite, "find_in_values", lambda name, *a, **o: 1 / 0 if name == one else real(name, *a, **o))  # type: ignore[misc]
    found = find_in_values(lake.services, [KEY], [one])
    assert [(topic.topic, topic.rows, topic.error.partition(":")[0]) for topic in found.topics] == [
        ("default/one", 0, "InternalError"),
        ("default/two", 1, ""),
    ]


def test_the_empty_key_stands_everywhere(lake: Lake) -> None:
    with raises("UnusableKey", match="every value"):
        find_in_values(lake.services, [b"a", b""], [])
