"""The compaction kernel against plain Python: rows, values and counts (CMP-1 to CMP-8, CNT-1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import FileIO
from pyiceberg.io import InputFile as InputStream
from pyiceberg.io import OutputFile as OutputStream

from message_lifecycle.model.change import CompactPartition
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import Message, ViewRow
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeKnown
from message_lifecycle.operations.compaction import CompactionRules, fold
from message_lifecycle.stores.iceberg import lake_io, relations
from message_lifecycle.stores.iceberg.compaction import PartitionJob, PartitionResult, evidence, kernel
from message_lifecycle.stores.iceberg.compaction.kernel import compact
from message_lifecycle.stores.iceberg.compaction.view_table import SCHEMA
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.shares import Resources
from message_lifecycle.stores.iceberg.tasks import HERE, InputFile, Store, Vector
from tests.compaction import Row, Table, compacted, counted, log_file, messages, rows_in, run, vector
from tests.effort import sample
from tests.errors import raises

AS_OF = Instant(20)
TTL: tuple[tuple[ViewReason, Rule], ...] = (("ttl", PeriodPassed("expires_at", 0)),)
AGE: tuple[tuple[ViewReason, Rule], ...] = (
    ("retention_age", AllOfRules((PeriodPassed("append_time", 10), NotRule(AnyOfRules((NeverExpires(), TimeKnown("expires_at"))))))),
)
DEAD = ((), TTL, TTL + AGE, (("expiry", AllOfRules((PeriodPassed("append_time", 5), NotRule(NeverExpires())))), *TTL, *AGE))


def rules_of(chance: random.Random) -> CompactionRules:
    return CompactionRules(
        as_of=AS_OF,
        ages=chance.choice(DEAD),
        empty_is_value=chance.random() < 0.5,
        retain_null_key=chance.random() < 0.7,
        tombstones_until=chance.choice((None, Instant(50))),
    )


def pieces(chance: random.Random, folder: Path, rows: list[dict[str, object]]) -> tuple[list[InputFile], list[dict[str, object]]]:
    """The rows as up to three files with marks on some, and the rows that are left."""
    cuts = sorted(chance.sample(range(len(rows) + 1), 2)) if rows else [0, 0]
    files, left = [], []
    for part in (rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]):
        if part:
            gone = {at for at in range(len(part)) if chance.random() < 0.15}
            files.append(log_file(folder, part, gone=gone))
            left += [row for at, row in enumerate(part) if at not in gone]
    return files, left


@pytest.mark.parametrize("seed", sample(range(60), *range(20)))
def test_any_split_is_the_same_as_one_shot_and_as_plain_python(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    rules = rules_of(chance)
    rows = messages(chance, chance.choice((0, 1, 5, 40, 120)))
    files, left = pieces(chance, tmp_path, rows)
    one_shot = Table(tmp_path / "one")
    first = run(one_shot, files, rules)
    expected, removed = compacted([], left, rules)
    assert one_shot.rows() == expected
    assert first.removed == counted(removed)

    split, view, after = Table(tmp_path / "split"), [], -1
    for through in [*sorted(chance.randrange(-1, 500) for _ in range(3)), 1 << 40]:
        result = run(split, files, rules, after=after, through=through, rewrite=chance.random() < 0.3, threads=chance.choice((1, 2)))
        view, removed = compacted(view, [row for row in left if after < row["offset"] <= through], rules)
        assert split.rows() == view
        assert result.removed == counted(removed)
        after = max(after, through)
    assert view == expected


@pytest.mark.parametrize("seed", sample(range(20), *range(8)))
@pytest.mark.parametrize("rewrite", [False, True])
def test_later_runs_judge_the_view_again(seed: int, rewrite: bool, tmp_path: Path) -> None:
    chance = random.Random(seed)
    table, view, after = Table(tmp_path), [], -1
    rules = rules_of(chance)
    for as_of in (10, 20, 39, 60):
        rules = replace(rules, as_of=Instant(as_of), tombstones_until=None if rules.tombstones_until is None else Instant(as_of + 20))
        rows = messages(chance, 30, first=after + 1, keys=12) if as_of < 60 else []
        files, left = pieces(chance, tmp_path, rows)
        result = run(table, files, rules, after=after, rewrite=rewrite)
        view, removed = compacted(view, left, rules)
        assert table.rows() == view
        assert result.removed == counted(removed)
        after = max([after, *(row["offset"] for row in rows)])


EVENT_TIMES = (None, INT64_MIN, -INT64_MAX, 0, *range(6), INT64_MAX - 1, INT64_MAX)


def view_row(row: Row) -> ViewRow:
    """The row of a file as the memory store has it."""
    message = Message(
        **{name: row[name] for name in ("partition", "offset", "append_time", "event_time", "key", "value", "segment", "expires_at")},
        headers=tuple((header["name"], header["value"]) for header in row["headers"] or ()),
        never=bool(row["never"]),
        origin_offset=row["origin_offset"],
    )
    return ViewRow(message=message, delete_horizon=row.get("delete_horizon"), remembered=bool(row.get("remembered")))


@pytest.mark.parametrize("seed", sample(range(60), *range(12)))
def test_by_event_time_the_kernel_comes_to_what_the_fold_comes_to(seed: int, tmp_path: Path) -> None:  # CMP-12
    """Later runs may choose by offset again: memories of the earlier ones stay for their time."""
    chance = random.Random(seed)
    table, after, view = Table(tmp_path), -1, list[ViewRow]()
    rules, back = rules_of(chance), chance.choice((None, 2, 3))
    for number, as_of in enumerate((10, 20, 39, 60, 80)):
        until = Instant(as_of + chance.choice((1, 20)))
        by_offset = back is not None and number >= back
        rules = replace(rules, as_of=Instant(as_of), tombstones_until=until, remember_until=None if by_offset else until)
        rows = messages(chance, chance.choice((0, 5, 30)), first=after + 1, keys=chance.choice((4, 12)))
        rows = [row | {"event_time": chance.choice(EVENT_TIMES)} for row in rows]
        files, left = pieces(chance, tmp_path, rows)
        result = run(table, files, rules, after=after, rewrite=not by_offset or chance.random() < 0.5, threads=chance.choice((1, 2)))
        expected = fold(view, [view_row(row).message for row in left], rules)
        assert result.removed == counted(expected.removed)
        assert result.rows_out == sum(not row.remembered for row in expected.rows)
        view = sorted(map(view_row, table.rows()), key=lambda row: row.message.offset)
        assert view == expected.rows
        after = max([after, *(row["offset"] for row in rows)])


@pytest.mark.parametrize("times", [(INT64_MAX, 5), (-INT64_MAX, None), (None, -INT64_MAX), (INT64_MAX - 1, INT64_MAX)])
def test_the_gate_chooses_by_event_times_that_duckdb_has_no_number_for(times: tuple[int | None, ...], tmp_path: Path) -> None:  # CMP-12
    """DuckDB takes the ends of all times for infinities."""
    rules = CompactionRules(as_of=AS_OF, tombstones_until=Instant(50), remember_until=Instant(50))
    rows = [row | {"event_time": at} for row, at in zip(rows_of((b"k", b"1"), (b"k", b"2")), times, strict=True)]
    log, table = log_file(tmp_path, rows), Table(tmp_path)
    run(table, [log], rules, rewrite=True)
    assert [view_row(row) for row in table.rows()] == fold([], [view_row(row).message for row in rows], rules).rows
    action = CompactPartition(partition=0, after=-1, through=1, rows=2)
    question = evidence.PartitionQuestion(action=action, log=(log,), before=(), after=tuple(table.files), rules=rules, rewrite=True)
    answer = evidence._answered(question, Resources(spill_folder=str(tmp_path)))
    assert answer.fresh == {"unwanted": 0, "missing": 0, "null_keys_missing": 0, "changed": 0}


DAMAGES: dict[str, Callable[[pa.Table], list[pa.Table]]] = {
    "none": lambda row: [row],
    "it is lost": lambda _: [],
    "it is there twice": lambda row: [row, row],
    "it has another value": lambda row: [with_column(row, "value", b"another")],
    "it has lost its key": lambda row: [with_column(row, "key", None)],
    "it lies beyond all others, too": lambda row: [row, with_column(row, "offset", 1 << 41)],
}
"""Changes of one row of a new file."""


def with_column(rows: pa.Table, name: str, value: object) -> pa.Table:
    """Return the rows with the same value in every row of a column."""
    field = rows.schema.field(name)
    return rows.set_column(rows.column_names.index(name), field, pa.array([value] * len(rows), field.type))


@pytest.mark.parametrize("seed", sample(range(20), *range(4)))
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_gate_finds_the_same_in_any_spans(damage: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By offset and by event time, with and without messages that have no key."""
    chance = random.Random(seed)
    rules, by_event_time = rules_of(chance), seed % 2 == 1
    if by_event_time:
        rules = replace(rules, tombstones_until=Instant(50), remember_until=Instant(50))
    table, first, second = Table(tmp_path), messages(chance, 20, keys=6), messages(chance, 40, first=1_000, keys=12)
    for row, key in zip(second[-2:], (b"damaged", b"last"), strict=True):  # these stay, and a span ends at the first of them
        row |= {"key": key, "value": b"v", "headers": [], "append_time": 39, "expires_at": None}
    log, after = [log_file(tmp_path, first), log_file(tmp_path, second)], first[-1]["offset"]
    rewrite = by_event_time or chance.random() < 0.5
    run(table, log, rules, through=after, rewrite=rewrite)
    before = tuple(table.files)
    run(table, log, rules, after=after, rewrite=rewrite)
    new = [at for at, file in enumerate(table.files) if file not in before]
    rows = pq.read_table(table.files[new[-1]].path)
    assert table.files[new[-1]].vector is None
    at = rows["key"].to_pylist().index(b"damaged")
    parts = [rows.slice(0, at), *DAMAGES[damage](rows.slice(at, 1)), rows.slice(at + 1)]
    pq.write_table(pa.concat_tables(parts), tmp_path / "judged.parquet")
    judged = [replace(file, path=str(tmp_path / "judged.parquet")) if at == new[-1] else file for at, file in enumerate(table.files)]
    question = evidence.PartitionQuestion(
        action=CompactPartition(partition=0, after=after, through=1 << 40, rows=40),
        log=tuple(log), before=before, after=tuple(judged), rules=rules, rewrite=rewrite,
    )  # fmt: skip
    share, spans = Resources(spill_folder=str(tmp_path)), list[int]()
    divide = relations.offset_spans

    def counted_spans(*given: Any) -> list[str]:
        found = divide(*given)
        spans.append(len(found))
        return found

    monkeypatch.setattr(relations, "offset_spans", counted_spans)
    whole = evidence._answered(question, share)
    monkeypatch.setattr(evidence, "BYTES_PER_WINNER", share.memory_bytes)
    assert evidence._answered(question, share) == whole
    assert spans[0] == 1 < spans[1]
    wrong = any(whole.fresh.values()) or whole.found["old_digest"] != whole.stays["old_digest"] or whole.disordered or whole.found["beyond"]
    assert bool(wrong) == (damage != "none")


