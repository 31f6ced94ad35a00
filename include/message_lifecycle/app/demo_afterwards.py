"""What comes after a deletion, in `make demo`: one is taken back, the space of another comes back, and a key is erased, with its receipt."""

from __future__ import annotations

from typing import Any

from message_lifecycle.app import erasure_requests, receipts, steps
from message_lifecycle.app.services import Services
from message_lifecycle.local.progress import Progress
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan

BY, WHY = "demo", "make demo shows it"
_SHOWN_BYTES = 1_000_000


class AfterwardsFailed(LifecycleError):
    """What came after the deletion did not come out as it must; the message says where."""


def take_back(s: Services, progress: Progress, topic: TopicName) -> None:
    """Undo the cleaner's last deletion of the topic, markers and all; what came back is left alone from then on."""
    progress.say("")
    history = s.ledger.history(topic, operations=["message_cleaner"])
    plan_id = next((outcome.plan_id for _, outcome in history if outcome.name == "published"), None)
    if plan_id is None:
        raise AfterwardsFailed(f"{topic}: the cleaner has removed nothing that could be taken back")
    before = _messages(s, topic)
    with progress.step(f"That deletion of {topic} is taken back"):
        outcome = steps.run(s, topic, as_of=s.ledger.now(), approver=lambda _plan, _report: (True, BY, WHY), work=UndoPlan(plan_id=plan_id))
    if outcome.name not in ("published", "no_op"):
        raise AfterwardsFailed(f"{topic}: plan {plan_id} was not taken back: {outcome.name}: {outcome.detail}")
    after = _messages(s, topic)
    came, removed = outcome.restored, s.ledger.record(plan_id).plan.expected.removed_rows
    if outcome.name == "published" and (came != removed or after != before + came - outcome.removed_rows):
        raise AfterwardsFailed(f"{topic}: {removed:,} messages went with plan {plan_id}, {came:,} came back, {after:,} are there")
    told = f"{came:,} messages came back, {outcome.removed_rows:,} markers went" if outcome.name == "published" else "it was before"
    progress.say(f"{topic}: {told}; {after:,} messages are there (plan {outcome.first_plan_id or outcome.plan_id})")
    again = steps.run(s, topic, as_of=s.ledger.now())
    if again.removed_rows:
        raise AfterwardsFailed(f"{topic}: what came back was removed again: {dict(again.removed)}")
    progress.say("  the cleaner, run again, takes none of them: `lifecycle undo PLAN --release` would let it")


def report_space(s: Services, progress: Progress, outcomes: list[dict[str, Any]], topic: TopicName) -> None:
    """What the reclaim gave back; of an earlier demo, what that one did."""
    progress.say("")
    found = next((o for _, o in s.ledger.history(topic, operations=["reclaim"]) if o.name == "published"), None)
    if found is None or found.reclaimed_files is None or found.reclaimed_bytes is None:
        told = "; ".join(f"{outcome['topic']}: {outcome['outcome']}: {outcome['detail']}" for outcome in outcomes)
        raise AfterwardsFailed(f"{topic}: no space came back: {told or 'the run was idle'}")
    new = any(outcome["topic"] == str(topic) and outcome["outcome"] == "published" for outcome in outcomes)
    progress.say(
        f"{topic}: {found.reclaimed_files:,} files are gone, {found.reclaimed_bytes / _SHOWN_BYTES:,.1f} MB came back, as measured"
    )
    progress.say(f"  plan {found.plan_id}, {'verified' if new else 'of an earlier run; nothing more was past its undo window'}")


def erase_one(s: Services, progress: Progress, topic: TopicName) -> None:
    """Erase the first aircraft that still has a message, and hold the receipt to the tables."""
    progress.say("")
    key = next((m.key for m in s.reader.messages(topic) if m.key is not None and not is_marker(m.headers)), None)
    if key is None:
        raise AfterwardsFailed(f"{topic}: no message with a key is left that could be erased")
    with progress.step(f"An aircraft is erased from {topic}, from its history and from what an undo would bring back"):
        request = erasure_requests.ask(s, key, topics=[topic], forbid=True, by=BY, why=WHY)
        (found,) = erasure_requests.carry_out(s, request.request_id, approver=lambda _plan, _report: (True, BY, WHY))
    if not found.is_done:
        raise AfterwardsFailed(f"the erasure was not carried out: {found.told()}")
    wrong = receipts.verify(s, request.request_id)
    if wrong or any(message.key == key for message in s.reader.messages(topic)):
        raise AfterwardsFailed(f"{topic}: the erased key is still to be found: {'; '.join(wrong) or 'a reader sees it'}")
    receipt = Receipt.from_json(s.ledger.receipt(request.request_id))
    tables = [table for of_topic in receipt.topics for table in of_topic.tables]
    progress.say(
        f"{topic}: {sum(of_topic.rows for of_topic in receipt.topics):,} messages of one key are erased; "
        f"{sum(len(table.gone) for table in tables):,} files are gone, {sum(table.files_searched for table in tables):,} searched again"
    )
    progress.say(f"  receipt {request.request_id}: `lifecycle receipt verify {request.request_id[:12]}` holds it to the tables at any time")


def _messages(s: Services, topic: TopicName) -> int:
    return sum(segment.rows for segment in s.reader.log(topic).segments)
