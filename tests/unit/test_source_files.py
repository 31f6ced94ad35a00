"""Which files are taken, by which name; what a time can mean. Without Spark."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.errors import BadInput
from message_lifecycle.sources.csv_records import read_header
from message_lifecycle.sources.files import check_delimiter, check_encoding, find_files, wrong_time_unit
from message_lifecycle.sources.heads import check_heads
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.selection import Patterns, natural_order
from message_lifecycle.sources.times import PLAUSIBLE_FROM, PLAUSIBLE_TO, likely_unit, reading
from tests.errors import raises


def test_files_are_found_below_the_folder_in_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/a.csv", "a.jsonl", "b.csv", "B.json", "b/_tmp/x.csv", "_SUCCESS", ".x.csv", "b/é 1.ndjson"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    found = find_files(tmp_path)
    assert [file.name for file in found] == ["B.json", "a.jsonl", "b.csv", "b/a.csv", "b/é 1.ndjson"]
    assert {one.file: one.why.partition(":")[0] for one in found.passed_over} == dict.fromkeys(
        (".x.csv", "_SUCCESS", "b/_tmp/x.csv"), "hidden"
    )
    assert [file.name for file in find_files(tmp_path / "b" / "a.csv")] == ["a.csv"]


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (("app-10.jsonl", "app-2.jsonl", "app-1.jsonl"), ("app-1.jsonl", "app-2.jsonl", "app-10.jsonl")),
        (("d10/a.csv", "d9/b.csv"), ("d9/b.csv", "d10/a.csv")),
        (("x1.10.csv", "x1.9.csv"), ("x1.9.csv", "x1.10.csv")),
        (("a01.csv", "a1.csv", "a1b.csv", "a.csv"), ("a.csv", "a01.csv", "a1.csv", "a1b.csv")),
        (("10.csv", "9.csv", "b.csv"), ("9.csv", "10.csv", "b.csv")),
        (("p-" + "9" * 99 + ".csv", "p-1" + "0" * 99 + ".csv"), ("p-" + "9" * 99 + ".csv", "p-1" + "0" * 99 + ".csv")),
    ],
)
def test_numbers_in_names_are_compared_as_numbers(tmp_path: Path, names: tuple[str, ...], ordered: tuple[str, ...]) -> None:  # P12
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert tuple(file.name for file in find_files(tmp_path)) == ordered


@given(st.lists(st.text("a1290-/.", min_size=1), unique=True))
def test_the_order_of_names_is_total_and_whatever_order_they_come_in(names: list[str]) -> None:  # P12
    backwards = names[::-1]
    assert sorted(backwards, key=natural_order) == sorted(names, key=natural_order)


def test_patterns_choose_files_and_the_rest_is_named(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "sub/a.csv", "notes.txt", "sub/old.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files(tmp_path, Patterns(include=("a.*", "sub/*", "*.txt"), exclude=("old*",)))
    assert [file.name for file in found] == ["a.csv", "sub/a.csv"]
    passed = {one.file: one.why.partition(":")[0] for one in found.passed_over}
    assert passed == {
        "b.csv": "not included",
        "notes.txt": "its kind is not known by its name; allowed",
        "sub/old.csv": "excluded by old*",
    }
    with raises("NoInput", match=r"every file is passed over: a\.csv \(not included\)"):
        find_files(tmp_path, Patterns(include=("nothing",)))
    with raises("NoInput", match=r"a\.csv \(excluded by a\*\)"):
        find_files(tmp_path / "a.csv", Patterns(exclude=("a*",)))


@pytest.mark.parametrize("name", ["x", "x.txt", "x.parquet.gz", "x.csv.zip", "x.gz"])
def test_a_file_of_an_unknown_kind_is_passed_over_in_a_folder_and_refused_where_it_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with raises("NoInput", kind=BadInput, match=r"x.*kind is not known"):
        find_files(tmp_path)
    with raises("UnreadableFile", kind=BadInput, match="kind is not known"):
        find_files(tmp_path / name)
    (tmp_path / "a.csv").touch()
    found = find_files(tmp_path)
    assert ([file.name for file in found], [one.file for one in found.passed_over]) == (["a.csv"], [name])


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    for name, text in (("a.csv", "k\n1\n"), ("b.csv", "k\n1\n"), ("c.csv", "k\n2\n")):
        (tmp_path / name).write_text(text)
    first, same, other = (file.sha256() for file in find_files(tmp_path))
    assert first == same != other


@pytest.mark.parametrize("name", ["x[1].csv", "x*.csv", "x:y.csv", "{x}.csv"])
def test_a_name_may_have_any_letters(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("k\n1\n")
    assert [file.name for file in find_files(tmp_path)] == [name]


def check(folder: Path, encoding: str = "utf-8") -> None:
    check_heads(find_files(folder), FieldMapping(encoding=encoding))


def headers(folder: Path, encoding: str = "utf-8") -> list[list[str]]:
    return [read_header(file, delimiter=",", encoding=encoding) for file in find_files(folder)]


def test_a_header_is_read_by_the_rules_of_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfk,"v,""w"\r\n1,2\r\n')
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b'k,"v,""w\n"\n'))
    (tmp_path / "c.csv").touch()
    assert headers(tmp_path) == [["k", 'v,"w'], ["k", 'v,"w\n'], []]
    check(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_of_wide_letters_is_refused_and_told_how_it_is_taken(tmp_path: Path, name: str, encoding: str) -> None:
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    (tmp_path / name).write_bytes((mark + '{"k": "a"}\n').encode(encoding))
    with raises("UnreadableFile", kind=BadInput, match=r"iconv -f UTF-(16|32) .*--encoding"):
        check(tmp_path)


@pytest.mark.parametrize("lines", [1, 1000, 5000])
def test_a_file_without_one_valid_line_among_its_first_is_refused_and_names_the_option(tmp_path: Path, lines: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"k": "Z\xfcrich"}\n' * lines + b'{"k": "late"}\n' * (lines > 999))
    with raises("UnreadableFile", kind=BadInput, match="--encoding"):
        check(tmp_path)
    check(tmp_path, "iso8859-1")


def test_a_file_with_one_valid_line_among_its_first_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"k": "Z\xfcrich"}\n' * 999 + b'{"k": "a"}\n')
    check(tmp_path)


def test_one_line_of_many_letters_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": "' + "ü" * (1 << 20) + '"}', encoding="utf-8")
    check(tmp_path)


def test_a_header_that_is_no_text_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"k,Z\xfcrich\n1,2\n")
    with raises("UnreadableFile", kind=BadInput, match="header.*--encoding"):
        check(tmp_path)
    assert headers(tmp_path, "iso8859-1") == [["k", "Zürich"]]


@pytest.mark.parametrize(
    "name", ["utf-16", "UTF_32", "utf-7", "cp037", "rot13", "hex", "klingon", "unicode_escape", "idna", "charmap", "a\0b", ""]
)
def test_an_encoding_whose_lines_are_not_those_of_ascii_is_refused(name: str) -> None:
    with raises("InvalidSetting", match="iconv"):
        check_encoding(name)


def test_a_file_that_is_its_byte_order_mark_and_a_header_has_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfk,v")
    assert headers(tmp_path) == [["k", "v"]]


def test_a_delimiter_is_one_character_and_a_tabulator_may_be_spelled() -> None:
    assert [check_delimiter(one) for one in (";", "\\t", "\t", "|")] == [";", "\t", "\t", "|"]
    for one in ("", "::", '"', "\n"):
        with raises("InvalidSetting", match="--delimiter"):
            check_delimiter(one)


def test_an_encoding_is_known_by_any_of_its_names() -> None:
    assert [check_encoding(name) for name in ("UTF-8", "utf8", "Latin1", "windows-1252")] == ["utf-8", "utf-8", "iso8859-1", "cp1252"]


@given(micros=st.integers(PLAUSIBLE_FROM, PLAUSIBLE_TO - 1))
def test_a_date_is_likely_in_the_unit_it_was_written_in_and_in_no_other(micros: int) -> None:
    # Whole seconds from 1990 on: below that a count of one unit could be a date in the next.
    second = -(-micros // 1_000_000)
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if second * 1_000_000 < PLAUSIBLE_TO:
            assert likely_unit(str(second * factor)) == unit


@pytest.mark.parametrize("value", ["", "soon", "-5", "1e400", "nan", "inf", "1e30"])
def test_what_is_no_date_in_any_unit_gives_no_hint(value: str) -> None:
    assert likely_unit(value) is None


def test_the_error_says_field_value_reading_and_likely_unit() -> None:
    value = "1714564800000"
    error = wrong_time_unit(field="at", value=value, unit="us", reads_as=reading(value, "us"), likely=likely_unit(value), rows=2, of=3)
    for part in ("'at'", "'1714564800000' in unit 'us' is 1970-01-20T20:16:04.800000Z", "looks like unit 'ms'", "2 of 3"):
        assert part in str(error)
