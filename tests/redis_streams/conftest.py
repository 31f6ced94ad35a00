"""Topics on a real Redis server, each test's under a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from secrets import token_hex

import pytest

from lifecycle_local.redis import Address
from message_lifecycle.stores.redis_streams.log import Server
from tests.redis_streams.streams import Streams


@pytest.fixture(scope="session")
def server(redis_server: Address) -> Server:
    return Server(name="tests", url=redis_server.url, password=lambda: redis_server.password)


@pytest.fixture
def streams(server: Server) -> Iterator[Streams]:
    with closing(server.connect()) as client:
        found = Streams(server=server, client=client, prefix=f"tests-{token_hex(6)}")
        yield found
        for key in client.scan_iter(match=f"{found.prefix}:*"):
            client.delete(key)
