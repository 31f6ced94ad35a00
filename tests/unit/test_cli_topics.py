"""`lifecycle topic` and `lifecycle consumer`."""

from __future__ import annotations

import pytest

from message_lifecycle.model.facts import LogWitness
from message_lifecycle.model.instants import parse_duration
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import BY_NAME
from message_lifecycle.stores.memory import MemoryStore
from tests.worlds import HOUR, NOW, Lake, make_lake

ORDERS = TopicName(stream="shop", topic="orders")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def setting(document: dict[str, list[dict[str, object]]], name: str) -> dict[str, object]:
    return next(entry for entry in document["settings"] if entry["setting"] == name)


def test_create_makes_the_topic_and_describe_tells_every_setting_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, max_overdue=60)
    made = lake.say("topic", "create", "shop/orders", "--partitions", "2", "--set", "message_expiry=3600", "-o", "json")
    assert made.status == 0
    described = lake.say("topic", "describe", "shop/orders", "-o", "json").document
    assert made.document.keys() - described.keys() == {"changed", "means"}
    assert all(made.document[key] == described[key] for key in made.document.keys() & described.keys())
    assert described["role"] == "local"
    assert [(p["partition"], p["end_offset"]) for p in described["partitions"]] == [(0, 0), (1, 0)]
    assert (setting(described, "message_expiry")["value"], setting(described, "message_expiry")["origin"]) == (3600, "topic")
    assert (setting(described, "max_overdue")["value"], setting(described, "max_overdue")["origin"]) == (60, "server file")
    assert setting(described, "approval_ttl")["origin"] == "built in"


def test_every_duration_is_written_as_people_write_it(lake: Lake) -> None:  # NUM-1
    made = lake.say("topic", "create", "shop/orders", "--set", "message_expiry=20d", "--set", "max_age_seconds=90.5")
    assert [line.split() for line in made.out.splitlines() if "from" not in line][1:3] == [
        ["message_expiry", "0s", "20d", "topic"],
        ["max_age_seconds", "unset", "1m30.5s", "topic"],
    ]
    words = [line.split() for line in lake.say("topic", "describe", "shop/orders", "--all").out.splitlines()]
    shown = {line[0]: line[1] for line in words if len(line) > 2 and line[0] in BY_NAME and BY_NAME[line[0]].unit == "seconds"}
    read = {
        one["setting"]: one["value"]
        for one in lake.say("topic", "describe", "shop/orders", "-o", "json").document["settings"]
        if one["unit"] == "seconds"
    }
    assert len(read) > 10 and {name: parse_duration(text) for name, text in shown.items()} == read


def test_describe_tells_end_offsets_and_what_is_stored(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2)
    lake.append(topic, 3, 2, 1, partition=1)
    described = lake.say("topic", "describe", "shop/orders", "-o", "json").document
    assert [(p["end_offset"], p["messages"], p["segments"]) for p in described["partitions"]] == [(0, 0, 0), (3, 3, 3)]
    text = lake.say("topic", "describe", "shop/orders", "--all").out
    assert "2026-11-21T09:00:00Z" in text
    assert "None" not in text
    assert next(line.split()[1] for line in text.splitlines() if line.startswith("max_age_seconds")) == "unset"
    assert "message_expiry" in text


def test_describe_leaves_out_settings_with_their_built_in_values(lake: Lake) -> None:
    lake.topic("shop/orders", message_expiry=60)
    settings = lake.say("topic", "describe", "shop/orders", "-o", "json").document["settings"]
    built_in = {one["setting"] for one in settings if one["origin"] == "built in"}
    shown, whole = lake.say("topic", "describe", "shop/orders").out, lake.say("topic", "describe", "shop/orders", "--all").out
    names = [{line.split()[0] for line in text.splitlines() if line.split()[2:]} & BY_NAME.keys() for text in (shown, whole)]
    every = {one["setting"] for one in settings}
    assert names == [every - built_in, every]
    assert f"{len(built_in)} more settings have their built-in values: lifecycle topic describe shop/orders --all" in " ".join(
        shown.split()
    )
    assert "more settings" not in whole


def test_names_are_normalised_and_listed(lake: Lake) -> None:
    assert lake.say("topic", "create", "  My Topic ").status == 0
    lake.topic("shop/orders")
    assert lake.say("topic", "list").out.splitlines() == ["default/my.topic", "shop/orders"]
    assert lake.say("topic", "list", "--stream", "Shop", "-o", "json").document == ["shop/orders"]


def test_an_empty_lake_says_how_to_begin(lake: Lake) -> None:
    assert "lifecycle topic create" in lake.say("topic", "list").out
    assert lake.say("topic", "list", "-o", "json").document == []


