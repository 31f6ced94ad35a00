"""Whether keys of a topic may stand for several is one value, the same wherever it is shown (MSG-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from message_lifecycle.app import doubtful_keys, pages, tasks, views
from message_lifecycle.app.doubtful_keys import read_keys
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.views.metrics import exposition
from message_lifecycle.model.errors import FileLost, code_of
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.message import NewMessage, RowAnswer
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import KeyLook
from tests.unit.test_pages_afterwards import shown
from tests.worlds import NOW, Lake, make_lake

AS_OF = format_instant(NOW)
UNKNOWN = "it is not known whether a key has U+FFFD in it and may stand for several: no scheduled run has read its keys yet"
SOME = (
    "message 0:1, and maybe others, has U+FFFD in its key, which may stand for several keys of before keys were kept as bytes: "
    "compaction, purge and erasure of such a key ask a person"
)
SAMPLE = 'lifecycle_topic_keys_may_stand_for_several{topic="shop/orders"}'


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    lake = make_lake(capsys)
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    return lake


def topic(lake: Lake, *keys: bytes) -> TopicName:
    name = lake.topic("shop/orders")
    new = [NewMessage(append_time=NOW, key=key, value=b"v") for key in keys]
    lake.world.writer.append(name, new, policy_of(lake.services, name))
    return name


@pytest.mark.parametrize(
    ("keys", "looked", "told"),
    [
        pytest.param((b"a", "caf\ufffd".encode()), False, (None, None, None, UNKNOWN), id="unknown"),
        pytest.param((b"a", "caf\ufffd".encode()), True, (True, "0:1", AS_OF, SOME), id="some"),
        pytest.param((b"a", b"caf\xe9"), True, (False, None, AS_OF, None), id="none"),
    ],
)
def test_one_value_is_shown_everywhere(lake: Lake, keys: tuple[bytes, ...], looked: bool, told: tuple[bool | None, ...]) -> None:
    name = topic(lake, *keys)
    read_keys(lake.services, [name] if looked else [])
    value = dict(zip(("any", "message", "looked_at", "told"), told, strict=True))
    (status,) = lake.say("status", "-o", "json").document
    assert status["doubtful_keys"] == value
    assert status["ok"], "nothing is late by it"
    assert lake.say("topic", "describe", str(name), "-o", "json").document["doubtful_keys"] == value
    page = views.topic_page(lake.services, name)
    assert page["status"]["doubtful_keys"] == value
    said = [lake.say("status").out, lake.say("topic", "describe", str(name)).out, shown(pages.topic(base="/lifecycle", page=page))]
    for text in said:
        assert (str(told[3]) in " ".join(text.split())) is (told[3] is not None)
        assert "caf" not in text, "no key is shown"
    overview = shown(pages.overview(base="/lifecycle", status=[status], runs=[]))
    assert ("may stand for several: message 0:1" in overview) is (told[0] is True)
    assert ("not all read yet" in overview) is (told[0] is None)
    metrics = exposition([status])
    assert (SAMPLE in metrics) is (told[0] is not None), "what nobody knows has no sample"
    assert (f"{SAMPLE} 1.0" in metrics) is (told[0] is True)


def test_the_run_that_looks_reads_the_keys(lake: Lake) -> None:
    name = topic(lake, b"a", "caf\ufffd".encode())
    tasks.due(run="compaction/r", as_of=AS_OF, topics=[], work="compaction")
    assert lake.services.ledger.key_look(name) is None, "one operation does, for all of them"
    tasks.due(run="message_cleaner/r", as_of=AS_OF, topics=[])
    look = lake.services.ledger.key_look(name)
    assert look is not None
    assert look.found == (0, 1)


@pytest.mark.parametrize("error", [FileLost("data/0.parquet", "no such file"), PermissionError(13, "no")], ids=["named", "unnamed"])
def test_keys_that_cannot_be_read_stay_unknown_and_nothing_else_suffers(
    error: Exception, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, other = topic(lake, b"a"), lake.topic("shop/others")
    monkeypatch.setattr(lake.services.reader, "requested", failing(lake, name, error))
    with caplog.at_level("WARNING", logger="lifecycle"):
        assert tasks.due(run="message_cleaner/r", as_of=AS_OF, topics=[]) == []
    assert f"shop/orders: its keys cannot be read: {code_of(error)}" in caplog.text
    (status,) = lake.say("status", str(name), "-o", "json").document
    assert (status["doubtful_keys"]["any"], status["ok"]) == (None, True)
    assert lake.services.ledger.key_look(other) is not None, "it hides no other"


def failing(lake: Lake, name: TopicName, error: BaseException) -> Callable[..., RowAnswer]:
    requested = lake.services.reader.requested

    def lost(log: LogState, *asked: Any, **more: Any) -> RowAnswer:
        if log.topic == name:
            raise error
        return requested(log, *asked, **more)

    return lost


def test_a_run_that_is_cut_off_keeps_what_it_has_read_and_the_next_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = topic(lake, b"a"), lake.topic("shop/others")
    monkeypatch.setattr(lake.services.reader, "requested", failing(lake, second, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        read_keys(lake.services, [first, second])
    before = lake.services.ledger.key_look(first)
    assert before is not None
    monkeypatch.undo()
    monkeypatch.setattr(doubtful_keys, "_MOST_SECONDS", -1.0)
    read_keys(lake.services, [first, second])
    assert lake.services.ledger.key_look(second) is None, "the time is over before it begins"
    monkeypatch.setattr(doubtful_keys, "monotonic", iter([0.0, 0.0, 1e9]).__next__)
    monkeypatch.setattr(doubtful_keys, "_MOST_SECONDS", 60.0)
    read_keys(lake.services, [first, second])
    assert lake.services.ledger.key_look(second) is not None, "nobody has looked at it yet, so it comes first"


def test_what_an_undo_brings_back_is_unknown_until_it_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic(lake, b"a")
    read_keys(lake.services, [name])
    assert doubtful_keys.doubtful_keys(lake.services, name)["any"] is False
    monkeypatch.setattr(lake.services.ledger, "published_since", lambda *_, **__: frozenset({"undo"}))
    assert doubtful_keys.doubtful_keys(lake.services, name)["any"] is None


def test_a_look_is_kept_as_it_was(lake: Lake) -> None:
    first = KeyLook(table_uuid="u", snapshot_id=None, marker="m", read={}, whole=False, found=None, looked_at=Instant(1))
    second = KeyLook(table_uuid="u", snapshot_id=2, marker="n", read={0: 3, 1: 5}, whole=True, found=(1, 4), looked_at=Instant(2))
    ledger, name = lake.services.ledger, TopicName.parse("shop/orders")
    for look in (first, second):
        ledger.set_key_look(name, look)
        assert ledger.key_look(name) == look
