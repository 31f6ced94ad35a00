"""Receipts of erasures.

The ledger adds a topic's verified erasure to the receipt of its request. Later checks compare the receipt with the tables. If no table had
a requested key, the receipt lists the searched tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from message_lifecycle import __version__
from message_lifecycle.app import archiving
from message_lifecycle.app.erasure_secret import match_of
from message_lifecycle.app.known import error_of_one_topic
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.erasure import TABLE_KINDS, ErasedTable, ErasureRequest, KeyMatch, Receipt, TableReceipt, TopicReceipt
from message_lifecycle.model.errors import LifecycleError, Unavailable, UnknownTopic, code_of, unsupported_erasure
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import Eraser

ERASURE: tuple[Operation, ...] = ("erasure",)


def search(s: Services, plan: Plan, matches: KeyMatch, went: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Sequence[ErasedTable]:
    """Search the tables that the plan has erased the keys from. If the plan found no key, search all tables of the topic.

    Args:
        s: The stores, the ledger and the settings.
        plan: The erasure's plan.
        matches: Returns True for the keys.
        went: See `ports.Eraser`.

    Raises:
        UnsupportedErasure, UnknownTopic: The topic cannot be searched. Errors from reading are raised, too.
    """
    eraser = eraser_of(s, plan.topic)
    if plan.changes:
        return eraser.erased_tables(plan, matches, went)
    return [
        ErasedTable.searched(table) for table in eraser.find_key(plan.topic, matches, Policy.from_values(plan.policy), as_of=plan.as_of)
    ]


def eraser_of(s: Services, name: TopicName) -> Eraser:
    """Raises UnsupportedErasure."""
    if s.stores.rewrite is None:
        raise unsupported_erasure(f"topic {name}", "its store cannot erase keys")
    return s.stores.rewrite


def outcomes(s: Services, request: ErasureRequest, name: TopicName) -> Iterator[tuple[Instant, Outcome, PlanRecord]]:
    """Yield the outcomes of the request's plans for the topic, each with its recording time and plan, the newest first."""
    for at, outcome in s.ledger.history(name, operations=ERASURE):
        if (record := _record_of(s, request, at, outcome)) is not None:
            yield at, outcome, record


def newest_outcomes(
    s: Services, request: ErasureRequest, topics: Collection[TopicName], erasures: Sequence[tuple[Instant, Outcome]]
) -> dict[TopicName, Outcome]:
    """Return the newest outcome of the request's plans for each of the topics that has one.

    Args:
        s: The stores, the ledger and the settings.
        request: The request.
        topics: The request's topics.
        erasures: The outcomes of all erasures, newest first.
    """
    found = dict[TopicName, Outcome]()
    for at, outcome in erasures:
        name = outcome.topic
        if name in topics and name not in found and _record_of(s, request, at, outcome) is not None:
            found[name] = outcome
    return found


def _record_of(s: Services, request: ErasureRequest, at: Instant, outcome: Outcome) -> PlanRecord | None:
    """Return the plan of the outcome if the request made it."""
    if at < request.requested_at or outcome.plan_id is None:
        return None
    record = s.ledger.record(outcome.plan_id)
    return record if record.plan.erasure is not None and record.plan.erasure.request_id == request.request_id else None


def keys_gone_since(s: Services, request: ErasureRequest, name: TopicName) -> Instant | None:
    """Return the time after which no written file contains a requested key, or None.

    A forbidden key cannot come in again, so the last erasure that removed it counts. If no erasure removed it, the first search that found
    nothing counts. Any other key may have come in again, so the last finished erasure counts.
    """
    done = [(at, outcome.name) for at, outcome, _ in outcomes(s, request, name) if outcome.name in ("published", "no_op")]
    if not request.forbids(name):
        return done[0][0] if done else None
    return next((at for at, ended in done if ended == "published"), done[-1][0] if done else None)


def describe_old_copies_of_topic(s: Services, name: TopicName, until: Instant) -> Sequence[str]:
    """Describe the old copies of files, written until then, that stores keep beneath the topic's tables and archives.

    If the store cannot be asked, the description says why.
    """
    try:
        return [*eraser_of(s, name).describe_old_copies(name, until), *archiving.describe_old_copies(s, name, until)]
    except UnknownTopic:
        return ()  # a deleted topic: `erasures.describe_unsearched_places` reports it
    except LifecycleError as error:
        return (f"{code_of(error)}: {error}",)


