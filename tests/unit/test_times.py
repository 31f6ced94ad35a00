"""Times as people and programs write them: read to the microsecond, unknown where they were never set, refused where they are in doubt (CLK-4)."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.sources.times import UNITS, TimeRule, check_format, check_zone, read_times, read_typed_times
from tests.errors import raises

ISO = TimeRule()


def said(text: str, rule: TimeRule = ISO) -> str | None:
    """The time, `unknown`, or None where the text is refused."""
    found = rule.read(text)
    return None if found.reason else format_instant(None if found.micros is None else Instant(found.micros))


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
        ("2026-11-20 10:00:00,123Z", "2026-11-20T10:00:00.123000Z"),
        ("2026-11-20T10:00:00.1234561Z", "2026-11-20T10:00:00.123457Z"),
        ("2026-11-20T10:00Z", "2026-11-20T10:00:00Z"),
        ("2026-11-20T24:00:00Z", "2026-11-21T00:00:00Z"),
        ("2026-12-31T24:00Z", "2027-01-01T00:00:00Z"),
        ("20261120T100000Z", "2026-11-20T10:00:00Z"),
        ("20261120T100000.5+0100", "2026-11-20T09:00:00.500000Z"),
        ("2026-11-20t10:00:00z", "2026-11-20T10:00:00Z"),
        ("2026-11-20T10:00:00+01", "2026-11-20T09:00:00Z"),
        ("2026-11-20T10:00:00-12:00", "2026-11-20T22:00:00Z"),
        ("2026-11-20 10:00:00 UTC", "2026-11-20T10:00:00Z"),
        ("2026-11-20T10:00:00+01:00[Europe/Berlin]", "2026-11-20T09:00:00Z"),
        ("2026-11-20T10:00:00[Europe/Berlin]", "2026-11-20T09:00:00Z"),
        ("2026-11-20T10:00:00Z[Europe/Berlin]", "2026-11-20T10:00:00Z"),
        ("2026-11-20T10:00:00+01:00[!Europe/Berlin][u-ca=gregory]", "2026-11-20T09:00:00Z"),
        ("2026-11-20T10:00:00+02:00[Europe/Berlin]", None),
        ("2026-11-20T10:00:00+02:00[Nowhere/At_All]", None),
        ("0001-01-01T00:00:00Z", "unknown"),
        ("0001-01-01", "unknown"),
        ("0001-01-01T00:00:00+01:00", "unknown"),
        ("9999-12-31T23:59:59.999999Z", "unknown"),
        ("9999-12-31T23:59:59-05:00", "unknown"),
        ("", "unknown"),
        ("1970-01-01T00:00:00Z", "unknown"),
        ("1969-12-31T23:59:59Z", "1969-12-31T23:59:59Z"),
        ("2026-11-20T10:00:00", None),
        ("2026-11-20", None),
        ("2026-11-20T24:00:01Z", None),
        ("2026-11-20T23:59:60Z", None),
        ("2026-02-29T10:00:00Z", None),
        ("2026-11-20T10:00:00+25:00", None),
        ("20261120", None),
        ("10:00", None),
        ("soon", None),
        ("２０２６-11-20T10:00:00Z", None),
    ],
)
def test_iso_8601_in_the_forms_that_programs_write(text: str, time: str | None) -> None:
    assert said(text) == time


@pytest.mark.parametrize("seconds", [-62135596800, 253402214400, 253402300799])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_epoch_forms_of_days_that_mean_never_are_unknown(seconds: int, unit: str) -> None:
    number = seconds * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    found = TimeRule(unit=unit).read(str(number))  # type: ignore[arg-type]
    assert (found.micros, found.reason, found.is_suspect) == (None, None, False)
    if unit in ("s", "ms", "us"):
        typed = read_typed_times(pa.array([number], pa.timestamp(unit, "UTC")), ISO)
        assert (typed.micros.to_pylist(), typed.refused, typed.suspects) == ([None], {}, {})


@pytest.mark.parametrize(
    ("text", "unit", "micros"),
    [
        ("1.5", "s", 1_500_000),
        ("2.0000001", "s", 2_000_001),
        ("1e3", "ms", 1_000_000),
        ("1", "ns", 1),
        ("1001", "ns", 2),
        ("+7", "us", 7),
        ("1." + "0" * 40 + "1", "us", 2),
        (".5", "s", 500_000),
    ],
)
def test_numbers_are_exact_and_rounded_later(text: str, unit: str, micros: int) -> None:
    assert TimeRule(unit=unit).read(text).micros == micros  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1_000", "nan", "0x10", "１", "9" * 30, "1e999"])
def test_what_is_no_number_is_refused(text: str) -> None:
    assert TimeRule(unit="s").read(text).reason


@pytest.mark.parametrize(
    ("text", "zone", "time"),
    [
        ("2026-11-20 10:00:00,123", "UTC", "2026-11-20T10:00:00.123000Z"),
        ("2026-11-20", "Europe/Berlin", "2026-11-19T23:00:00Z"),
        ("2026-07-01T10:00", "Europe/Berlin", "2026-07-01T08:00:00Z"),
        ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T01:30:00Z"),
        ("2026-11-20T10:00:00Z", "Europe/Berlin", "2026-11-20T10:00:00Z"),
        ("2026-11-20T10:00:00", "+02:00", "2026-11-20T08:00:00Z"),
    ],
)
def test_a_zone_that_is_given_is_that_of_times_without_one(text: str, zone: str, time: str) -> None:
    assert said(text, TimeRule(zone=zone)) == time
    assert said(text) in (None, time)


@pytest.mark.parametrize(
    ("text", "form", "zone", "time"),
    [
        ("20.11.2026 10:00", "%d.%m.%Y %H:%M", "Europe/Berlin", "2026-11-20T09:00:00Z"),
        ("20/Nov/2026:10:00:00 +0100", "%d/%b/%Y:%H:%M:%S %z", None, "2026-11-20T09:00:00Z"),
        ("20.11.2026 10:00", "%d.%m.%Y %H:%M", None, None),
        ("2026-11-20T10:00:00Z", "%d.%m.%Y", "UTC", None),
        ("01.01.0001", "%d.%m.%Y", "UTC", "unknown"),
    ],
)
def test_a_format_is_that_of_strptime(text: str, form: str, zone: str | None, time: str | None) -> None:
    assert said(text, TimeRule(form=form, zone=zone)) == time


def test_settings_that_cannot_be_meant_are_refused() -> None:
    assert check_format("%d.%m.%Y", "iso", "--time-format") == "%d.%m.%Y"
    for form, unit in (("%H:%M", "iso"), ("%Q", "iso"), ("%d.%m.%Y", "ms"), ("%d.%m", "iso"), ("", "iso")):
        with raises("InvalidSetting", match="--time-format"):
            check_format(form, unit, "--time-format")
    assert [check_zone(name) for name in (None, "UTC", "Europe/Berlin", "-03:30")] == [None, "UTC", "Europe/Berlin", "-03:30"]
    for name in ("Nowhere", "../etc/passwd", "+99:00", ""):
        with raises("InvalidSetting", match="--time-zone"):
            check_zone(name)


TEXTS = st.one_of(
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ("", " ", "0", "+5", "-1", "2026-02-31T00:00:00Z", "2026-02-01T00:00:00.123456-11:30", "0001-01-01T00:00:00Z", "2026-11-20")
    ),
)


@settings(deadline=None)
@given(texts=st.lists(st.none() | TEXTS, max_size=4), unit=st.sampled_from(UNITS), zone=st.sampled_from((None, "UTC")))
def test_a_column_reads_as_its_texts_do(texts: list[str | None], unit: str, zone: str | None) -> None:
    rule = TimeRule(unit=unit, zone=zone)  # type: ignore[arg-type]
    found = read_times(pa.array(texts, pa.string()), rule)
    readings = [None if text is None else rule.read(text) for text in texts]
    assert found.micros.to_pylist() == [one and one.micros for one in readings]
    assert set(found.refused) == {row for row, one in enumerate(readings) if one and one.reason}
    assert set(found.suspects) == {row for row, one in enumerate(readings) if one and one.is_suspect}
    assert found.zoneless == {row for row, one in enumerate(readings) if one and one.lacks_zone}
