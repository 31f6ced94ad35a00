"""A Spark cluster of this machine, for tests: a master, and workers that have neither the driver's folders nor any Python packages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from secrets import token_hex
from threading import Thread
from typing import IO

from message_lifecycle.local.java import Java
from message_lifecycle.local.layout import project_root, spark_home, write_private
from message_lifecycle.local.processes import LOOPBACK

_START_SECONDS = 60
_ON = re.compile(rb"(?:Starting Spark master at|Successfully registered with master) (spark://\S+)")
# Java, Spark and the jars are bound to places of its own, whose names are the same on each machine. Then this clone is gone, with its packages,
# its settings and its lake, and so are packages that lie beside Python itself.
# What is started ends when nobody holds the other end of standard input any more, and its executors with it.
_APART = """
mount --bind "$1" ../machine/java && mount --bind "$2" ../machine/spark && mount --bind "$3" ../machine/jars && mount -t tmpfs none "$4" && mount -t tmpfs none "$5" || exit 1
shift 5
../machine/java/bin/java "$@" 2>&1 &
cat > /dev/null
kill -9 0
"""


@contextmanager
def spark_cluster(java: Java, jars: Sequence[Path], folder: Path, *, workers: int = 2) -> Iterator[dict[str, str]]:
    """Spark's settings for a driver. `jars`: of one folder, which its machines have as well; `folder`: of what is its own, empty. Its servers
    answer only who knows a secret."""
    safe = {"spark.authenticate": "true", "spark.authenticate.secret": token_hex(32), "spark.network.crypto.enabled": "true"}
    python, machine = Path(sys.executable).resolve(), folder / "machine"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for part in ("java", "spark", "jars"):
        (machine / part).mkdir(parents=True)
    with ExitStack() as ending:

        def start(name: str, kind: str, *arguments: str) -> str:
            own = folder / name
            (own / "conf").mkdir(parents=True)
            write_private(own / "conf" / "spark-defaults.conf", "".join(f"{key} {value}\n" for key, value in safe.items()))
            options = ["-cp", f"{own}/conf:{machine}/spark/jars/*", "-Xmx256m", "-XX:+UseSerialGC", f"org.apache.spark.deploy.{kind}"]
            where = map(str, (java.runtime, spark_home(), jars[0].parent, project_root(), packages))
            found = subprocess.Popen(
                ["unshare", "--map-root-user", "--mount", "sh", "-c", _APART, "sh", *where, *options, "--host", LOOPBACK, *arguments],
                cwd=own,
                env={
                    "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
                    "JAVA_HOME": f"{machine}/java",
                    "SPARK_HOME": f"{machine}/spark",
                    "SPARK_CONF_DIR": f"{own}/conf",
                    "SPARK_SCALA_VERSION": "2.13",  # else the launcher looks for it in folders that a build has
                    "SPARK_LOCAL_IP": LOOPBACK,
                    "PYTHONNOUSERSITE": "1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            ending.callback(_end, found)
            return _address(found, own / "log")

        master = start("master", "master.Master", "--port", "0", "--webui-port", "0")
        for at in range(workers):
            given = ("--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{at}" / "work"))
            start(f"worker-{at}", "worker.Worker", *given, master)
        there = ":".join(f"{machine}/jars/{jar.name}" for jar in jars)
        yield {**safe, "spark.master": master, "spark.executor.memory": "512m", "spark.executor.extraClassPath": there}


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Of the master, once the server is there. What it says goes to the log, and on."""
    found: Queue[str] = Queue()
    Thread(target=_keep, args=(process.stdout, log, found), daemon=True).start()
    try:
        return found.get(timeout=_START_SECONDS)
    except Empty:
        raise AssertionError(log.read_text()) from None


def _keep(output: IO[bytes], log: Path, found: Queue[str]) -> None:
    with log.open("wb", buffering=0) as file:
        for line in output:
            file.write(line)
            if told := _ON.search(line):
                found.put(told[1].decode())


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
