"""Iceberg's own Java library, in a JVM without Spark.

The JVM uses the class path, options and catalog in the folder that SPARK_CONF_DIR names, like Spark's driver. The files are the same, so
the JVM can use the driver's class archive as well.

A process has one such JVM, started at its first use. The JVM listens on the loopback address only, and requires a secret, which this
process reads from a pipe. A second pipe carries no data: it breaks when this process dies, and the JVM then ends.

`engine.engine_of_process` decides which JVM a process has. A process that runs Spark has no second one.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from message_lifecycle.model.errors import SparkUnavailable
from message_lifecycle.stores.iceberg.capabilities import Capabilities, capabilities_of_java
from message_lifecycle.stores.iceberg.layout import CATALOG

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Java objects seen through py4j have no types that Python could check.
Java = Any
Connection = tuple[Java, "subprocess.Popen[bytes] | None"]
Connect = Callable[[Mapping[str, str]], Connection]

START_SECONDS = 120
DEADLINE_SECONDS = 3600
"""How long a call may take. Iceberg itself repeats a commit for half an hour at most, so a call that takes longer than this hangs."""
PROPERTIES = f"spark.sql.catalog.{CATALOG}"
ATOMIC = "lifecycle.atomic-transactions"
"""A setting of the catalog."""
_HADOOP = "spark.hadoop."
_DEFAULT_HEAP = "1g"
ANY_IO = "org.apache.iceberg.io.ResolvingFileIO"


class Jvm:
    """A JVM with Iceberg and its catalog `lake`, started at its first use.

    Args:
        settings: Spark's settings, which name the catalog.
        connect: Returns py4j's gateway to the JVM, and the JVM's process if this process may end it. The default starts a JVM without
            Spark.
    """

    def __init__(self, settings: Mapping[str, str], connect: Connect | None = None) -> None:
        self.settings, self._connect = settings, start if connect is None else connect
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._starting = os.getpid(), threading.Lock()

    @property
    def gateway(self) -> Java:
        """py4j's gateway. Raises SparkUnavailable."""
        with self._starting:
            return self._gateway

    @cached_property
    def _gateway(self) -> Java:
        gateway, self._process = self._connect(self.settings)
        atexit.register(self.end)
        _iterate_to_the_end()
        _disable_retries(gateway._gateway_client)
        _acknowledge_at_once(gateway._gateway_client)
        return gateway

    @cached_property
    def jvm(self) -> Java:
        """Packages of Java. Raises SparkUnavailable."""
        return _Known(self.gateway.jvm)

    def end(self) -> None:
        """End the JVM. No data are lost, because every commit is in the catalog."""
        if self._process is not None and self._owner == os.getpid():
            _leave(self.gateway)
            self._process.kill()
            self._process.wait()

    @property
    def warehouse(self) -> str | None:
        """Return the folder for new tables and views. None: the catalog chooses it, and its setting `warehouse` may be any name."""
        found = self._of_catalog().get("warehouse", "").rstrip("/")
        return None if self.capabilities.places_tables else found or None

    @cached_property
    def capabilities(self) -> Capabilities:
        return capabilities_of_java(self)

    @property
    def is_atomic(self) -> bool:
        """Return whether an operator states that the catalog commits several tables all or none.

        A catalog's offer alone does not promise this: Iceberg's own handlers commit one table after the other.
        """
        return self._of_catalog().get(ATOMIC, "").lower() == "true"

    @cached_property
    def hadoop(self) -> Java:
        found = self.jvm.org.apache.hadoop.conf.Configuration()
        for key, value in self.settings.items():
            if key.startswith(_HADOOP):
                found.set(key.removeprefix(_HADOOP), value)
        return found

    @cached_property
    def lake(self) -> Java:
        """Iceberg's own catalog, as Spark's configuration describes it."""
        return self.jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(CATALOG, self._of_catalog(), self.hadoop)

    def settings_of(self, properties: Mapping[str, object]) -> dict[str, str]:
        """Return the settings of an I/O: a table's properties override the catalog's.

        PyIceberg adds an object of its own to the properties, which is left out.
        """
        return {**self._of_catalog(), **{key: value for key, value in properties.items() if isinstance(value, str)}}

    @contextmanager
    def file_io(self, given: Mapping[str, str]) -> Iterator[Java]:
        """Open Iceberg's own I/O, which chooses by the scheme of each path.

        Args:
            given: The result of `settings_of`.
        """
        found = self.jvm.org.apache.iceberg.CatalogUtil.loadFileIO(given.get("io-impl", ANY_IO), dict(given), self.hadoop)
        try:
            yield found
        finally:
            found.close()

    def _of_catalog(self) -> dict[str, str]:
        prefix = f"{PROPERTIES}."
        return {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}

    def list_of(self, values: Sequence[str]) -> Java:
        """Return a Java list, sent in one call: py4j would send it text by text."""
        wanted = self.jvm.java.lang.Class.forName("java.util.List")
        return self.jvm.org.apache.iceberg.util.JsonUtil.mapper().readValue(json.dumps(values), wanted)