def rows_of(*pairs: tuple[bytes | None, bytes | None]) -> list[dict[str, object]]:
    row = messages(random.Random(0), 1)[0] | {"headers": [], "append_time": 1, "expires_at": None, "never": None}
    return [row | {"offset": at, "key": key, "value": value} for at, (key, value) in enumerate(pairs)]


def test_a_dead_winner_takes_its_key_away(tmp_path: Path) -> None:
    old, new = rows_of((b"k", b"old"), (b"k", b"new"))
    table = Table(tmp_path)
    run(table, [log_file(tmp_path, [old])], CompactionRules(as_of=AS_OF, ages=TTL), through=0)
    result = run(table, [log_file(tmp_path, [new | {"expires_at": 20}])], CompactionRules(as_of=AS_OF, ages=TTL), after=0)
    assert table.rows() == []
    assert result.removed == {"superseded": 1, "ttl": 1}


def test_a_row_of_the_view_goes_at_its_instant(tmp_path: Path) -> None:
    rows = [row | {"expires_at": 20} for row in rows_of((b"k", b"v"))]
    for as_of, left in ((19, 1), (20, 0), (21, 0)):
        table = Table(tmp_path / str(as_of))
        run(table, [log_file(tmp_path, rows)], CompactionRules(as_of=Instant(0), ages=TTL))
        result = run(table, [], CompactionRules(as_of=Instant(as_of), ages=TTL), after=0)
        assert len(table.rows()) == left
        assert result.removed == ({} if left else {"ttl": 1})
        assert bool(result.dropped) is not bool(left)


