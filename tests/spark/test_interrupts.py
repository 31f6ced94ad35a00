"""Ctrl-C, as a terminal sends it to the whole foreground group: one line, status 130, no trace, and no Java process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import sample

from lifecycle_local.layout import venv_bin
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.view_file import drop_stream

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
MARK = "LIFECYCLE_TEST_MARK"
GONE_SECONDS = 30.0
"""A machine with other tests on it; without the mend a Java process lives on for minutes."""
DELAYS = (0.05, 0.3, 0.8, 1.5, 2.2, 3.0, 4.5, 7.0)
"""Seconds from the start of the process: importing, starting Java, planning, staging, judging, publishing, ending."""
LINE = "Interrupted: "
ON_SPARK = {"PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell"}
"""With this, the command starts Spark and not only Iceberg's library."""


@pytest.fixture(scope="module")
def topic(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name = f"interrupts-{token_hex(3)}/orders"
    file = tmp_path_factory.mktemp("files") / "a.jsonl"
    rows = ({"k": f"k{at % 7}", "t": 1_700_000_000 + at, "v": "x" * 50} for at in range(3_000))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done("topic", "create", name, "--set", "message_expiry=3600", "--set", "max_removed_fraction=1.0", "--set", "segment_size_bytes=20000")
    done("ingest", name, str(file), "--key-field", "k", "--time-field", "t", "--time-unit", "s")
    yield name
    # The lake and the ledger are the user's, too.
    ours = TopicName.parse(name)
    drop_stream(Tables().catalog, ours.namespace)
    for known in lake().ledger.known_topics():
        if known.stream == ours.stream:
            done("topic", "forget", str(known), "--by", "a test", "--why", "it is over")


def command(*words: str) -> list[str]:
    return [str(venv_bin() / "lifecycle"), *words]


def done(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(command(*words), input=stdin, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode in (0, 5), ended.stderr
    return ended


def marked(mark: str) -> list[str]:
    """Command lines of the processes that were started with the mark, by themselves or by a parent."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes()[:80].replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended, or is another user's
    return found


def interrupted(words: tuple[str, ...], after: float, *, stdin: str = "", **environment: str) -> tuple[int, str, str]:
    """Start the command in a process group of its own, send SIGINT to the group after so many seconds, and wait for all of it to be gone."""
    mark = token_hex(8)
    process = subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, MARK: mark},
        process_group=0,
        # A test run in the background is told to ignore the signal; a terminal's foreground process is not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    time.sleep(after)  # the stage that is interrupted
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GONE_SECONDS)
    deadline = time.monotonic() + GONE_SECONDS
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)  # a process that was killed is seen until its parent has taken note
    assert left == [], "no process is left behind"
    return process.returncode, out, err


def holds(ended: tuple[int, str, str]) -> None:
    status, _, err = ended
    if status == -signal.SIGINT or err.startswith("Fatal Python error: init_"):
        return  # Python itself was starting, before a line of ours
    if status not in (0, 5):
        assert (status, err.count("\n"), err[: len(LINE)]) == (130, 1, LINE), err


ENGINES: dict[str, dict[str, str]] = {"java": {}, "spark": ON_SPARK}
VERBS = ("plan", "run", "erase")
# One answer to SIGINT serves all commands: each verb, each engine and both moments, and not each with each.
KEPT = (("plan", "java", 0.3), ("run", "spark", 0.3), ("plan", "spark", 2.2), ("run", "java", 2.2), ("erase", "java", 2.2))


@pytest.mark.parametrize(("verb", "engine", "delay"), sample([(v, e, d) for v in VERBS for e in ENGINES for d in DELAYS], *KEPT))
def test_an_interrupt_is_one_line_and_leaves_no_process(topic: str, verb: str, engine: str, delay: float) -> None:
    words = {
        "plan": ("plan", topic),
        "run": ("run", topic),
        "erase": ("erase", "--topic", topic, "--by", "ada", "--why", "a letter"),
    }[verb]
    holds(interrupted(words, delay, stdin="k3\n" if verb == "erase" else "", **ENGINES[engine]))


@pytest.mark.parametrize("delay", sample(DELAYS, 3.0))
def test_an_ingest_that_was_interrupted_is_finished_by_the_next_one(topic: str, tmp_path: Path, delay: float) -> None:
    file = tmp_path / "b.jsonl"
    file.write_text("".join(json.dumps({"k": "new", "t": 4_000_000_000 + at, "v": "y"}) + "\n" for at in range(5_000)))
    name = f"{topic}-{token_hex(3)}"
    done("topic", "create", name)
    words = ("ingest", name, str(file), "--key-field", "k", "--time-field", "t", "--time-unit", "s")
    holds(interrupted(words, delay, **ON_SPARK))
    done(*words)
    read = done("read", name, "-o", "json", "--limit", "10000").stdout
    assert sorted(json.loads(line)["offset"] for line in read.splitlines()) == list(range(5_000))


def test_what_was_interrupted_is_done_by_the_next_run(topic: str) -> None:
    done("run", topic, "--by", "ada", "--why", "a trial")
    assert json.loads(done("run", topic, "-o", "json").stdout)["outcome"] == "no_op"


def test_json_is_one_object(topic: str) -> None:
    status, out, err = interrupted(("run", topic, "-o", "json"), 0.8)
    if status == 130:
        assert (json.loads(out)["error"], err) == ("Interrupted", "")
