"""Nothing is well without evidence (OBL-1): each thing that a topic obliges is broken by itself, and `lifecycle status` names it and fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from message_lifecycle.app import applications, pages, steps
from message_lifecycle.app.documents import add_changes, sync
from message_lifecycle.app.due import due, record_looks
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.obligations import without_deleted_reclaims
from message_lifecycle.app.operations.reclaim import Reclaim
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.app.views.status import topic_status
from message_lifecycle.app.views.topics import topic_page
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import LifecycleError, storage_refused
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, SourceFile
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.tables import QuarantineFile, QuarantineState, RefusedCount, RefusedRow
from message_lifecycle.ports import QuarantineStore, Reclaimer
from tests.errors import raises
from tests.worlds import HOUR, NOW, SECOND, Lake, Told, make_lake

DAY = 86_400
KEYED: dict[str, Value] = {"cleanup_policy": "compact", "segment_size_bytes": 1}
NAME = "shop/orders"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def later(lake: Lake, days: float) -> None:
    lake.world.set_now(Instant(NOW + int(days * DAY * SECOND)))


def run(lake: Lake, topic: TopicName, work: Any = "message_cleaner", *, word: bool = True) -> Outcome:
    approver = (lambda _plan, _report: (True, "ada", "meant")) if word else None
    return steps.run(lake.services, topic, as_of=lake.services.ledger.now(), work=work, approver=approver)


def write(lake: Lake, topic: TopicName, *keys: str, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
    new = [NewMessage(append_time=lake.services.ledger.now(), key=key.encode(), value=b"v", headers=headers) for key in keys]
    lake.world.writer.append(topic, new, policy_of(lake.services, topic))


def letters(lake: Lake, last: int, **settings: Value) -> TopicName:
    topic = lake.topic(NAME, fold="last_write", **{"snapshot_interval": 10, "snapshot_threshold": 5, **settings})
    changes = [Change(document="letter", server_seq=seq, client="a", at=NOW, payload=b"1") for seq in range(1, last + 1)]
    add_changes(lake.services, topic, changes)
    return topic


class Refused:
    """A quarantine with one file of refused rows."""

    def __init__(self, at: Instant) -> None:
        self._file = QuarantineFile(name="q", rows=3, size_bytes=7, oldest_at=at, newest_at=at)

    def quarantine(self, _name: TopicName) -> QuarantineState:
        return QuarantineState(table_uuid="t", snapshot_id=1, files=(self._file,))

    def refused_counts(self, _name: TopicName) -> list[RefusedCount]:
        at = self._file.newest_at
        assert at is not None
        return [RefusedCount(at=at, batch="b1", file="a.jsonl", code="unreadable_line", rows=3)]

    def refused_rows(self, _name: TopicName, *, limit: int, **wanted: str | None) -> list[RefusedRow]:
        at = self._file.newest_at
        assert at is not None
        raw = [
            RefusedRow(at=at, batch="b1", file="a.jsonl", position=n, code="unreadable_line", reason="no JSON", raw=f"row {n}")
            for n in (1, 2, 3)
        ]
        return raw[:limit] if wanted["batch"] in (None, "b1") else []


class Hidden:
    """Space that nothing live names."""

    def hidden_bytes(self, _name: TopicName) -> int:
        return 4_096


def in_stores(lake: Lake, **stores: Any) -> None:
    """From here on the lake has these stores, too."""
    services = replace(lake.services, stores=replace(lake.services.stores, **stores))
    object.__setattr__(lake, "world", replace(lake.world, services=services))


# One way of breaking each: what stands afterwards is named by these words.


def expiry_never_ran(lake: Lake) -> None:
    lake.append(lake.topic(NAME, message_expiry=DAY), 3, 1)
    later(lake, 4)


def ttl_never_ran(lake: Lake) -> None:
    topic = lake.topic(NAME, allow_msg_ttl=True)
    write(lake, topic, "a", headers=(("Nats-TTL", b"1h"),))
    later(lake, 2)


def number_never_ran(lake: Lake) -> None:
    lake.append(lake.topic(NAME, max_records=1), 3, 2, 1)
    later(lake, 2)


def bytes_never_ran(lake: Lake) -> None:
    lake.append(lake.topic(NAME, max_total_bytes=10), 3, 2, 1, value=b"twenty bytes of text")
    later(lake, 2)


def age_never_ran(lake: Lake) -> None:
    lake.append(lake.topic(NAME, max_age_seconds=float(DAY)), 3)
    later(lake, 3)


def compaction_never_ran(lake: Lake) -> None:
    write(lake, lake.topic(NAME, cleanup_policy="compact,delete"), "a", "a")
    later(lake, 2)


def compaction_has_stopped(lake: Lake) -> None:
    topic = lake.topic(NAME, cleanup_policy="compact,delete")
    write(lake, topic, "a", "a")
    run(lake, topic, "compaction")
    later(lake, 5)
    write(lake, topic, "a")
    later(lake, 7)


def purge_never_ran(lake: Lake) -> None:
    topic = lake.topic(NAME, **KEYED)
    write(lake, topic, "a", "a", "b")
    run(lake, topic, "compaction")
    later(lake, 2)
    run(lake, topic, "compaction")


def snapshots_never_made(lake: Lake) -> None:
    letters(lake, 12)
    later(lake, 90)


def changes_never_purged(lake: Lake) -> None:
    topic = letters(lake, 12, snapshot_with_purging_changes=True, client_deactivate_after=365 * DAY)
    run(lake, topic, "snapshot_with_purge")
    sync(lake.services, topic, "letter", client="a", server_seq=12, at=NOW, epoch=None)
    later(lake, 90)


def quarantine_past_its_age(lake: Lake) -> None:
    lake.topic(NAME)
    in_stores(lake, quarantine=cast(QuarantineStore, Refused(NOW)))
    later(lake, 33)


def refused_batch(lake: Lake, *, rows: int, refused: int, quarantined_at: Instant = NOW) -> None:
    """A topic that took `rows` messages of a batch and refused the rest."""
    ledger = lake.services.ledger
    ledger.begin_batch(lake.topic(NAME), "b1", [SourceFile(path="a.jsonl", size_bytes=1, sha256="x")])
    ledger.finish_batch("b1", snapshot_id=None, rows=rows, quarantined=refused, refused={} if rows else {"a.jsonl": refused})
    in_stores(lake, quarantine=cast(QuarantineStore, Refused(quarantined_at)))


def batch_refused_whole(lake: Lake) -> None:
    refused_batch(lake, rows=0, refused=3)


def batch_refused_for_more_than_half(lake: Lake) -> None:
    refused_batch(lake, rows=2, refused=3)


def space_never_given_back(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 1)
    run(lake, topic)
    in_stores(lake, forget=cast(Reclaimer, Hidden()))
    later(lake, 10)
    run(lake, topic)


def purge_while_disabled(lake: Lake) -> None:
    purge_never_ran(lake)


def markers_owed(lake: Lake) -> None:
    topic = lake.topic(NAME, subject_delete_marker_ttl=60)
    lake.append(topic, 3, 2)
    run(lake, topic, "marker_generation")
    lake.world.writer.foreign_delete(topic, [(0, 0), (0, 1)])
    later(lake, 2)


def erasure_never_ran(lake: Lake) -> None:
    lake.topic(NAME)
    ask(lake.services, [b"customer-17"], topics=(), forbid=False, by="ada", why="a letter")
    later(lake, 2)


def erasure_of_one_topic(lake: Lake) -> None:
    ask(lake.services, [b"customer-17"], topics=(lake.topic(NAME),), forbid=True, by="ada", why="a letter")
    later(lake, 2)


def cleaner_disabled_and_overdue(lake: Lake) -> None:
    expiry_never_ran(lake)


def cleaner_disabled_and_nothing_due(lake: Lake) -> None:
    lake.append(lake.topic(NAME, message_expiry=DAY), 1)


def question_nobody_answers(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, approval_ttl=30 * DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    run(lake, topic, word=False)
    later(lake, 10)


def question_asked_again(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_overdue=365 * DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    for day in range(3):
        later(lake, day * 1.5)
        run(lake, topic, word=False)


def refused_and_still_due(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, approval_ttl=30 * DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    run(lake, topic, word=False)
    (question,) = lake.services.ledger.waiting()
    steps.approve(lake.services, question.plan_id, granted=False, by="ada", text="wait")
    later(lake, 10)


def unknown_time_before_expired_segments(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    lake.append_at(topic, None)
    lake.append(topic, *range(50, 0, -1))
    later(lake, 10)


def unknown_time_within_a_segment(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    times = [NOW, None, *[NOW] * 50]
    new = [NewMessage(append_time=at, key=b"k", value=b"v") for at in times]
    lake.world.writer.append(topic, new, policy_of(lake.services, topic))
    lake.world.writer.seal(topic, 0)
    later(lake, 10)


def consumer_holds(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    lake.append(topic, 3, 2, 1)
    lake.services.ledger.commit(topic, "billing", 0, 0, None)
    later(lake, 10)
    run(lake, topic)


def replica_holds(lake: Lake) -> None:
    topic = lake.topic(NAME, allow_msg_ttl=True, max_removed_fraction=1.0)
    write(lake, topic, "a", headers=(("Nats-TTL", b"1h"),))
    lake.topic("archive/orders", role="source", origin=NAME)
    later(lake, 2)
    run(lake, topic)


def compaction_holds(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, cleanup_policy="compact,delete", max_removed_fraction=1.0)
    lake.append(topic, 3)
    run(lake, topic, "compaction")
    lake.append(topic, 2)
    later(lake, 4)
    run(lake, topic)


def pass_takes_too_little(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, *[3] * 4, 2)
    later(lake, 4)
    run(lake, topic)


def dag_never_ran(lake: Lake) -> None:
    lake.topic(NAME, message_expiry=365 * DAY)
    later(lake, 2)


def dag_is_paused(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=365 * DAY)
    later(lake, 10)
    lake.services.ledger.set_looks("message_cleaner", {topic: True}, as_of=lake.services.ledger.now())
    later(lake, 13)


CASES: Mapping[str, tuple[Callable[[Lake], None], str]] = {
    "expiry never ran": (expiry_never_ran, r"expiry: 2 messages due since 2026-11-22T09:00:00Z. No run has ended"),
    "TTL never ran": (ttl_never_ran, r"ttl: 1 message due since 2026-11-21T13:00:00Z"),
    "limit by number never ran": (number_never_ran, r"limits: 2 messages due since"),
    "limit by bytes never ran": (bytes_never_ran, r"limits: \d messages due since"),
    "limit by age never ran": (age_never_ran, r"limits: 1 message due since 2026-11-22T09"),
    "compaction never ran": (compaction_never_ran, r"compaction: 2 messages due since 2026-11-21T12"),
    "compaction has stopped": (compaction_has_stopped, r"compaction: 1 message due since 2026-11-26T12.*published"),
    "purge of what is compacted never ran": (purge_never_ran, r"purge: \d messages due since 2026-11-21T12"),
    "snapshots of documents 90 days late": (snapshots_never_made, r"documents: 1 document due since 2026-11-21T12"),
    "changes of documents 90 days late": (changes_never_purged, r"documents: 1 document due since 2026-11-21T12"),
    "quarantine past its age": (quarantine_past_its_age, r"quarantine: 3 rows due since 2026-12-21T12"),
    "batch refused whole": (batch_refused_whole, r"refused: batch b1 of 2026-11-21T12:00:00Z was refused whole \(3 rows, 0 taken\)"),
    "batch refused for more than half": (
        batch_refused_for_more_than_half,
        r"refused: batch b1 of .* for more than half \(3 rows, 2 taken\)",
    ),
    "space never given back": (space_never_given_back, r"reclaim: 4.1 kB due since 2026-11-28T12"),
    "markers owed": (markers_owed, r"markers: 1 snapshots of another writer due since 2026-11-21T12"),
    "erasure never ran": (erasure_never_ran, r"erasure: request \w+ of 2026-11-21T12:00:00Z is not done here: no run has searched"),
    "erasure of one topic never ran": (erasure_of_one_topic, r"erasure: request \w+"),
    "question that nobody answers": (
        question_nobody_answers,
        r"approval of message_cleaner pending since 2026-11-21T12.*: 1 request ",
    ),
    "question asked again as it lapses": (
        question_asked_again,
        r"approval of message_cleaner pending since 2026-11-21T12.*: 3 requests ",
    ),
    "refused, and still due": (refused_and_still_due, r"expiry: 5 messages due since .* ended as refused"),
    "unknown time before expired segments": (
        unknown_time_before_expired_segments,
        r"expiry: 50 messages due since .* on hold \(unknown_time\)",
    ),
    "unknown time within a segment": (
        unknown_time_within_a_segment,
        r"expiry: 52 messages due since 2026-11-22T12.* on hold \(unknown_time\)",
    ),
    "a consumer that holds": (consumer_holds, r"expiry: \d messages due since .* on hold \(consumer\): consumer billing"),
    "a replica that holds": (replica_holds, r"ttl: 1 message due since .* on hold \(replica\): replica archive/orders"),
    "compaction that holds": (compaction_holds, r"expiry: 1 message due since .* on hold \(compaction\)"),
    "DAG that never ran": (dag_never_ran, r"expiry: no run of message_cleaner since 2026-11-21T12"),
    "DAG that is paused": (dag_is_paused, r"expiry: no run of message_cleaner since 2026-12-01T12"),
}
ON_SERVER: Mapping[str, tuple[Callable[[Lake], None], dict[str, Value], str]] = {
    "cleaner disabled, data overdue": (cleaner_disabled_and_overdue, {"enabled": False}, r"expiry: 2 messages due since"),
    "cleaner disabled, purge due": (purge_while_disabled, {"enabled": False}, r"disabled .*purge"),
    "cleaner disabled, nothing due yet": (cleaner_disabled_and_nothing_due, {"enabled": False}, r"The message cleaner is disabled"),
    "pass that takes too little": (pass_takes_too_little, {"max_segments": 1}, r"expiry: \d messages due since|on hold \(budget\)"),
}


def told(lake: Lake) -> Told:
    return lake.say("status", NAME, "-o", "json")


@pytest.mark.parametrize("case", CASES)
def test_what_is_broken_is_named_and_status_fails(lake: Lake, case: str) -> None:
    broken, words = CASES[case]
    broken(lake)
    found = told(lake)
    assert found.status == 1, found.out
    assert any(re.search(words, problem) for problem in found.document[0]["problems"]), found.document[0]["problems"]


@pytest.mark.parametrize("case", ON_SERVER)
def test_what_the_server_breaks_is_named_and_status_fails(capsys: pytest.CaptureFixture[str], case: str) -> None:
    broken, server, words = ON_SERVER[case]
    lake = make_lake(capsys, **server)
    broken(lake)
    found = told(lake)
    assert found.status == 1, found.out
    assert any(re.search(words, problem) for problem in found.document[0]["problems"]), found.document[0]["problems"]


def test_a_topic_is_well_again_when_its_refused_rows_are_mended_accepted_or_gone(lake: Lake) -> None:  # OBL-1
    batch_refused_whole(lake)
    assert told(lake).document[0]["refused"] == {"rows": 3, "batches": ["b1"]}
    in_stores(lake, quarantine=cast(QuarantineStore, Refused(Instant(NOW + 1))))  # the quarantine holds rows of a later time alone
    assert (told(lake).status, told(lake).document[0]["refused"]["batches"]) == (0, [])
    in_stores(lake, quarantine=cast(QuarantineStore, Refused(NOW)))
    assert lake.say("quarantine", "accept", NAME, "b1", "--by", " ", "--why", "x").status == 2
    assert lake.say("quarantine", "accept", NAME, "b2", "--by", "ann", "--why", "x").status == 2
    assert told(lake).status == 1
    accepted = lake.say("quarantine", "accept", NAME, "b1", "--by", "ann", "--why", "test data", "-o", "json").document
    assert (accepted["settled_as"], accepted["settled_by"], accepted["settled_why"]) == ("accepted", "ann", "test data")
    assert (told(lake).status, told(lake).document[0]["refused"]) == (0, {"rows": 3, "batches": []})


def test_a_batch_of_which_half_was_taken_needs_nobody(lake: Lake) -> None:  # OBL-1
    refused_batch(lake, rows=3, refused=3)
    found = told(lake)
    assert (found.status, found.document[0]["refused"]) == (0, {"rows": 3, "batches": []})


def test_a_mended_file_settles_the_batch_that_refused_it(lake: Lake) -> None:  # OBL-1
    batch_refused_whole(lake)
    ledger, name = lake.services.ledger, TopicName.parse(NAME)
    ledger.begin_batch(name, "b2", [SourceFile(path="a.jsonl", size_bytes=2, sha256="mended")])
    assert told(lake).status == 1
    ledger.finish_batch("b2", snapshot_id=1, rows=3, quarantined=0)
    assert told(lake).status == 0


def test_refused_rows_are_listed_shown_and_counted(lake: Lake) -> None:
    batch_refused_whole(lake)
    listed = lake.say("quarantine", "list", NAME, "-o", "json").document
    assert (listed["rows"], listed["batches"][0]["files"]) == (3, [{"file": "a.jsonl", "codes": {"unreadable_line": 3}}])
    assert listed["batches"][0]["needs_a_person"]
    said = " ".join(lake.say("quarantine", "list", NAME).out.split())
    assert "needs a person" in said and "3 by unreadable_line" in said
    shown = lake.say("quarantine", "show", NAME, "--limit", "2", "-o", "json").document
    assert ([row["raw"] for row in shown["rows"]], shown["more"]) == (["row 1", "row 2"], True)
    said = lake.say("quarantine", "show", NAME, "--batch", "b1").out
    assert "a.jsonl:3  unreadable_line: no JSON" in said and "row 3" in said
    assert "no such refused rows" in lake.say("quarantine", "show", NAME, "--batch", "other").out
    assert "3 refused rows in quarantine" in " ".join(lake.say("status", NAME).out.split())
    assert f'lifecycle_topic_refused_rows{{topic="{TopicName.parse(NAME)}"}} 3.0' in lake.say("metrics").out
    assert "<b>3</b><span>refused rows in quarantine" in pages.topic(base="/b", page=topic_page(lake.services, TopicName.parse(NAME)))


def obliged(lake: Lake, kind: str) -> dict[str, Any]:
    (found,) = [one for one in told(lake).document[0]["obligations"] if one["kind"] == kind]
    return cast(dict[str, Any], found)


def test_what_a_legal_hold_keeps_is_held_with_since_and_no_failure(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 3, 2)
    assert lake.say("hold", "add", NAME, "--by", "ada", "--why", "a trial").status == 0
    later(lake, 10)
    run(lake, topic)
    assert told(lake).status == 0
    found = obliged(lake, "expiry")
    assert (found["state"], found["amount"], found["due_since"]) == ("held", 0, "2026-11-22T09:00:00Z")
    assert [(entry["holder"], entry["messages"]) for entry in found["held"]] == [("hold", 2)]


def test_what_an_undo_brought_back_is_held_until_a_person_releases_it(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0, undo_window=30 * DAY)
    lake.append(topic, 30, 26, 1)
    plan_id = run(lake, topic).plan_id
    assert lake.say("undo", str(plan_id), "--by", "ada", "--why", "too much").status == 0
    later(lake, 0.9)
    run(lake, topic)
    later(lake, 1.8)
    run(lake, topic)
    assert (told(lake).status, obliged(lake, "expiry")["state"], obliged(lake, "expiry")["held"][0]["holder"]) == (0, "held", "undone_plan")


def test_since_when_something_is_due_survives_plans_that_lapse_and_questions_asked_again(lake: Lake) -> None:
    question_asked_again(lake)
    found = obliged(lake, "expiry")
    assert (found["due_since"], found["amount"]) == ("2026-11-20T20:00:00Z", 5)
    assert obliged(lake, "question")["amount"] == 3


def test_a_question_that_was_answered_is_none_any_more(lake: Lake) -> None:
    question_asked_again(lake)
    (question,) = lake.services.ledger.waiting()
    steps.approve(lake.services, question.plan_id, granted=True, by="ada", text="meant")
    assert lake.say("publish", question.plan_id).status == 0
    found = told(lake)
    assert (found.status, [one["kind"] for one in found.document[0]["obligations"]]) == (0, ["expiry", "reclaim"])


def test_a_look_that_found_nothing_due_proves_that_it_came_due_after_it(lake: Lake) -> None:
    topic = letters(lake, 9)
    later(lake, 90)
    ledger = lake.services.ledger
    ledger.set_looks("snapshot_with_purge", {topic: True}, as_of=ledger.now())
    ledger.set_looks("snapshot_with_purge", {topic: True}, as_of=NOW)  # an older interval, judged again
    add_changes(lake.services, topic, [Change(document="letter", server_seq=10, client="a", at=NOW, payload=b"1")])
    assert (told(lake).status, obliged(lake, "documents")["due_since"]) == (0, "2027-02-19T12:00:00Z")
    ledger.set_looks("snapshot_with_purge", {topic: False}, as_of=ledger.now())
    later(lake, 92)
    found = told(lake)
    assert (found.status, obliged(lake, "documents")["looked_at"]) == (1, "2027-02-19T12:00:00Z")


def test_looks_begin_anew_with_a_topic_that_takes_the_name_of_one_that_went(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    lake.services.ledger.set_looks("message_cleaner", {topic: True}, as_of=NOW)
    assert lake.services.ledger.looks(topic)["message_cleaner"].settled_at == NOW
    lake.services.ledger.reset_topic(topic)
    assert lake.services.ledger.looks(topic) == {}


def test_an_erasure_is_obliged_until_it_is_done_here(lake: Lake) -> None:
    topic = lake.topic(NAME)
    write(lake, topic, "customer-17")
    request = ask(lake.services, [b"customer-17"], topics=(), forbid=False, by="ada", why="a letter")
    assert (told(lake).status, obliged(lake, "erasure")["state"]) == (0, "due")
    carry_out(lake.services, request.request_id, approver=lambda _plan, _report: (True, "ada", "meant"))
    assert all(one["kind"] != "erasure" for one in told(lake).document[0]["obligations"])


def test_a_topic_with_all_done_tells_what_it_obliges_and_that_nothing_is_due(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_records=5, allow_msg_ttl=True, max_removed_fraction=1.0)
    lake.append(topic, 30, 1)
    run(lake, topic)
    found = told(lake)
    assert found.status == 0
    kinds = {one["kind"]: (one["state"], one["operation"]) for one in found.document[0]["obligations"]}
    assert kinds == {
        "expiry": ("idle", "message_cleaner"),
        "ttl": ("idle", "message_cleaner"),
        "limits": ("idle", "message_cleaner"),
        "reclaim": ("idle", "reclaim"),
    }


def test_status_describe_metrics_and_pages_show_one_value(lake: Lake) -> None:
    expiry_never_ran(lake)
    of_status = told(lake).document[0]["obligations"]
    assert lake.say("topic", "describe", NAME, "-o", "json").document["obligations"] == of_status
    assert as_json(topic_status(lake.services, TopicName.parse(NAME)).obligations) == of_status
    text = lake.say("topic", "describe", NAME).out
    assert re.search(r"late +expiry +2 messages", text), text
    assert re.search(r"late +expiry +2 messages", lake.say("status").out)
    samples = dict(line.rsplit(" ", 1) for line in lake.say("metrics").out.splitlines() if not line.startswith("#"))
    labels = f'kind="expiry",topic="{NAME}"'
    assert samples[f'lifecycle_topic_ok{{topic="{NAME}"}}'] == "0.0"
    assert samples[f"lifecycle_obligation_late{{{labels}}}"] == "1.0"
    assert samples[f'lifecycle_obligation_due{{kind="expiry",topic="{NAME}",unit="messages"}}'] == "2.0"
    assert float(samples[f"lifecycle_obligation_due_since_seconds{{{labels}}}"]) == (NOW + 21 * HOUR) / SECOND


@pytest.mark.parametrize(("value", "fits"), [(0, False), (359, False), (360, True)])
def test_a_topic_is_not_late_before_a_run_could_have_come(lake: Lake, value: int, *, fits: bool) -> None:
    topic = lake.topic(NAME)
    if fits:
        assert alter_topic(lake.services, topic, {"max_overdue": value}).settings["max_overdue"] == value
        return
    with raises("InvalidSetting", match=r"at least 360: the cleaner looks every 60 s"):
        alter_topic(lake.services, topic, {"max_overdue": value})
    with raises("InvalidSetting", match=r"max_overdue"):
        lake.topic("shop/other", max_overdue=value)


def test_what_is_done_once_a_day_is_not_late_within_the_day(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY, max_overdue=3600, max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 1)
    run(lake, topic)
    in_stores(lake, forget=cast(Reclaimer, Hidden()))
    later(lake, 7.9)
    run(lake, topic)
    assert (told(lake).status, obliged(lake, "reclaim")["state"]) == (0, "due")
    later(lake, 8.1)
    run(lake, topic)
    assert (told(lake).status, obliged(lake, "reclaim")["state"]) == (1, "late")


def look(lake: Lake, topic: TopicName, work: Any) -> None:
    """As a run of a schedule does."""
    now = lake.services.ledger.now()
    record_looks(lake.services, due(lake.services, [topic], as_of=now, work=work), as_of=now, work=work)


def looks_daily(lake: Lake, topic: TopicName, days: int, work: Any = "message_cleaner") -> None:
    """As a schedule does, each day once."""
    for day in range(1, days + 1):
        later(lake, day)
        look(lake, topic, work)


def test_a_look_that_finds_something_held_settles_nothing(lake: Lake) -> None:
    topic = lake.topic(NAME, max_records=1, max_removed_fraction=1.0)
    lake.topic("archive/orders", role="source", origin=NAME)
    lake.append(topic, 3, 2, 1)
    looks_daily(lake, topic, 5)
    found = told(lake)
    assert found.status == 1
    assert any(
        "limits: 2 messages due since 2026-11-21T12:00:00Z, on hold (replica)" in problem for problem in found.document[0]["problems"]
    )


def test_a_look_while_the_cleaner_is_disabled_settles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, enabled=False)
    purge_never_ran(lake)
    topic = TopicName.parse(NAME)
    looks_daily(lake, topic, 4, "purge_compacted")
    assert obliged(lake, "purge")["due_since"] == "2026-11-21T12:00:00Z"


def test_an_erasure_that_is_not_done_elsewhere_is_told_where_it_is_done(lake: Lake) -> None:
    topic = lake.topic(NAME)
    request = ask(lake.services, [b"customer-17"], topics=(), forbid=False, by="ada", why="a letter")
    carry_out(lake.services, request.request_id, approver=lambda _plan, _report: (True, "ada", "meant"))
    lake.services.ledger.set_erasure_state(request.request_id, "requested", detail="shop/old: deleted, not looked into")
    assert told(lake).status == 0
    later(lake, 3)
    assert topic == TopicName.parse(NAME)
    assert any("is done here, but not everywhere: shop/old" in problem for problem in told(lake).document[0]["problems"])


def test_a_topic_that_takes_the_name_of_another_is_judged_by_itself(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    lake.append(topic, 30)
    run(lake, topic)
    later(lake, 60)
    assert lake.say("topic", "delete", NAME, "--by", "ada", "--why", "not needed").status == 0
    lake.topic(NAME, message_expiry=DAY)
    assert (told(lake).status, obliged(lake, "expiry")["last_run"]) == (0, None)


def test_a_topic_that_came_back_is_not_late_for_the_time_it_was_away(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=365 * DAY, undo_window=90 * DAY)
    run(lake, topic)
    deleted = lake.say("topic", "delete", NAME, "--by", "ada", "--why", "not needed", "-o", "json").document
    later(lake, 60)
    assert lake.say("undo", deleted["plan_id"], "--by", "ada", "--why", "needed").status == 0
    assert told(lake).status == 0


def test_a_setting_that_was_altered_now_makes_nothing_late_at_once(lake: Lake) -> None:
    topic = lake.topic(NAME)
    lake.append(topic, 3, 2)
    later(lake, 30)
    alter_topic(lake.services, topic, {"message_expiry": DAY, "cleanup_policy": "compact,delete"})
    assert (told(lake).status, obliged(lake, "expiry")["state"], obliged(lake, "compaction")["state"]) == (0, "due", "due")
    alter_topic(lake.services, topic, {"message_expiry": DAY})  # nothing is altered by it
    later(lake, 32)
    alter_topic(lake.services, topic, {"message_expiry": DAY})
    assert (told(lake).status, obliged(lake, "expiry")["state"], obliged(lake, "compaction")["state"]) == (1, "late", "late")


def test_old_data_in_a_new_topic_is_due_and_not_yet_late(lake: Lake) -> None:
    lake.append(lake.topic(NAME, message_expiry=DAY), 24 * 90)
    assert (told(lake).status, obliged(lake, "expiry")["due_since"]) == (0, "2026-08-24T12:00:00Z")


def test_an_erasure_asked_before_the_topic_was_made_is_late_by_the_topics_time(lake: Lake) -> None:
    ask(lake.services, [b"customer-17"], topics=(), forbid=True, by="ada", why="a letter")
    later(lake, 10)
    lake.topic(NAME)
    assert (told(lake).status, obliged(lake, "erasure")["due_since"]) == (0, "2026-12-01T12:00:00Z")


def test_a_pass_that_left_some_over_does_not_hide_the_whole_pass_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, max_segments=1)
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 30)
    later(lake, 10)
    run(lake, topic)
    later(lake, 12)
    lake.append(topic, -24 * 10, -24 * 10)
    assert run(lake, topic).more
    assert lake.services.ledger.newest(topic)["message_cleaner"][0][1].more
    ends = lake.services.ledger.history(topic)
    assert [outcome.more for _, outcome in ends] == [True, False]
    assert obliged(lake, "expiry")["looked_at"] == "2026-12-03T12:00:00Z"


def test_one_that_cannot_be_judged_hides_no_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expiry_never_ran(lake)

    def damaged(*_: object) -> None:
        raise LifecycleError("the manifest is torn", code="FileUnreadable")

    monkeypatch.setattr(Reclaim, "find_owed", damaged)
    found = told(lake).document[0]
    assert [one["kind"] for one in found["obligations"]] == ["expiry", "unknown"]
    assert found["problems"][0].startswith("expiry: 2 messages due")
    assert found["problems"][-1] == "the pending work of reclaim is unknown: FileUnreadable: the manifest is torn"


def test_without_a_schedule_a_topic_that_is_run_by_command_is_well(lake: Lake) -> None:
    topic = lake.topic(NAME, cleanup_policy="compact", subject_delete_marker_ttl=60, max_removed_fraction=1.0)
    write(lake, topic, "a", "b")
    for day in range(1, 4):
        later(lake, day)
        run(lake, topic)
        run(lake, topic, "compaction")
    assert told(lake).status == 0
    later(lake, 5)
    assert told(lake).status == 1
    lake.say("due")
    assert told(lake).status == 1, "who only asks has run nothing"
    run(lake, topic)
    run(lake, topic, "compaction")
    assert told(lake).status == 0


def test_the_space_of_a_deleted_topic_that_nobody_gives_back_is_late_by_its_name(lake: Lake) -> None:
    lake.topic(NAME, undo_window=7 * DAY)
    lake.topic("shop/other")
    assert lake.say("topic", "delete", NAME, "--by", "ada", "--why", "not needed").status == 0
    later(lake, 8)
    assert lake.say("status").status == 0
    later(lake, 9)
    found = lake.say("status", "-o", "json")
    assert (found.status, [(entry["topic"], entry["ok"]) for entry in found.document]) == (1, [("shop/other", True), (NAME, False)])
    (problem,) = found.document[1]["problems"]
    assert problem.startswith("reclaim: the undo of plan ")
    assert problem.endswith("ended at 2026-11-28T12:00:00Z, but the deleted topic still uses space")
    lake.topic(NAME)
    assert told(lake).document[0]["problems"] == [problem]
    assert lake.say("hold", "add", NAME, "--by", "ada", "--why", "a trial", "--in-advance").status == 0
    assert told(lake).status == 0


def test_a_reclaim_of_a_deleted_topic_settles_nothing_of_the_one_that_has_its_name(lake: Lake) -> None:
    lake.topic(NAME, undo_window=7 * DAY)
    gone = delete_topic(lake.services, TopicName.parse(NAME), by="ada", text="not needed")
    topic = lake.topic(NAME, message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 1)
    run(lake, topic)
    later(lake, 8.1)
    run(lake, topic)
    as_of = lake.services.ledger.now()
    done = reclaim_deleted(lake.services, gone.plan_id or "", as_of=as_of, approver=lambda *_: (True, "ada", "yes"))
    assert (done.operation, done.name) == ("reclaim", "published")
    in_stores(lake, forget=cast(Reclaimer, Hidden()))
    found = obliged(lake, "reclaim")
    assert (found["state"], found["amount"], found["last_run"]) == ("late", 4_096, None)


def test_the_plan_of_a_reclaim_is_not_read_where_no_topic_of_the_name_was_deleted(lake: Lake) -> None:
    topic = lake.topic(NAME)
    at = lake.services.ledger.now()
    done = Outcome(name="published", operation="reclaim", topic=topic, as_of=at, plan_id="one of many MB, which nobody has kept")
    assert without_deleted_reclaims(lake.services, topic, [(at, done)]) == [(at, done)]


def test_a_question_that_lapsed_with_nothing_due_any_more_is_none(lake: Lake) -> None:
    topic = lake.topic(NAME, message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    run(lake, topic, word=False)
    lake.world.writer.foreign_delete(topic, [(0, offset) for offset in range(5)])
    later(lake, 0.9)
    lake.services.ledger.set_looks("message_cleaner", {topic: True}, as_of=lake.services.ledger.now())
    later(lake, 1.1)
    assert (told(lake).status, [one["kind"] for one in told(lake).document[0]["obligations"]]) == (0, ["expiry", "reclaim"])


def test_what_cannot_be_told_of_deleted_topics_hides_no_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expiry_never_ran(lake)
    assert lake.services.stores.delete_tables is not None

    def torn(_self: object) -> None:
        raise storage_refused("/w/metadata.json", "it cannot be read")

    monkeypatch.setattr(type(lake.services.stores.delete_tables), "deletions", torn)
    found = lake.say("status", "-o", "json")
    assert (found.status, [entry["topic"] for entry in found.document]) == (1, [NAME, "(deleted topics)"])
    assert "StorageRefused" in found.document[1]["problems"][0]
    assert obliged(lake, "expiry")["state"] == "late"


def test_markers_that_are_owed_stay_owed_while_the_cleaner_is_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, enabled=False)
    markers_owed(lake)
    topic = TopicName.parse(NAME)
    swept = lake.services.ledger.last_swept_snapshot(topic)
    look(lake, topic, "marker_generation")
    assert lake.services.ledger.last_swept_snapshot(topic) == swept
    assert obliged(lake, "markers")["amount"] == 1


def test_a_view_that_has_to_be_looked_through_is_not_told_as_one_message(lake: Lake) -> None:
    topic = lake.topic(NAME, cleanup_policy="compact,delete", message_expiry=10 * DAY)
    write(lake, topic, "a", "b", "c")
    run(lake, topic, "compaction")
    later(lake, 11)
    owed = obliged(lake, "compaction")
    assert (owed["amount"], owed["unit"]) == (1, "compacted view")


def test_a_run_that_leaves_the_topic_to_another_settles_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(NAME, max_records=1)
    lake.append(topic, 3, 2, 1)
    steps.plan(lake.services, topic, as_of=NOW, run="message_cleaner/first")
    later(lake, 0.02)
    monkeypatch.setattr(applications, "lake", lambda **_: lake.services)
    now = lake.services.ledger.now()
    assert applications.plan_and_stage(run="message_cleaner/second", as_of=format_instant(now), topics=[NAME], work="message_cleaner") == 0
    (_, left), *_ = lake.services.ledger.history(topic)
    assert (left.name, left.more, left.detail.partition(":")[0]) == ("no_op", True, "OpenPlan")
    assert obliged(lake, "limits")["due_since"] == "2026-11-21T12:00:00Z"