def test_a_tombstone_stays_until_its_horizon(tmp_path: Path) -> None:
    for as_of, left in ((49, 1), (50, 0)):
        table = Table(tmp_path / str(as_of))
        run(table, [log_file(tmp_path, rows_of((b"k", b"v"), (b"k", None)))], CompactionRules(as_of=AS_OF, tombstones_until=Instant(50)))
        assert [row["delete_horizon"] for row in table.rows()] == [50]
        result = run(table, [], CompactionRules(as_of=Instant(as_of), tombstones_until=Instant(as_of + 30)), after=1)
        assert [row["delete_horizon"] for row in table.rows()] == [50] * left
        assert result.removed == ({} if left else {"tombstoned": 1})


def test_nothing_new_and_nothing_due_leaves_everything(tmp_path: Path) -> None:
    table = Table(tmp_path)
    run(table, [log_file(tmp_path, rows_of((b"k", b"v")))], CompactionRules(as_of=AS_OF))
    result = run(table, [], CompactionRules(as_of=AS_OF, ages=TTL), after=0)
    assert (result.files, result.vectors, result.dropped, result.removed) == ((), (), (), {})


def test_new_marks_keep_the_earlier_ones(tmp_path: Path) -> None:
    table = Table(tmp_path)
    run(table, [log_file(tmp_path, rows_of((b"a", b"1"), (b"b", b"1"), (b"c", b"1")))], CompactionRules(as_of=AS_OF))
    (file,) = table.files
    for offset, (key, left) in enumerate(((b"b", [b"a", b"c", b"b"]), (b"a", [b"c", b"b", b"a"])), start=3):
        run(table, [log_file(tmp_path, [rows_of((key, b"2"))[0] | {"offset": offset}])], CompactionRules(as_of=AS_OF), after=offset - 1)
        assert [row["key"] for row in table.rows()] == left
    assert table.files[0].path == file.path
    assert [row["key"] for row in rows_in(table.files[0])] == [b"c"]


