"""Views as the ledger gives them, with text that would like to be HTML."""

from __future__ import annotations

from typing import Any

from message_lifecycle.app.rendering import ABSENT
from message_lifecycle.app.views.over_time import DAY, AgePeriod, Ages, Amount, Expiries, ExpiryDay, Growth, Period, SizeAt
from message_lifecycle.model.instants import Instant

EVIL = "<script>alert('x')</script>&\"'"


class Sample(dict[str, Any]):
    """A view whose fields a test chooses freely."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def outcome(**changes: Any) -> Any:
    return {
        "at": "2026-11-21T15:00:00Z",
        "topic": "demo/flights",
        "operation": "message_cleaner",
        "outcome": "published",
        "undone": False,
        "as_of": "2026-11-21T15:00:00Z",
        "plan_id": "0123456789abcdef0123456789abcdef",
        "first_plan_id": None,
        "snapshot_id": 4_711,
        "removed": {"expiry": 160_754},
        "removed_messages": 160_754,
        "removed_bytes": 9_100_000,
        "restored": 0,
        "reclaimed_bytes": None,
        "messages_before": 336_776,
        "messages_kept": 176_022,
        "more": False,
        "held": [],
        "warnings": [],
        "detail": "",
        **changes,
    }


def ages() -> Ages:
    period = AgePeriod(since=Instant(0), leaves=2, stays=3)
    return Ages(periods=(period, period), period_us=7 * DAY, unknown=period)


def held(**changes: Any) -> Any:
    entry = {
        "partition": 1,
        "from_": 80_000,
        "to": 84_999,
        "messages": 5_000,
        "overdue_since": "2026-11-20T00:00:00Z",
        "holder": "consumer",
        "detail": "consumer billing has processed up to offset 79999",
        **changes,
    }
    return Sample(entry)


def bound(**changes: Any) -> Any:
    return {
        "partition": 0,
        "stops_at": 81_000,
        "bound": "message_expiry",
        "reason": "newest message (2026-05-20T00:00:00Z) expires at 2026-11-26T00:00:00Z",
        **changes,
    }


def obligation(**changes: Any) -> Any:
    return {
        "kind": "expiry",
        "state": "held",
        "operation": "message_cleaner",
        "due_since": "2026-11-20T15:00:00Z",
        "amount": 0,
        "unit": "messages",
        "held": [held()],
        "last_run": {"at": "2026-11-21T15:00:00Z", "outcome": "published"},
        "looked_at": "2026-11-21T15:00:00Z",
        "problems": [],
        **changes,
    }


def status(**changes: Any) -> Any:
    found = {
        "topic": "demo/flights",
        "is_read": True,
        "ok": True,
        "trouble": "held",
        "problems": [],
        "as_of": "2026-11-21T15:00:00Z",
        "messages": 176_022,
        "bytes": 10_400_000,
        "hidden_bytes": 9_100_000,
        "reclaimable_bytes": None,
        "due": Sample({"messages": 0, "since": None, "for_seconds": None}),
        "overdue": {"messages": 0, "since": None, "for_seconds": None, "max_overdue": 86_400},
        "held": [held()],
        "obligations": [obligation(), obligation(kind="question", state="late", problems=[EVIL])],
        "past_expiry": {"messages": 0, "segments": 0, "until": None, "last_until": None, "never": 0, "text": None},
        "refused": {"rows": 3, "batches": [EVIL]},
        "next_due_at": "2026-11-26T00:00:00Z",
        "waiting": None,
        "last_run": outcome(),
        "last_removal": {
            "plan_id": "0123456789abcdef0123456789abcdef",
            "at": "2026-11-21T15:00:00Z",
            "as_of": "2026-11-21T15:00:00Z",
            "messages": 160_754,
            "undone": False,
        },
        "warnings": [],
        **changes,
    }
    return Sample(found)


def unreadable() -> Any:
    """A topic that could not be read is reported, and has no figures."""
    return Sample({"topic": "demo/broken", "is_read": False, "ok": False, "trouble": "failed", "problems": [f"LedgerMismatch: {EVIL}"]})


def erasure(**changes: Any) -> Any:
    """A request about every topic, of which some wait for a person."""
    return {
        "request_id": "e" * 32,
        "state": "requested",
        "detail": f"demo/flights: not looked at yet {EVIL}",
        "topics": [],
        "of_topics": 40,
        "done": 12,
        "waiting": [f"{number}" * 32 for number in range(5)],
        "requested_by": EVIL,
        "requested_at": "2026-11-20T12:00:00Z",
        **changes,
    }


def topic(**changes: Any) -> Any:
    found = {
        "documents": ABSENT,
        "topic": "demo/flights",
        "role": "mirror",
        "origin": "demo/all flights",
        "view": "lake.demo.all_20flights__live",
        "api_level": 0,
        "uuid": "7d1c6f0e-0000-4000-8000-000000000000",
        "snapshot_id": 4_711,
        "messages": 176_022,
        "bytes": 10_400_000,
        "compacted": {"snapshot_id": 1, "messages": 3_500, "superseded_in_files": 0, "bytes": 400_000, "due_at": None},
        "compacted_missing": None,
        "partitions": [
            {
                "partition": number,
                "start_offset": 81_000 - number * 1_000,
                "end_offset": 168_388,
                "horizon": 168_387 if number else None,
                "messages": 88_011,
                "bytes": 5_200_000,
                "segments": 4,
                "oldest_at": "2026-05-15T05:00:00Z",
                "newest_at": "2026-11-21T04:00:00Z",
            }
            for number in range(2)
        ],
        "settings": [
            {
                "setting": "message_expiry",
                "value": 16_416_000,
                "unit": "seconds",
                "origin": "topic",
                "on_topic": True,
                "section": "system.segment",
                "help": "Age at which a segment's newest message makes the whole segment expire; 0 = never.",
            },
            {
                "setting": "max_removed_fraction",
                "value": 0.5,
                "unit": "",
                "origin": "built in",
                "on_topic": True,
                "section": "limits",
                "help": "Share of a log's messages or bytes that may go in one run without a person's word.",
            },
        ],
        "consumers": [
            {
                "consumer": "billing",
                "replica": False,
                "pins": True,
                "falls_silent_at": "2026-11-28T10:00:00Z",
                "consumer_expiry": 604_800,
                "partitions": [
                    {"partition": 0, "offset": 168_000, "lag": 387, "at": "2026-11-21T10:00:00Z"},
                    {"partition": 1, "offset": None, "lag": 168_388, "at": None},
                ],
            }
        ],
        "holds": [],
        "bounds": [bound(), bound(partition=1, stops_at=None, bound="budget", reason="every segment is expired")],
        "status": status(),
        "runs": [outcome(), outcome(outcome="no_op", removed={}, first_plan_id="0123456789abcdef0123456789abcdef", more=True)],
        "expiries": Expiries(
            days=(ExpiryDay(day=Instant(0), amount=Amount(messages=9, bytes=90)),), due=Amount(), later=Amount(messages=4), never=Amount()
        ),
        "growth": Growth(
            sizes=(SizeAt(at=Instant(0), messages=9, bytes=None), SizeAt(at=Instant(DAY), messages=5, bytes=50)),
            periods=(Period(since=Instant(0), messages=5, added=9, removed={"expiry": 4}, restored=0),),
            period_us=2 * DAY,
            reasons=("expiry",),
        ),
        **changes,
    }
    return Sample(found)


def plan(**changes: Any) -> Any:
    return {
        "plan_id": "0123456789abcdef0123456789abcdef",
        "undone": False,
        "topic": "demo/flights",
        "operation": "message_cleaner",
        "things": "messages",
        "as_of": "2026-11-21T15:00:00Z",
        "removes": {
            "messages": 160_754,
            "of_messages": 336_776,
            "share": 0.4773,
            "bytes": 9_100_000,
            "of_bytes": None,
            "byte_share": None,
            "segments": 10,
            "by_reason": {"expiry": 160_754},
            "files": {"count": 10, "digest": "a" * 64},
        },
        "actions": [
            Sample(action="seal_segment", partition=0, from_=0, to=99),
            Sample({
                "action": "drop_segments",
                "partition": 0,
                "from_": 0,
                "to": 80_999,
                "segments": 5,
                "messages": 80_377,
                "bytes": 4_500_000,
                "newest_at": "2026-05-15T04:00:00Z",
                "reason": "expiry",
            }),
        ],
        "takes_back": None,
        "restores": 0,
        "documents": None,
        "bounds": [bound()],
        "held": [held()],
        "warnings": ["partition 0: 3 message(s) carry a time later than as_of + clock_skew"],
        "asks": [],
        "more": False,
        "next_due_at": "2026-11-26T00:00:00Z",
        "requires": {"table_uuid": "7d1c6f0e", "snapshot_id": 4_710, "policy_hash": "beef", "code_version": "0.1.0"},
        "settings": {"message_expiry": 16_416_000},
        "state": "closed",
        "recorded_at": "2026-11-21T15:00:01Z",
        "requested_by": EVIL,
        "staged": {"branch": "plan-0123", "snapshot_id": 4_711},
        "gate": {
            "gate_id": "b" * 32,
            "at": "2026-11-21T15:00:20Z",
            "judgement": "passed",
            "declared": 3,
            "evaluated": 3,
            "checks": [
                {"id": "rows_exact", "says": "Exactly the planned messages go.", "kind": "rule", "evaluated": True, "passed": True, "found": "160754"},
                {"id": "share", "says": "At most half goes.", "kind": "limit", "evaluated": True, "passed": False, "found": EVIL},
                {"id": "never", "says": "Nothing that never expires.", "kind": "rule", "evaluated": False, "passed": False, "found": "no such column"},
            ],
            "figures": {},
            "took_ms": 1_234,
        },
        "approval": {"granted": True, "by": "admin", "at": "2026-11-21T15:01:00Z", "text": EVIL, "gate_id": "b" * 32},
        "waits_until": None,
        "runs": [{"dag_id": "message_cleaner", "run_id": f"scheduled__2026-11-21T15:00:00Z{EVIL}"}, {"dag_id": None, "run_id": EVIL}],
        "successor": None,
        "undone_by": None,
        "undo_until": "2026-11-28T15:01:00Z",
        "ages": None,
        "outcome": outcome(),
        **changes,
    }  # fmt: skip


def document(**changes: Any) -> Any:
    return {
        "document": "letter",
        "owner": "ada",
        "seq": 3_000,
        "first": 1_900,
        "changes": 1_101,
        "snapshots": [2_000, 3_000],
        "epoch": 2,
        "lowest_synced": 1_900,
        "clients": [
            {"client": "phone", "server_seq": 1_900, "lag": 1_100, "at": "2026-11-21T10:00:00Z"}
            | {"falls_silent_at": "2026-11-22T10:00:00Z", "keeps": True},
            {"client": "laptop", "server_seq": 1_000, "lag": 2_000, "at": None, "falls_silent_at": None, "keeps": False},
        ],
        **changes,
    }


def documents(**changes: Any) -> Any:
    """The page of a topic of documents."""
    found = topic()
    page = {
        "topic": "demo/letters",
        "uuid": found["uuid"],
        "documents": {
            "fold": "text_splice",
            "changes_uuid": found["uuid"],
            "changes_id": 4_711,
            "snapshots_uuid": None,
            "snapshots_id": None,
            "changes": 1_101,
            "snapshots": 2,
            "clients": 2,
            "purged": 1,
            "documents": [
                document(),
                document(document="empty", owner=None, seq=0, first=None, changes=0, snapshots=[], clients=[], lowest_synced=None),
            ],
            "own_settings": [{"level": "user", "name": "ada", "setting": "changes_max_age", "value": EVIL}],
            **changes,
        },
        "settings": found["settings"],
        "holds": [],
        "status": status(
            documents={"due": 1, "snapshots_due": 1}, problems=[f"Document letter is blocked, and keeps every change: {EVIL}"], held=[]
        ),
        "runs": found["runs"],
    }
    return Sample(page)


def document_plan(**changes: Any) -> Any:
    found = plan()
    action = {
        "action": "snapshot_document",
        "document": "letter",
        "seq": 3_000,
        "proved_from": 0,
        "snapshot": 3_000,
        "epoch": 2,
        "dropped_snapshots": [1_000],
        "from_": 900,
        "to": 1_899,
        "changes": 1_000,
        "reason": "purged_synced",
        "bounds": [{"bound": "synced", "stops_at": 1_900}, {"bound": "snapshot", "stops_at": 3_001}],
    }
    only_snapshot = {"snapshot": None, "changes": 0, "reason": None, "bounds": [], "dropped_snapshots": [], "proved_from": 2_000}
    return {
        **found,
        "operation": "snapshot_with_purge",
        "things": "changes",
        "actions": [action, {**action, **only_snapshot}],
        "bounds": [],
        "held": [],
        "documents": {
            "documents": 2,
            "snapshots_made": 1,
            "snapshots_dropped": 1,
            "purged_documents": 1,
            "blocked": [{"document": "poem", "reason": EVIL}],
            "snapshots_snapshot_id": None,
            **changes,
        },
    }
