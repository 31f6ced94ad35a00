"""Erasure requests: a person asks to erase keys everywhere. Only `ask` sees the keys; the ledger and all other code use their keyed hashes.

A forbidden key is refused from the moment the request is recorded. Messages of running ingests still come in, and the erasure finds them.
An erasure waits for running ingests before it searches, and is published only while no ingest runs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from secrets import token_hex

from message_lifecycle.app import steps
from message_lifecycle.app.erasure_secret import match_of, secret_for_request
from message_lifecycle.app.holds import record_ledger
from message_lifecycle.app.known import all_topics, error_of_one_topic, why_absent
from message_lifecycle.app.operations.erasure import INTAKE, forget_former, lock_out_writers
from message_lifecycle.app.operations.reclaim import find_lost_reclaims, is_gone
from message_lifecycle.app.operations.topics import uuid_of
from message_lifecycle.app.receipts import (
    ERASURE,
    describe_old_copies_of_topic,
    eraser_of,
    is_found_nowhere,
    keys_gone_since,
    newest_outcomes,
    outcomes,
)
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.steps import Approver
from message_lifecycle.app.topics import line_of
from message_lifecycle.app.witness import missing_tables, tables_back_since
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.errors import (
    LifecycleError,
    UnknownPlan,
    UnknownTopic,
    code_of,
    nothing_to_erase,
    unusable_key,
)
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.people import person_of
from message_lifecycle.model.phrases import short
from message_lifecycle.model.request import EraseKey
from message_lifecycle.model.tables import Deletion, Remnant

_SHORTEST_FOUND_BYTES = 4
"""Shorter keys occur in many texts by chance, so a search of a text ignores them."""


def ask(s: Services, keys: Collection[bytes], *, topics: Sequence[TopicName], forbid: bool, by: str, why: str) -> ErasureRequest:
    """Record the request.

    Args:
        s: The stores, the ledger and the settings.
        keys: The keys to erase. A key that is given twice counts once.
        topics: Erase the keys from these topics. Empty: every topic, with `forbid` also every future topic.
        forbid: Also refuse new messages with one of the keys.
        by: The person who asks.
        why: The person's reason.

    Raises:
        UnusableKey: No key is given. Or `by` or `why` contains a key, and the ledger keeps both.
        TooManyKeys: One request cannot name so many keys.
        UnknownTopic, UnexplainedErasure, UnnamedPerson, MixedScripts: The request is incomplete or wrong.
        ErasureSecretMissing, ErasureSecretChanged: The keys cannot be hashed.
    """
    if not keys:
        raise unusable_key("none is given")
    for name in topics:
        s.topics.describe(name)
    by = person_of(by)
    if any(contains_key(by, key) or contains_key(why, key) for key in keys):
        raise unusable_key("the name of the person or the reason contains the key, and the ledger keeps both")
    digests = secret_for_request(s).digests(keys)
    if forbid:
        _record_ledger(s, topics)
    return s.ledger.add_erasure(token_hex(16), digests, topics=topics, forbid=forbid, requested_by=by, why=why)


def allow_keys_again(s: Services, request_id: str, *, by: str, why: str) -> ErasureRequest:
    """Let the forbidden keys come in again. Raises UnknownErasure, NothingForbidden, ClockSkewed."""
    s.ledger.check_host_clock()
    lifted = s.ledger.allow_keys_again(request_id, by=by, why=why)
    _record_ledger(s, lifted.topics)
    return lifted


def _record_ledger(s: Services, topics: Sequence[TopicName]) -> None:
    """Record the ledger's new number in the topics, so that an older backup of the ledger cannot let a key in (DEL-8).

    Without named topics, record it in all topics. A missing or damaged topic takes no messages, and stops no other topic.
    """
    s.ledger.check_host_clock()
    deleted = s.stores.deletions()
    for name in topics or sorted({*all_topics(s), *(one.topic for one in deleted)}):
        try:
            record_ledger(s, name)
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            error_of_one_topic(s, name, error)


def contains_key(text: str, key: bytes) -> bool:
    """Return whether the text contains the key as a separate word: in plain text, in hex or in base64."""
    if len(key) < _SHORTEST_FOUND_BYTES:
        return False
    spelled = {key.hex(), base64.b64encode(key).decode(), key.decode("utf-8", "surrogateescape")}
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text, re.IGNORECASE) for one in spelled)


def topics_of(s: Services, request: ErasureRequest) -> list[TopicName]:
    """Return the request's topics: its named topics except those gone for good, or every topic of the lake and the backends.

    Origins come before their copies. A copy may take the key from an origin that is not erased yet; the later erasure of the copy finds it.
    """
    origins = {replica: origin for origin, replica in s.ledger.replicas()}
    names = [name for name in request.topics if not is_gone(s, name)] if request.topics else all_topics(s)
    return sorted(names, key=lambda name: (len(line_of(origins, name)), name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicErasureResult:
    """The result of an erasure for one topic: an outcome, or the error that prevents it."""

    topic: TopicName
    outcome: Outcome | None = None
    error: LifecycleError | None = None

    @property
    def is_done(self) -> bool:
        return self.outcome is not None and self.outcome.name in ("published", "no_op")

    def why_not_done(self) -> str:
        """Return why the erasure of the topic is not done."""
        if self.outcome is not None:
            return f"{self.topic}: {self.outcome.name}: {self.outcome.detail}"
        return f"{self.topic}: {code_of(self.error)}: {self.error}"


def carry_out(s: Services, request_id: str, *, approver: Approver | None = None) -> list[TopicErasureResult]:
    """Erase the request's keys from each of its topics in turn, with one plan for each topic.

    A topic that fails stops no other topic. Work of an earlier run is found, not repeated.

    Raises:
        UnknownErasure: The ledger has no such request.
        NothingToErase: The request was refused.
    """
    request = s.ledger.erasure(request_id)
    if request.state == "refused":
        raise nothing_to_erase(request.request_id, request.detail)
    found = []
    for name in topics_of(s, request):
        try:
            outcome = steps.run(s, name, as_of=s.ledger.now(), approver=approver, work=EraseKey(request_id=request.request_id))
        except LifecycleError as error:
            found.append(TopicErasureResult(topic=name, error=why_absent(s, name, error) if isinstance(error, UnknownTopic) else error))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            found.append(TopicErasureResult(topic=name, error=error_of_one_topic(s, name, error)))
        else:
            found.append(TopicErasureResult(topic=name, outcome=outcome))
    record_request_state(s, request, found)
    return found


def latest_results(s: Services, request: ErasureRequest) -> list[TopicErasureResult]:
    """Return the request's results so far, from the ledger. Topics that no run has searched for it yet are left out."""
    return results_in_topics(s, request, topics_of(s, request), s.ledger.history(operations=ERASURE))