def test_files_out_of_order_are_sorted(tmp_path: Path) -> None:
    rows = rows_of(*((b"k%d" % at, b"v") for at in range(9)))
    ordered = [log_file(tmp_path, rows[:4]), log_file(tmp_path, rows[4:])]
    for name, files in (("in order", ordered), ("files", ordered[::-1]), ("rows", [log_file(tmp_path, rows[::-1])])):
        table = Table(tmp_path / name)
        run(table, files, CompactionRules(as_of=AS_OF))
        assert table.rows() == compacted([], rows, CompactionRules(as_of=AS_OF))[0]


@pytest.mark.parametrize("sampled", [1_000_000, 5_000], ids=["by all offsets", "by some"])
@pytest.mark.parametrize("threads", [1, 2])
def test_files_are_bounded_and_follow_each_other(threads: int, sampled: int, tmp_path: Path) -> None:
    count = 100_000
    table = pa.table({"offset": range(count), "key": [b"%d" % at for at in range(count)]})
    for entry in SCHEMA.as_arrow():
        if entry.name not in ("offset", "key"):
            table = table.append_column(entry.with_nullable(True), pa.nulls(count, entry.type))
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=12_500)
    job = PartitionJob(partition=0, after=-1, through=count, view=(), tail=(InputFile(path=str(tmp_path / "log.parquet")),), rewrite=True)
    resources = Resources(spill_folder=str(tmp_path), threads=threads, file_bytes=25_000, sampled_offsets=sampled)
    rules = CompactionRules(as_of=AS_OF, tombstones_until=Instant(50))
    result = kernel.compact(job, rules, resources, data_folder=str(tmp_path / "data"), run="run")
    offsets = [pq.read_table(file.path)["offset"].to_pylist() for file in result.files]
    assert len(offsets) > 1
    assert max(map(len, offsets)) < 1.3 * count / len(offsets)
    assert [offset for part in offsets for offset in part] == list(range(count))
    assert [file.rows for file in result.files] == [len(part) for part in offsets]
    assert [file.path for file in result.files] == sorted(map(str, (tmp_path / "data" / "partition=0").iterdir()))


def test_more_offsets_than_fit_into_memory_are_cut(tmp_path: Path) -> None:
    """The memory stands to the rows as a task's memory stands to fifty million keys."""
    rows, megabytes = 8_000_000, 60
    source = log_file(tmp_path, rows_of(*((b"k%d" % at, b"v") for at in range(100))))
    resources = Resources(
        spill_folder=str(tmp_path),
        memory_bytes=megabytes << 20,
        file_bytes=rows * Path(source.path).stat().st_size // 1000,
        sampled_offsets=10_000,
    )
    job = PartitionJob(partition=0, after=-1, through=rows, view=(), tail=(source,), rewrite=True)
    with relations.opened(resources) as (connection, names):
        connection.execute(f'CREATE TEMP TABLE winners AS SELECT range AS "offset" FROM range({rows})')
        worker = kernel._Kernel(connection, names, job, CompactionRules(as_of=AS_OF), resources, str(tmp_path), "run", HERE)
        spans = worker._spans("winners", [source], rows)
        counts = [connection.execute(f"SELECT count(*) FROM winners WHERE {span}").fetchall()[0][0] for span in spans]
    assert len(counts) == 10
    assert sum(counts) == rows
    assert max(counts) < 1.3 * rows / len(counts)


