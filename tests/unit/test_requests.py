"""What a person may ask for."""

from __future__ import annotations

import pytest

from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey, RemoveMessages
from tests.errors import raises
from tests.worlds import Lake, make_lake


def test_an_offset_that_no_log_has_is_refused() -> None:
    """Beyond int64 the files could not even be asked for it."""
    RemoveMessages(positions=((0, INT64_MAX),))
    PurgeKey(key=b"k", before=INT64_MAX)
    with raises("InvalidRequest"):
        RemoveMessages(positions=((0, INT64_MAX + 1),))
    with raises("InvalidRequest"):
        PurgeKey(key=b"k", before=INT64_MAX + 1)


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    lake = make_lake(capsys, max_removed_fraction=1.0)
    lake.append(lake.topic("orders"), 3, 2, 1)
    return lake


WORD = ("--by", "ann", "--why", "why")


@pytest.mark.parametrize(
    ("positions", "error", "said"),
    [
        (("0:3",), "OffsetNotGiven", "next offset is 3"),
        (("0:0", "0:99"), "OffsetNotGiven", "offset 99"),
        (("1:0",), "UnknownPartition", "Its partitions: 0"),
        (("0:0", "9999999999:0"), "UnknownPartition", "9999999999"),
    ],
)
def test_a_message_that_was_never_there_is_a_slip_and_nothing_goes(lake: Lake, positions: tuple[str, ...], error: str, said: str) -> None:
    refused = lake.say("message", "delete", "orders", *positions, *WORD)
    assert (refused.status, refused.err.split(":")[0], said in refused.err) == (2, error, True)
    assert lake.stored(TopicName.parse("orders")) == [0, 1, 2]
    assert lake.say("ledger", "list", "-o", "json").document == []


def test_what_went_before_may_be_named_again_and_is_told(lake: Lake) -> None:
    assert lake.say("message", "delete", "orders", "0:0", *WORD).status == 0
    again = lake.say("message", "delete", "orders", "0:0", *WORD)
    assert (again.status, "none of the named messages exists any more" in again.out) == (0, True)
    both = lake.say("message", "delete", "orders", "0:0", "0:1", *WORD)
    assert (both.status, "1 of the 2 named messages no longer exist" in both.out) == (0, True)
    assert lake.stored(TopicName.parse("orders")) == [2]


def test_a_key_that_nobody_has_is_told(lake: Lake) -> None:
    told = lake.say("key", "purge", "orders", "Key", *WORD)
    assert (told.status, "no message of this key matches" in told.out) == (0, True)
    assert lake.say("key", "purge", "orders", "key", *WORD).status == 0
    assert lake.stored(TopicName.parse("orders")) == []
