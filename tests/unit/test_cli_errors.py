"""The one error boundary: what went wrong, what to do, and the exit status by kind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import message_lifecycle
from message_lifecycle import __version__
from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import EXIT_BAD_INPUT
from tests.worlds import Lake, Told, make_lake

DOWN = "postgresql://user:secret@127.0.0.1:1/ledger"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def say(capsys: pytest.CaptureFixture[str], *arguments: str, wiring: Wiring | None = None) -> Told:
    capsys.readouterr()
    status = main(arguments, wiring=wiring)
    said = capsys.readouterr()
    return Told(status=status, out=said.out, err=said.err)


EVERY_QUESTION = [
    ("topic", "list"),
    ("topic", "create", "orders"),
    ("due",),
    ("plan", "orders"),
    ("run", "orders"),
    ("read", "orders"),
    ("status",),
    ("explain", "orders", "0:0"),
    ("ledger", "list"),
    ("ledger", "migrate"),
    ("consumer", "list", "orders"),
]


@pytest.mark.parametrize("arguments", EVERY_QUESTION, ids=" ".join)
def test_a_ledger_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", DOWN)
    told = say(capsys, *arguments)
    assert (told.status, told.out) == (4, "")
    assert told.err.startswith("LedgerUnavailable: the ledger at 127.0.0.1:1/ledger does not answer")
    assert "Start its database" in told.err
    assert "`lifecycle up`" in told.err
    assert "secret" not in told.err
    assert len(told.err.splitlines()) == 1


def test_a_ledger_that_is_not_migrated_then_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    told = say(capsys, "ledger", "list")
    assert (told.status, told.err.split(":")[0]) == (3, "LedgerNotMigrated")
    assert "lifecycle ledger migrate" in told.err
    first = say(capsys, "ledger", "migrate", "-o", "json")
    assert (first.status, first.document["found_version"]) == (0, 0)
    again = say(capsys, "ledger", "migrate", "-o", "json").document
    assert again["found_version"] == again["version"] == first.document["version"]


def test_backup_and_restore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path / 'one.db'}")
    say(capsys, "ledger", "migrate")
    made = say(capsys, "ledger", "backup", str(tmp_path / "ledger.backup"), "-o", "json")
    assert made.status == 0
    refused = say(capsys, "ledger", "restore", str(tmp_path / "nothing.backup"))
    assert (refused.status, refused.err.split(":")[0]) == (2, "BrokenBackup")
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path / 'two.db'}")
    restored = say(capsys, "ledger", "restore", str(tmp_path / "ledger.backup"), "-o", "json")
    assert restored.status == 0
    assert {**restored.document, "rows": 0} == {**made.document, "rows": 0}


def test_a_ledger_address_that_cannot_be_read_is_not_repeated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", "my password is secret")
    told = say(capsys, "topic", "list")
    assert (told.status, told.err.split(":")[0]) == (2, "InvalidLedgerUrl")
    assert "secret" not in told.err


def test_a_wrong_server_file_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", "sqlite://")
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
    for text, wrong in [
        ("[message_cleaner]\ninterval = -5\n", "interval = -5"),
        ("[system.segment]\nmessage_expiry = nan\n", "message_expiry = nan"),
        ("[message_cleaner]\nenabled = 1\n", "enabled = 1"),
        ("[cleaner]\n", "cleaner = {}"),
        ("[message_cleaner\n", "valid TOML"),
        ("# \xe9\n", "valid TOML"),
    ]:
        (tmp_path / "lifecycle.toml").write_text(text, encoding="latin-1")
        told = say(capsys, "status")
        assert (told.status, told.err.split(":")[0]) == (2, "InvalidSetting"), text
        assert wrong in told.err
        assert "lifecycle.toml" in told.err


@pytest.mark.parametrize("command", [("approve", "abc"), ("run", "shop/none"), ("hold", "release", "abc")])
def test_a_reason_has_one_name(lake: Lake, command: tuple[str, ...]) -> None:
    told = lake.say(*command, "--by", "ada", "--why", "because")
    assert (told.status, "Unknown" in told.err + told.out) == (2, True)
    for other in ("--text", "--yes"):
        assert "No such option" in lake.say(*command, "--by", "ada", other, "because").err
    assert "--why" in lake.say(*command[:-1], "--help").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("plan",),
        ("plan", "orders", "--frob"),
        ("read", "orders", "--limit", "x"),
        ("read", "orders", "--from", "x"),
    ],
)
def test_wrong_usage_ends_with_2_in_text_and_in_json(lake: Lake, arguments: tuple[str, ...]) -> None:
    told = lake.say(*arguments)
    assert (told.status, told.out) == (2, "")
    assert told.err
    in_json = lake.say(*arguments, "--output=json")
    assert (in_json.status, in_json.document["error"]) == (2, "UsageError")


def test_the_version_is_told(lake: Lake) -> None:
    told = lake.say("--version")
    assert (told.status, told.out) == (0, f"lifecycle {__version__}\n")


def test_nothing_said_is_answered_with_help(lake: Lake) -> None:
    told = lake.say()
    assert (told.status, "Usage: lifecycle" in told.out + told.err) == (2, True)
    assert lake.say("plan", "orders", "-o", "xml").status == 2


@pytest.mark.parametrize("option", [("-o", "json"), ("--output", "json"), ("--output=json",), ("-ojson",)])
def test_errors_are_json_where_json_was_asked_for(lake: Lake, option: tuple[str, ...]) -> None:
    told = lake.say("plan", "nowhere", *option)
    assert (told.status, told.err) == (2, "")
    assert told.document["error"] == "UnknownTopic"
    assert "lifecycle topic list" in told.document["message"]


def test_a_word_that_merely_looks_like_the_option_changes_nothing(lake: Lake) -> None:
    told = lake.say("approve", "abc", "--by", "ada", "--why", "--output json")
    assert (told.status, told.out, told.err.split(":")[0]) == (2, "", "UnknownPlan")


class Faulty:
    """Every service breaks in a way that nobody thought of."""

    def __call__(self) -> None:
        raise ZeroDivisionError("a fault")


def test_a_fault_of_the_program_is_one_line_and_says_how_to_see_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    told = say(capsys, "topic", "list", wiring=Wiring(lake=Faulty()))
    assert (told.status, told.out) == (70, "")
    assert told.err.startswith("InternalError: ZeroDivisionError: a fault.")
    assert "LIFECYCLE_DEBUG=1" in told.err
    assert len(told.err.splitlines()) == 1
    in_json = say(capsys, "topic", "list", "-o", "json", wiring=Wiring(lake=Faulty()))
    assert (in_json.status, in_json.document["error"]) == (70, "InternalError")


def test_the_trace_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_DEBUG", "1")
    told = say(capsys, "topic", "list", wiring=Wiring(lake=Faulty()))
    assert "Traceback" in told.err
    assert told.status == 70


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    told = say(capsys, "topic", "list", wiring=Wiring(lake=interrupted))
    assert (told.status, told.out) == (130, "")
    assert re.fullmatch(r"Interrupted: .*Show open plans: `lifecycle status`\n", told.err)


PROGRAM = """
import sys
import tests.worlds as worlds
from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.services import Services
lake = worlds.make_lake(None)
topic = lake.topic("shop/orders")
for _ in range(3): lake.append(topic, 1, value=b"x" * 200_000)
sys.exit(main(sys.argv[1:], wiring=Wiring(lake=lambda: lake.services)))
"""


def test_a_reader_that_goes_away_is_no_error() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, "read", "shop/orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.read(10)
        program.stdout.close()
        said = program.stderr.read()
        assert (program.wait(30), said) == (141, b"")


def test_a_real_interrupt_prints_no_trace() -> None:
    # As from a terminal: what a shell starts in the background, these tests too, is told to ignore the signal.
    waits = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    waits += "import sys, time\nfrom message_lifecycle.app.cli import main\nfrom message_lifecycle.app.cli.context import Wiring\n"
    waits += "def lake():\n    print('ready', flush=True)\n    time.sleep(60)\n"
    waits += "sys.exit(main(['topic', 'list'], wiring=Wiring(lake=lake)))"
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGINT)
        said = program.stderr.read()
        assert (program.wait(30), said.count(b"\n")) == (130, 1)
        assert said.startswith(b"Interrupted: ")


HEAVY = ("pyiceberg", "pyspark", "pendulum", "great_expectations", "sqlalchemy", "pandas", "airflow", "message_lifecycle.app.scenario.file")


def imported(program: str) -> list[str]:
    """The modules that a new process has after the program."""
    program = f"import json, sys\nfrom message_lifecycle.app.cli import tree\n{program}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(message_lifecycle.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_a_command_imports_only_what_it_needs() -> None:
    """The due check of idle topics has two seconds of CPU in all: nothing may be imported for commands that are not run."""
    loaded = imported("list(tree().commands.values())")
    assert [name for name in loaded if name.startswith(HEAVY) or name in ("rich.table", "pydantic")] == []


def test_a_call_imports_no_other_command() -> None:
    called = imported("assert tree().main(['down', '--help'], standalone_mode=False) == 0")
    commands = {f"message_lifecycle.app.cli.{name}" for name in ("runs", "steps", "topics", "drawing", "ledger", "looking", "scenario")}
    assert commands & set(called) == set()
    assert "lifecycle_local.commands" in called
    completed = imported("assert tree().list_commands(None)[:2] == ['demo', 'up']")
    assert commands & set(completed) == set()


def test_a_module_that_fails_at_its_import_is_no_unknown_command(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from message_lifecycle.app.cli import commands

    def broken(name: str) -> object:
        raise KeyError(name)

    commands.tree.cache_clear()
    monkeypatch.setattr(commands, "_make_command", broken)
    told = lake.say("status")
    commands.tree.cache_clear()
    assert (told.status, told.err.split(":")[0]) == (70, "InternalError")


def test_a_second_call_is_answered_as_a_first_one(lake: Lake) -> None:
    """The command tree is built once a process: nothing of a call may stay in it."""
    lake.say("topic", "create", "orders", "--set", "message_expiry=3600")
    lake.say("topic", "create", "payments")
    for topic, own in [("orders", ["message_expiry"]), ("payments", [])]:
        told = lake.say("topic", "describe", topic, "-o", "json").document
        assert [setting["setting"] for setting in told["settings"] if setting["origin"] == "topic"] == own
    assert lake.say("topic", "describe", "orders").out.startswith("default/orders")
    assert lake.say("topic", "describe", "payments").out.startswith("default/payments")


def test_an_unknown_command_is_told_what_it_is_most_like(lake: Lake) -> None:
    told = lake.say("statsu", "-o", "json")
    assert (told.status, told.document["message"]) == (2, "No such command 'statsu'. Did you mean 'status'?")


GROUPS = ("topic", "consumer", "document", "ledger", "scenario")


def test_every_command_and_option_says_what_it_is_for(lake: Lake) -> None:
    from message_lifecycle.app.cli import tree

    silent = []

    def look(command: object, path: str) -> None:
        if not getattr(command, "help", None):
            silent.append(path)
        for parameter in getattr(command, "params", ()):
            if parameter.name != "help" and not parameter.help:
                silent.append(f"{path} {parameter.name}")
        for name, inner in getattr(command, "commands", {}).items():
            look(inner, f"{path} {name}")

    look(tree(), "lifecycle")
    assert silent == []
    told = lake.say("--help")
    assert told.status == 0
    listed = [
        line.split()[1] for line in told.out.splitlines() if line.startswith("│ ") and line[2] != " " and not line[2:].startswith("-")
    ]
    assert listed == [
        "demo", "up", "down", "topic", "ingest", "read", "consumer", "compact", "document", "due", "run", "plan", "stage", "mark", "gate", "approve",
        "refuse", "publish", "verify", "message", "key", "undo", "hold", "erase", "quarantine", "reclaim", "status", "metrics", "explain", "receipt", "backends", "ledger", "doctor", "cluster", "scenario",
    ]  # fmt: skip


def test_the_shell_completes_commands_and_settings() -> None:
    environment = {
        **os.environ,
        "_LIFECYCLE_COMPLETE": "complete_bash",
        "COMP_WORDS": "lifecycle topic create x --set message_",
        "COMP_CWORD": "5",
    }
    program = "import sys\nfrom message_lifecycle.app.cli import main\nsys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, text=True)
    assert "message_expiry=" in done.stdout


def test_an_engines_trace_is_told_by_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Services:
        raise RuntimeError("An error occurred while calling o1.x.\n: java.lang.Error: why\n\tat a.b(C.java:1)\n\tat a.c(C.java:2)\n")

    told = say(capsys, "topic", "list", wiring=Wiring(lake=broken))
    assert (told.status, len(told.err.splitlines())) == (70, 1)
    assert "RuntimeError: An error occurred while calling o1.x. : java.lang.Error: why. This is a fault" in told.err


@pytest.mark.parametrize("beside", ["", "import duckdb; duckdb.connect().execute('select 1').fetchall()"])
def test_a_command_that_ends_says_nothing_of_what_it_leaves_to_the_system(beside: str) -> None:
    """DuckDB's own code tells of each of its objects that Python has not looked for when it ends."""
    program = (
        f"import sys\n{beside}\nfrom message_lifecycle.app.cli import program\nsys.argv = ['lifecycle', '--version']\nsys.exit(program())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("lifecycle ")


def test_a_command_ends_after_its_exit_handlers_and_frees_nothing() -> None:
    """The system frees the memory at once. Python would visit each object, for more than a second after a gate."""
    program = """
import atexit, sys
from message_lifecycle.app.cli import program
class Object:
    def __del__(self):
        print("freed")
kept = Object()
sys.argv = ["lifecycle", "no-such-command"]
status = program()
atexit.register(print, "handled")
sys.exit(status)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (EXIT_BAD_INPUT, "handled\n")
    assert "no-such-command" in ended.stderr


def test_ctrl_c_while_the_servers_command_is_imported_is_reported_in_the_status() -> None:
    program = """
import signal, sys
from message_lifecycle.app.cli import program
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "message_lifecycle.app.cli.commands":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
sys.argv = ["lifecycle", "up"]
sys.exit(program())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 130, ended.stderr
    assert "KeyboardInterrupt" in ended.stderr


def test_an_end_without_a_status_is_a_failure() -> None:
    program = """
from message_lifecycle.app import cli
cli.interrupts.handle_interrupts = lambda given: 1 / 0
cli.program()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
