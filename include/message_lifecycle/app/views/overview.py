"""The overview: every topic's state, the most urgent first, searched and filtered. A request to erase a key is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from message_lifecycle.app.erasures import results_in_topics, topics_of
from message_lifecycle.app.receipts import ERASURE
from message_lifecycle.app.rendering import Count, View
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import OutcomeView, outcomes_view
from message_lifecycle.app.views.status import Health, StatusView
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.errors import LifecycleError, PartlyUnavailable, Unavailable, code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.phrases import short

TROUBLES: tuple[Health, ...] = get_args(Health)
_ERASURES_SHOWN = 5


class StateTile(View):
    """The number of topics in one state. `plan_id`: the plan of their only question, if there is just one."""

    trouble: Health
    topics: Count
    plan_id: str | None


class ErasureLine(View):
    """One request to erase a key, over all its topics.

    Args:
        topics: The named topics. Empty: every topic.
        of_topics: The number of topics to search. None: the request has ended, or its records cannot be read.
        done: The number of topics that are done. None: as `of_topics`.
        waiting: The plans that wait for a person.
    """

    request_id: str
    state: str
    detail: str
    topics: tuple[TopicName, ...]
    of_topics: Count | None
    done: Count | None
    waiting: tuple[str, ...]
    requested_by: str
    requested_at: Instant


class OverviewView(View):
    """The overview.

    Args:
        topics: The topics that fit the search and the state, the most urgent first.
        tiles: One tile for each state that a topic has, whatever is searched for.
        of_topics: The number of all topics.
        search: The part of a topic's name to search for. Empty: all topics.
        trouble: The state to show. None: every state.
    """

    topics: Sequence[StatusView]
    tiles: Sequence[StateTile]
    of_topics: Count
    due: Count
    search: str
    trouble: Health | None


def overview(status: Sequence[StatusView], *, search: str = "", trouble: Health | None = None) -> OverviewView:
    """Return the overview of the topics that fit the search and the state."""
    wanted = search.strip().casefold()
    found = [one for one in status if wanted in str(one.topic).casefold() and trouble in (None, one.trouble)]
    tiles = [_tile(state, [one for one in status if one.trouble == state]) for state in TROUBLES]
    return OverviewView(
        topics=sorted(found, key=lambda one: TROUBLES.index(one.trouble)),
        tiles=[tile for tile in tiles if tile.topics],
        of_topics=len(status),
        due=sum(one.due.messages for one in status if one.is_read),
        search=search.strip(),
        trouble=trouble,
    )


def _tile(trouble: Health, topics: Sequence[StatusView]) -> StateTile:
    waiting = [one.waiting.plan_id for one in topics if one.is_read and one.waiting]
    return StateTile(trouble=trouble, topics=len(topics), plan_id=waiting[0] if len(waiting) == len(topics) == 1 else None)


def erasure_lines(s: Services) -> list[ErasureLine]:
    """Return the open requests and the newest others, newest first."""
    shown = [one for at, one in enumerate(s.ledger.erasures()) if one.state == "requested" or at < _ERASURES_SHOWN]
    if not shown:
        return []
    waiting, unreadable = dict[str, list[str]](), list[str]()
    for asked in s.ledger.waiting(ERASURE):
        try:
            plan = s.ledger.record(asked.plan_id).plan
        except LifecycleError as error:
            unreadable.append(f"plan {short(asked.plan_id)} of {asked.topic}: {_reason(error)}")
        else:
            waiting.setdefault(plan.erasure.request_id if plan.erasure else "", []).append(plan.plan_id)
    erasures = s.ledger.history(operations=ERASURE) if any(one.state == "requested" for one in shown) else ()
    return [_line(s, one, tuple(waiting.get(one.request_id, ())), unreadable, erasures) for one in shown]


def _line(
    s: Services, request: ErasureRequest, waiting: tuple[str, ...], unreadable: Sequence[str], erasures: Sequence[tuple[Instant, Outcome]]
) -> ErasureLine:
    """Return the line of a request. An unreadable plan may belong to any open request, so the line of each names it."""
    if request.state != "requested":
        return ErasureLine.of(request, of_topics=None, done=None, waiting=waiting)
    of_topics, done, wrong = None, None, list(unreadable)
    try:
        topics = topics_of(s, request)
        of_topics, done = len(topics), sum(one.is_done for one in results_in_topics(s, request, topics, erasures))
    except LifecycleError as error:
        wrong.append(_reason(error))
    detail = "; ".join([*([request.detail] if request.detail else []), *wrong])
    return ErasureLine.of(request, of_topics=of_topics, done=done, waiting=waiting, detail=detail)


def _reason(error: LifecycleError) -> str:
    """Return the reason why a part of a line cannot be read. An error that all lines share is raised."""
    if isinstance(error, Unavailable) and not isinstance(error, PartlyUnavailable):
        raise error
    return f"{code_of(error)}: {error}"


def outcomes_without_erasures(s: Services, *, limit: int) -> list[OutcomeView]:
    """Return the newest outcomes except for erasures, because a line shows each erasure."""
    return outcomes_view(s, s.ledger.history(limit=limit, without=ERASURE))
