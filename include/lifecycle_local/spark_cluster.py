"""A Spark cluster of this machine: a master, and workers that share no folder with the driver.

The master and every worker run in mounts of their own. The mounts hide this clone, with its packages, its settings and every folder below
it, and the packages that are installed next to Python. Java, Spark and the jars are there under other names, as on other machines.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

from lifecycle_local import processes
from lifecycle_local.java import Java
from lifecycle_local.layout import Layout, component_failed, last_lines, project_root, spark_home, venv_bin
from lifecycle_local.processes import LOOPBACK, choose_port, log_file
from message_lifecycle.app.private_files import secret, write_private
from message_lifecycle.model.errors import Unavailable

MASTER, MACHINES = "spark-master", "machines"
WORKERS = 2
START_SECONDS, STOP_SECONDS = 60.0, 5.0
PACK_SECONDS = 300
_ON = r"(?:Starting Spark master at|Successfully registered with master) spark://\S+"
_FILTER = "org.apache.spark.ui.JWSFilter"
_ALONE = ("unshare", "--map-root-user", "--mount")
# The mounts are made in a namespace that only the machine's own processes see. The mounts hide the folder of the machines, too. The shell's
# working directory keeps it reachable. Without `--no-canonicalize`, mount would use the folder's full path, which is hidden.
_APART = """
cd "$1" && mount --bind "$2" machine/java && mount --bind "$3" machine/spark && mount --bind "$4" machine/jars || exit 1
mount -t tmpfs none "$5" && mount -t tmpfs none "$6" && mkdir -p "$7" && mount -t tmpfs none "$7" || exit 1
mkdir -p "$1" && mount --no-canonicalize --rbind . "$1" && cd "$1/$8" || exit 1
shift 8
exec "$JAVA_HOME/bin/java" "$@"
"""
# Applications may come only from their driver: Spark's REST submission asks for no secret. The files of an ended application are useless.
_OWN = {
    "spark.master.rest.enabled": "false",
    "spark.worker.cleanup.enabled": "true",
    "spark.worker.cleanup.interval": "120",
    "spark.worker.cleanup.appDataTtl": "120",
}


def no_machines_apart(said: str) -> Unavailable:
    """Create the error for a machine that forbids mounts of one's own."""
    return Unavailable(
        f"`{' '.join(_ALONE)}` does not work here: {said or 'no message'}. The cluster's machines are told apart by mounts of their own: run "
        "this where user namespaces are allowed (in a container often by its option `--privileged`).",
        code="NoMachinesApart",
    )


def _folder(layout: Layout) -> Path:
    return layout.state / MACHINES


def _names(workers: int) -> list[str]:
    return [MASTER, *(f"spark-worker-{at}" for at in range(workers))]


def components_running(layout: Layout, *, workers: int = WORKERS) -> dict[str, bool]:
    """Return whether each component runs."""
    return {name: processes.find_component(layout, name) is not None for name in _names(workers)}


