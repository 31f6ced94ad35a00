"""One NATS server for all tests here, gone with its data afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nats.server import NatsServer, started


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with started(tmp_path_factory.mktemp("nats")) as running:
        yield running
