"""The gate of a run in a process of its own: `python -m bench.compaction_gate RUN`."""

from __future__ import annotations

import json
import os
import sys

from message_lifecycle.app import applications

if __name__ == "__main__":
    print(json.dumps(applications.gate_all(run=sys.argv[1])))
    sys.stdout.flush()
    os._exit(0)
