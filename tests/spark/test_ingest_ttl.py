"""Lifetimes at ingest: what a header says lands beside the message as published, what breaks a rule is refused, the rest goes on (TTL-1 to TTL-6)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F
from tests.effort import hunt
from tests.spark.lake import Lake
from tests.spark.landing import KEYED, Landing
from tests.ttls import INVALID, NONE, VALUES

from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.session import sql_table

pytestmark = pytest.mark.spark

MAPPING = replace(KEYED, append_time_unit="us", headers="h")
AT = 1_714_564_800_000_001
DAY = 86_400_000_000
Headers = Mapping[str, str] | Sequence[Mapping[str, str]]
# An empty header is none; the rest of the table is judged.
ABSENT = [value for value in VALUES if not value.strip(" ")]
STATED = {value: meaning for value, meaning in VALUES.items() if value not in ABSENT}


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Iterator[Landing]:
    yield Landing(lake, tmp_path)


def lines(*rows: tuple[str, int | None, Headers]) -> str:
    """One message per (value, time, headers)."""
    return "".join(json.dumps({"k": "a", "v": value, "at": at, "h": headers}) + "\n" for value, at, headers in rows)


def with_ttls(values: Sequence[str]) -> str:
    return lines(*((value, AT, {"before": "x", "Nats-TTL": value}) for value in values))


def landed(landing: Landing, topic: TopicName) -> dict[str, tuple[Any, ...]]:
    """By value: offset, expires_at in microseconds, never."""
    columns = ["offset", F.unix_micros("expires_at"), "never"]
    rows = landing.lake.session.table(sql_table(topic)).select(F.col("value").cast("string"), *columns).collect()
    assert sorted(row["offset"] for row in rows) == list(range(len(rows)))
    return {row[0]: tuple(row)[2:] for row in rows}


def meant(value: str, at: int = AT) -> tuple[int | None, bool | None]:
    match VALUES[value]:
        case "never":
            return None, True
        case int() as duration:
            return min(at + duration, INT64_MAX), None
        case _:
            return None, None


def refused(landing: Landing, topic: TopicName) -> dict[str, str]:
    """Code by the message's value."""
    return {json.loads(raw)["v"]: code for _, _, code, raw in landing.quarantine(topic)}


def test_every_form_lands_or_is_refused_as_the_table_says(landing: Landing) -> None:
    topic = landing.topic(allow_msg_ttl=True)
    folder = landing.source(a_jsonl=with_ttls(list(VALUES)))
    good = [value for value in VALUES if value in ABSENT or VALUES[value] != INVALID]
    result = landing.take(topic, folder, MAPPING)
    assert (result.rows, result.quarantined) == (len(good), {"10165": len(VALUES) - len(good)})
    assert landed(landing, topic) == {value: (None, None) if value in ABSENT else meant(value) for value in good}
    assert refused(landing, topic) == dict.fromkeys(set(VALUES) - set(good), "10165")
    # As published, whatever it means.
    messages = {(message.value or b"").decode(): message.headers for message in landing.messages(topic)}
    assert messages == {value: (("before", b"x"), ("Nats-TTL", value.encode())) for value in good}
    again = landing.take(topic, folder, MAPPING)
    assert (again.rows, again.quarantined, again.end_offsets) == (0, {}, {0: len(good)})
    assert len(refused(landing, topic)) == len(VALUES) - len(good)


def test_a_topic_without_the_feature_refuses_every_ttl_a_bad_one_for_what_it_is(landing: Landing) -> None:
    topic = landing.topic()
    rows = with_ttls(list(VALUES)) + lines(("plain", AT, {"other": "1"}), ("none at all", AT, {}))
    result = landing.take(topic, landing.source(a_jsonl=rows), MAPPING)
    assert result.quarantined == dict(Counter("10165" if meaning == INVALID else "10166" for meaning in STATED.values()))
    assert landed(landing, topic) == dict.fromkeys([*ABSENT, "plain", "none at all"], (None, None))
    assert refused(landing, topic) == {value: "10165" if meaning == INVALID else "10166" for value, meaning in STATED.items()}


def test_zero_is_refused_where_the_topic_says_so(landing: Landing) -> None:
    zeros = [value for value, meaning in VALUES.items() if meaning == NONE]
    topic = landing.topic(allow_msg_ttl=True, zero_ttl="reject")
    landing.take(topic, landing.source(a_jsonl=with_ttls([*zeros, "5"])), MAPPING)
    assert landed(landing, topic) == {"5": (AT + 5_000_000, None)}
    assert refused(landing, topic) == dict.fromkeys(zeros, "10165")
    # A zero that is invalid is so before the feature is asked for.
    off = landing.topic(zero_ttl="reject")
    assert landing.take(off, landing.source(a_jsonl=with_ttls([*zeros, "5"])), MAPPING).quarantined == {"10165": len(zeros), "10166": 1}


