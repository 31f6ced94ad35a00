"""A command that a person waits for imports little, and asks the ledger and the catalog for each thing once.

The test counts. How long the commands take is the business of `python -m bench commands`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.layout import SCRATCH_PROPERTY
from tests.foreign_states import lake_in

TOPICS = 3
HEAVY = (
    "airflow", "duckdb", "great_expectations", "numpy", "pandas", "psutil", "py4j", "pyarrow", "pyspark", "sqlalchemy.orm", "lifecycle_local.java",
    "message_lifecycle.gates.runner", "message_lifecycle.ledger.backup", "message_lifecycle.app.views.explanation",
    "message_lifecycle.app.views.topics", "message_lifecycle.wire",
)  # fmt: skip
# Their import makes two hundred classes of Pydantic, a fifth of a command's time. The program reads metadata and manifests without them.
TABLES_OF_PYICEBERG = ("pyiceberg.table", "pyiceberg.manifest", "pyiceberg.partitioning", "pyiceberg.expressions", "pyparsing")
# Statements, and files that are read. Importlib reads the entry points of packages by `read_text`.
COUNTED = """
import json, sys
from collections import Counter
from pathlib import Path
from sqlalchemy import Engine, event
found = Counter()
def counting(name):
    read = getattr(Path, name)
    def counted(self, *given, **by_name):
        found["metadata"] += ".metadata.json" in self.name
        found["avro"] += self.name.endswith(".avro")
        found["packages"] += self.name == "entry_points.txt"
        return read(self, *given, **by_name)
    setattr(Path, name, counted)
counting("read_bytes")
counting("read_text")
@event.listens_for(Engine, "before_cursor_execute")
def statement(connection, cursor, text, *_):
    found["statements"] += text != "begin" and not text.lower().startswith("pragma")
from message_lifecycle.app.cli.commands import as_process
status = as_process()
print(json.dumps({**found, "status": status, "modules": sorted(sys.modules)}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """The most that a command may need. `metadata` and `avro`: files of tables. `modules`: of the product. `needed`: of HEAVY."""

    modules: int
    statements: int
    metadata: int
    avro: int
    never: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


COMMANDS = {
    ("topic", "list"): Most(
        modules=84, statements=4, metadata=TOPICS, avro=0, never=("message_lifecycle.app.views.", *TABLES_OF_PYICEBERG)
    ),
    ("plan", "shop/t0", "--dry-run"): Most(
        modules=127, statements=8, metadata=1, avro=2, never=("message_lifecycle.app.steps", *TABLES_OF_PYICEBERG)
    ),
    ("status",): Most(modules=154, statements=16, metadata=TOPICS, avro=2 * TOPICS, never=TABLES_OF_PYICEBERG),
    # The message itself is read from a data file, by PyIceberg's table.
    ("explain", "shop/t0", "0:1"): Most(
        modules=152, statements=10, metadata=2, avro=4, needed=("numpy", "pandas", "pyarrow", "message_lifecycle.app.views.explanation")
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a lake with idle topics that have messages."""
    folder = tmp_path_factory.mktemp("lake")
    url = f"sqlite:///{folder}/ledger.db"
    migrate_ledger(url)
    with open_ledger(url) as ledger:
        lake = lake_in(folder, ledger)
        for number in range(TOPICS):
            table = lake.topic(TopicName(stream="shop", topic=f"t{number}"), message_expiry=4_000_000_000)
            table.transaction().remove_properties(SCRATCH_PROPERTY).commit_transaction()
    settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "warehouse")}
    lines = ["catalog:", "  lake:", *(f"    {key}: {json.dumps(value)}" for key, value in settings.items())]
    (folder / ".pyiceberg.yaml").write_text("\n".join(lines) + "\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIFECYCLE_", "PYDANTIC_", "PYICEBERG_"))}
    return {**kept, "LIFECYCLE_LEDGER_URL": url, "PYICEBERG_HOME": str(folder)}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_short_command_imports_and_asks_little(command: tuple[str, ...], environment: dict[str, str], tmp_path: Path) -> None:
    most = COMMANDS[command]
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    loaded: list[str] = found["modules"]
    assert found["status"] in (0, 1), done.stdout
    never = (*(set(HEAVY) - set(most.needed)), *most.never)
    assert [name for name in loaded if name.startswith(never)] == []
    counted = {name: found.get(name, 0) for name in ("statements", "metadata", "avro", "packages")}
    counted["modules"] = sum(name.startswith("message_lifecycle") for name in loaded)
    allowed = {"statements": most.statements, "metadata": most.metadata, "avro": most.avro, "packages": 0, "modules": most.modules}
    assert {name: count for name, count in counted.items() if count > allowed[name]} == {}
