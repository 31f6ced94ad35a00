"""Settings: limits, origins, and the page that is written from them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.config import server_settings_file
from message_lifecycle.app.settings_reference import reference
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import format_duration, parse_duration
from message_lifecycle.model.setting_list import SETTINGS, Value
from message_lifecycle.model.settings import (
    BY_NAME,
    Policy,
    ResolvedSetting,
    changed_setting_text,
    parse_topic_settings,
    property_text,
    resolve,
    server_settings,
    topic_changes,
    topic_settings,
)
from message_lifecycle.model.topic import new_topic_settings, values_stored_at_creation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, True, "60", None, float("nan"), 2**32])
def test_an_expiry_is_a_whole_number_of_seconds_in_u32(value: object) -> None:  # NUM-1
    with pytest.raises(InvalidSetting) as error:
        topic_settings({"message_expiry": value}, where="topic x")
    assert "topic x" in str(error.value)
    assert "message_expiry" in str(error.value)
    assert "a whole number of seconds from 0 to 4294967295" in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["-1", "1.0", "1e3", "true", "", "60 s", "60S", "1h 30m", "30m1h", "1w", "1.5h", "1.0000001s", "-1d", "d", "NaN", "4294967296", '"60"'],
)
def test_the_texts_of_the_command_line_are_held_to_the_same(text: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_topic_settings({"message_expiry": text}, where="--set")


@pytest.mark.parametrize("place", ["/archive", "/a folder/#1", "s3://bucket", "s3://my.bucket-1/a/b=c/.d", "gs://my_bucket/a"])
def test_an_archive_is_a_folder_of_a_disk_or_of_a_store(place: str) -> None:  # RET-7
    assert topic_settings({"archive_to": place}, where="a topic") == {"archive_to": place}


@pytest.mark.parametrize(
    "place",
    ["", "a", "./a", "file:///a", "hdfs://host/a", "abfss://box@account.dfs.core.windows.net/a", "s3a://bucket/a", "S3://bucket/a", "s3:/bucket",
     "s3://", "s3:///a", "s3://bucket/", "s3://bucket/a/", "s3://bucket//a", "s3://bucket/../a", "s3://bucket/a/.", "s3://bucket/a?b",
     "s3://bucket/a#b", "s3://bucket/a b", "s3://bucket/a\n", "s3://key:secret@bucket/a", "/a\0", 1],
)  # fmt: skip
def test_a_place_that_no_archive_can_have_is_refused_when_it_is_set(place: object) -> None:
    with pytest.raises(InvalidSetting, match="s3://BUCKET/FOLDER or gs://BUCKET/FOLDER") as refused:
        topic_settings({"archive_to": place}, where="a topic")
    assert refused.value.key == "archive_to"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, True, "0.5"])
def test_a_fraction_is_a_number_from_0_to_1(value: object) -> None:
    with pytest.raises(InvalidSetting):
        topic_settings({"max_removed_fraction": value}, where="topic x")


def test_unknown_names_and_sections_are_errors_that_list_what_is_allowed() -> None:
    with pytest.raises(InvalidSetting, match="message_expiry"):
        topic_settings({"mesage_expiry": 1}, where="topic x")
    with pytest.raises(InvalidSetting, match="interval"):
        server_settings({"message_cleaner": {"intervall": 1}}, where="lifecycle.toml")
    with pytest.raises(InvalidSetting, match=r"system\.segment"):
        server_settings({"message_cleanr": {"interval": 1}}, where="lifecycle.toml")
    with pytest.raises(InvalidSetting, match="system"):
        server_settings({"system": 5}, where="lifecycle.toml")
    with pytest.raises(InvalidSetting):
        server_settings({"interval": 5}, where="lifecycle.toml")
    with pytest.raises(InvalidSetting):
        topic_settings({"interval": 5}, where="a server setting is not a topic's")


def test_topic_wins_over_server_wins_over_built_in() -> None:
    server = server_settings({"system": {"segment": {"message_expiry": 7}}}, where="t")
    origins = {name: (r.value, r.origin) for name, r in resolve(topic={}, server=server).settings}
    assert origins["message_expiry"] == (7, "server file")
    assert origins["interval"] == (60, "built in")
    own = {name: (r.value, r.origin) for name, r in resolve(topic={"message_expiry": 0}, server=server).settings}
    assert own["message_expiry"] == (0, "topic"), "an explicit 0 is never, not the server's default"


def test_what_a_topic_gets_when_it_is_made_is_not_given_to_one_that_is_there() -> None:  # EXP-3
    server = server_settings({"system": {"segment": {"max_seconds": 60}}}, where="t")
    assert dict(resolve(topic={}, server=server).settings)["segment_max_seconds"] == ResolvedSetting(value=0, origin="built in")
    assert values_stored_at_creation(server, {"message_expiry": 5}) == {"segment_max_seconds": 60}
    assert values_stored_at_creation(server, {"segment_max_seconds": 0}) == values_stored_at_creation(server, {"fold": "yjs"}) == {}


def test_the_hash_is_of_values_not_of_origins() -> None:
    assert resolve(topic={"message_expiry": 5}, server={}).hash == resolve(topic={}, server={"message_expiry": 5}).hash
    assert resolve(topic={"message_expiry": 5}, server={}).hash != resolve(topic={"message_expiry": 6}, server={}).hash


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_shorter_is_tighter_and_zero_is_for_ever(before: int, after: int) -> None:  # DEL-3
    tightened = resolve(topic={"message_expiry": after}, server={}).tightened_since({"message_expiry": before})
    assert bool(tightened) is ((after or 2**40) < (before or 2**40))


def test_turning_the_cleaner_on_is_tightening() -> None:
    assert resolve(topic={}, server={"enabled": True}).tightened_since({"enabled": False}) == ("enabled",)


def test_property_texts_read_back() -> None:
    of_kind = {
        "name": "shop/orders",
        "int": 7,
        "float": 0.000001,
        "period": "1 month",
        "object": '{"text": "Text"}',
        "text": "yjs",
        "folder": "/archive",
    }
    for setting in SETTINGS:
        value = setting.default if setting.default is not None else of_kind[setting.kind]
        assert setting.parse(property_text(value), where="t") == value


def test_a_plan_gives_its_policy_back() -> None:
    policy = resolve(topic={"message_expiry": 5}, server={"interval": 9})
    assert Policy.from_values(sorted(policy.values.items())).hash == policy.hash


def test_changes_check_the_names_of_what_they_unset() -> None:
    assert topic_changes({"message_expiry": None}, where="t") == {"message_expiry": None}
    with pytest.raises(InvalidSetting):
        topic_changes({"mesage_expiry": None}, where="t")


SHIPPED_APART = {"interval": 600, "segment_max_seconds": 86_400}
"""What the shipped file sets otherwise than what is built in, which is what the models have."""


def test_the_shipped_file_is_valid_and_says_the_built_in_values_but_for_these() -> None:
    path = ROOT / "include" / "lifecycle.toml"
    assert server_settings_file(path)
    for name, value in server_settings(tomllib.loads(path.read_text()), where="lifecycle.toml").items():
        assert value == SHIPPED_APART.get(name, BY_NAME[name].default), name
        # What topics get when they are made may differ from what those have that are there.
        assert (name == "segment_max_seconds") is BY_NAME[name].when_made


def test_a_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[message_cleaner\n")
    with pytest.raises(InvalidSetting, match=r"broken\.toml"):
        server_settings_file(broken)
    with pytest.raises(InvalidSetting, match="an existing TOML file"):
        server_settings_file(tmp_path / "missing.toml")


def test_every_setting_says_what_it_does_and_why_its_default_is_what_it_is() -> None:
    assert [setting.name for setting in SETTINGS if not setting.help.strip() or not setting.reason.strip()] == []
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


ASKING: dict[str, tuple[Value | None, ...]] = {
    "message_expiry": (0, 100, 10),
    "enabled": (False, True),
    "consumer_expiry": (100, 10),
    "allow_msg_ttl": (False, True),
    "ttl_overrides_age": (True, False),
    "max_age_seconds": (None, 10.0, 0.5, 0.0),
    "max_records": (None, 100, 10),
    "max_total_bytes": (None, 100, 10),
    "min_keep": (1, 0),
    "retention_scope": ("key", "partition", "topic"),
    "on_remove": ("archive", "delete"),
    "quarantine_max_age": (100, 10),
    "cleanup_policy": ("delete", "compact"),
    "max_compaction_lag": (None, 100, 10),
    "retain_null_key": (True, False),
    "empty_is_value": (True, False),
    "delete_retention": (10.0, 0.5, 0.0),
    "snapshot_with_purging_changes": (False, True),
    "client_deactivate_after": (100, 10),
    "changes_max_age": ("permanent", "1 year", "2 months", "1 week", 10, None),
    "changes_keep_last": (100, 10, None),
    "snapshots_keep": (3, 1),
}
"""Settings that may make more go, each with values of which every one takes more than the one before: such a change asks a person (DEL-3)."""


def test_which_settings_ask_when_they_are_tightened() -> None:
    assert {setting.name for setting in SETTINGS if setting.tightness is not None} == ASKING.keys()


@pytest.mark.parametrize("name", ASKING)
def test_the_tighter_value_is_the_one_that_takes_more(name: str) -> None:
    tightness = BY_NAME[name].tightness
    assert tightness is not None
    found = [tightness(value) for value in ASKING[name]]
    assert found == sorted(set(found))


def test_the_page_of_settings_is_written_from_the_settings() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == reference()


def test_a_setting_that_was_not_known_when_settings_were_accepted_did_what_its_default_does() -> None:  # DEL-3
    accepted = {name: value for name, value in resolve(topic={}, server={}).values.items() if name != "max_age_seconds"}
    assert resolve(topic={"max_age_seconds": 1.0}, server={}).tightened_since(accepted) == ("max_age_seconds",)
    assert resolve(topic={}, server={}).tightened_since(accepted) == ()


@pytest.mark.parametrize("text", ["0.0000001", "0.0000004", "1.0000005", "1e-7"])
def test_an_age_finer_than_a_microsecond_is_refused_not_rounded(text: str) -> None:  # NUM-1
    """Rounded down it would be another limit, and the smallest of them would take the whole log."""
    with pytest.raises(InvalidSetting, match="at most 6 decimals"):
        parse_topic_settings({"max_age_seconds": text}, where="--set")


@pytest.mark.parametrize(("text", "us"), [("0.000001", 1), ("0.1", 100_000), ("123456789.123457", 123_456_789_123_457), ("0", 0)])
def test_an_age_of_whole_microseconds_is_exact(text: str, us: int) -> None:
    assert resolve(topic=parse_topic_settings({"max_age_seconds": text}, where="--set"), server={}).max_age_us == us


def test_an_object_is_taken_as_itself_and_as_its_text() -> None:  # SNP-10
    given = {"text": "Text", "list": "Array"}
    taken = topic_settings({"fold": "yjs", "yjs_roots": given}, where="test")["yjs_roots"]
    assert taken == '{"list":"Array","text":"Text"}'
    assert topic_settings({"yjs_roots": taken}, where="test")["yjs_roots"] == taken


@pytest.mark.parametrize("given", [{"text": 1}, {1: "Text"}, ["text"], '{"text": 1}', "{"])
def test_what_is_no_object_of_texts_is_refused(given: object) -> None:
    with pytest.raises(InvalidSetting, match="a JSON object of texts"):
        topic_settings({"fold": "yjs", "yjs_roots": given}, where="test")


@pytest.mark.parametrize("roots", [None, {}, "{}"])
def test_a_yjs_document_has_a_root(roots: object) -> None:  # SNP-6, SNP-10
    given = {"fold": "yjs"} if roots is None else {"fold": "yjs", "yjs_roots": roots}
    with pytest.raises(InvalidSetting, match="one at least"):
        new_topic_settings(given, where="test")
    assert new_topic_settings({"fold": "yjs", "yjs_roots": {"text": "Text"}}, where="test")["fold"] == "yjs"
    with pytest.raises(InvalidSetting, match="unset for any other fold"):
        new_topic_settings({"fold": "last_write", "yjs_roots": roots or "{}"}, where="test")


def test_settings_have_changed_where_their_value_is_another_whoever_knew_them() -> None:
    now = resolve(topic={"max_records": 5, "retention_scope": "key"}, server={})
    assert now.changed_since(now.values) == ()
    assert now.changed_since({**now.values, "max_records": 6, "enabled": False}) == ("enabled", "max_records")
    # Before these two were known they did what their defaults do; one of the others, which are as they were, need not be told.
    assert now.changed_since({"message_expiry": 0}) == ("max_records", "retention_scope")
    assert resolve(topic={}, server={}).changed_since({}) == ()
    assert now.changed_since({**now.values, "forgotten": 1}) == ("forgotten",), "what is known no more may have meant anything"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("30s", 30), ("90m", 5_400), ("12h", 43_200), ("20d", 1_728_000), ("1d12h", 129_600), ("1d1h1m1s", 90_061), ("007m", 420)],
)
def test_durations_are_taken_as_people_write_them(text: str, seconds: int) -> None:
    taken = parse_topic_settings({"message_expiry": text, "max_age_seconds": text}, where="t")
    assert taken == {"message_expiry": seconds, "max_age_seconds": float(seconds)}
    assert topic_settings({"message_expiry": text}, where="t") == {"message_expiry": seconds}
    assert server_settings({"system": {"segment": {"message_expiry": text}}}, where="lifecycle.toml") == {"message_expiry": seconds}
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 2**53))
def test_a_duration_is_written_as_it_is_read(micros: int) -> None:
    assert parse_duration(format_duration(micros / 1_000_000)) == pytest.approx(micros / 1_000_000, abs=5e-7)


def test_decimals_of_a_duration_are_for_settings_that_have_them() -> None:
    assert parse_topic_settings({"max_age_seconds": "1m0.000001s"}, where="t") == {"max_age_seconds": 60.000001}
    with pytest.raises(InvalidSetting, match="such as 20d"):
        parse_topic_settings({"message_expiry": "1.5s"}, where="t")


def test_an_age_of_zero_is_called_never() -> None:
    assert (
        changed_setting_text("message_expiry", {}, {"message_expiry": 86_400}) == "message_expiry from never (0 seconds) to 1d (86,400 s)"
    )
    assert changed_setting_text("min_keep", {"min_keep": 1}, {"min_keep": 0}) == "min_keep from 1 message to 0 messages"