def test_a_name_of_255_bytes_is_taken_and_one_of_256_is_not(lake: Lake) -> None:
    assert lake.say("topic", "create", "a" * 255).status == 0
    refused = lake.say("topic", "create", "a" * 256)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("InvalidName: ")
    assert lake.say("topic", "create", "ä" * 128).status == 2
    assert lake.services.topics.list() == [TopicName(stream="default", topic="a" * 255)]


@pytest.mark.parametrize("name", [".", "..", "", " ", "a/b/c", "a*", "/a", "shop/.."])
def test_an_invalid_name_is_refused_and_nothing_is_made(lake: Lake, name: str) -> None:
    refused = lake.say("topic", "create", name)
    assert refused.status == 2
    assert refused.err.startswith("InvalidName: ")
    assert "Allowed" in refused.err
    assert lake.services.topics.list() == []


@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "NaN", "true", "1e3", "inf", "4294967296", "", "1 h", "0x10", "9" * 5000])
def test_a_wrong_expiry_is_refused_and_nothing_is_made(lake: Lake, value: str) -> None:
    refused = lake.say("topic", "create", "orders", "--set", f"message_expiry={value}")
    assert refused.status == 2
    assert refused.err.startswith("InvalidSetting: --set: message_expiry = ")
    assert "Allowed: a whole number of seconds from 0 to 4294967295" in refused.err
    assert lake.services.topics.list() == []


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.1", "inf", "-Infinity", "true", "half"])
def test_a_wrong_fraction_is_refused(lake: Lake, value: str) -> None:
    refused = lake.say("topic", "create", "orders", "--set", f"max_removed_fraction={value}")
    assert (refused.status, refused.err.split(":")[0]) == (2, "InvalidSetting")
    assert lake.services.topics.list() == []


@pytest.mark.parametrize("name", ["expiry", "Message_Expiry", "enabled", "interval"])
def test_an_unknown_setting_is_refused_and_the_known_ones_are_named(lake: Lake, name: str) -> None:
    lake.topic("shop/orders", message_expiry=5)
    refused = lake.say("topic", "alter", "shop/orders", "--set", "message_expiry=60", "--set", f"{name}=1")
    assert refused.status == 2
    assert f"InvalidSetting: --set: {name} = '1' is not valid" in refused.err
    assert "message_expiry, " in refused.err
    assert lake.services.topics.describe(ORDERS).settings == {"message_expiry": 5}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "message_expiry"),
        ("--set", "message_expiry=1", "--set", "message_expiry=2"),
        ("--set", "message_expiry=1", "--unset", "message_expiry"),
        (),
        ("--accept", "because"),
        ("--by", "ada"),
        ("--accept", "", "--by", "ada"),
    ],
)
def test_alter_refuses_what_cannot_be_meant(lake: Lake, arguments: tuple[str, ...]) -> None:
    lake.topic("shop/orders", message_expiry=5)
    refused = lake.say("topic", "alter", "shop/orders", *arguments)
    assert (refused.status, refused.out) == (2, "")
    assert lake.services.topics.describe(ORDERS).settings == {"message_expiry": 5}


def test_unset_gives_the_word_back_to_the_server(lake: Lake) -> None:
    lake.topic("shop/orders", message_expiry=5)
    altered = lake.say("topic", "alter", "shop/orders", "--unset", "message_expiry", "-o", "json").document
    assert (setting(altered, "message_expiry")["value"], setting(altered, "message_expiry")["origin"]) == (0, "built in")


def test_a_tightening_asks_for_a_word_and_accept_gives_it(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=86_400)
    lake.append(topic, 30, 2, 1, 0.5)
    asked = lake.say("topic", "alter", "shop/orders", "--set", "message_expiry=43200", "-o", "json").document
    assert asked["asks"] == ["message_expiry"]
    assert lake.say("run", "shop/orders").status == 5
    assert lake.stored(topic) == [0, 1, 2, 3]
    lake.topic("shop/other", message_expiry=86_400)
    other = TopicName(stream="shop", topic="other")
    lake.append(other, 30, 2, 1, 0.5)
    word = ("--accept", "agreed with finance", "--by", "ada")
    given = lake.say("topic", "alter", "shop/other", "--set", "message_expiry=43200", *word, "-o", "json").document
    assert given["asks"] == []
    assert lake.say("run", "shop/other").status == 0
    assert lake.stored(other) == [1, 2, 3]


def test_a_topic_is_made_once(lake: Lake) -> None:
    lake.topic("shop/orders", message_expiry=5)
    again = lake.say("topic", "create", "shop/orders")
    assert (again.status, again.err.split(":")[0]) == (3, "TopicExists")
    assert lake.services.topics.describe(ORDERS).settings == {"message_expiry": 5}