def test_field_ids_are_the_tables(tmp_path: Path) -> None:
    table = Table(tmp_path)
    run(table, [log_file(tmp_path, rows_of((b"k", b"v")))], CompactionRules(as_of=AS_OF))
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    assert pyarrow_to_schema(pq.read_schema(table.files[0].path)).find_field("headers.element.value").field_id == 15
    ids = {name: pyarrow_to_schema(pq.read_schema(table.files[0].path)).find_field(name).field_id for name in SCHEMA.column_names}
    assert ids == {name: SCHEMA.find_field(name).field_id for name in SCHEMA.column_names}


def test_a_vector_that_is_not_there_is_refused(tmp_path: Path) -> None:
    log = log_file(tmp_path, rows_of((b"a", b"1"), (b"b", b"1")), gone=[1])
    assert log.vector is not None
    for wrong in (replace(log.vector, offset=5), replace(log.vector, length=log.vector.length - 1), replace(log.vector, length=9999)):
        with raises("CorruptVector", match="restore"):
            run(Table(tmp_path), [replace(log, vector=wrong)], CompactionRules(as_of=AS_OF))


def test_marks_beyond_32_bits_are_read(tmp_path: Path) -> None:
    from message_lifecycle.stores.iceberg.puffin import marked

    positions = [0, 7, (1 << 32) + 3, (5 << 32) + 1]
    found = vector(tmp_path, "a file", positions)
    assert isinstance(found, Vector)
    assert marked(found).tolist() == positions


class Mapped(FileIO):
    """A store of which every file lies in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.io = folder, LakeFileIO()

    def there(self, location: str) -> str:
        return str(self.folder / location.removeprefix("s3://bucket/"))

    def new_input(self, location: str) -> InputStream:
        return self.io.new_input(self.there(location))

    def new_output(self, location: str) -> OutputStream:
        return self.io.new_output(self.there(location))

    def delete(self, location: str | InputStream | OutputStream) -> None:
        Path(self.there(str(location))).unlink()  # as PyArrow does, it fails where there is none


@pytest.mark.parametrize("rate", [0, 1 << 40])
def test_files_of_any_store_are_compacted_as_those_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    mapped = Mapped(tmp_path)
    monkeypatch.setattr(lake_io, "load_file_io", lambda _settings, _location: mapped)
    store = Store(settings=(("s3.endpoint", str(tmp_path)),))
    share = Resources(spill_folder=str(tmp_path), read_bytes_per_second=rate, write_bytes_per_second=rate)
    rules, here, there = CompactionRules(as_of=AS_OF, ages=TTL), Table(tmp_path / "here"), Table(tmp_path / "there")

    def far(file: InputFile) -> InputFile:
        def moved(path: str) -> str:
            return path.replace(str(tmp_path), "s3://bucket")

        marks = None if file.vector is None else replace(file.vector, path=moved(file.vector.path), store=store)
        return replace(file, path=moved(file.path), vector=marks, store=store)

    first, second = messages(random.Random(1), 60), messages(random.Random(2), 60, first=5_000)
    for number, (rows, gone) in enumerate(((first, {3, 9}), (second, ()))):
        tail = [log_file(tmp_path / "log", rows, gone=gone)]
        local = run(here, tail, rules, after=number * 5_000 - 1)
        job = PartitionJob(
            partition=0,
            after=number * 5_000 - 1,
            through=1 << 40,
            view=tuple(map(far, there.files)),
            tail=tuple(map(far, tail)),
            rewrite=False,
        )
        result = compact(job, rules, share, data_folder="s3://bucket/there/data", run=f"run{number}", store=store)
        assert (result.removed, result.rows_out, [file.rows for file in result.files]) == (
            local.removed,
            local.rows_out,
            [file.rows for file in local.files],
        )
        assert all(file.path.startswith("s3://bucket/there/data/partition=0/run") for file in result.files)
        there.apply(
            replace(result, files=tuple(replace(file, path=mapped.there(file.path)) for file in result.files), **_here(result, mapped))
        )
        assert there.rows() == here.rows()
    store.remove("s3://bucket/there/data/none.parquet")  # no error, or it would hide the one by which somebody tidies up


def _here(result: PartitionResult, mapped: Mapped) -> dict[str, object]:
    """What the result names, by where it lies."""
    vectors = tuple(
        replace(one, data_file=mapped.there(one.data_file), puffin=replace(one.puffin, path=mapped.there(one.puffin.path)))
        for one in result.vectors
    )
    return {"vectors": vectors, "dropped": tuple(map(mapped.there, result.dropped))}