def add_to_receipt(s: Services, plan: Plan, found: Sequence[ErasedTable]) -> None:
    """Add a topic to its request's receipt. `found`: the result of a search after the erasure, which found no key."""
    assert plan.erasure is not None, "an erasure's plan names its request"
    now = s.ledger.now()
    known = s.ledger.committed_at(plan.plan_id) or now  # of a store whose tables carry no time of their commits
    committed = max((table.committed_at or known for table in found), default=known)
    topic = TopicReceipt(
        topic=str(plan.topic),
        plan_id=plan.plan_id,
        rows=plan.expected.removed_rows,
        tables=tuple(
            TableReceipt(
                table=table.table,
                table_uuid=table.table_uuid,
                snapshots=table.snapshots,
                files_searched=table.files_searched,
                gone=table.gone,
                rows=rows_erased(plan, table.table) if plan.changes else None,
                remains=(table.remains or TABLE_KINDS[table.table].remains) if plan.changes else None,
            )
            for table in found
        ),
        hidden_at=Instant(committed),
        rewritten_at=Instant(committed),
        unreachable_at=now,
        code_version=__version__,
        found_nowhere=not plan.changes,
    )
    of = plan.erasure
    first = Receipt(request_id=of.request_id, digests=of.digests, secret=of.secret, topics=())
    s.ledger.keep_receipt(of.request_id, lambda kept: (first if kept is None else Receipt.from_json(kept)).with_topic(topic).to_json())


def is_found_nowhere(s: Services, request_id: str) -> bool:
    """True if the request has a receipt, and none of its topics held a key. Without a receipt nothing was searched."""
    try:
        receipt = Receipt.from_json(s.ledger.receipt(request_id))
    except LifecycleError as error:
        if error.code != "NoReceipt":
            raise
        return False
    return all(topic.found_nowhere for topic in receipt.topics)


def rows_erased(plan: Plan, table: str) -> int:
    """Return how many rows of the keys the plan removes from the files of one table that it writes again."""
    return sum(rows.rows for action in plan.rewrites if action.table == table for rows in action.rows)


def verify(s: Services, request_id: str, *, key: bytes | None = None) -> list[str]:
    """Return the differences between the receipt and the files now: a removed file that exists, or a file that holds a key.

    Args:
        s: The stores, the ledger and the settings.
        request_id: The id of the request.
        key: Search for this key of the request alone. None: search for all its keys.

    Returns:
        The differences in words. Empty: the receipt is still true.

    Raises:
        UnknownErasure, NoReceipt, InvalidReceipt, ErasureSecretMissing, ErasureSecretChanged: The receipt cannot be verified.
    """
    receipt = Receipt.from_json(s.ledger.receipt(request_id))
    request = s.ledger.erasure(receipt.request_id)
    matches = match_of(s, [request])
    if key is not None:
        if not matches(key):
            return ["the receipt does not list this key; keys are compared byte by byte"]
        matches = matches.for_key(key)
    wrong: list[str] = []
    for topic in receipt.topics:
        plan = s.ledger.record(topic.plan_id).plan
        lost = archiving.find_lost_archives(s, plan.topic)
        try:
            found = {table.table: table for table in search(s, plan, matches, {table.table: table.gone for table in topic.tables})}
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            # An archive that is not reached concerns this topic alone, so the other topics are still verified.
            topic_error = error if lost and isinstance(error, Unavailable) else error_of_one_topic(s, plan.topic, error)
            deleted = isinstance(topic_error, UnknownTopic)  # if a plan removed the topic for good, all its files are gone
            wrong += _describe_unsearched_tables(s, plan) if deleted else [f"{plan.topic}: {topic_error.code}: {topic_error}"]
            continue
        wrong += [f"{topic.topic}: {folder}, its archive, is not there or not reached, and was not looked into" for folder in lost]
        at = keys_gone_since(s, request, plan.topic) or topic.unreachable_at
        wrong += [f"{topic.topic}: {place}" for place in describe_old_copies_of_topic(s, plan.topic, at)]
        former = archiving.former_holders(s, plan.topic, policy_of(s, plan.topic), matches)
        wrong += [f"{topic.topic}: the archive {folder}, which it used before, holds a requested key" for folder in former]
        searched = {table.table for table in topic.tables}
        wrong += [_holds(topic, table) for table in found.values() if table.table not in searched and table.files_found]
        for table in topic.tables:
            now = found.get(table.table)  # type: ignore[call-overload]  # the receipt tells it as text
            if now is None and TABLE_KINDS[table.table].by_setting:  # type: ignore[index]  # the receipt tells it as text
                continue  # the topic archives no more, and the former archives were searched above
            if now is None or now.table_uuid != table.table_uuid:
                now_there = "is another table now" if now else "is not there any more"
                wrong.append(f"{topic.topic}: the {table.table} {now_there} ({table.table_uuid} was searched)")
                continue
            if now.files_found:
                wrong.append(_holds(topic, now))
            wrong += [f"{topic.topic}: {name}, which went, is there" for name in now.there]
    return wrong


def _holds(topic: TopicReceipt, table: ErasedTable) -> str:
    return f"{topic.topic}: {table.files_found} of {table.files_searched} data files of the {table.table} hold a requested key"


def _describe_unsearched_tables(s: Services, plan: Plan) -> list[str]:
    """A topic that was deleted since and whose tables are still there, in words: nothing is said to hold unseen."""
    return [
        f"{plan.topic}: deleted since by plan {topic.plan_id}, its tables were not looked into; `lifecycle undo` brings it back"
        for topic in s.stores.deletions()
        if topic.table_uuid == plan.requirements.table_uuid
    ]