class _Known:
    """A cache of Java's packages and classes, and of their static members.

    py4j asks Java at every dot each time. For a package's name Java searches all jars, because it might be a class.
    """

    def __init__(self, java: Java) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Java:
        from py4j.java_gateway import JavaClass, JavaPackage

        found = getattr(self._java, name)
        known = _Known(found) if isinstance(found, JavaClass | JavaPackage) else found
        setattr(self, name, known)
        return known

    def __call__(self, *arguments: object) -> Java:
        return self._java(*arguments)


def call_static(near: Java, method: str, *arguments: object) -> Java:
    """Call a static method in the JVM that has the object `near`. By py4j's own way Java would first be asked for the method."""
    from py4j.java_gateway import JavaMember
    from py4j.protocol import STATIC_PREFIX

    owner, _, name = method.rpartition(".")
    return JavaMember(name, None, STATIC_PREFIX + owner, near._gateway_client)(*arguments)


def entries(java_map: Java) -> dict[str, str]:
    """Return a Java map of texts in two calls. Python's own way to read a map would make two calls per entry."""
    found: dict[str, str] = json.loads(call_static(java_map, "org.apache.iceberg.util.JsonUtil.mapper").writeValueAsString(java_map))
    return found


def identifier(engine: Jvm, place: tuple[str, str]) -> Java:
    """Return Java's name of a table in one call. An array of texts would take a call for each text."""
    namespace, table = place
    written = json.dumps({"namespace": [namespace], "name": table})
    return engine.jvm.org.apache.iceberg.catalog.TableIdentifierParser.fromJson(written)


def texts(engine: Jvm, *values: str) -> Java:
    """Return a Java array, for a method with a variable number of arguments."""
    array = engine.gateway.new_array(engine.jvm.java.lang.String, len(values))
    for at, value in enumerate(values):
        array[at] = value
    return array


# Java's errors for a refused commit: of any catalog, and of a store that refuses the metadata before the request to the catalog. After any
# other error the commit may exist, because every catalog has its own errors for a lost answer.
_REFUSED = frozenset(
    (
        "AlreadyExistsException",
        "BadRequestException",
        "CommitFailedException",
        "ForbiddenException",
        "IllegalArgumentException",
        "NamespaceNotEmptyException",
        "NoSuchIcebergTableException",
        "NoSuchNamespaceException",
        "NoSuchTableException",
        "NoSuchViewException",
        "NotAuthorizedException",
        "NotFoundException",
        "UnprocessableEntityException",
        "UnsupportedOperationException",
        "ValidationException",
        "NoSuchBucketException",
        "RuntimeIOException",
        "S3Exception",
        "SdkClientException",
        "UncheckedIOException",
    )
)


# Java's errors for a name that exists, and for a missing table.
ALREADY_THERE, NOT_THERE = "AlreadyExistsException", ("NoSuchTableException", "NoSuchNamespaceException")