def results_in_topics(
    s: Services, request: ErasureRequest, topics: Sequence[TopicName], erasures: Sequence[tuple[Instant, Outcome]]
) -> list[TopicErasureResult]:
    """Return the request's results in these topics, as `latest_results`, from the outcomes of all erasures, newest first."""
    found = newest_outcomes(s, request, set(topics), erasures)
    return [TopicErasureResult(topic=name, outcome=found[name]) for name in topics if name in found]


def newest_ended_outcome(s: Services, request: ErasureRequest, name: TopicName) -> tuple[Instant, Outcome] | None:
    """Return the outcome of the request's newest ended plan of the topic, with its recording time. None if no plan has ended yet."""
    return next(((at, outcome) for at, outcome, _ in outcomes(s, request, name)), None)


def settle_latest(s: Services, request: ErasureRequest) -> ErasureRequest:
    """Settle the request from the results in the ledger, and repeat until the results do not change.

    Two processes may end two topics at the same time without seeing each other's result. The state recorded last must include both.
    """
    seen, found = None, latest_results(s, request)
    while found != seen:
        record_request_state(s, request, found)
        seen, found = found, latest_results(s, request)
    return s.ledger.erasure(request.request_id)


def record_request_state(s: Services, request: ErasureRequest, found: Sequence[TopicErasureResult]) -> ErasureRequest:
    """Record the state of the request (DEL-7).

    * `erased`: every topic is done, also deleted topics, and no store keeps an old copy of their files.
    * `not_found`: as `erased`, and no search found a requested key.
    * `refused`: a person refused, and nothing was removed.
    * `requested`: otherwise.

    Raises:
        UnsupportedErasure, TopicBusy: A copy must be searched again, and cannot be searched.
    """
    missing = sorted(set(topics_of(s, request)) - {one.topic for one in found})
    left = [one for one in found if not one.is_done]
    reasons = [
        *(one.why_not_done() for one in left),
        *(_why_not_searched(s, name) for name in missing),
        *describe_unsearched_places(s, request),
    ]
    detail = "; ".join(reasons or [*describe_old_copies(s, request), *copied_again(s, request)])
    if not detail:
        forget_former(s, request)
        s.ledger.set_erasure_state(request.request_id, "not_found" if is_found_nowhere(s, request.request_id) else "erased")
    elif any(_is_refused(one) for one in left) and not any(
        _may_have_removed(s, request, name) for name in {*topics_of(s, request), *request.topics}
    ):
        s.ledger.set_erasure_state(request.request_id, "refused", detail=detail)
    else:
        s.ledger.set_erasure_state(request.request_id, "requested", detail=detail)
    return s.ledger.erasure(request.request_id)


