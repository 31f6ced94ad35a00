"""Fixtures that unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from message_lifecycle.ledger import Ledger, open_ledger
from tests.ledgers import StandingClock


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def ledger(clock: StandingClock) -> Iterator[Ledger]:
    """A new ledger in memory; tests/postgres runs the same tests on a PostgreSQL one."""
    with open_ledger("sqlite://", clock=clock) as opened:
        yield opened
