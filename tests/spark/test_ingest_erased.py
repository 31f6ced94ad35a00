"""A replay of the files that an erased key came with does not bring it back: not into the log, not into quarantine."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import sample
from tests.errors import raises
from tests.spark.erasures import grant
from tests.spark.key_search import files_with
from tests.spark.lake import Lake, tables
from tests.spark.landing import Landing, json_lines

from message_lifecycle.app import receipts
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import documents

pytestmark = pytest.mark.spark
NOON = "2024-05-01T12:00:00Z"
SECRET = KeySecret(b"0123456789abcdef0123456789abcdef")
KEY = "customer-17"


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    made = Landing(lake, tmp_path)
    made.intake = replace(made.intake, key_secret=lambda _: SECRET)
    return made


def forbid(landing: Landing, *topics: TopicName, secret: KeySecret = SECRET) -> None:
    landing.ledger.add_erasure("e1", secret.digests([KEY.encode()]), topics=topics, forbid=True, requested_by="ada", why="a letter")


def services(landing: Landing) -> Services:
    return replace(landing.lake.services(), ledger=landing.ledger, key_secret=landing.intake.key_secret)


def places_of(topic: TopicName, key: str) -> set[str]:
    """Which of the topic's tables have a file that holds the key. Not the whole stream: other tests damage tables there on purpose."""
    return {kind or "log" for kind, table in documents(tables(), topic) if files_with(str(table.content["location"]), key.encode())}


def test_what_comes_with_an_erased_key_is_not_taken(landing: Landing) -> None:
    topic, other = landing.topic(partitions=2), landing.topic()
    rows = json_lines(("a", "1", NOON), (KEY, "2", NOON), (KEY, "3", "no time"), ("b", "4", "no time"), (None, "5", NOON))
    forbid(landing, topic)
    result = landing.take(topic, landing.source(one_jsonl=rows))
    assert (result.rows, result.erased, result.quarantined) == (2, 2, {"unreadable_time": 1})
    assert sorted(m.value or b"" for m in landing.messages(topic)) == [b"1", b"5"]
    assert sum(result.end_offsets.values()) == 2, "what is not taken has no offset"
    (kept,) = landing.quarantine(topic)
    assert KEY not in kept[3]
    assert landing.take(other, landing.source(one_jsonl=rows)).rows == 3, "it is forbidden for the other topic only"


def test_a_line_without_a_key_that_tells_an_erased_one_is_not_kept_either(landing: Landing) -> None:
    topic = landing.topic()
    forbid(landing)
    lines = [b'{"k":"%s","v":"%s\xff"}', b'{"k":"%s","k":"%s"}', b'{"k":"%s","v":"%s", torn']
    content = b"\n".join(line % (key, b"x" * 100) for line in lines for key in (KEY.encode(), b"another"))
    result = landing.take(topic, landing.source(one_jsonl=content + b'\n{"k":"a","v":"1","at":null}\n'))
    assert (result.rows, result.erased, result.quarantined) == (1, 3, {"unreadable_line": 3})
    kept = [raw for _, _, _, raw in landing.quarantine(topic)]
    assert len(kept) == 3
    assert not any(KEY.encode() in (base64.b64decode(raw[7:]) if raw.startswith("base64:") else raw.encode()) for raw in kept)


def test_a_batch_of_nothing_else_leaves_the_log_as_it_is(landing: Landing) -> None:
    topic = landing.topic()
    forbid(landing)
    result = landing.take(topic, landing.source(one_jsonl=json_lines((KEY, "1", NOON), (KEY, "2", NOON))))
    assert (result.rows, result.erased, result.quarantined) == (0, 2, {})
    assert landing.messages(topic) == []
    assert not landing.lake.session.catalog.tableExists(f"lake.{topic.namespace}.{topic.table('quarantine')}")


def test_with_another_secret_nothing_is_taken_and_the_files_may_come_again(landing: Landing) -> None:
    topic, folder = landing.topic(), landing.source(one_jsonl=json_lines((KEY, "1", NOON), ("a", "2", NOON)))
    forbid(landing, secret=KeySecret(b"another-another-another-another-"))
    with raises("ErasureSecretChanged"):
        landing.take(topic, folder)
    assert landing.messages(topic) == []
    landing.ledger.allow_keys_again("e1", by="bob", why="the secret is lost")
    assert landing.take(topic, folder).rows == 2


def test_a_file_that_comes_once_more_does_not_bring_an_erased_key_back(landing: Landing) -> None:
    topic, key = landing.topic(partitions=2), token_hex(16)
    rows = json_lines(("a", "1", NOON), (key, "2", NOON), (None, "3", NOON), (key, "4", "no time"), ("b", "5", NOON))
    folder = landing.source(one_jsonl=rows)
    assert landing.take(topic, folder).rows == 4
    assert places_of(topic, key) == {"log", "quarantine"}
    s = services(landing)
    request = ask(s, [key.encode()], topics=[topic], forbid=True, by="ada", why="a letter")
    (done,) = carry_out(s, request.request_id, approver=grant)
    assert done.outcome is not None
    assert (done.outcome.name, done.outcome.removed) == ("published", (("erased", 1),))
    assert landing.take(topic, folder).files == (), "it was taken before"
    landing.put(folder, "another_name_jsonl", rows + json_lines((key, "6", NOON), ("c", "7", NOON)))
    again = landing.take(topic, folder)
    assert (again.files_before, again.rows, again.erased, again.quarantined) == (1, 4, 3, {})
    assert sorted(message.value or b"" for message in landing.messages(topic)) == [b"1", b"1", b"3", b"3", b"5", b"5", b"7"]
    assert places_of(topic, key) == set()
    assert receipts.verify(s, request.request_id) == []


@pytest.mark.parametrize("point", sample(("begun", "staged", "committed"), "staged"))
def test_a_batch_that_died_before_the_erasure_is_ended_first_and_without_the_key(landing: Landing, point: str) -> None:
    topic, key = landing.topic(), token_hex(16)
    landing.take(topic, landing.source(before_jsonl=json_lines((key, "0", NOON), ("z", "1", NOON))))
    folder = landing.source(one_jsonl=json_lines(("a", "2", NOON), (key, "3", NOON), (key, "4", "no time"), ("b", "5", NOON)))
    command = [sys.executable, "-m", "tests.spark.dying_ingest", point, landing.url, str(topic), str(folder)]
    died = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    s = services(landing)
    request = ask(s, [key.encode()], topics=[topic], forbid=True, by="ada", why="a letter")
    before = landing.messages(topic)
    (held_up,) = carry_out(s, request.request_id, approver=grant)
    # Files that no snapshot names are a writer's, until the batch is ended.
    assert code_of(held_up.error) == ("UnsupportedErasure" if point == "staged" else "ErasureUnfinished"), held_up.why_not_done()
    assert landing.messages(topic) == before
    again = landing.take(topic, folder)
    # What had come in by then is taken out by the erasure.
    assert (again.rows, again.erased) == ((0, 0) if point == "committed" else (2, 2))
    (done,) = carry_out(s, request.request_id, approver=grant)
    assert done.is_done, done.why_not_done()
    assert sorted(message.value or b"" for message in landing.messages(topic)) == [b"1", b"2", b"5"]
    assert places_of(topic, key) == set()
    assert receipts.verify(s, request.request_id) == []