def _why_not_searched(s: Services, name: TopicName) -> str:
    try:
        s.topics.describe(name)
    except Exception as error:  # noqa: BLE001 - the barrier of one topic
        return TopicErasureResult(topic=name, error=error_of_one_topic(s, name, error)).why_not_done()
    return f"{name}: not searched yet"


def describe_unsearched_places(s: Services, request: ErasureRequest) -> list[str]:
    """Describe the places that may still hold a key but were not searched.

    An erasure searches only the tables of existing topics. Tables of deleted topics, missing tables and returned tables are listed here. If
    the request is about every topic, topics in a backend that are not configured are listed, too.
    """
    gone = find_lost_reclaims(s)
    return (
        [
            f"{topic.topic}: its tables were not searched, because plan {short(topic.plan_id)} deleted the topic. Bring it back: "
            f"`lifecycle undo {short(topic.plan_id)} --by NAME --why WHY`. After its undo_window: "
            f"`lifecycle reclaim run --deleted {short(topic.plan_id)}`"
            for topic in s.stores.deletions()
            if (not request.topics or topic.topic in request.topics) and not _ended_before_deletion(s, request, topic)
        ]
        + [
            _describe_remnant(s, left)
            for left in (() if s.stores.delete_tables is None else s.stores.delete_tables.remnants())
            if not request.topics or left.topic in request.topics
        ]
        + [
            f"{begun.topic}: some files of the deleted topic remain. Plan {short(plan_id)} has begun to remove them"
            + (
                f". The ledger does not have that plan. List the files: `lifecycle reclaim run --deleted {short(plan_id)}`"
                if plan_id in gone
                else ""
            )
            for plan_id, begun in (() if s.stores.drop_tables is None else s.stores.drop_tables.unfinished().items())
            if not begun.removed and (not request.topics or begun.topic in request.topics)
        ]
        + [
            f"{name}: its {missing} is not in the catalog and was not searched. Bring it back under its name, then run "
            f"`lifecycle erase run {short(request.request_id)} --by NAME --why WHY`. If it was dropped with its files: "
            f"`lifecycle topic repair {name} --give-up-tables --by NAME --why WHY`"
            for name in topics_of(s, request)
            for missing in missing_tables(s, name)
        ]
        + [
            f"{name}: its {table} was missing during the search, and is back. Search it: "
            f"`lifecycle erase run {short(request.request_id)} --by NAME --why WHY`"
            for name in topics_of(s, request)
            if (ended := newest_ended_outcome(s, request, name)) is not None
            for table in tables_back_since(s, name, ended[1].as_of)
        ]
        + list(() if request.topics else s.strays())
    )