def result_unknown(error: Exception) -> bool:
    """Return whether a commit with this error may exist.

    Either the catalog has not clearly refused it, or Java has not answered: it missed the deadline or died.
    """
    by = java_class(error)
    return by not in _REFUSED if by else is_connection_broken(error)


def is_connection_broken(error: Exception) -> bool:
    """Return whether Java has not answered: the JVM has ended, or the connection is broken."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    # py4j adds Java's error after this text. For a broken connection it has no error to add.
    return isinstance(error, Py4JNetworkError) or (type(error) is Py4JError and "Trace:" not in str(error))


def thrown(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the types of errors that a call to Java raises, and `more`.

    In a process with Spark's SQL, PySpark turns some of Java's exceptions into its own, for example IllegalArgumentException.
    """
    from py4j.protocol import Py4JError

    pyspark = sys.modules.get("pyspark.errors.exceptions.captured")
    return (Py4JError, *more) if pyspark is None else (Py4JError, pyspark.CapturedException, *more)


def java_exception(error: Exception) -> Java | None:
    """Return the Java exception behind an error of py4j or PySpark. None: Java does not know the call or has not answered."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def java_class(error: Exception) -> str:
    """Return the simple name of the Java exception behind the error, without its causes; empty without one."""
    found = java_exception(error)
    return "" if found is None else str(found.getClass().getSimpleName())


def java_message(error: Exception) -> str:
    found = java_exception(error)
    return str(error) if found is None else str(found.getMessage())


def call_if_present(java_object: Java, method: str) -> Java | None:
    """Return the result of a Java method without arguments; None if the object has no such method."""
    from py4j.protocol import Py4JError

    try:
        return getattr(java_object, method)()
    except Py4JError:
        return None


_launched: list[tuple[int, subprocess.Popen[bytes]]] = []
"""Java processes that this process has started, each with the id of its parent. After a fork, the child must not kill them."""


def remember_process(process: subprocess.Popen[bytes]) -> None:
    """Remember a Java process, for `kill`."""
    _launched.append((os.getpid(), process))


def kill() -> None:
    """Kill every Java process that this process has started, without a clean stop. For a process that ends at once."""
    for parent, process in _launched:
        if parent == os.getpid() and process.poll() is None:
            process.kill()
            process.wait()


def settings() -> dict[str, str]:
    """Return Spark's settings.

    Raises:
        SparkUnavailable: The settings name no catalog `lake`.
    """
    folder = os.environ.get("SPARK_CONF_DIR") or f"{_spark_home()}/conf"
    file = Path(folder) / "spark-defaults.conf"
    found = dict(_settings_in(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    if PROPERTIES not in found:
        raise SparkUnavailable(f"its configuration names no catalog {CATALOG!r} ({PROPERTIES})")
    return found


def _settings_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings in a file with one setting a line, like Java's Properties: a backslash keeps the next character as it is."""
    for line in text.splitlines():
        found = re.match(r"\s*([^\s=:#!][^\s=:]*)\s*[=:]?\s*(.*)", line)
        if found is not None:
            yield found[1], re.sub(r"\\(.)", r"\1", found[2]).strip()


def _spark_home() -> str:
    named = os.environ.get("SPARK_HOME")
    package = None if named else importlib.util.find_spec("pyspark")
    if package is not None and package.origin:
        return str(Path(package.origin).parent)
    if named is None:
        raise SparkUnavailable("SPARK_HOME names none, and the package pyspark is not installed")
    return named


# Spark puts these jars last on its class path.
_LAST = "SPARK_DIST_CLASSPATH"


