"""Requests to erase keys, places of keys inside values, and receipts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from message_lifecycle.app.rendering import ABSENT, Block, Count, Heading, Line, Notes, Table, View, source
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import OutcomeView
from message_lifecycle.app.wording import count
from message_lifecycle.model.erasure import ErasureRequest, Receipt
from message_lifecycle.model.in_values import InValues, ValuePlace
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount, short

NOT_FOUND = "Warning: {} not found. Nothing was erased. Keys are compared byte by byte. Check upper and lower case, spaces, and --base64."
_NOT_DONE = "not done because"
"""Beside the reason that a person gave: what stands against the request."""


class LiftedView(View):
    """Who allowed erased keys to come in again."""

    by: str
    why: str
    at: Instant


class TopicError(View):
    """The error that prevents the erasure of one topic."""

    topic: TopicName
    error: str
    message: str

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.topic}: {self.error}: {self.message}", style="red", wraps=True)


class ErasureView(View):
    """A request to erase keys.

    Args:
        topics: Empty: all.
        digests: The keyed hash of each key.
        outcomes: How the topics ended that a call carried out just now.
    """

    request_id: str
    state: str
    detail: str
    topics: tuple[TopicName, ...]
    forbid: bool
    forbids: bool
    requested_by: str
    why: str
    requested_at: Instant
    digests: tuple[str, ...]
    secret: str
    lifted: LiftedView | None = source(make=LiftedView.of)
    in_values: InValues | None
    outcomes: Sequence[OutcomeView] = ABSENT
    errors: Sequence[TopicError] = ABSENT

    @property
    def short_id(self) -> str:
        return short(self.request_id)

    @property
    def is_carried_out(self) -> bool:
        return self.outcomes is not ABSENT

    @property
    def where(self) -> str:
        return ", ".join(map(str, self.topics)) or "all"

    table = Table(
        columns={
            "request": "short_id", "state": "state", "topics": "where", "keys": lambda one: f"{count(len(one.digests))}{' forbidden' if one.forbids else ''}",
            "requested": "requested_at", "by": "requested_by", "why": "why", _NOT_DONE: "detail",
        },
        wrap=("topics", "why", _NOT_DONE), wide=("keys", "by"), none="no erasure requests",
    )  # fmt: skip

    def screen_blocks(self) -> Iterator[Block]:
        if self.is_carried_out and self.state == "not_found":
            yield Line(NOT_FOUND.format(amount(len(self.digests), "keys")), style="yellow")
        yield Line(f"Erasure request {self.request_id}: {self.state}", style="bold")
        yield {
            "topics": self.where,
            "requested by": f"{self.requested_by}: {self.why}",
            "keys": f"{count(len(self.digests))}{', forbidden: new messages with them are rejected' if self.forbids else ''}",
            "allowed again": "" if self.lifted is None else f"{self.lifted.by}: {self.lifted.why}",
            _NOT_DONE: self.detail,
        }
        for outcome in self.outcomes or ():
            yield from outcome.screen_blocks()
        for error in self.errors or ():
            if error.message not in self.detail:
                yield from error.screen_blocks()
        yield from in_values_blocks(self.in_values)
        yield from self._next()

    def _next(self) -> Iterator[Block]:
        if self.is_carried_out and self.state in ("erased", "not_found"):
            yield f"Verify: lifecycle receipt verify {self.short_id}"
        if self.state == "requested" and self.is_carried_out:
            yield f"Not finished. Continue: lifecycle erase run {self.short_id} --by NAME --why WHY"
        elif self.state == "requested":
            yield f"Next: lifecycle erase run {self.short_id} --by NAME --why WHY"
            yield f'Or trigger the DAG `erasure` with {{"request_id": "{self.request_id}"}}'


def erasure_view(request: ErasureRequest, found: InValues | None = None, **given: object) -> ErasureView:
    """`found`: a search in values just now, which says more than the ledger keeps of it."""
    forbids = request.forbid and request.state != "refused" and request.lifted is None
    digests = tuple(key.digest for key in request.keys.each)
    given |= {"forbids": forbids, "digests": digests, "secret": request.keys.secret, "in_values": found or request.in_values}
    return ErasureView.of(request, **given)


def erasures_view(s: Services, *, limit: int) -> list[ErasureView]:
    """Newest first."""
    return [erasure_view(request) for request in s.ledger.erasures(limit=limit)]


_PLACES = Table(
    columns={
        "topic": lambda one: str(one[0]), "table": lambda one: str(one[1].table),
        "partition": lambda one: "" if one[1].partition is None else str(one[1].partition), "rows": lambda one: count(one[1].rows),
        "readers see": lambda one: count(one[1].live), "where": lambda one: _where(one[1]),
    },
    right=("partition", "rows", "readers see"), none="in no value and no header",
)  # fmt: skip


def _where(place: ValuePlace) -> str:
    return " ".join(filter(None, (place.file, place.offsets, ", ".join(place.names), "..." if place.is_cut else "")))


def in_values_blocks(found: InValues | None) -> Iterator[Block]:
    """Yield the places of keys inside values, and nothing without a search. `live` counts the rows of `rows` that readers see."""
    if not found:
        return
    yield Heading(f"Keys inside other messages, searched at {format_to_second(found.searched_at)}")
    yield _PLACES.of((topic.topic, place) for topic in found.topics for place in topic.places)
    yield Notes([f"{topic.topic}: {amount(topic.more, 'more places')}" for topic in found.topics if topic.more])
    for topic in found.topics:
        if topic.error:
            yield Line(f"{topic.topic} could not be searched: {topic.error}", style="red")
    if any(topic.places for topic in found.topics):
        yield "These messages were not erased. Remove them: lifecycle message delete TOPIC PARTITION:OFFSET --by NAME --why WHY"


class KeptReceipt(View):
    """A receipt in a list."""

    request_id: str
    at: Instant
    topics: tuple[str, ...]
    messages: Count
    files_gone: Count

    table = Table(
        columns={
            "request": lambda one: short(one.request_id), "recorded": "at", "topics": lambda one: ", ".join(one.topics),
            "messages": "messages", "files gone": "files_gone",
        },
        wrap=("topics",), none="no receipts: nothing was erased",
    )  # fmt: skip


def receipts_view(s: Services, *, limit: int) -> list[KeptReceipt]:
    """Newest first."""
    return [
        KeptReceipt(
            request_id=receipt.request_id,
            at=at,
            topics=tuple(topic.topic for topic in receipt.topics),
            messages=sum(topic.rows for topic in receipt.topics),
            files_gone=sum(len(table.gone) for topic in receipt.topics for table in topic.tables),
        )
        for at, receipt in ((at, Receipt.from_json(text)) for at, text in s.ledger.receipts(limit=limit))
    ]


_SEARCHED = Table(
    columns={
        "table": "table", "uuid": "table_uuid", "snapshots searched": lambda one: count(len(one.snapshots)),
        "files searched": lambda one: count(one.files_searched), "rows erased": lambda one: count(one.rows or 0),
        "files gone": lambda one: count(len(one.gone)),
    },
    right=("snapshots searched", "files searched", "rows erased", "files gone"), wide=("uuid",),
)  # fmt: skip


def receipt_blocks(receipt: Receipt, in_values: InValues | None) -> Iterator[Block]:
    """Yield a receipt as a person reads it. Programs get its own JSON document, as it is kept."""
    yield Line(f"Receipt of erasure request {receipt.request_id}", style="bold")
    keys = {f"key digest {number}" if len(receipt.digests) > 1 else "key digest": one for number, one in enumerate(receipt.digests, 1)}
    yield {**keys, "secret": receipt.secret}
    for topic in receipt.topics:
        yield Heading(topic.topic)
        unreachable = format_to_second(topic.unreachable_at)
        times = {"hidden": format_to_second(topic.hidden_at), "rewritten": format_to_second(topic.rewritten_at), "unreachable": unreachable}
        yield {
            "plan": topic.plan_id,
            "messages erased": "none: key not found" if topic.found_nowhere else count(topic.rows),
            **({"searched": unreachable} if topic.found_nowhere else times),
            "made by": f"version {topic.code_version}",
        }
        yield _SEARCHED.of(topic.tables)
        remains = [table.remains for table in topic.tables if table.remains is not None]
        yield Notes(remains, title="May still hold bytes of a key, unseen by readers and searches")
    yield from in_values_blocks(in_values)
    yield ""
    yield f"Verify: lifecycle receipt verify {short(receipt.request_id)}"


class VerifiedReceipt(View):
    """The result of verifying a receipt with a new search. `wrong` lists the differences."""

    request_id: str
    holds: bool
    wrong: Sequence[str]

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(
            f"Receipt {short(self.request_id)}: {'confirmed' if self.holds else 'not confirmed'}", style="green" if self.holds else "red"
        )
        yield Notes(self.wrong)