def start(
    layout: Layout, java: Java, jars: Sequence[Path], *, workers: int = WORKERS, cores: int = 1, memory: str = "1g"
) -> dict[str, str]:
    """Start the cluster's missing parts, and return Spark's settings for a driver, with the cluster's secret.

    Args:
        layout: The paths of the project and of its state.
        java: The Java runtime of master and workers.
        jars: Of one folder, which the machines have as well.
        workers: The number of workers.
        cores: Of each worker.
        memory: Of each worker.

    Raises:
        NoMachinesApart: This machine forbids mounts of one's own.
        ComponentFailed: The master or a worker ended before it was ready, or took too long.
    """
    folder, names = _folder(layout), _names(workers)
    machine = folder / "machine"
    safe = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret(layout.secrets / "spark-cluster"),
        "spark.network.crypto.enabled": "true",
    }
    if not all(components_running(layout, workers=workers).values()):
        _require_apart()
        stop(layout, workers=workers)
        for part in ("java", "spark", "jars"):
            (machine / part).mkdir(parents=True, exist_ok=True)

        # The web pages of master and workers need a token signed with this key. No user gets such a token, so the pages stay closed.
        pages = {
            "spark.ui.filters": _FILTER,
            f"spark.{_FILTER}.param.secretKey": urlsafe_b64encode(secret(layout.secrets / "spark-pages").encode()).decode(),
        }

        def begun(name: str, kind: str, *arguments: str) -> str:
            own = folder / name
            (own / "conf").mkdir(parents=True, exist_ok=True)
            write_private(own / "conf" / "spark-defaults.conf", "".join(f"{key} {value}\n" for key, value in (safe | pages | _OWN).items()))
            where = folder, java.runtime, spark_home(), jars[0].parent, project_root(), _packages_of_python(), layout.state, name
            options = ["-cp", f"{own}/conf:{machine}/spark/jars/*", "-Xmx256m", "-XX:+UseSerialGC", f"org.apache.spark.deploy.{kind}"]
            alone: list[str | Path] = [*_ALONE, "sh", "-c", _APART, "sh", *where]
            command = [*alone, *options, "--host", LOOPBACK, "--webui-port", "0", *arguments]
            started = processes.launch(layout, name, command, _environment(machine, own), identity="")
            return processes.wait_for_match(layout, started, _ON, seconds=START_SECONDS).split()[-1]

        # The same each time: Airflow, which may run on, knows it.
        master = begun(names[0], "master.Master", "--port", f"{choose_port(layout.ports_file, MASTER)}")
        for name in names[1:]:
            begun(name, "worker.Worker", "--cores", f"{cores}", "--memory", memory, "--work-dir", str(folder / name / "work"), master)
    there = ":".join(f"{machine}/jars/{jar.name}" for jar in jars)
    found = re.search(_ON, log_file(layout, MASTER).read_text(encoding="utf-8"))
    assert found is not None, "it has told its address before it was taken for started"
    return {**safe, "spark.master": found[0].split()[-1], "spark.executor.memory": "512m", "spark.executor.extraClassPath": there}


def _require_apart() -> None:
    try:
        tried = subprocess.run([*_ALONE, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise no_machines_apart(str(error)) from error
    if tried.returncode:
        raise no_machines_apart(tried.stderr.strip())


def _python() -> Path:
    return Path(sys.executable).resolve()


def _packages_of_python() -> str:
    asked: list[str | Path] = [_python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _environment(machine: Path, own: Path) -> dict[str, str]:
    return {
        "PATH": f"{_python().parent}:/usr/local/bin:/usr/bin:/bin",
        "JAVA_HOME": f"{machine}/java",
        "SPARK_HOME": f"{machine}/spark",
        "SPARK_CONF_DIR": f"{own}/conf",
        "SPARK_SCALA_VERSION": "2.13",  # else the launcher looks for it in folders that a build has
        "SPARK_LOCAL_DIRS": f"{own}/local",
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYTHONNOUSERSITE": "1",
    }


def stop(layout: Layout, *, workers: int = WORKERS) -> None:
    """End all of them, and the executors that they have started."""
    processes.stop(layout, list(reversed(_names(workers))), polite_seconds=STOP_SECONDS)


def python_of_machines(layout: Layout) -> str:
    """For `spark.pyspark.python`: the packages of `lifecycle cluster pack`, as an image of the machines would have them."""
    target = _folder(layout) / "machine" / "python"
    made, wanted = target / "made-of", hashlib.sha256(sys.version.encode() + (layout.project / "requirements.txt").read_bytes()).hexdigest()
    if not made.is_file() or made.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(target, ignore_errors=True)  # of two versions of a package one would be found
        target.mkdir(parents=True)
        archive = target / "packages.tar.gz"
        command: list[str | Path] = [venv_bin() / "lifecycle", "cluster", "pack", archive]
        log = layout.logs / "cluster-pack.log"
        with log.open("w", encoding="utf-8") as output:
            try:
                subprocess.run(command, stdout=output, stderr=output, check=True, timeout=PACK_SECONDS)
            except subprocess.SubprocessError as error:
                raise component_failed("lifecycle cluster pack", str(error), log, last_lines(log, 3)) from error
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
        archive.unlink()
        made.write_text(wanted, encoding="utf-8")
    return f"{target}/bin/python"
