"""The services of a command, its time, and the exit statuses that are not errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

import typer

from message_lifecycle.app.cli.options import instant
from message_lifecycle.app.cli.screen import Output, emit
from message_lifecycle.app.rendering import Block, as_json
from message_lifecycle.model.errors import EXIT_INTERNAL, EXIT_REFUSED
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Judgement, Outcome, OutcomeName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import BACKENDS, NO_OPTIONS, Backend, StoreOptions

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Scheduled
    from message_lifecycle.app.scenario import MakeWorld, World
    from message_lifecycle.app.services import Services
    from message_lifecycle.ledger import Ledger


DIFFERENT = 1
"""Something does not hold: a scenario's expectation, a topic's health."""
WAITS = 5
"""A person must act: a plan waits for an approval, or nothing of a batch was taken."""
_BY_WEIGHT = (EXIT_INTERNAL, EXIT_REFUSED, WAITS, DIFFERENT)


def _lake() -> Services:
    from message_lifecycle.app import wiring

    return wiring.lake()


def _world(store: Backend) -> MakeWorld:
    """Return the function that builds the world of this store. The store's packages are imported when that function runs."""

    def make(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
        from message_lifecycle.app import wiring

        found: World = wiring.scratch_worlds()[store](server, options)
        return found

    return make


def _ledger_url() -> str:
    from message_lifecycle.app.config import load_config

    return load_config().ledger_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The source of the commands' services. Tests replace it."""

    lake: Callable[[], Services] = _lake
    ledger_url: Callable[[], str] = _ledger_url
    worlds: Mapping[str, MakeWorld] = field(default_factory=lambda: {backend: _world(backend) for backend in BACKENDS})

    def ledger(self) -> Ledger:
        """Open only the ledger, for its maintenance. Raises LedgerNotMigrated and the other errors of `open_ledger`."""
        from message_lifecycle.ledger import open_ledger

        return open_ledger(self.ledger_url())


def wiring_of(ctx: typer.Context) -> Wiring:
    found = ctx.find_object(Wiring)
    assert found is not None, "main() puts it there"
    return found


def services(ctx: typer.Context) -> Services:
    """Return the configured lake. Spark starts only if a step needs it."""
    return wiring_of(ctx).lake()


def find_topic(ctx: typer.Context, text: str) -> tuple[Services, TopicName]:
    """Return the services, and the topic's name from its text. Raises InvalidName."""
    s = services(ctx)
    return s, TopicName.parse(text)


def instant_of(s: Services, as_of: str | None) -> Instant:
    """The time to judge by: the ledger's clock unless one is given. Raises InvalidInstant, FutureAsOf (CLK-1)."""
    if as_of is None:
        return s.ledger.now()
    given = instant(as_of)
    s.ledger.check_as_of(given, resolve(topic={}, server=s.server).clock_skew_us)
    return given


def scheduled_work(s: Services, name: TopicName) -> Scheduled:
    """Return the topic's scheduled work: cleaning for messages, retention for a backend, snapshots and purges for documents."""
    from message_lifecycle.app.services import policy_of

    return "snapshot_with_purge" if policy_of(s, name).has_documents else s.work_on(name)


def exit_code_of_outcome(name: OutcomeName) -> int:
    match name:
        case "published" | "no_op":
            return 0
        case "needs_approval":
            return WAITS
        case "blocked" | "refused" | "starved" | "lapsed" | "superseded":
            return EXIT_REFUSED
        case "failed":
            return EXIT_INTERNAL
        case never:
            assert_never(never)


def exit_code_of_judgement(judgement: Judgement) -> int:
    match judgement:
        case "passed":
            return 0
        case "needs_approval":
            return WAITS
        case "blocked":
            return EXIT_REFUSED
        case never:
            assert_never(never)


def worst_exit_code(statuses: Iterable[int]) -> int:
    """Return the exit status that most needs a person's attention, from the statuses of several topics."""
    found = set(statuses) - {0}
    return next((status for status in _BY_WEIGHT if status in found), max(found, default=0))


def report_result(
    s: Services, output: Output, result: Outcome, things: str = "messages", *, after: Sequence[Block] = (), **beside: object
) -> int:
    """Print a topic's result and return the exit status.

    Args:
        s: The stores, the ledger and the settings.
        output: Prints for people or for programs.
        result: The topic's outcome.
        things: The name of the counted things.
        after: Further parts for people.
        beside: Further fields for programs.
    """
    from message_lifecycle.app.views.state import result_view

    view = result_view(s, result, things=things)
    emit(output, {**as_json(view), **beside}, [*view.screen_blocks(), *after])
    return exit_code_of_outcome(result.name)
