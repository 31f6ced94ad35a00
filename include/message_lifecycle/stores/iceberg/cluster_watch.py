"""Whether the Standalone cluster that this process's driver works on is still there.

Spark's driver waits without end for a master that has gone ("waiting for master to reconnect"): no setting of Spark's ends that, and a master
that was started anew does not know the driver. Here the driver's context is stopped, which ends each question that waits for it. Of YARN and
Kubernetes Spark's own client does the like.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

STANDALONE = "spark://"
LOST_SECONDS = 150.0
"""So long a cluster may be out of sight. By Spark's documentation a second master takes one to two minutes to take over from the first."""
_POLL_SECONDS, _CONNECT_SECONDS = 5.0, 2.0


@dataclass(slots=True, kw_only=True)
class Sight:
    """Judges by what is seen from time to time. `keeps_executors`: the application has them until it ends, so that one which has none any more
    was forgotten; one that has had none yet may wait its turn. A driver whose executors work needs no master."""

    limit_seconds: float
    keeps_executors: bool
    _had: bool = False
    _since: float | None = None

    def is_lost(self, now: float, *, executors: int, master_answers: bool) -> bool:
        """`now`: seconds by a clock that only goes forward."""
        self._had = self._had or executors > 0
        if executors or (master_answers and not (self._had and self.keeps_executors)):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self.limit_seconds


class Watch:
    """Of one context, from now on until it ends. `lost`: the cluster has gone, and the context was stopped for it."""

    def __init__(self, context: SparkContext, settings: Mapping[str, str]) -> None:
        self.master = settings["spark.master"]
        self.lost = False
        self._context = context
        dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
        self._sight = Sight(limit_seconds=LOST_SECONDS, keeps_executors=not dynamic)
        threading.Thread(target=self._look, name="cluster-watch", daemon=True).start()

    def _look(self) -> None:
        with suppress(Exception):  # of a context that is stopped, or a Java that has ended: there is nothing to watch any more
            java = self._context._jsc.sc()
            while not java.isStopped():
                executors = int(java.getExecutorMemoryStatus().size()) - 1  # the driver is among them
                if self._sight.is_lost(time.monotonic(), executors=executors, master_answers=bool(executors) or answers(self.master)):
                    self.lost = True
                    java.stop()
                    return
                time.sleep(_POLL_SECONDS)  # Spark only writes to its log that a master has gone


def answers(master: str) -> bool:
    """Whether any of the masters that the address names (`spark://HOST:PORT,HOST:PORT`) takes a connection."""
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    return False
