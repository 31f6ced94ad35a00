"""What an earlier head wrote, restored elsewhere: every row, every plan and every word about it is there, without a JVM (DEL-1, DEL-6, DEL-7)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.pointers import SqlPointers
from message_lifecycle.stores.iceberg.table_folder import local_path
from tests.head_lake import archive
from tests.head_lake.cases import CASES
from tests.head_lake.restored import Restored, Topic, expected, restored, topics

CLOSED = ("published", "undone")


def _no_spark() -> NoReturn:
    raise AssertionError("reading needs no JVM")


@pytest.fixture(scope="module")
def head_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    folder = tmp_path_factory.mktemp("head_lake")
    uri = f"sqlite:///{folder}/catalog.db"
    io = {"py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}"}
    tables = Tables()
    tables.__dict__["catalog"] = SqlCatalog("lake", uri=uri, warehouse=str(folder / "warehouse"), **io)
    tables.__dict__["pointers"] = SqlPointers({"uri": uri}, {"uri": uri, **io})
    with restored(folder, tables, _no_spark) as made:
        yield made


def test_every_case_is_there_in_every_state_that_it_has() -> None:
    found = {case: {one["state"] for one in group} for case, group in groupby(_by_case(), key=lambda one: one["case"])}
    assert found == {title: set(case.states) for title, case in CASES.items()}


def test_the_readme_tells_of_every_case_and_state() -> None:
    told = archive.FILE.with_name("README.md").read_text(encoding="utf-8")
    rows = [f"| {title} | {', '.join(case.states)} |" for title, case in CASES.items()]
    assert [row for row in rows if row not in told] == []


def _by_case() -> list[Any]:
    return sorted(expected()["topics"].values(), key=lambda one: str(one["case"]))


def test_nothing_saved_tells_where_it_was_made() -> None:
    wrong = []
    with tarfile.open(archive.FILE) as tar:
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            content = file.read()
            if entry.name.endswith(".json"):
                wrong += [text for text in _texts(json.loads(content)) if _is_elsewhere(text)]
            wrong += [entry.name for place in (b"/tmp/", b"/home/", b"/root/", b"/work/") if place in content]
    assert wrong == []


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        yield from (text for value in found.values() for text in _texts(value))
    elif isinstance(found, list):
        yield from (text for value in found for text in _texts(value))


def _is_elsewhere(text: str) -> bool:
    return text.startswith(("/", "file:")) and archive.PLACEHOLDER not in text


@pytest.mark.parametrize("title", topics())
def test_every_row_is_as_it_was(head_lake: Restored, title: str) -> None:
    topic = head_lake.topic(title)
    assert topic.seen() == topic.noted["seen"]


def test_every_size_that_is_told_of_a_manifest_is_its_own(head_lake: Restored) -> None:
    told: dict[str, int] = {}
    for place, location in head_lake.of_lake.pointers.all("head"):
        if not place[1].endswith(("__live", "__latest")):
            table = StaticTable.from_metadata(location, {"py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}"})
            told |= {one.manifest_path: one.manifest_length for at in table.snapshots() for one in at.manifests(table.io)}
    assert {path: length for path, length in told.items() if local_path(path).stat().st_size != length} == {}
    assert len(told) > len(topics())


@pytest.mark.parametrize("title", topics())
def test_the_ledger_knows_the_plan(head_lake: Restored, title: str) -> None:
    topic = head_lake.topic(title)
    record = topic.s.ledger.record(topic.plan_id)
    assert (str(record.plan.topic), record.plan.operation) == (f"head/{title}", topic.noted["operation"])
    assert record.state == {"open": "planned", "staged": "staged"}.get(topic.noted["state"], "closed" if record.outcome else "gated")
    assert (None if record.outcome is None else record.outcome.name) == topic.noted["outcome"]
    undone = topic.s.ledger.undoing(topic.plan_id)
    assert (undone is not None) is (topic.noted["state"] == "undone")


@pytest.mark.parametrize("title", topics(*CLOSED))
def test_verified_again_the_first_outcome_stands(head_lake: Restored, title: str) -> None:
    topic = head_lake.topic(title)
    first = topic.s.ledger.record(topic.plan_id).outcome
    assert first is not None
    assert steps.verify(topic.s, topic.plan_id) == first


@pytest.mark.parametrize("title", [title for title in topics(*CLOSED) if "log" in expected()["topics"][title]["seen"]])
def test_what_went_and_what_stayed_is_explained(head_lake: Restored, title: str) -> None:
    topic = head_lake.topic(title)
    before, now = ({row["offset"] for row in topic.rows("before").get("log", [])}, {row["offset"] for row in topic.seen()["log"]})
    for offset in sorted(before - now):
        told = _told(topic, offset)
        # What another writer took, and what only makes place for its own newer message, no plan of the ledger took.
        assert told["verdict"] == "gone", told
        assert told["removed_by"]["plan_id"] == topic.plan_id
    for offset in sorted(before & now):
        assert _told(topic, offset)["verdict"] in ("kept", "held", "due")
    if topic.noted["state"] == "undone":
        back = set(now) - {row["offset"] for row in topic.rows("after")["log"]}
        assert {_told(topic, offset)["came_back"]["plan_id"] for offset in back} <= {topic.plan_id}


def _told(topic: Topic, offset: int) -> dict[str, Any]:
    return dict(explain_message(topic.s, topic.name, 0, offset, as_of=topic.lake.clock.now))


def test_the_receipt_of_an_erasure_holds(head_lake: Restored) -> None:
    topic = head_lake.topic("erasure.published")
    assert isinstance(topic.work, EraseKey)
    assert receipts.verify(topic.s, topic.work.request_id) == []
