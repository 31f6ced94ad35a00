"""One Spark session for all tests here, on the embedded catalog; what they make lies in streams of its own and goes afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from pyspark.sql import SparkSession
from tests.spark.lake import Lake

from lifecycle_local.environment import LEDGER
from message_lifecycle.app.erasure_secret import SECRET_FILE
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.session import spark_session


@pytest.fixture(scope="session")
def lake_environment(request: pytest.FixtureRequest) -> None:
    """Catalog, jars and Java of the embedded default, unless the environment names others."""
    if not os.environ.get(LEDGER):
        request.getfixturevalue("embedded")


@pytest.fixture(scope="session")
def spark(lake_environment: None) -> Iterator[SparkSession]:
    session = spark_session("tests")
    # Looked for here and not in a test's own thread: such a one has no active session, whose settings name the catalog.
    session.sql(f"SHOW NAMESPACES IN {CATALOG}")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(spark: SparkSession) -> Iterator[Lake]:
    made = Lake(spark, stream=f"test-{token_hex(4)}")
    yield made
    made.drop()


@pytest.fixture
def erasure_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of the keyed hash, in a file that other processes read too."""
    file = tmp_path / "secret"
    file.write_text(token_hex(32))
    file.chmod(0o600)
    monkeypatch.setenv(SECRET_FILE, str(file))
