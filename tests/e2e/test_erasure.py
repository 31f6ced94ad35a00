"""What comes after a deletion, for real: a key erased by a run of Airflow is nowhere, nor are its values and headers, nor an erased document
and its changes; space comes back, a quarantine is looked at.

All runs start together, because Airflow takes seconds from each task to the next.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes, token_hex
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import copy_files
from sqlalchemy import NullPool, create_engine, make_url, text

from lifecycle_local import cluster
from lifecycle_local.environment import LEDGER
from lifecycle_local.postgres import DATABASES, find_place
from tests.e2e.stack import EVENTS, KEPT, Stack
from tests.spark.key_search import files_with, tables_with

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.postgres]

NOON = "2024-05-01T12:00:00Z"
MESSAGES = 2_000
OF_THE_KEY = (100, 700, 1_500)
PEOPLE, MIRROR, SPACE, PAPERS = "e2e/people", "e2e/mirror", "e2e/space", "e2e/papers"
CHANGES, SYNCED = 12, 8
OF_DOCUMENTS = {
    "fold": "json_merge_patch",
    "snapshot_interval": 10,
    "snapshot_threshold": 5,
    "snapshot_with_purging_changes": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The requests of these tests, and what was there before them.

    Attributes:
        canaries: By name, the key and what only its messages hold, and the document's name and what only its changes hold.
        before: By canary, the places that held it.
        request: The request to erase the key.
        papers: The request to erase the document.
        space: The files of the topic whose space comes back, with their bytes.
        runs: By DAG, its run; the document's erasure is `papers`.
    """

    canaries: Mapping[str, bytes]
    before: Mapping[str, Mapping[str, list[str]]]
    request: Mapping[str, Any]
    papers: Mapping[str, Any]
    space: Mapping[str, int]
    runs: Mapping[str, str]


def rows_with(stack: Stack, database: str, key: bytes, planted: str | None = None) -> list[str]:
    """Tables of one of the server's databases; `planted`: told by a temporary one beside them."""
    address = make_url(stack.environment[LEDGER]).set(database=database)
    engine = create_engine(address, poolclass=NullPool)
    with engine.connect() as connection:
        if planted is not None:
            connection.execute(text("CREATE TEMPORARY TABLE planted AS SELECT :told AS told"), {"told": planted})
        return tables_with(connection, key)


def places_with(stack: Stack, key: bytes) -> dict[str, list[str]]:
    """Where the key is found in what the stack has: rows of every database, Airflow's among them, and every file, logs and the database
    server's own too."""
    state, server = stack.layout.state, find_place(stack.layout).folder
    found = {f"database {name}": rows_with(stack, name, key) for name in DATABASES}
    # The server's own folder lies below the state folder, unless its user cannot reach that.
    folders = [folder for folder in state.iterdir() if folder.is_dir() and folder.name not in KEPT and folder != server]
    found |= {folder.name: files_with(folder, key) for folder in folders}
    found["server"] = files_with(server, key)
    if stack.layout.is_cluster:
        for machine in (state / "machines").glob("spark-*"):
            found[machine.name] = files_with(machine, key)
        with TemporaryDirectory() as folder:
            store = cluster.files(stack.layout, cluster.root_key(stack.layout))
            copy_files(cluster.BUCKET, folder, source_filesystem=store)
            found["warehouse"] = files_with(Path(folder), key)
    return {place: names for place, names in found.items() if names}


def land(stack: Stack, canaries: Mapping[str, bytes], folder: Path) -> None:
    """Two files with the key, one of its messages without a time; a compacted view, a mirror, and a removal that can be undone."""
    key = canaries["key"]
    known = {"k": key, "v": canaries["value"], "h": [{"key": "trace", "value": canaries["header"]}], "at": NOON}
    others = ({"k": b"k%d" % at, "v": b"of %d" % at, "h": [{"key": "trace", "value": b"none"}], "at": NOON} for at in range(MESSAGES))
    rows = [known if at in OF_THE_KEY else other for at, other in enumerate(others)]
    for number, half in enumerate((rows[:1000], [*rows[1000:], {**known, "at": "no time"}])):
        pq.write_table(pa.Table.from_pylist(half), folder / f"{number}.parquet")
    for topic, settings in {PEOPLE: {}, MIRROR: {"role": "mirror", "origin": PEOPLE}}.items():
        stack.agent("create", topic, **settings)
    assert stack.agent("ingest", PEOPLE, str(folder)) == {"rows": MESSAGES, "quarantined": {"unreadable_time": 1}}
    assert stack.agent("copy", MIRROR) == MESSAGES
    assert stack.agent("compact", PEOPLE) == "published"
    assert stack.agent("remove", PEOPLE, [OF_THE_KEY[0], 5]) == "published"
    stack.agent("renew")


