"""A legal hold survives what has no path of its own in the contract suite: documents and erasures, on tables (DEL-8)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.holds import When, held, run_with_hold
from tests.spark.documents import AS_OF, Documents, text_at, typed
from tests.spark.erasures import topics_of
from tests.spark.lake import Lake

from message_lifecycle.model.errors import HeldByLegalHold
from message_lifecycle.model.request import EraseKey

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

ON_TABLES: tuple[When, ...] = ("before", "planned", "judged")


@pytest.mark.parametrize("when", ON_TABLES)
def test_a_held_document_keeps_its_changes(lake: Lake, when: When) -> None:
    topic = Documents.on(lake, max_removed_fraction=1.0)
    topic.add(*typed("a", 1, 10), *typed("b", 1, 10))
    for document in ("a", "b"):
        topic.sync(document, ann=8)
    outcome = run_with_hold(
        topic.s, topic.name, "snapshot_with_purge", as_of=AS_OF, when=when, place=lambda: held(topic.s, topic.name, key=b"a")
    )
    assert (outcome.name, dict(outcome.removed)) == ("published", {"purged_synced": 7}), outcome.detail
    assert (topic.stored("a"), topic.snapshots("a"), topic.epoch("a")) == (list(range(1, 11)), [], 0)
    assert (topic.stored("b"), topic.snapshots("b")) == ([8, 9, 10], [(10, 1, text_at(10))])


@pytest.mark.parametrize("when", ON_TABLES)
def test_a_hold_on_the_key_refuses_the_erasure_whole(lake: Lake, spark: SparkSession, when: When) -> None:
    topic = topics_of(lake, spark)()
    topic.append((b"a", b"1"), (topic.key, b"2"))
    rows, files, work = topic.rows(), topic.files(), EraseKey(request_id=topic.request())
    with pytest.raises(HeldByLegalHold, match="case 7"):
        run_with_hold(topic.s, topic.name, work, as_of=AS_OF, when=when, place=lambda: held(topic.s, topic.name, key=topic.key))
    assert (topic.rows(), topic.files()) == (rows, files)
