"""Files land as messages: whatever their format, in order, cut as the rule says, each file once; bad rows beside, bad files not at all."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.effort import hunt
from tests.errors import raises
from tests.spark.lake import Lake, Rows, tables
from tests.spark.landing import KEYED, Landing, by_the_rule, json_lines

from message_lifecycle.app.rendering import Notes
from message_lifecycle.model.instants import from_datetime, seconds
from message_lifecycle.operations import admission
from message_lifecycle.sources import messages as sources
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.selection import Patterns
from message_lifecycle.sources.times import Unit
from message_lifecycle.stores.iceberg.engine import SparkEngine
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ROWS = [(None if n % 7 == 3 else f"key {n % 5}", f'value, "{n}"', NOON + timedelta(seconds=n)) for n in range(40)]


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    return Landing(lake, tmp_path)


def as_json(rows: list[tuple[str | None, str, datetime]]) -> bytes:
    return json_lines(*((key, value, at.isoformat()) for key, value, at in rows)).encode()


def as_csv(rows: list[tuple[str | None, str, datetime]]) -> bytes:
    lines = [f'{at.isoformat()},{key or ""},"{value.replace(chr(34), 2 * chr(34))}"' for key, value, at in rows]
    return "\r\n".join(["at,k,v", *lines, ""]).encode()


def as_parquet(rows: list[tuple[str | None, str, datetime]], *, unit: str = "us", row_group: int = 1000) -> bytes:
    table = pa.table(
        {
            "k": pa.array([key for key, _, _ in rows], pa.string()),
            "v": pa.array([value for _, value, _ in rows], pa.string()),
            "at": pa.array([at for _, _, at in rows], pa.timestamp(unit, "UTC")),
        }
    )
    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer, row_group_size=row_group)
    return bytes(buffer.getvalue())


FORMATS: dict[str, Callable[[list[tuple[str | None, str, datetime]]], bytes]] = {
    "a_jsonl": as_json,
    "a.jsonl_gz": lambda rows: gzip.compress(as_json(rows)),
    "a_csv": as_csv,
    "a_parquet": as_parquet,
    "b_parquet": lambda rows: as_parquet(rows, unit="ns"),
    "c_parquet": lambda rows: as_parquet(rows, row_group=3),
}


def test_every_format_gives_the_same_messages(landing: Landing) -> None:
    logs = []
    for name, write in FORMATS.items():
        topic = landing.topic(partitions=3)
        result = landing.take(topic, landing.source(**{name: write(ROWS)}))
        assert (result.rows, result.quarantined, result.unknown_times) == (40, {}, 0), name
        logs.append(landing.messages(topic))
    assert all(log == logs[0] for log in logs)
    values = {message.value: message for message in logs[0]}
    for key, value, at in ROWS:
        message = values[value.encode()]
        assert (message.key, message.append_time) == (key and key.encode(), from_datetime(at))
    in_order = [value.encode() for _, value, _ in ROWS]
    for partition in range(3):
        mine = [message for message in logs[0] if message.partition == partition]
        assert [m.offset for m in mine] == list(range(len(mine)))
        assert [in_order.index(m.value or b"") for m in mine] == sorted(in_order.index(m.value or b"") for m in mine)


def test_values_that_hardly_repeat_get_no_dictionary(landing: Landing) -> None:
    """A dictionary of offsets takes more space than the offsets."""
    topic = landing.topic()
    landing.take(topic, landing.source(a_jsonl=as_json(ROWS)))
    landing.lake.append(topic, Rows(base=40, times=(None, None)), with_state=False)
    paths = sorted(local_path(str(tables().load(topic).location())).rglob("*.parquet"))
    assert len(paths) == 2
    for path in paths:
        group = parquet.read_metadata(path).row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        assert {one.path_in_schema for one in columns if "RLE_DICTIONARY" not in one.encodings} == {
            "offset", "append_time", "event_time", "origin_offset", "never",
        }  # fmt: skip


def test_order_is_that_of_file_names_then_of_lines_and_all_files_make_one_commit(landing: Landing) -> None:
    topic = landing.topic()
    folder = landing.source(b_jsonl=as_json(ROWS[20:]), a_csv=as_csv(ROWS[:10]), ab_parquet=as_parquet(ROWS[10:20]))
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.txt").touch()
    result = landing.take(topic, folder)
    assert result.files == ("a.csv", "ab.parquet", "b.jsonl")
    assert [message.value for message in landing.messages(topic)] == [value.encode() for _, value, _ in ROWS]
    assert result.end_offsets == {0: 40}
    assert landing.branches(topic) == []


def test_files_are_taken_in_the_order_of_the_numbers_in_their_names(landing: Landing) -> None:  # P12
    topic = landing.topic()
    files = {f"app-{n}_jsonl": f'{{"k":"k","v":"v{n}","at":"2026-11-20T10:00:{n:02}Z"}}\n' for n in (1, 10, 2)}
    folder = landing.source(**files, notes_txt="x", _old_csv="x")
    result = landing.take(topic, folder, patterns=Patterns(exclude=("app-1.*",)))
    assert result.files == ("app-2.jsonl", "app-10.jsonl")
    assert [(one.file, one.why.partition(":")[0]) for one in result.passed_over] == [
        ("_old.csv", "hidden"),
        ("app-1.jsonl", "excluded by app-1.*"),
        ("notes.txt", "its kind is not known by its name; allowed"),
    ]
    assert [message.value for message in landing.messages(topic)] == [b"v2", b"v10"]
    later = landing.take(topic, folder)
    assert (later.files, later.files_before) == (("app-1.jsonl",), 2)
    assert [one.file for one in later.passed_over if one.why == "taken before"] == ["app-2.jsonl", "app-10.jsonl"]


def test_whole_files_whose_times_go_back_are_named(landing: Landing, small_slices: None) -> None:
    topic = landing.topic(partitions=2)
    late = [*ROWS[20:], (None, "zero", datetime(1970, 1, 1, tzinfo=UTC))]
    files = {
        "app-1_jsonl": as_json(late),
        "app-2_csv": as_csv(ROWS[:8]),
        "app-9_jsonl": as_json(ROWS[5:30]),
        "app-10_jsonl": as_json(ROWS[8:12]),
    }
    result = landing.take(topic, landing.source(**files))
    start = from_datetime(NOON)
    found = [(one.file, one.newest - start, one.after, one.oldest - start, one.messages) for one in result.going_back]
    assert found == [
        ("app-2.csv", seconds(7), "app-1.jsonl", seconds(20), 8),
        ("app-10.jsonl", seconds(11), "app-1.jsonl", seconds(20), 4),
    ]
    assert any(
        "times go back between files: app-2.csv" in text
        for part in result.screen_blocks()
        if isinstance(part, Notes)
        for text in part.texts
    )


def test_the_whole_record_is_the_value_where_no_field_is_named(landing: Landing) -> None:
    mapping = replace(KEYED, value=None, time_zone="UTC")
    line = '{"k": "x",  "v": [1, 2.50], "at": "2024-05-01T12:00:00Z"}'
    topic = landing.topic()
    folder = landing.source(a_jsonl=line + "\n", b_csv="at,k,v\n2024-05-01,x,\n", c_parquet=as_parquet(ROWS[:1]))
    landing.take(topic, folder, mapping)
    assert [message.value for message in landing.messages(topic)] == [
        line.encode(),
        b'{"at":"2024-05-01","k":"x","v":null}',
        b'{"k":"key 0","v":"value, \\"0\\"","at":"2024-05-01T12:00:00Z"}',
    ]


KEY_LINE = b'{"k":"%s","v":"1","at":"2024-05-01T12:00:00Z"}\n'


def test_keys_are_the_bytes_that_were_there_or_none(landing: Landing) -> None:
    """Two keys that are no text would become one, and compaction would take one of the two messages."""
    topic = landing.topic()
    bad = [KEY_LINE % (b"Z\xfcrich" * 20), KEY_LINE % b"Z\xfdrich", KEY_LINE % rb"\ud800", KEY_LINE % rb"a\\\udc00"]
    bad += [b'{"k":"a","v":"1","k":"b"}\n', b'{"k":"a","v":"1","\\u006b":"b"}\n', b"{'k':'a','v':'1','k':'b'}\n"]
    good = ["Zürich", "\ufffd", "\U0001f600", "a\\ud800", '"k"']
    lines = [KEY_LINE % key.encode() for key in ("Zürich", "\ufffd")] + [
        KEY_LINE % rb"\ud83d\ude00",
        KEY_LINE % rb"a\\ud800",
        KEY_LINE % rb"\"k\"",
    ]
    result = landing.take(topic, landing.source(a_jsonl=b"".join([*bad, *lines])))
    assert result.quarantined == {"unreadable_line": len(bad)}
    assert [message.key for message in landing.messages(topic)] == [key.encode() for key in good]
    kept = [raw for _, _, _, raw in landing.quarantine(topic)]
    assert [base64.b64decode(raw.removeprefix("base64:"), validate=True) for raw in kept[:2]] == [line.rstrip() for line in bad[:2]]
    assert [raw.encode() for raw in kept[2:]] == [line.rstrip() for line in bad[2:]]


def test_a_line_of_csv_that_is_no_text_goes_alone(landing: Landing) -> None:
    topic = landing.topic()
    result = landing.take(topic, landing.source(a_csv=b"at,k,v\n,a,1\n,Z\xfcrich,2\n,b,3\n"))
    assert result.quarantined == {"unreadable_line": 1}
    assert [message.key for message in landing.messages(topic)] == [b"a", b"b"]


@pytest.mark.parametrize(("encoding", "taken"), [("cp1252", ["Zürich"]), pytest.param("iso8859-1", ["Zürich", "Zürich \x81"], marks=hunt)])
def test_an_encoding_is_read_as_it_was_named(landing: Landing, encoding: str, taken: list[str]) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl=KEY_LINE % b"Z\xfcrich" + KEY_LINE % b"Z\xfcrich \x81", b_csv=b"at,k,v\n,Z\xfcrich,\n")
    landing.take(topic, folder, replace(KEYED, encoding=encoding))
    assert [message.key for message in landing.messages(topic)] == [key.encode() for key in [*taken, "Zürich"]]
    if len(taken) == 1:
        assert [raw for _, _, _, raw in landing.quarantine(topic)] == [KEY_LINE.decode().strip() % "Zürich \\x81"]


def test_segments_are_cut_as_the_rule_cuts_them_over_several_ingests(landing: Landing) -> None:
    topic = landing.topic(partitions=2, message_expiry=30, segment_size_bytes=60, segment_max_seconds=25)
    ages = [0, 1, 40, 41, None, 100, 200, 201, 5, 300, 331]
    rows = [(f"key {n % 7}", "x" * (n % 20), None if (age := ages[n % 11]) is None else 1714564800 + age + n) for n in range(120)]
    mapping = replace(KEYED, append_time_unit="s")
    folder = landing.source(a_jsonl=json_lines(*rows[:50]))
    landing.take(topic, folder, mapping)
    landing.put(folder, "b_jsonl", json_lines(*rows[50:]))
    result = landing.take(topic, folder, mapping)
    assert (result.files, result.files_before, result.unknown_times) == (("b.jsonl",), 1, 6)
    messages = landing.messages(topic)
    segments, state = by_the_rule(messages, limit_bytes=60, expiry_us=seconds(30), max_us=seconds(25))
    assert [message.segment for message in messages] == segments
    assert landing.state(topic) == state
    assert len(set(segments)) > 10


def test_a_batch_that_would_open_too_many_segments_is_cut_by_a_longer_span_and_says_so(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MOST_OPENED", 6)
    topic = landing.topic(partitions=2, segment_max_seconds=60)
    mapping = replace(KEYED, append_time_unit="s")
    rows = [(f"key {n}", "x", 1714564800 + 61 * n) for n in range(20)]
    folder = landing.source(a_jsonl=json_lines(*rows))
    result = landing.take(topic, folder, mapping)
    messages = landing.messages(topic)
    segments, state = by_the_rule(messages, limit_bytes=10**9, expiry_us=0, max_us=seconds(240))
    assert ([message.segment for message in messages], landing.state(topic)) == (segments, state)
    shorter, _ = by_the_rule(messages, limit_bytes=10**9, expiry_us=0, max_us=seconds(120))
    places = [{(message.partition, segment) for message, segment in zip(messages, one, strict=True)} for one in (segments, shorter)]
    assert len(places[0]) <= 6 < len(places[1]), "240 s is the first span that fits"
    assert (result.rows, result.span_seconds, result.segments) == (20, 240, len(places[0]))
    landing.put(folder, "b_jsonl", json_lines(("key", "x", 1714564800 + 61 * 20)))
    assert landing.take(topic, folder, mapping).span_seconds is None


def test_given_partitions_headers_and_event_times_are_kept(landing: Landing) -> None:
    topic = landing.topic(partitions=3)
    mapping = replace(KEYED, headers="h", partition="p", event_time="e", event_time_unit="ms")
    lines = (
        '{"k":"a","v":"1","at":"2024-05-01T12:00:00Z","p":2,"e":1714564800001,"h":{"x":"1","y":""}}\n'
        '{"k":"a","v":"2","p":"0","h":[{"name":"x","value":"1"},{"name":"x","value":"2"}]}\n'
        '{"k":"a","v":"3","p":3}\n'
        '{"k":"a","v":"4","p":0,"h":"none"}\n'
        '{"k":"a","v":"5","p":0,"h":[{"value":"1"}]}\n'
    )
    result = landing.take(topic, landing.source(a_jsonl=lines), mapping)
    assert result.quarantined == {"invalid_headers": 2, "invalid_partition": 1}
    first, second = landing.messages(topic)
    assert (first.value, first.partition, first.headers, first.event_time) == (b"2", 0, (("x", b"1"), ("x", b"2")), None)
    assert (second.value, second.partition, second.headers) == (b"1", 2, (("x", b"1"), ("y", b"")))
    assert (second.event_time, second.size_bytes) == (1714564800001000, 5)


def test_a_second_run_takes_what_is_new_and_a_changed_file_is_refused(landing: Landing) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl=as_json(ROWS[:3]))
    assert landing.take(topic, folder).rows == 3
    snapshot = landing.lake.log(topic).snapshot_id
    again = landing.take(topic, folder)
    assert (again.files, again.files_before, again.rows, again.end_offsets) == ((), 1, 0, {0: 3})
    assert landing.lake.log(topic).snapshot_id == snapshot
    path = landing.put(folder, "b_jsonl", as_json(ROWS[3:5]))
    assert landing.take(topic, folder).files == ("b.jsonl",)
    path.write_bytes(as_json(ROWS[3:6]))
    landing.put(folder, "c_jsonl", as_json(ROWS[5:6]))
    with raises("ChangedFile", match=r"b\.jsonl.*--skip-changed"):
        landing.take(topic, folder)
    assert len(landing.messages(topic)) == 5
    others = landing.take(topic, folder, skip_changed=True)
    assert (others.files, others.files_before, others.rows, others.changed) == (("c.jsonl",), 1, 1, ("b.jsonl",))
    assert len(landing.messages(topic)) == 6
    nothing = landing.take(topic, folder, skip_changed=True)
    assert (nothing.files, nothing.changed) == ((), ("b.jsonl",))


def test_bad_rows_go_to_quarantine_with_their_place_and_the_rest_goes_on(landing: Landing) -> None:
    topic = landing.topic()
    good = '{"k":"a","v":"1","at":"2024-05-01T12:00:00Z"}'
    lines = f'{good}\n\n{{"k":\n{good}{good}\n[1]\n{{"k":"a","at":"noon"}}\n{good}\n'
    table = "k,at,v\na,2024-05-01,1\na,2024-05-01\na,2024-05-01,1,2\na,10:00,1\n"
    result = landing.take(topic, landing.source(a_jsonl=lines, b_csv=table), replace(KEYED, time_zone="UTC"))
    assert result.rows == 3
    assert result.quarantined == {"unreadable_line": 5, "unreadable_time": 2}
    assert landing.quarantine(topic) == [
        ("a.jsonl", 3, "unreadable_line", '{"k":'),
        ("a.jsonl", 4, "unreadable_line", good + good),
        ("a.jsonl", 5, "unreadable_line", "[1]"),
        ("a.jsonl", 6, "unreadable_time", '{"k":"a","at":"noon"}'),
        ("b.csv", 3, "unreadable_line", "a,2024-05-01"),
        ("b.csv", 4, "unreadable_line", "a,2024-05-01,1,2"),
        ("b.csv", 5, "unreadable_time", "a,10:00,1"),
    ]
    assert landing.messages(topic)[-1].offset == 2


def test_a_message_of_200_mb_is_refused_alone(landing: Landing) -> None:
    """Java has less memory than the message would take."""
    topic = landing.topic()
    lines = "".join(f'{{"k":"{at}","v":"{"x" * size}","at":"2024-05-01T12:00:00Z"}}\n' for at, size in enumerate((1, 200 << 20, 15 << 20)))
    result = landing.take(topic, landing.source(a_jsonl=lines))
    assert (result.rows, result.quarantined) == (2, {"too_large": 1})
    assert landing.quarantine(topic) == [("a.jsonl", 2, "too_large", None)]
    assert [len(message.value or b"") for message in landing.messages(topic)] == [1, 15 << 20]


@pytest.mark.usefixtures("small_slices")
def test_a_file_read_in_slices_keeps_its_order_and_its_line_numbers(landing: Landing) -> None:
    topic = landing.topic()
    lines = [*as_json(ROWS).splitlines(), b""] * 10
    lines[123] = lines[321] = b"broken"
    result = landing.take(topic, landing.source(a_jsonl=b"\n".join(lines), b_jsonl=as_json(ROWS[:1]), c_jsonl=as_json(ROWS[1:])))
    assert result.rows == 10 * 40 - 2 + 40
    read = [message.value for message in landing.messages(topic)]
    values = [[value.encode() for _, value, _ in ROWS][n % 41] for n in range(410) if n % 41 != 40 and n not in (123, 321)]
    assert read == [*values, *(value.encode() for _, value, _ in ROWS)]
    assert [place[:2] for place in landing.quarantine(topic)] == [("a.jsonl", 124), ("a.jsonl", 322)]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(sources, "_SLICE_BYTES", 1000)


@pytest.mark.parametrize(("field", "meant"), [("K", "k"), ("pod", "box.pod"), ("nothing like it", None)])
def test_a_field_that_no_record_has_refuses_the_batch(landing: Landing, field: str, meant: str | None) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl='{"k":"a","box":{"pod":"x"},"at":null}\n{"k":"b","at":null}\n')
    for mapping in (FieldMapping(key=field), FieldMapping(append_time=field), FieldMapping(headers=field), FieldMapping(value=field)):
        with raises("MissingField", match=f"Did you mean '{meant}'" if meant else f"no.*{field}|none of 2 records has a field '{field}'"):
            landing.take(topic, folder, mapping)
        assert landing.messages(topic) == []
        assert not landing.ledger.open_batches(topic)


def test_fields_that_some_records_lack_are_counted(landing: Landing) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl='{"k":"a","v":"1","at":"2024-05-01T12:00:00Z"}\n{"v":"2","at":null}\n{"k":null}\n')
    result = landing.take(topic, folder)
    assert (result.rows, result.absent) == (3, {"k": 1, "v": 1, "at": 1})


def test_a_batch_whose_times_have_no_zone_is_refused_and_one_such_time_goes_alone(landing: Landing) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl=json_lines(("a", "1", "2026-11-28 10:00:00,123"), ("a", "2", "2026-11-28 10:00:01,123")))
    with raises("MissingTimeZone", match="--time-zone"):
        landing.take(topic, folder)
    assert landing.take(topic, folder, replace(KEYED, time_zone="Europe/Berlin")).rows == 2
    assert [message.append_time for message in landing.messages(topic)] == [1795856400123000, 1795856401123000]
    landing.put(folder, "b_jsonl", json_lines(("a", "3", "2026-11-28 10:00:00"), ("a", "4", "2026-11-28 10:00:01Z")))
    result = landing.take(topic, folder)
    assert (result.rows, result.quarantined) == (1, {"unreadable_time": 1})


def test_a_file_that_was_refused_whole_comes_in_under_its_name_when_it_is_mended(landing: Landing) -> None:
    topic = landing.topic()
    for name, bad, told in (
        ("a_json", '[\n{"k":"a",\n"v":"1"}\n]', "a JSON array"),
        ("b_json", '{\n"k":"a",\n"v":"1"\n}\n', "a JSON object in many lines"),
        ("c_csv", 'k,v,at\na,"1,\nb,2,\n', r"line 2 is never closed"),
    ):
        folder = landing.source(**{name: bad})
        with raises("UnreadableFile", match=told):
            landing.take(topic, folder)
        landing.put(folder, name, "k,v,at\na,1,\n" if name == "c_csv" else '{"k":"a","v":"1","at":null}\n')
        assert landing.take(topic, folder).rows == 1


def test_this_process_and_spark_do_the_same(landing: Landing, small_slices: None) -> None:
    """Tasks of a Spark job, and tasks in threads of this process, are the same functions."""
    logs, spark = [], SparkEngine(landing.lake.session)
    folder = landing.source(a_jsonl=as_json(ROWS) + b"broken\n", b_csv=as_csv(ROWS), c_parquet=as_parquet(ROWS))
    for engine in (landing.intake.engine, lambda: spark):
        landing.intake = replace(landing.intake, engine=engine)
        topic = landing.topic(partitions=3, segment_size_bytes=500)
        result = landing.take(topic, folder, replace(KEYED, value=None))
        logs.append((landing.messages(topic), landing.quarantine(topic), landing.state(topic), result.rows))
    assert logs[0] == logs[1]


def test_a_batch_of_nothing_but_bad_rows_leaves_the_log_alone(landing: Landing) -> None:
    topic = landing.topic()
    folder = landing.source(a_jsonl="broken\n", empty_csv="", header_csv="k,v,at\n")
    before = landing.lake.log(topic)
    result = landing.take(topic, folder)
    assert (result.rows, result.quarantined, len(result.files)) == (0, {"unreadable_line": 1}, 3)
    assert (result.refused_whole, result.refused_batches) == (("a.jsonl",), result.batch_ids)
    assert landing.lake.log(topic) == before
    assert landing.take(topic, folder).files == ()
    assert len(landing.quarantine(topic)) == 1


def test_a_file_that_was_refused_whole_comes_in_when_it_is_mended(landing: Landing) -> None:
    topic = landing.topic()
    good = json_lines(("a", "1", "2024-05-01T12:00:00Z"))
    folder = landing.source(a_json="broken\n" * 2, b_jsonl=good, c_jsonl=good + "broken\n")
    first = landing.take(topic, folder)
    assert (first.rows, first.refused_whole, first.refused_batches) == (2, ("a.json",), ())
    assert [batch.needs_a_person for batch in landing.ledger.refused_batches(topic)] == [True]
    same = landing.take(topic, folder)
    assert (same.files, {one.file for one in same.passed_over if "refused" in one.why}) == ((), {"a.json"})
    landing.put(folder, "a_json", json_lines(("x", "1", "2024-05-01T12:00:00Z"), ("y", "2", "2024-05-01T12:00:00Z")))
    mended = landing.take(topic, folder)
    assert (mended.files, mended.rows, mended.refused_whole) == (("a.json",), 2, ())
    assert [batch.needs_a_person for batch in landing.ledger.refused_batches(topic)] == [False]
    assert [message.key for message in landing.messages(topic)] == [b"a", b"a", b"x", b"y"]
    landing.put(folder, "c_jsonl", good)
    with raises("ChangedFile", match=r"c\.jsonl"):
        landing.take(topic, folder)


def broken_parquet(*, at: float) -> bytes:
    content = bytearray(as_parquet(ROWS * 100))
    place = int(len(content) * at)
    content[place : place + 64] = b"\xff" * 64
    return bytes(content)


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        ({"b_parquet": b"PAR1 not at all"}, "UnreadableFile", "b.parquet"),
        ({"b_parquet": b""}, "UnreadableFile", "b.parquet"),
        ({"b_parquet": broken_parquet(at=0.3)}, "UnreadableFile", "b.parquet"),
        ({"b_csv": as_parquet(ROWS)}, "UnreadableFile", "it is a Parquet file"),
        ({"b.jsonl_gz": b"not packed"}, "UnreadableFile", "b.jsonl.gz"),
        ({"b_csv": b"k,v\na,1\n"}, "MissingField", "not have a field 'at'. It has: k, v"),
        ({"b_csv": b"at;k;v\n2024-05-01;a;1\n"}, "MissingField", "--delimiter ';'"),
        ({"b_csv": b"k,k,at\n"}, "UnreadableFile", "more than once"),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_batch_and_nothing_is_taken(
    landing: Landing, files: dict[str, bytes], error: str, says: str
) -> None:
    topic = landing.topic()
    before = landing.lake.log(topic)
    folder = landing.source(a_jsonl=as_json(ROWS), **files)
    with raises(error, match=says):
        landing.take(topic, folder)
    assert landing.lake.log(topic) == before
    assert landing.branches(topic) == []
    for name in files:
        (folder / ".".join(name.rsplit("_", 1))).unlink()
    assert landing.take(topic, folder).rows == 40


@hunt
def test_a_folder_is_found_by_any_spelling_of_its_path(landing: Landing) -> None:
    folder = landing.source(a_jsonl=as_json(ROWS[:3]))
    for place in (folder / ".." / folder.name, folder / ".." / folder.name / "a.jsonl"):
        topic = landing.topic()
        result = landing.take(topic, place)
        assert (result.rows, result.files) == (3, ("a.jsonl",))


def test_a_file_is_known_by_the_name_that_was_given(landing: Landing) -> None:
    folder = landing.source(a_jsonl=as_json(ROWS[:3]))
    link = landing.folder / "named.jsonl"
    link.symlink_to(folder / "a.jsonl")
    assert landing.take(landing.topic(), link).files == ("named.jsonl",)


def test_no_input_is_an_error_that_says_so(landing: Landing) -> None:
    topic = landing.topic()
    for place in (landing.source(), landing.folder / "nowhere"):
        with raises("NoInput", match=str(place)):
            landing.take(topic, place)


@pytest.mark.parametrize(
    ("at", "unit", "likely"),
    [
        (1714564800000, "us", "ms"),
        (1714564800, "us", "s"),
        (1714564800, "ms", "s"),
        (1714564800000, "s", "ms"),
        (1714564800000000, "ms", "us"),
        (1714564800000, "iso", "ms"),
        ("1714564800", "iso", "s"),
        ("1899-12-31T00:00:00Z", "iso", None),
    ],
)
def test_a_wrong_time_unit_is_named_and_nothing_is_taken(landing: Landing, at: object, unit: Unit, likely: str | None) -> None:
    topic = landing.topic()
    mapping = replace(KEYED, append_time_unit=unit)
    folder = landing.source(a_jsonl=json_lines(("a", "1", at), ("a", "2", None)))
    with raises("WrongTimeUnit", match="field 'at'") as refused:
        landing.take(topic, folder, mapping)
    hint = f"it looks like unit {likely!r}" if likely else "that is no date from 1990 to 2099"
    assert f"; {hint} (1 of " in str(refused.value)
    assert landing.messages(topic) == []
    assert not landing.ledger.open_batches(topic)


def test_times_far_off_are_taken_when_they_are_meant_and_zero_is_unknown(landing: Landing) -> None:
    topic = landing.topic()
    rows = [("a", str(n), at) for n, at in enumerate([-1, 0, "0", "", None, 1, 1.5, "2.0000001", -60000000000, -62135596800])]
    mapping = replace(KEYED, append_time_unit="s")
    result = landing.take(topic, landing.source(a_jsonl=json_lines(*rows)), mapping, allow_implausible_times=True)
    assert result.unknown_times == 5
    assert [message.append_time for message in landing.messages(topic)] == [
        -1_000_000, None, None, None, None, 1_000_000, 1_500_000, 2_000_001, -60000000000_000_000, None,
    ]  # fmt: skip


@hunt
def test_a_shift_moves_all_times_by_whole_days_and_stays_with_the_topic(landing: Landing) -> None:
    topic = landing.topic()
    mapping = replace(KEYED, event_time="at")
    folder = landing.source(a_jsonl=as_json(ROWS[:2]))
    result = landing.take(topic, folder, mapping, shift_to=date(2026, 11, 21))
    days = (date(2026, 11, 21) - NOON.date()).days
    assert result.shift_days == days
    landing.put(folder, "b_jsonl", as_json(ROWS[2:3]))
    assert landing.take(topic, folder, mapping, shift_to=date(2026, 12, 24)).shift_days == days
    landing.put(folder, "c_jsonl", as_json(ROWS[3:4]))
    assert landing.take(topic, folder, mapping).shift_days == days
    for message, (_, _, at) in zip(landing.messages(topic), ROWS[:4], strict=True):
        assert message.append_time == message.event_time == from_datetime(at + timedelta(days=days))


def test_a_ledger_that_does_not_know_the_topic_takes_nothing(landing: Landing, lake: Lake) -> None:
    topic = lake.topic()
    with raises("LedgerMismatch"):
        landing.take(topic, landing.source(a_jsonl=as_json(ROWS)))


def test_a_mirror_takes_no_files(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = landing.topic()
    mirror = replace(landing.intake.topics.describe(topic), role="mirror")
    monkeypatch.setattr(landing.lake.topics, "describe", lambda _: mirror)
    with raises("InvalidAppend", match="mirror"):
        landing.take(topic, landing.source(a_jsonl=as_json(ROWS)))