def test_a_consumer_registers_reads_on_and_is_removed(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2, consumer_expiry=7_200)
    lake.append(topic, 3, 2, 1)
    committed = lake.say("consumer", "commit", "shop/orders", "Billing", "0:1", "-o", "json").document
    assert committed == [
        {
            "consumer": "billing",
            "replica": False,
            "group": False,
            "pins": True,
            "falls_silent_at": "2026-11-21T14:00:00Z",
            "consumer_expiry": 7200,
            "partitions": [
                {"partition": 0, "offset": 1, "lag": 1, "at": "2026-11-21T12:00:00Z"},
                {"partition": 1, "offset": None, "lag": 0, "at": None},
            ],
        }
    ]
    assert "not processed, until 2026-11-21T14:00:00Z" in lake.say("consumer", "list", "shop/orders").out
    assert lake.say("consumer", "remove", "shop/orders", "billing").status == 0
    assert lake.say("consumer", "list", "shop/orders", "-o", "json").document == []


def test_a_consumer_is_registered_before_it_has_read_anything(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=60)
    empty = lake.say("consumer", "commit", "shop/orders", "billing", "0:-1", "-o", "json").document[0]
    assert empty["partitions"] == [{"partition": 0, "offset": None, "lag": 0, "at": "2026-11-21T12:00:00Z"}]
    lake.append(topic, 3, 2, 1)
    (held,) = lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["held"]
    assert (held["holder"], held["messages"]) == ("consumer", 3)


def test_a_commit_of_an_earlier_topic_is_refused(lake: Lake) -> None:
    topic = lake.topic("shop/orders")
    lake.append(topic, 3, 2, 1)
    uuid = lake.services.topics.describe(topic).uuid
    assert lake.say("consumer", "commit", "shop/orders", "billing", "0:1", "--topic-uuid", uuid).status == 0
    refused = lake.say("consumer", "commit", "shop/orders", "late", "0:1", "--topic-uuid", "an earlier one")
    assert (refused.status, refused.err.split(":")[0]) == (3, "AnotherTopic")
    assert uuid in refused.err
    assert [entry["consumer"] for entry in lake.say("consumer", "list", "shop/orders", "-o", "json").document] == ["billing"]


def test_a_commit_says_which_of_two_topics_of_one_name_was_read(lake: Lake) -> None:
    """A late commit for the deleted topic would release messages of the new one that nobody has read."""
    topic = lake.topic("shop/orders", message_expiry=60)
    lake.append(topic, 3, 2, 1)
    earlier = LogWitness(table_uuid="earlier", kind="", snapshot_id=1, sequence_number=1, offsets={0: 3}, state={})
    lake.services.ledger.record_log_witnesses(topic, [earlier])
    uuid = lake.services.topics.describe(topic).uuid
    assert lake.say("consumer", "commit", "shop/orders", "billing", "0:-1").status == 0, "it has read nothing, so it releases nothing"
    late = lake.say("consumer", "commit", "shop/orders", "billing", "0:2")
    assert (late.status, late.err.split(":")[0]) == (3, "TopicUuidNeeded")
    assert f"--topic-uuid {uuid}" in late.err
    assert lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["removes"]["messages"] == 0
    assert lake.say("consumer", "commit", "shop/orders", "billing", "0:2", "--topic-uuid", uuid).status == 0
    assert lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["removes"]["messages"] == 3


def test_a_consumer_keeps_until_the_very_instant_that_is_shown(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=60, consumer_expiry=7_200)
    lake.append(topic, 3, 2, 0.001)
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    lake.world.set_now(NOW + 2 * HOUR)
    listed = lake.say("consumer", "list", "shop/orders", "-o", "json").document[0]
    assert (listed["falls_silent_at"], listed["pins"]) == ("2026-11-21T14:00:00Z", True)
    assert lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["removes"]["messages"] == 1
    lake.world.set_now(NOW + 2 * HOUR + 1)
    assert lake.say("consumer", "list", "shop/orders", "-o", "json").document[0]["pins"] is False
    assert lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["removes"]["messages"] == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("shop/orders", "c", "0:3"), "InvalidProgress"),
        (("shop/orders", "c", "7:0"), "UnknownPartition"),
        (("shop/orders", "c", "0:-2"), "InvalidPosition"),
        (("shop/orders", "c", "3"), "InvalidPosition"),
        (("shop/orders", "c", "0:1", "--at", "noon"), "InvalidInstant"),
        (("shop/orders", "..", "0:1"), "InvalidName"),
        (("shop/nowhere", "c", "0:1"), "UnknownTopic"),
    ],
)
def test_a_wrong_commit_registers_nobody(lake: Lake, arguments: tuple[str, ...], error: str) -> None:
    topic = lake.topic("shop/orders")
    lake.append(topic, 3, 2, 1)
    refused = lake.say("consumer", "commit", *arguments)
    assert (refused.status, refused.err.split(":")[0]) == (2, error)
    assert lake.services.ledger.consumers(topic) == []