def command(found: Mapping[str, str]) -> list[str]:
    """Return the command that starts the JVM. The class path is exactly Spark's, because a class archive is bound to it."""
    jars = Path(_spark_home()) / "jars"
    # Spark's launcher puts this jar before the others.
    first = sorted(map(str, jars.glob("slf4j-api-*.jar")))
    last = [part for part in os.environ.get(_LAST, "").split(":") if part]
    own = [part for part in found.get("spark.driver.extraClassPath", "").split(":") if part]
    more = [part.removeprefix("file:") for part in found.get("spark.jars", "").split(",") if part]
    home = os.environ.get("JAVA_HOME")
    return [
        str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java",
        "-cp",
        ":".join([*own, *first, f"{jars}/*", *last, *more]),
        f"-Xmx{found.get('spark.driver.memory', _DEFAULT_HEAP)}",
        *shlex.split(found.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(found.get("spark.driver.extraJavaOptions", "")),
        "py4j.GatewayServer",
        "--die-on-broken-pipe",
        "--enable-auth",
        "0",
    ]


def start(found: Mapping[str, str], /) -> Connection:
    """Start a JVM without Spark, with Spark's settings. The JVM ends with this process. Raises SparkUnavailable."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    try:
        # Start the JVM in its own session: a Ctrl-C is for this process, which may still need the JVM to clean up.
        process = subprocess.Popen(command(found), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise SparkUnavailable(f"the Java process did not start: {error}") from error
    remember_process(process)
    assert process.stdin is not None and process.stdout is not None
    readable = select.select([process.stdout], [], [], START_SECONDS)[0]
    port, secret = (process.stdout.readline().strip().decode() if readable else "" for _ in range(2))
    if not port.isdigit() or not secret:
        process.kill()
        raise SparkUnavailable(f"the Java process did not start: status {process.wait()}, and it said {port!r}")
    threading.Thread(target=_pass_on, args=(process.stdout,), name="java-output", daemon=True).start()
    parameters = GatewayParameters(port=int(port), auth_token=secret, auto_convert=True, read_timeout=DEADLINE_SECONDS)
    return JavaGateway(gateway_parameters=parameters), process


def _leave(gateway: Java) -> None:
    gateway.close()
    # At any later garbage collection, py4j would report unneeded objects to the JVM's port, which another process may use by then.
    gateway._gateway_client.is_connected = False


def _pass_on(output: IO[bytes]) -> None:
    """Copy Java's output to standard error, like its warnings: the output is no result of ours."""
    for line in output:
        sys.stderr.write(line.decode(errors="replace"))


def _iterate_to_the_end() -> None:
    """Make py4j raise an error if the connection breaks during an iteration. Otherwise a list of files would end early, without an error."""
    from py4j.java_collections import JavaIterator
    from py4j.java_gateway import get_method

    def step(iterator: Java) -> Java:
        if not get_method(iterator, "hasNext")():
            raise StopIteration
        return get_method(iterator, "next")()

    JavaIterator.next = JavaIterator.__next__ = step


def _disable_retries(client: Java) -> None:
    """Stop py4j from repeating a call after the connection broke before the answer.

    Java may have done the call, and a commit would happen twice.
    """
    from py4j.protocol import ERROR_ON_SEND

    client._should_retry = lambda retry, _connection, error=None: bool(retry and error and error.when == ERROR_ON_SEND)


def _acknowledge_at_once(client: Java) -> None:
    """Acknowledge Java's answers at once.

    Java sends an answer of more than 8 kB in parts, and the last part only after the others are acknowledged. By default, this side's
    kernel waits 40 milliseconds before it acknowledges.
    """
    if not hasattr(socket, "TCP_QUICKACK"):
        return  # not Linux

    def heard(connection: Java) -> Java:
        connection.stream.close()
        connection.stream = BufferedReader(_Line(connection.socket))
        return connection

    # PySpark's client keeps a connection per thread, and this thread already has one.
    name = "_create_new_connection" if hasattr(client, "_create_new_connection") else "_create_connection"
    create = getattr(client, name)
    if hasattr(create, "__wrapped__"):
        return  # another `Jvm` has already changed this client

    @wraps(create)
    def created() -> Java:
        return heard(create())

    client._give_back_connection(heard(client._get_connection()))
    setattr(client, name, created)


class _Line(RawIOBase):
    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # the option applies to one read only
        return self._line.recv_into(buffer)


def each(java_iterable: Java) -> Iterator[Java]:
    yield from java_iterable.iterator()
