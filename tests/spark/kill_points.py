"""A run in a process of its own that dies at a step; three kill-point suites share it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

ROOT = Path(__file__).parents[2]


def start_dying(name: TopicName, as_of: Instant, last_step: str, *operation: str, ledger_url: str) -> subprocess.Popen[str]:
    """`last_step`: where it dies by SIGKILL; `none`: it lives. `operation`: none is the message cleaner."""
    command = [sys.executable, "-m", "tests.spark.run_and_die", str(name), str(as_of), last_step, *operation]
    environment = {**os.environ, "LIFECYCLE_LEDGER_URL": ledger_url}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
