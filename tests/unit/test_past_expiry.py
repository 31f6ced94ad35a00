"""Messages that are past their expiry and stay with their segment are a figure of its own, the same wherever it is shown (EXP-5, OBL-1)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import pages
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.views.past_expiry import PastExpiry, past_expiry_view
from message_lifecycle.app.views.status import status as status_of
from message_lifecycle.app.views.topics import topic_page
from message_lifecycle.model.errors import CompactedTableMissing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from tests.unit.test_pages_afterwards import shown
from tests.worlds import HOUR, NOW, Lake, make_lake

DAY_S = 86_400
DAY = 24 * HOUR


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def fill(lake: Lake, topic: TopicName, *days_old: float | None) -> None:
    """All in one segment, which still takes messages: a young one first, or the old ones would end it where an expiry is set."""
    lake.world.writer.append(
        topic,
        [NewMessage(append_time=None if age is None else Instant(int(NOW - age * DAY)), key=b"k", value=b"v") for age in days_old],
        policy_of(lake.services, topic),
    )


@pytest.fixture
def fifty(lake: Lake) -> TopicName:
    """Fifty messages of fifty days in one segment; an expiry of ten days, set after they came."""
    topic = lake.topic("shop/fifty")
    fill(lake, topic, *(age - 0.5 for age in range(50, 0, -1)))
    assert lake.say("topic", "alter", "shop/fifty", "--set", f"message_expiry={10 * DAY_S}").status == 0
    return topic


UNTIL = "2026-12-01T00:00:00Z"
TOLD = f"40 messages past expiry, kept by 1 segment until {UNTIL}. To delete single messages, set max_age_seconds"


def test_one_figure_is_shown_everywhere(lake: Lake, fifty: TopicName) -> None:
    figure = {"messages": 40, "segments": 1, "until": UNTIL, "last_until": UNTIL, "never": 0, "text": TOLD}
    (status,) = lake.say("status", "-o", "json").document
    assert status["past_expiry"] == figure
    assert (status["ok"], status["due"]["messages"]) == (True, 0), "what no run could take is not late"
    assert lake.say("topic", "describe", "shop/fifty", "-o", "json").document["past_expiry"] == figure
    page = topic_page(lake.services, fifty)
    assert as_json(page.status.past_expiry) == figure
    for said in (lake.say("status"), lake.say("topic", "describe", "shop/fifty")):
        assert TOLD in " ".join(said.out.split())
    text = shown(pages.topic(base="/lifecycle", page=page))
    assert TOLD.replace("T00:00:00Z", " 00:00:00") in text, "as times stand on pages"
    assert "40 past their expiry, kept by their segment until 2026-12-01 00:00" in text
    overview = shown(pages.overview(base="/lifecycle", status=status_of(lake.services), runs=[]))
    assert "Past expiry 40, kept by their segment until 2026-12-01 00:00" in overview


def test_explain_tells_it_of_a_message_and_its_segment(lake: Lake, fifty: TopicName) -> None:
    explained = lake.say("explain", str(fifty), "0:0", "-o", "json").document
    assert explained["verdict"] == "kept"
    assert explained["why"].startswith("it expired at 2026-10-13T00:00:00Z, but its segment did not. Segment 0 expires at ")
    assert explained["segment"]["past_expiry"] == 40
    young = lake.say("explain", str(fifty), "0:45", "-o", "json").document
    assert "it expired at" not in young["why"]
    assert "40, kept until the segment expires" in lake.say("explain", str(fifty), "0:45").out


def test_a_topic_of_which_none_is_past_its_expiry_says_nothing_of_it(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=10 * DAY_S)
    fill(lake, topic, 9, 5)
    (status,) = lake.say("status", "-o", "json").document
    assert (status["past_expiry"]["messages"], status["past_expiry"]["text"]) == (0, None)
    page = topic_page(lake.services, topic)
    assert "past their expiry" not in shown(pages.topic(base="/lifecycle", page=page))
    lake.topic("shop/letters", fold="last_write")
    assert "past_expiry" not in lake.say("topic", "describe", "shop/letters", "-o", "json").document


def test_several_segments_are_told_by_the_first_and_the_last(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2, message_expiry=10 * DAY_S)
    fill(lake, topic, 5, 30, 20)
    lake.world.writer.seal(topic, 0)
    fill(lake, topic, 1, 12)
    found = figure(lake, topic)
    assert (found.messages, found.segments) == (3, 2)
    assert "kept by 2 segments until 2026-11-26T12:00:00Z to 2026-11-30T12:00:00Z" in str(found.text)


def test_a_time_that_is_unknown_keeps_its_segment_for_ever(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=10 * DAY_S)
    fill(lake, topic, 30, None, 20)
    found = figure(lake, topic)
    assert (found.messages, found.until, found.never) == (2, None, 2)
    assert "with no end (unknown times)" in str(found.text)


def test_what_another_rule_takes_is_not_kept(lake: Lake) -> None:
    aged = lake.topic("shop/aged", message_expiry=10 * DAY_S, max_age_seconds=25.0 * DAY_S)
    fill(lake, aged, 5, 30, 20)
    assert figure(lake, aged).messages == 1
    counted = lake.topic("shop/counted", message_expiry=10 * DAY_S, max_records=3)
    fill(lake, counted, 5, 30, 25, 20, 15, 4)
    # Three of the four that no reader sees go before what is shown.
    (status,) = [entry for entry in lake.say("status", "-o", "json").document if entry["topic"] == "shop/counted"]
    assert (status["due"]["messages"], status["past_expiry"]["messages"]) == (3, 1)


def figure(lake: Lake, topic: TopicName) -> PastExpiry:
    return past_expiry_view(lake.services, topic, policy_of(lake.services, topic), NOW)


# What a change of settings means is told where it is made.


def test_alter_tells_what_changed_and_what_it_means_now(lake: Lake) -> None:
    topic = lake.topic("shop/fifty", max_overdue=600)
    fill(lake, topic, *(age - 0.5 for age in range(50, 0, -1)))
    arguments = ("topic", "alter", "shop/fifty", "--set", f"message_expiry={10 * DAY_S}", "--unset", "max_overdue")
    said = lake.say(*arguments).out
    assert f"A run now would remove 0 of 50 messages. {TOLD}." in " ".join(said.split())
    table = [line.split() for line in said.splitlines() if line.startswith(("message_expiry", "max_overdue"))]
    assert table == [["message_expiry", "0s", "10d", "topic"], ["max_overdue", "10m", "1d", "built", "in"]]
    assert "approval_ttl" not in said
    again = lake.say(*arguments[:5])
    assert "no setting changed" in again.out
    altered = lake.say("topic", "alter", "shop/fifty", "--set", f"max_age_seconds={20 * DAY_S}", "-o", "json").document
    assert altered["changed"] == [
        {"setting": "max_age_seconds", "from": None, "from_origin": "built in", "to": 1_728_000.0, "to_origin": "topic", "unit": "seconds"}
    ]
    assert (altered["means"]["would_remove"], altered["means"]["messages"], altered["past_expiry"]["messages"]) == (30, 50, 10)
    assert len(altered["settings"]) > 40, "programs get all settings of the topic"


def test_alter_tells_what_would_go_and_what_somebody_holds(lake: Lake) -> None:
    topic = lake.topic("shop/orders")
    lake.append(topic, 30, 25, 3)
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    means = lake.say("topic", "alter", "shop/orders", "--set", f"message_expiry={DAY_S}", "-o", "json").document["means"]
    assert (means["would_remove"], means["held"]) == (1, 1)
    assert means["text"] == "a run now would remove 1 of 3 messages. 1 more is due, but on hold"


def test_create_tells_the_settings_that_the_topic_has_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, segment_max_seconds=DAY_S)
    said = lake.say("topic", "create", "shop/orders", "--set", "message_expiry=60").out
    rows = [line.split() for line in said.splitlines() if line.endswith("topic")]
    assert rows == [["message_expiry", "0s", "1m", "topic"], ["segment_max_seconds", "0s", "1d", "topic"]]
    assert "It has no messages." in said
    letters = lake.say("topic", "create", "shop/letters", "--set", "fold=last_write")
    assert (letters.status, "It has no changes." in letters.out) == (0, True)


def test_settings_stand_though_nobody_can_tell_what_they_mean(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic("shop/orders")

    def fails(*_: object, **__: object) -> None:
        raise CompactedTableMissing("shop/orders", "it is gone")

    monkeypatch.setattr("message_lifecycle.app.views.topics.preview", fails)
    altered = lake.say("topic", "alter", "shop/orders", "--set", "message_expiry=60")
    assert altered.status == 0
    assert "The effect of a run now is unknown: CompactedTableMissing" in " ".join(altered.out.split())
    assert policy_of(lake.services, topic)["message_expiry"] == 60
