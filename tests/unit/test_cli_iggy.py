"""`lifecycle topic create --from-iggy`: a recorded command makes the topic that it describes (EXP-1)."""

from __future__ import annotations

import pytest

from message_lifecycle.model.names import TopicName
from message_lifecycle.wire.iggy import encode_create_topic
from tests import iggy as layout
from tests.worlds import Lake, make_lake

# stream: number 3; topic_id 7; partitions_count 2; message_expiry 604,800; name "orders"
RECORDED = "0104 03000000 07000000 02000000 803a0900 06 6f7264657273"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    """A server whose topics expire after an hour unless they say something else."""
    return make_lake(capsys, message_expiry=3_600)


def expiry(document: dict[str, list[dict[str, object]]]) -> tuple[object, object]:
    found = next(entry for entry in document["settings"] if entry["setting"] == "message_expiry")
    return found["value"], found["origin"]


def test_a_recorded_command_makes_its_topic(lake: Lake) -> None:
    made = lake.say("topic", "create", "--from-iggy", RECORDED, "-o", "json")
    assert made.status == 0
    assert made.document["topic"] == "3/orders"
    assert [p["partition"] for p in made.document["partitions"]] == [0, 1]
    assert expiry(made.document) == (604_800, "topic")
    described = lake.say("topic", "describe", "3/orders", "-o", "json").document
    assert made.document.keys() & described.keys() >= {"partitions", "settings"}
    assert all(made.document[key] == described[key] for key in made.document.keys() & described.keys())
    assert lake.services.topics.describe(TopicName(stream="3", topic="orders")).settings == {"message_expiry": 604_800}


def test_it_is_told_as_text_too(lake: Lake) -> None:
    made = lake.say("topic", "create", "--from-iggy", RECORDED.replace(" ", "").upper())
    assert (made.status, made.out.splitlines()[0]) == (0, "3/orders")
    rows = [line.split() for line in made.out.splitlines()]
    assert ["message_expiry", "1h", "7d", "topic"] in rows, "from what the server says to what the command says"


def test_a_command_without_expiry_makes_a_topic_that_never_expires(lake: Lake) -> None:
    data = encode_create_topic("shop", 1, 1, None, "orders")
    assert expiry(lake.say("topic", "create", "--from-iggy", data.hex(), "-o", "json").document) == (0, "topic")
    lake.append(TopicName(stream="shop", topic="orders"), 30, 2)
    assert lake.say("run", "shop/orders", "-o", "json").status == 0
    assert lake.stored(TopicName(stream="shop", topic="orders")) == [0, 1]


def test_names_are_those_that_the_server_would_give(lake: Lake) -> None:
    data = layout.create_topic(" My Shop", 1, 1, 0, "New  Orders ")
    assert lake.say("topic", "create", "--from-iggy", data.hex(), "-o", "json").document["topic"] == "my.shop/new.orders"


def test_other_settings_may_stand_beside_it(lake: Lake) -> None:
    made = lake.say("topic", "create", "--from-iggy", RECORDED, "--set", "consumer_expiry=60", "-o", "json")
    assert made.status == 0
    settings = lake.services.topics.describe(TopicName(stream="3", topic="orders")).settings
    assert settings == {"message_expiry": 604_800, "consumer_expiry": 60}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("3/orders",), ["TOPIC"]),
        (("--partitions", "2"), ["--partitions"]),
        (("--set", "message_expiry=604800"), ["--set", "message_expiry"]),
        (("3/orders", "--partitions", "2", "--set", "message_expiry=0"), ["TOPIC", "--partitions", "--set", "message_expiry"]),
    ],
)
def test_what_the_command_says_cannot_be_said_beside_it(lake: Lake, arguments: tuple[str, ...], named: list[str]) -> None:
    for output in ("text", "json"):
        refused = lake.say("topic", "create", *arguments, "--from-iggy", RECORDED, "--output", output)
        assert refused.status == 2
        said = refused.document["message"] if output == "json" else " ".join(refused.err.split())
        assert all(name in said for name in named), said
    assert lake.services.topics.list() == []


def test_a_name_or_a_command_must_be_given(lake: Lake) -> None:
    refused = lake.say("topic", "create", "-o", "json")
    assert (refused.status, refused.document["error"]) == (2, "UsageError")
    assert "--from-iggy" in refused.document["message"]
    assert lake.services.topics.list() == []


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("01 0", "InvalidHex", "3 digits"),
        ("0x0104", "InvalidHex", "'x' at position 1"),
        ("٠١", "InvalidHex", "position 0"),
        ("g" * 100_000, "InvalidHex", "'" + "g" * 40 + "...'"),
        ("", "WireError", "identifier kind at byte 0"),
        (RECORDED[:-2], "WireError", "name at byte 19: found 5 bytes and the end. Allowed: 6 bytes"),
        (RECORDED + "00", "WireError", "end at byte 25: found 1 more bytes"),
        (layout.create_topic(1, 1, 100_001, 0, "t").hex(), "WireError", "partitions_count at byte 10: found 100001"),
        (layout.create_topic(1, 1, 1, 0, "a/b").hex(), "WireError", "name at byte 19: found 'a/b'"),
        (layout.create_topic(1, 1, 0, 0, "t").hex(), "InvalidSetting", "partitions_count = 0"),
    ],
    ids=["odd", "prefix", "other digits", "long", "nothing", "short", "longer", "partitions", "name", "no partition"],
)
def test_a_wrong_command_is_told_and_makes_nothing(lake: Lake, text: str, error: str, said: str) -> None:
    refused = lake.say("topic", "create", "--from-iggy", text)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith(f"{error}: ")
    assert said in refused.err
    assert "Allowed" in refused.err
    assert len(refused.err) < 600
    told = lake.say("topic", "create", "--from-iggy", text, "-o", "json")
    assert (told.status, told.document["error"]) == (2, error)
    assert lake.services.topics.list() == []


def test_a_recorded_command_makes_its_topic_once(lake: Lake) -> None:
    lake.say("topic", "create", "--from-iggy", RECORDED)
    again = lake.say("topic", "create", "--from-iggy", RECORDED)
    assert (again.status, again.err.split(":")[0]) == (3, "TopicExists")
