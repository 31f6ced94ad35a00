"""Fixtures that unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from tests.ledgers import StandingClock


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Address of a new ledger; in tests/postgres of one there."""
    address = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(address)
    return address


@pytest.fixture
def ledger(clock: StandingClock) -> Iterator[Ledger]:
    """A new ledger in memory; tests/postgres runs the same tests on a PostgreSQL one."""
    with open_ledger("sqlite://", clock=clock) as opened:
        yield opened
