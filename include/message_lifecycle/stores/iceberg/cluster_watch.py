"""Watches whether the Standalone cluster of this process's driver still exists.

Spark's driver waits for a lost master without end ("waiting for master to reconnect"). No setting of Spark ends that wait, and a restarted
master does not know the driver. So the watch stops the driver's context, which ends each waiting request. On YARN and Kubernetes, Spark's
own client does this.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.shares import STANDALONE

if TYPE_CHECKING:
    from pyspark import SparkContext

LOST_SECONDS = 150.0
"""How long a cluster may be out of sight. By Spark's documentation a second master takes one to two minutes to take over from the first."""
_POLL_SECONDS, _CONNECT_SECONDS = 5.0, 2.0


@dataclass(slots=True, kw_only=True)
class LossDetector:
    """Decides from regular observations whether the cluster is lost. A driver with working executors needs no master.

    Attributes:
        keeps_executors: The application keeps its executors until it ends. So the master has forgotten an application that lost its
            executors; an application without any executors so far may still wait for its turn.
    """

    limit_seconds: float
    keeps_executors: bool
    _had: bool = False
    _since: float | None = None

    def is_lost(self, now: float, *, executors: int, master_answers: bool) -> bool:
        """Record an observation and return whether the cluster is lost.

        Args:
            now: Seconds by a clock that never goes back.
            executors: The number of running executors.
            master_answers: The master has answered.
        """
        self._had = self._had or executors > 0
        if executors or (master_answers and not (self._had and self.keeps_executors)):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self.limit_seconds


class Watch:
    """Watches one context until it ends.

    Attributes:
        lost: The cluster is lost, and the watch has stopped the context.
    """

    def __init__(self, context: SparkContext, settings: Mapping[str, str]) -> None:
        self.master = settings["spark.master"]
        self.lost = False
        self._context = context
        dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
        self._detector = LossDetector(limit_seconds=LOST_SECONDS, keeps_executors=not dynamic)
        threading.Thread(target=self._look, name="cluster-watch", daemon=True).start()

    def _look(self) -> None:
        with suppress(Exception):  # the context has stopped or Java has ended: nothing is left to watch
            java = self._context._jsc.sc()
            while not java.isStopped():
                executors = int(java.getExecutorMemoryStatus().size()) - 1  # the driver counts as one
                if self._detector.is_lost(time.monotonic(), executors=executors, master_answers=bool(executors) or answers(self.master)):
                    self.lost = True
                    java.stop()
                    return
                time.sleep(_POLL_SECONDS)  # Spark reports a lost master in its log only


def answers(master: str) -> bool:
    """Return whether any master in the address (`spark://HOST:PORT,HOST:PORT`) accepts a connection."""
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    return False
