"""Fixtures that unit tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from tests.ledgers import StandingClock


@pytest.fixture
def no_loss_of_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for until it is on the disk: of tests of thousands of writes, which watch by themselves what is brought there when.
    A file that is not open is refused all the same."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)


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