def test_a_mixed_batch_keeps_order_places_and_other_refusals(landing: Landing) -> None:
    topic = landing.topic(allow_msg_ttl=True)
    rows = [
        lines(("a", AT, {"Nats-TTL": "1s"}), ("b", AT, {"Nats-TTL": "x"}), ("c", None, {"Nats-TTL": "1s"})),
        '{"v":\n',
        lines(("d", -5, [{"name": "Nats-TTL", "value": "2"}, {"name": "Nats-TTL", "value": "x"}])),
        lines(("e", AT, [{"name": "nats-ttl", "value": "x"}, {"name": "X-Nats-TTL", "value": "x"}]), ("f", None, {"Nats-TTL": "never"})),
        '{"k":"a","v":"g","at":"noon","h":{"Nats-TTL":"x"}}\n',
        lines(("h", -(2**62), {"Nats-TTL": "9" * 30}), ("i", AT, [{"name": "Nats-TTL", "value": ""}, {"name": "Nats-TTL", "value": "x"}])),
    ]
    result = landing.take(topic, landing.source(a_jsonl="".join(rows)), MAPPING, allow_implausible_times=True)
    assert (result.rows, result.unknown_times) == (7, 2)
    assert landing.quarantine(topic) == [
        ("a.jsonl", 2, "10165", rows[0].splitlines()[1]),
        ("a.jsonl", 4, "unreadable_line", '{"v":'),
        ("a.jsonl", 8, "unreadable_time", rows[4].strip()),
    ]
    assert landed(landing, topic) == {
        "a": (AT + 1_000_000, None),
        "c": (None, None),  # its time is unknown: never expired (CLK-4)
        "d": (1_999_995, None),
        "e": (None, None),
        "f": (None, True),
        "h": (INT64_MAX, None),
        "i": (None, None),
    }
    assert [message.value for message in landing.messages(topic)] == [b"a", b"c", b"d", b"e", b"f", b"h", b"i"]


def test_a_batch_of_nothing_but_refused_messages_leaves_the_log_empty(landing: Landing) -> None:
    topic = landing.topic(allow_msg_ttl=True)
    result = landing.take(topic, landing.source(a_jsonl=with_ttls(["x", "1d"])), MAPPING)
    assert (result.rows, result.quarantined, result.end_offsets) == (0, {"10165": 2}, {0: 0})


def test_a_lifetime_counts_from_the_shifted_time(landing: Landing) -> None:
    topic = landing.topic(allow_msg_ttl=True)
    result = landing.take(topic, landing.source(a_jsonl=with_ttls(["1h30m5s"])), MAPPING, shift_to=date(2026, 11, 21))
    assert result.shift_days > 0
    assert landed(landing, topic) == {"1h30m5s": meant("1h30m5s", AT + result.shift_days * DAY)}


def test_copies_are_no_publishes_nothing_of_them_is_refused(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = landing.topic()
    source = replace(landing.intake.topics.describe(topic), role="source")
    monkeypatch.setattr(landing.lake.topics, "describe", lambda _: source)
    result = landing.take(topic, landing.source(a_jsonl=with_ttls(list(VALUES))), MAPPING)
    assert (result.rows, result.quarantined) == (len(VALUES), {})
    # The feature may be turned on later: what is due then is known by then (TTL-6).
    assert landed(landing, topic) == {value: (None, None) if value in ABSENT else meant(value) for value in VALUES}


@hunt
def test_headers_of_parquet_and_csv_files_are_judged_alike(landing: Landing) -> None:
    topic = landing.topic(allow_msg_ttl=True)
    header = pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()}))
    table = pa.table(
        {
            "k": ["a"] * 4, "v": ["1", "2", "3", "4"], "at": [AT] * 4,
            "h": pa.array([[{"name": "Nats-TTL", "value": value}] for value in (b"1.5s", b"1\xb5s", None)] + [None], header),
        }
    )  # fmt: skip
    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer)
    text = f'k,v,at,h\na,5,{AT},"{{""Nats-TTL"":""1m""}}"\na,6,{AT},\na,7,{AT},"{{""Nats-TTL"":""1d""}}"\n'
    result = landing.take(topic, landing.source(a_parquet=bytes(buffer.getvalue()), b_csv=text), MAPPING)
    assert result.quarantined == {"10165": 2}
    later = {"1": 1_500_000, "5": 60_000_000}
    assert landed(landing, topic) == {value: (AT + later[value] if value in later else None, None) for value in ("1", "3", "4", "5", "6")}