def describe_old_copies(s: Services, request: ErasureRequest) -> list[str]:
    """Describe the old file copies that stores keep beneath the topics' tables. The erasure of every table does not remove them."""
    gone = ((name, keys_gone_since(s, request, name)) for name in topics_of(s, request))
    ended = f". Then run `lifecycle erase run {short(request.request_id)} --by NAME --why WHY`"
    return [f"{name}: {copies}{ended}" for name, at in gone if at is not None for copies in describe_old_copies_of_topic(s, name, at)]


def _describe_remnant(s: Services, left: Remnant) -> str:
    """Return why these tables of the topic were not searched, and the next step."""
    plan_id, tables = short(left.plan_id), ", ".join(left.tables)
    plan = f"{left.topic}: plan {plan_id}"
    try:
        record = s.ledger.record(left.plan_id)
    except UnknownPlan:
        record = None
    if record is None or uuid_of(s, left.topic) != record.plan.requirements.table_uuid:
        return (
            f"{plan} deleted the topic, and someone dropped its log later. The remaining tables may have a requested key. "
            f"Drop them with their files: {tables}"
        )
    if record.outcome is None:
        return (
            f"{plan} has begun to delete the topic. Its moved tables were not searched: {tables}. "
            f"Finish or reverse the deletion: `lifecycle publish {plan_id}`"
        )
    begun = s.ledger.open_plan(left.topic)
    if begun is not None and begun.plan.parent == left.plan_id:
        return (
            f"{plan} deleted the topic, and an undo has begun to bring it back. The tables that are still away were not searched: {tables}. "
            f"Finish the undo: `lifecycle undo {plan_id} --by NAME --why WHY`"
        )
    result = "was undone" if record.outcome.name == "published" else "did not delete the topic"
    return (
        f"{plan} {result}, and the topic exists. These moved tables could not move back, because other tables have their names: {tables}. "
        "They may have a requested key. Save the messages that you need, then drop the tables with their files"
    )


def copied_again(s: Services, request: ErasureRequest) -> list[str]:
    """Describe copies that were erased before their origin and took a key from the origin again.

    A person may approve the erasure of the copy first, so the order of `topics_of` does not prevent this.
    """
    done = {name: ended[0] for name in topics_of(s, request) if (ended := newest_ended_outcome(s, request, name)) is not None}
    pairs = ((replica, origin) for origin, replica in s.ledger.replicas() if origin in done and replica in done)
    early = sorted(replica for replica, origin in pairs if done[replica] <= done[origin])
    return [
        f"{name}: a requested key came again from its origin, which was erased later. "
        f"Run the request again: `lifecycle erase run {short(request.request_id)} --by NAME --why WHY`"
        for name in early
        if not _is_clean(s, request, name)
    ]


def _is_clean(s: Services, request: ErasureRequest, name: TopicName) -> bool:
    with lock_out_writers(s, name, purposes=INTAKE):
        found = eraser_of(s, name).find_key(name, match_of(s, [request]), policy_of(s, name), as_of=s.ledger.now())
    return all(table.clean for table in found)


def _ended_before_deletion(s: Services, request: ErasureRequest, topic: Deletion) -> bool:
    """Return whether the request's erasure of the topic ended before the topic was deleted."""
    plans = (
        s.ledger.record(outcome.plan_id).plan
        for _, outcome in s.ledger.history(topic.topic, operations=ERASURE)
        if outcome.plan_id is not None and outcome.name in ("published", "no_op")
    )
    return any(
        plan.requirements.table_uuid == topic.table_uuid and plan.erasure is not None and plan.erasure.request_id == request.request_id
        for plan in plans
    )


def _is_refused(one: TopicErasureResult) -> bool:
    return one.outcome is not None and one.outcome.name == "refused"


def _may_have_removed(s: Services, request: ErasureRequest, name: TopicName) -> bool:
    """Return whether the erasure may have removed something from the topic.

    An erasure removes nothing before a person approves it. After the approval a run may die between the commits of two tables. A later run
    that finds nothing more does not change this answer.
    """
    return any(
        outcome.name == "published" or (record.approval is not None and record.approval.granted)
        for _, outcome, record in outcomes(s, request, name)
    )
