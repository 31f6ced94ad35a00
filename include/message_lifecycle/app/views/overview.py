"""The overview: every topic's state, the most urgent first, searched and filtered. A request to erase a key is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from message_lifecycle.app.erasures import latest, topics_of
from message_lifecycle.app.receipts import ERASURE
from message_lifecycle.app.rendering import Count, View
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import OutcomeView, outcomes_view
from message_lifecycle.app.views.status import StatusView, Trouble
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
_ERASURES_SHOWN = 5


class Tile(View):
    """The number of topics in one state. `plan_id`: the plan of their only question, if there is just one."""

    trouble: Trouble
    topics: Count
    plan_id: str | None


class ErasureLine(View):
    """One request to erase a key, over all its topics.

    Args:
        topics: The named topics. Empty: every topic.
        of_topics: The number of topics to search. None: the request has ended, and nobody counts them.
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
    tiles: Sequence[Tile]
    of_topics: Count
    due: Count
    search: str
    trouble: Trouble | None


def overview(status: Sequence[StatusView], *, search: str = "", trouble: Trouble | None = None) -> OverviewView:
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


def _tile(trouble: Trouble, topics: Sequence[StatusView]) -> Tile:
    waiting = [one.waiting.plan_id for one in topics if one.is_read and one.waiting]
    return Tile(trouble=trouble, topics=len(topics), plan_id=waiting[0] if len(waiting) == len(topics) == 1 else None)


def erasure_lines(s: Services) -> list[ErasureLine]:
    """Return the open requests and the newest others, newest first."""
    waiting = [s.ledger.record(plan.plan_id).plan for plan in s.ledger.waiting()]
    return [
        _line(s, request, tuple(plan.plan_id for plan in waiting if plan.erasure and plan.erasure.request_id == request.request_id))
        for at, request in enumerate(s.ledger.erasures())
        if request.state == "requested" or at < _ERASURES_SHOWN
    ]


def _line(s: Services, request: ErasureRequest, waiting: tuple[str, ...]) -> ErasureLine:
    is_open = request.state == "requested"
    done = sum(one.is_done for one in latest(s, request)) if is_open else None
    return ErasureLine.of(request, of_topics=len(topics_of(s, request)) if is_open else None, done=done, waiting=waiting)


def other_runs(s: Services, *, limit: int) -> list[OutcomeView]:
    """Return the newest outcomes except for erasures, because a line shows each erasure."""
    return outcomes_view(s, s.ledger.history(limit=limit, without=ERASURE))