def test_an_unknown_consumer_cannot_be_removed(lake: Lake) -> None:
    lake.topic("shop/orders")
    refused = lake.say("consumer", "remove", "shop/orders", "nobody")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownConsumer")


def test_a_topic_copies_from_another_and_tells_its_role(lake: Lake) -> None:
    origin = lake.topic("shop/orders", partitions=2)
    lake.append(origin, 3, 2)
    made = lake.say("topic", "create", "archive/orders", "--set", "role=mirror", "--set", "origin=shop/orders", "-o", "json").document
    assert (made["role"], made["origin"], made["api_level"], len(made["partitions"])) == ("mirror", "shop/orders", 0, 2)
    listed = lake.say("consumer", "list", "shop/orders", "-o", "json").document[0]
    assert (listed["consumer"], listed["replica"], listed["pins"], listed["falls_silent_at"]) == ("archive/orders", True, True, None)
    assert [(p["offset"], p["lag"]) for p in listed["partitions"]] == [(None, 2), (None, 0)]
    copied = lake.say("topic", "copy", "archive/orders", "-o", "json").document
    figures = {"messages": 2, "copied": {"0": 1}, "erased": 0, "span_seconds": None}
    assert copied == {"topic": "archive/orders", "origin": "shop/orders", **figures}
    assert "0 new messages" in lake.say("topic", "copy", "archive/orders").out
    assert lake.say("consumer", "list", "shop/orders", "-o", "json").document[0]["partitions"][0]["lag"] == 0
    assert "never falls silent" in lake.say("consumer", "list", "shop/orders").out
    shown = lake.say("topic", "describe", "archive/orders").out
    assert "shop/orders" in shown
    lake.say("topic", "alter", "archive/orders", "--set", "allow_msg_ttl=true")
    assert lake.say("topic", "describe", "archive/orders", "-o", "json").document["api_level"] == 1


def test_the_progress_of_a_replica_is_its_own_affair(lake: Lake) -> None:
    lake.append(lake.topic("shop/orders"), 3, 2)
    lake.topic("archive/orders", role="source", origin="shop/orders")
    refused = lake.say("consumer", "commit", "shop/orders", "Archive/Orders", "0:1")
    assert (refused.status, refused.err.split(":")[0]) == (3, "ReplicaProgress")
    assert lake.say("consumer", "commit", "shop/orders", "archive/other", "0:1").err.split(":")[0] == "InvalidName"
    removed = lake.say("consumer", "remove", "shop/orders", "archive/orders", "-o", "json")
    assert (removed.status, removed.document["removed"]) == (0, "archive/orders")
    assert lake.say("consumer", "list", "shop/orders", "-o", "json").document == []


def test_a_local_topic_copies_nothing(lake: Lake) -> None:
    lake.topic("shop/orders")
    refused = lake.say("topic", "copy", "shop/orders")
    assert (refused.status, refused.err.split(":")[0]) == (2, "InvalidSetting")


def test_view_says_where_a_store_has_none(lake: Lake) -> None:
    lake.topic("shop/orders")
    assert lake.say("topic", "view", "shop/orders", "-o", "json").document == {"topic": "shop/orders", "view": None}
    assert "no view" in lake.say("topic", "view", "shop/orders").out
    assert lake.say("topic", "view", "shop/absent").status == 2


def test_a_topic_that_another_program_dropped_is_missed_until_a_person_says_that_it_is_gone(lake: Lake) -> None:
    gone = lake.topic("shop/gone")
    lake.topic("shop/here")
    store = lake.services.topics
    assert isinstance(store, MemoryStore)
    del store.tables[gone]
    assert lake.say("topic", "list").out.splitlines() == ["shop/gone", "shop/here"]
    told = lake.say("status")
    assert (told.status, "TopicMissing" in told.out, "lifecycle topic forget shop/gone" in " ".join(told.out.split())) == (1, True, True)
    due = lake.say("due", "-o", "json")
    assert (due.status, [answer["topic"] for answer in due.document["topics"]]) == (4, ["shop/gone", "shop/here"])
    forgotten = lake.say("topic", "forget", "shop/gone", "--by", "ada", "--why", "dropped in May")
    assert forgotten.status == 0, forgotten.err
    assert lake.say("topic", "list").out.splitlines() == ["shop/here"]
    assert (lake.say("status").status, lake.say("due").status) == (0, 0)
    assert lake.say("topic", "forget", "shop/gone", "--by", "ada", "--why", "again").status == 2