def write(stack: Stack, canaries: Mapping[str, bytes]) -> None:
    """A document with a snapshot and purged changes, among others, that a client has read in part."""
    documents = [canaries["document"].decode(), *(f"d{number}" for number in range(20))]
    texts = [canaries["change"].decode(), *("none" for _ in range(20))]
    stack.agent("create", PAPERS, **OF_DOCUMENTS)

    def add(first: int, last: int) -> None:
        changes = [
            {"document": document, "server_seq": seq, "client": "a", "payload": {f"t{seq}": text}}
            for document, text in zip(documents, texts, strict=True)
            for seq in range(first, last + 1)
        ]
        stack.lifecycle("document", "add", PAPERS, stdin="\n".join(map(json.dumps, changes)).encode())

    add(1, CHANGES)
    stack.lifecycle("document", "sync", PAPERS, documents[0], "reader", str(SYNCED))
    outcome = stack.lifecycle("run", PAPERS, "--by", "ada", "--why", "as asked")
    assert (outcome["outcome"], outcome["removed"]) == ("published", {"purged_synced": SYNCED - 1})
    add(CHANGES + 1, CHANGES + 2)


@pytest.fixture(scope="module")
def asked(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    canaries = {name: token_bytes(32) for name in ("key", "value", "header")}
    canaries |= {name: token_hex(32).encode() for name in ("document", "change")}
    stack.agent("create", SPACE, undo_window=1)
    stack.agent("append", SPACE, [{"base": 0, "times": [stack.days.end] * 90}, {"base": 90, "times": [stack.days.end] * 10}])
    assert stack.agent("remove", SPACE, list(range(90))) == "published"
    write(stack, canaries)
    land(stack, canaries, tmp_path_factory.mktemp("source"))
    before, topics = {name: places_with(stack, canary) for name, canary in canaries.items()}, ["--topic", PEOPLE, "--topic", MIRROR]
    words = ["--later", "--base64", "--by", "ada", "--why", "a letter"]
    request = stack.lifecycle("erase", *topics, *words, stdin=b64encode(canaries["key"]))
    papers = stack.lifecycle("erase", "--topic", PAPERS, *words, stdin=b64encode(canaries["document"]))
    # Past the undo window of what was removed first.
    space, now = stack.agent("files", SPACE), datetime.now(UTC).isoformat()
    conf: dict[str, dict[str, object]] = {
        "erasure": {"request_id": request["request_id"]},
        "storage_reclaim": {"topics": [SPACE], "as_of": now},
        "quarantine": {"topics": [SPACE], "as_of": now},
    }
    runs = {}
    for dag, given in conf.items():
        stack.api.wait_for_dag(dag, seconds=120)
        stack.api.set_paused(dag, False)
        runs[dag] = stack.api.trigger(dag, conf=given)
    runs["papers"] = stack.api.trigger("erasure", conf={"request_id": papers["request_id"]})
    return Asked(canaries=canaries, before=before, request=request, papers=papers, space=space, runs=runs)


def test_the_search_finds_what_is_planted(stack: Stack) -> None:
    """First of all: later, tasks write files while it would look into them."""
    key = token_bytes(32)
    planted = stack.layout.logs / "airflow" / "planted.log"
    planted.write_text(f"Traceback: {key!r}")
    assert places_with(stack, key) == {"logs": ["airflow/planted.log"]}
    planted.unlink()
    assert [rows_with(stack, name, key, planted=key.hex()) for name in DATABASES] == [["planted"]] * len(DATABASES)


def test_the_search_finds_what_is_there(stack: Stack, asked: Asked) -> None:
    for canary, before in asked.before.items():
        # The ledger knows how far a client has read a document, and which document a plan purged.
        known = {"database ledger", "server"} if canary == "document" else set()
        assert set(before) == {"warehouse"} | known, f"landing and asking write the {canary} nowhere else"
        kinds = {name.partition("/data/")[0] for name in before["warehouse"] if name.endswith(".parquet")}
        assert len(kinds) == (2 if canary in ("document", "change") else 4), (
            "the log, its view, its quarantine, the mirror; or both of documents"
        )


def test_space_comes_back_when_a_person_says_so(stack: Stack, asked: Asked) -> None:
    run_id = asked.runs["storage_reclaim"]
    (question,) = stack.questions(run_id, 1, "storage_reclaim")
    assert stack.answered(run_id, {SPACE: ("Approve", "nobody asks for it")}, "storage_reclaim") == "success"
    (outcome,) = stack.agent("outcomes", f"storage_reclaim/{run_id}")
    assert outcome["outcome"] == "published"
    seen = stack.agent("look", SPACE)
    left = stack.agent("files", SPACE)
    gone = {path: size for path, size in asked.space.items() if path not in left}
    assert any(path.endswith(".parquet") for path in gone)
    assert outcome["reclaimed_bytes"] == sum(gone.values()) > 0, question.body
    assert seen["offsets"] == list(range(90, 100))


def test_a_quarantine_with_nothing_of_age_is_left_alone(stack: Stack, asked: Asked) -> None:
    run_id = asked.runs["quarantine"]
    assert stack.finished(run_id, "quarantine") == "success"
    assert set(stack.states(run_id, "quarantine").values()) == {"skipped"}


@pytest.fixture(scope="module")
def erased(stack: Stack, asked: Asked) -> Mapping[str, Mapping[str, Any]]:
    """Answer the questions of both erasures; by topic, how it ended. No run writes files any more while a test searches them."""
    told = {"erasure": (PEOPLE, MIRROR), "papers": (PAPERS,)}
    for run, topics in told.items():
        questions = stack.questions(asked.runs[run], len(topics), "erasure")
        assert all("Time travel" in question.body for question in questions), "what cannot be undone is said"
    outcomes = {}
    for run, topics in told.items():
        words = dict.fromkeys(topics, ("Approve", "the letter is in the file"))
        assert stack.answered(asked.runs[run], words, "erasure") == "success", stack.states(asked.runs[run], "erasure")
        outcomes |= {outcome["topic"]: outcome for outcome in stack.agent("outcomes", f"erasure/{asked.runs[run]}")}
    assert {topic: outcome["outcome"] for topic, outcome in outcomes.items()} == dict.fromkeys((PEOPLE, MIRROR, PAPERS), "published")
    events = [path.read_bytes() for path in (stack.layout.state / EVENTS).rglob("events_*")]
    assert any(b"SparkListenerSQLExecutionStart" in log for log in events), "Spark logs its plans, in plain text that the search can read"
    return outcomes


def is_proved(stack: Stack, request_id: str, topics: set[str]) -> None:
    assert stack.lifecycle("erase", "show", request_id)["state"] == "erased"
    assert stack.lifecycle("receipt", "verify", request_id) == {"request_id": request_id, "holds": True, "wrong": []}
    assert {topic["topic"] for topic in stack.lifecycle("receipt", "show", request_id)["topics"]} == topics


def pages_of(stack: Stack, run_id: str, outcomes: Mapping[str, Mapping[str, Any]], topics: set[str], folder: Path) -> Path:
    """The overview, and the pages of the topics, their plans and the run, as files."""
    plans = [f"/plans/{outcomes[topic]['plan_id']}" for topic in topics]
    paths = ["/", *(f"/topics/{topic}" for topic in topics), f"/runs?dag_id=erasure&run_id={quote(run_id)}", *plans]
    for number, path in enumerate(paths):
        (folder / f"{number}.html").write_text(stack.page(path))
    return folder


def test_an_erased_key_is_nowhere(stack: Stack, asked: Asked, erased: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    canaries = {name: asked.canaries[name] for name in ("key", "value", "header")}
    assert {name: places_with(stack, canary) for name, canary in canaries.items()} == {name: {} for name in canaries}
    for topic, removed in {PEOPLE: {5, *OF_THE_KEY}, MIRROR: set(OF_THE_KEY)}.items():
        assert stack.agent("look", topic)["offsets"] == [at for at in range(MESSAGES) if at not in removed]
    is_proved(stack, asked.request["request_id"], {PEOPLE, MIRROR})
    seen = pages_of(stack, asked.runs["erasure"], erased, {PEOPLE, MIRROR}, tmp_path)
    for canary in canaries.values():
        assert files_with(seen, canary) == []
    assert places_with(stack, canaries["key"]) == {}, "nor do those who look"


def test_an_erased_document_is_nowhere(stack: Stack, asked: Asked, erased: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    """The files of the ledger's database keep the deleted rows with the document's name until it cleans them up, as docs/erasure.md says."""
    name, change = asked.canaries["document"], asked.canaries["change"]
    assert (places_with(stack, change), set(places_with(stack, name)) - {"server"}) == ({}, set())
    assert stack.lifecycle("document", "describe", PAPERS, "d0")["changes"] == CHANGES + 2
    is_proved(stack, asked.papers["request_id"], {PAPERS})
    seen = pages_of(stack, asked.runs["papers"], erased, {PAPERS}, tmp_path)
    assert [files_with(seen, canary) for canary in (name, change)] == [[], []]
    assert set(places_with(stack, name)) - {"server"} == set(), "nor do those who look"
