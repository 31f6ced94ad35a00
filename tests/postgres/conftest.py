"""A PostgreSQL server (the embedded one), and in it a database of these tests alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from lifecycle_local import postgres
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import find_layout
from lifecycle_local.postgres import Address
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from tests.ledgers import StandingClock


@pytest.fixture(scope="session")
def server() -> Iterator[Address]:
    """The server that runs, or one that is started for these tests and stopped after them."""
    layout = find_layout()
    found = postgres.find_running(layout)
    if found is not None:
        yield found
        return
    layout.prepare()
    with stop_at_exit(postgres.stop, layout):
        yield postgres.start(layout)


@pytest.fixture(scope="session")
def database(server: Address) -> Iterator[str]:
    """Name of a scratch database, gone after the tests."""
    name = f"test_{uuid.uuid4().hex}"
    with server.connect("postgres") as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def empty_url(server: Address, database: str) -> Iterator[str]:
    """Address of a place without a ledger: a schema of its own in the scratch database."""
    schema = f"s_{uuid.uuid4().hex}"
    with server.connect(database) as connection:
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        yield f"{server.url(database)}?options=-csearch_path%3D{schema}"
        connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))


@pytest.fixture
def url(empty_url: str) -> str:
    """Address of a new ledger."""
    migrate_ledger(empty_url)
    return empty_url


@pytest.fixture
def beside(server: Address, database: str) -> Iterator[psycopg.Connection]:
    """A connection to the scratch database that is no ledger's."""
    with server.connect(database) as connection:
        yield connection


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def ledger(url: str, clock: StandingClock) -> Iterator[Ledger]:
    with open_ledger(url, clock=clock) as opened:
        yield opened
