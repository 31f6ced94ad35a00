"""Topics as Redis streams: the connection, one topic's log, and all topics of a server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import redis
from redis.backoff import NoBackoff
from redis.exceptions import LockNotOwnedError, NoPermissionError
from redis.lock import Lock
from redis.retry import Retry

from message_lifecycle.model.errors import (
    BackendUnavailable,
    CommitUnknown,
    PlanConflict,
    TableBusy,
    UnknownTopic,
    damaged_log,
    foreign_key,
    invalid_append,
    log_locked,
    log_replaced,
    topic_exists,
)
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic import Backend
from message_lifecycle.stores.record_log import Head, Removal, head_of
from message_lifecycle.stores.redis_streams import layout
from message_lifecycle.stores.redis_streams.layout import (
    DEFAULT_PREFIX,
    Entry,
    Field,
    TopicKeys,
    Trim,
    fields_of,
    id_of,
    message_of,
    offset_of,
    topics_key,
    trim_of,
)

# A connection to Redis, and its errors as ours. An unreachable server is Unavailable. A command without an answer may have been executed.


ANSWER_SECONDS = 60.0
"""A script that trims a million entries takes less than a second. The rest is for slow networks."""
CONNECT_SECONDS = 5.0


def _no_password() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of a server and the login. The password is requested when a client is made. `name`: the backend's name, for errors."""

    name: str
    url: str
    username: str | None = None
    password: Callable[[], str | None] = _no_password
    ca_file: Path | None = None

    def connect(self) -> redis.Redis:
        """Return a client that has not connected yet."""
        tls = {"ssl_ca_certs": str(self.ca_file)} if self.ca_file is not None else {}
        client = redis.Redis.from_url(
            self.url, username=self.username, password=self.password(),
            # The library's own retry could send a command a second time that the server has executed.
            retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_SECONDS, socket_connect_timeout=CONNECT_SECONDS, protocol=2, **tls,
        )  # fmt: skip
        # Pairs in their order, because a message may have one header twice. The library's dictionary would keep only one.
        client.set_response_callback("XRANGE", lambda entries, **_: entries)
        return client


_TAKES_NO_WRITES = re.compile(r"\b(MISCONF|OOM|READONLY|LOADING|NOREPLICAS|MASTERDOWN|CLUSTERDOWN)\b")
"""The server's errors, also from within a script, for a full disk, full memory, or a replica."""


def _error_text(error: redis.RedisError) -> str:
    """Return the server's message. The library removes the code from an error that has a class of its own."""
    code = getattr(error, "status_code", None)
    return str(error) if code is None or str(error).startswith(code) else f"{code} {error}"


@contextmanager
def named_errors(backend: str, topic: str, key: str, *, doing: str | None = None) -> Iterator[None]:
    """Turn errors of the library into ours.

    Args:
        backend: The backend's name, for errors.
        topic: The topic's name, for errors.
        key: The key that the command uses, for errors.
        doing: The change that the command makes, in words. None: it changes nothing.

    Raises:
        BackendUnavailable: The server does not answer, refuses the user, takes no writes, or is no Redis.
        CommitUnknown: The connection broke before the answer to a change, so the server may have made it.
        ForeignKey: The key has another type than a topic's.
    """
    try:
        yield
    except redis.AuthenticationError as error:
        raise BackendUnavailable(backend, f"it refuses us: {error}", "Check username and password of the backend") from error
    except NoPermissionError as error:
        raise BackendUnavailable(backend, f"this user may not do that: {error}", "Grant the user the topic's keys and commands") from error
    except (redis.ResponseError, redis.BusyLoadingError) as error:
        said = _error_text(error)
        if "WRONGTYPE" in said:
            raise foreign_key(topic, key, "is of another type than a topic's") from error
        if "NOAUTH" in said:
            raise BackendUnavailable(backend, f"it refuses us: {said}", "Check username and password of the backend") from error
        if _TAKES_NO_WRITES.search(said):
            remedy = "Nothing was changed: see to the disk, the memory or the replicas of the server, and try again"
            raise BackendUnavailable(backend, f"the server takes no writes: {said.rstrip('.')}", remedy) from error
        raise
    except redis.InvalidResponse as error:
        raise BackendUnavailable(backend, f"what answers there is no Redis: {error}", "Check its address") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        if doing is not None:
            raise CommitUnknown(doing) from error
        raise BackendUnavailable(backend, str(error), "Check its address, and that it runs") from error


# RecordLog over Redis: one stream for each partition and one hash for each topic. One script changes them together.
#
# The hash holds the head, and the expected number of entries in each stream. A script continues only if the head equals, byte for byte, the
# head that its caller has seen. That check makes changes safe. The lock only saves work, and ends by itself after its holder dies.


PAGE = 1_000
"""Entries of one request."""
FIELDS_MOST = 7_000
"""The most fields of one message, because Lua passes at most 8,000 values to a command."""
ARGUMENTS_MOST = 1_000_000
"""The most arguments of one script, because Redis accepts at most 2^20."""
COMPARED = 100
"""Newest entries of a stream that identify its content."""
LOOKS_MOST = 5
"""How often a look records another writer's removal, if the next removal has come meanwhile."""


def text_of(head: Head) -> str:
    """Return the head as Redis stores and compares it."""
    return json.dumps(head.to_json(), sort_keys=True, separators=(",", ":"))


class _WriterLock(Lock):
    """The library's lock, set by a script. A server without memory refuses the library's own SET, and then nobody could trim."""

    def do_acquire(self, token: str) -> bool:
        assert self.timeout is not None, "each lock of ours lapses"
        return bool(self.redis.eval(layout.LOCK, 1, self.name, token, int(self.timeout * 1000)))


class RedisLog:
    """The log of one topic. `lock_seconds`: a lock ends after this time, even if its holder still runs."""

    def __init__(self, client: redis.Redis, keys: TopicKeys, *, backend: str, lock_seconds: float, wait_seconds: float) -> None:
        self._client, self._keys, self._backend = client, keys, backend
        self._lock_seconds, self._wait_seconds = lock_seconds, wait_seconds
        self._seen: tuple[str, Head] | None = None
        self._held: Lock | None = None

    def head(self) -> Head:
        """Return the head. If another writer has removed entries, record that as a generation of its own.

        Raises UnknownTopic, DamagedLog, ForeignKey.
        """
        for _ in range(LOOKS_MOST):
            text, head, rows, found = self._look()
            if rows == found:
                self._seen = (text, head)
                return head
            noticed = replace(head, generation=head.generation + 1, commits=head.with_commit(plan_id=None))
            if self._script(layout.NOTICE, range(head.partitions), [text, text_of(noticed), *found], doing="noting a removal") == b"done":
                self._seen = (text_of(noticed), noticed)
                return noticed
        raise TableBusy(f"topic {self._keys.name}", LOOKS_MOST)

    def _look(self) -> tuple[str, Head, list[int], list[int]]:
        """Return the head's text, the head, and by partition the expected and the actual numbers of entries."""
        # The number of streams never changes, and only the head has it.
        known = range(self._seen[1].partitions if self._seen is not None else 0)
        answer = self._script(layout.LOOK, known)
        if answer[0] is None:
            raise UnknownTopic(str(self._keys.name))
        text, head = self._parsed(answer[0])
        if len(known) != head.partitions:
            self._seen = (text, head)
            return self._look()
        rows, found = [self._count(n) for n in answer[1::3]], [int(n) for n in answer[2::3]]
        for partition, newest in enumerate(answer[3::3]):
            strange = not newest.endswith(b"-0") or offset_of(newest) >= head.end_offsets[partition]
            if strange or found[partition] > rows[partition]:
                raise foreign_key(str(self._keys.name), self._keys.stream(partition), "has entries that we did not write")
        return text, head, rows, found

    def _parsed(self, given: bytes) -> tuple[str, Head]:
        try:
            text = given.decode()
            return text, head_of(json.loads(text))
        except ValueError as error:
            raise damaged_log(self._keys.topic, str(error), "the head of a topic, as JSON") from error

    def _count(self, given: bytes) -> int:
        try:
            return int(given)
        except ValueError as error:
            raise damaged_log(self._keys.topic, f"{given!r} as a number of entries", "a whole number") from error

    def scan(self) -> tuple[int, Iterator[Message]]:
        head = self.head()
        return head.generation, self._scan(head)

    def _scan(self, head: Head) -> Iterator[Message]:
        for partition in range(head.partitions):
            for entries in self._pages(partition):
                # Check before yielding an entry, because a concurrent removal may have removed some of the page.
                found = self.head().generation
                if found != head.generation:
                    raise log_replaced(str(self._keys.name), found, head.generation)
                for entry in entries:
                    yield self._message(partition, entry)

    def _message(self, partition: int, entry: Entry) -> Message:
        try:
            return message_of(partition, entry)
        except ValueError as error:
            raise foreign_key(str(self._keys.name), self._keys.stream(partition), f"holds {error}") from error

    def _pages(self, partition: int, last: str = "+") -> Iterator[list[Entry]]:
        """Yield pages of entries in order, up to the id `last`."""
        key, start = self._keys.stream(partition), "-"
        while True:
            self._keep_lock()
            with self._errors(key):
                entries: Any = self._client.xrange(key, start, last, count=PAGE)
            if entries:
                yield entries
            if len(entries) < PAGE:
                return
            start = f"({entries[-1][0].decode()}"

    def content(self, earlier: str | None = None) -> str:
        """Name the newest entries of each stream: by partition the last id, and a digest of the entries up to it.

        A server that was restarted from an older file has lost the newest entries, or has others in their place. The generation shows
        removals, so earlier entries need no reading.
        """
        lasts: dict[int, str] = {} if earlier is None else {int(p): last for p, last, _ in (part.split(":") for part in earlier.split(","))}
        parts = []
        for partition in range(self.head().partitions):
            key = self._keys.stream(partition)
            with self._errors(key):
                newest: Any = self._client.xrevrange(key, lasts.get(partition, "+"), "-", count=COMPARED)
            last = lasts.get(partition, newest[0][0].decode() if newest else "0-0")
            digest = hashlib.blake2b(repr(newest).encode(), digest_size=20).hexdigest()
            parts.append(f"{partition}:{last}:{digest}")
        return ",".join(parts)

    def append(self, messages: Sequence[Message], head: Head) -> None:
        """Append all messages in one step.

        Raises:
            InvalidAppend: The messages are too many or too large for one step.
            ForeignKey, TableBusy: Another writer has changed the topic's keys or its head.
        """
        before, _ = self._known()
        partitions = sorted({message.partition for message in messages})
        index = {partition: at for at, partition in enumerate(partitions, start=1)}
        arguments: list[Field] = [before, text_of(head)]
        for partition in partitions:
            own = [message.offset for message in messages if message.partition == partition]
            arguments += [partition, len(own), id_of(own[0])]
        for message in messages:
            fields = fields_of(message)
            if len(fields) > FIELDS_MOST:
                raise invalid_append(f"a message with {len(message.headers)} headers; Redis Streams take about {FIELDS_MOST // 2}")
            arguments += [index[message.partition], id_of(message.offset), len(fields), *fields]
        if len(arguments) > ARGUMENTS_MOST:
            raise invalid_append(f"{len(messages)} messages at once are more than Redis takes in one step; append them in parts")
        answer = self._script(layout.APPEND, partitions, arguments, doing=f"appending to topic {self._keys.name}")
        if answer == b"moved":
            raise TableBusy(f"appending to topic {self._keys.name}", 1)
        if answer != b"done":
            raise foreign_key(str(self._keys.name), answer.decode(), "has entries that we did not write")
        self._seen = (text_of(head), head)

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        """Trim whole beginnings of streams exactly, and delete other entries by their ids.

        Raises:
            PlanConflict: The log has changed, or a consumer group now needs messages that retention would remove. Redis itself does not
                check groups.
        """
        before, _ = self._known()
        reasons = {reason for reason, _ in head.commits[-1].removed} if removal is not None else set()
        trims = [] if removal is None else list(self._trims(removal, by_count=reasons == {"retention_count"}))
        found = sum(trim.rows for trim in trims)
        if removal is not None and removal.rows is not None and found != removal.rows:
            self._conflict(removal, f"{removal.rows} messages were to go, {found} are there")
        bound = "retention" if reasons and all(reason.startswith("retention_") for reason in reasons) else "-"
        arguments: list[Field] = [before, text_of(head), bound]
        for trim in trims:
            arguments += trim.arguments()
        doing = f"changing topic {self._keys.name}"
        answer = self._script(layout.REPLACE, [trim.partition for trim in trims], arguments, doing=doing)
        match answer[0]:
            case b"done":
                self._seen = (text_of(head), head)
            case b"held":
                self._conflict(removal, f"the consumer group {answer[1].decode(errors='replace')} still needs what would go")
            case _:
                self._conflict(removal, "the log has changed since")

    def _trims(self, removal: Removal, *, by_count: bool) -> Iterator[Trim]:
        takes = removal.taker()
        for partition, runs in sorted(removal.offsets.items()):
            if runs:
                end = runs[-1].stop
                pages = self._pages(partition, id_of(end - 1))
                found = trim_of(partition, end, takes, (entry[0] for page in pages for entry in page), by_count=by_count)
                if found.rows:
                    yield found

    def _conflict(self, removal: Removal | None, reason: str) -> NoReturn:
        if removal is None or removal.plan_id is None:
            raise TableBusy(f"changing topic {self._keys.name}", 1)
        raise PlanConflict(removal.plan_id, reason)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raises LogLocked."""
        lock = _WriterLock(self._client, self._keys.lock, timeout=self._lock_seconds, blocking_timeout=self._wait_seconds, sleep=0.02)
        with self._errors(self._keys.lock):
            if not lock.acquire():
                raise log_locked(str(self._keys.name), "another writer", self._wait_seconds)
        self._held = lock
        try:
            yield
        finally:
            self._held = None
            # The lock may have lapsed, and another writer may hold it now. The check of the head has then kept the two apart.
            with suppress(LockNotOwnedError), self._errors(self._keys.lock):  # another writer has it now
                lock.release()

    def _keep_lock(self) -> None:
        """Extend the lock. A long read under the lock would otherwise lose it, and start again after another writer's change."""
        if self._held is not None:
            with suppress(LockNotOwnedError), self._errors(self._keys.lock):
                self._held.reacquire()

    def _known(self) -> tuple[str, Head]:
        assert self._seen is not None, "who changes a log has looked at it"
        return self._seen

    def groups(self, partitions: int) -> Sequence[Sequence[tuple[bytes, bytes, bytes]]]:
        """Return the consumer groups of each stream: name, last delivered id, and oldest pending id.

        The last one is the id of the oldest pending entry that still exists, or empty.
        """
        found: Sequence[Sequence[tuple[bytes, bytes, bytes]]] = self._script(layout.GROUPS, range(partitions))
        return found

    def _script(self, script: str, partitions: Sequence[int], arguments: Sequence[Field] = (), *, doing: str | None = None) -> Any:
        with self._errors(self._keys.topic, doing=doing):
            # Not by its digest: a restarted server does not know it, and sending the text is cheap.
            return self._client.eval(script, 1 + len(partitions), self._keys.topic, *self._keys.streams(partitions), *arguments)

    def _errors(self, key: str, *, doing: str | None = None) -> AbstractContextManager[None]:
        return named_errors(self._backend, str(self._keys.name), key, doing=doing)


# The topics of one Redis server, and their readers through consumer groups.


LOCK_SECONDS = 10.0
WAIT_SECONDS = 30.0


class RedisLogs:
    """RecordLogs over one server. `client`: a test's own client, which can die between two commands."""

    def __init__(
        self,
        server: Server,
        *,
        prefix: str = DEFAULT_PREFIX,
        client: redis.Redis | None = None,
        lock_seconds: float = LOCK_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._name, self._prefix = server.name, prefix
        self._client = server.connect() if client is None else client
        self._lock_seconds, self._wait_seconds = lock_seconds, wait_seconds

    @property
    def backend(self) -> Backend:
        return "redis_streams"

    def names(self) -> Sequence[TopicName]:
        with named_errors(self._name, "(all)", topics_key(self._prefix)):
            found: Any = self._client.smembers(topics_key(self._prefix))
            names = sorted(TopicName.parse(text.decode()) for text in found)
            # A creation records the name first. A creation that died leaves only the name.
            return [name for name in names if self._client.exists(self._keys(name).topic)]

    def create(self, name: TopicName, head: Head) -> None:
        keys = self._keys(name)
        with named_errors(self._name, str(name), keys.topic):
            self._client.sadd(topics_key(self._prefix), str(name))
        streams = keys.streams(range(head.partitions))
        with named_errors(self._name, str(name), keys.topic, doing=f"creating topic {name}"):
            answer: Any = self._client.eval(layout.CREATE, 1 + len(streams), keys.topic, *streams, text_of(head))
        if answer == b"there":
            raise topic_exists(str(name))
        if answer != b"done":
            raise foreign_key(str(name), answer.decode(), "is there, and the topic is not")

    def open(self, name: TopicName) -> RedisLog:
        keys = self._keys(name)
        with named_errors(self._name, str(name), keys.topic):
            if not self._client.exists(keys.topic):
                raise UnknownTopic(str(name))
        return RedisLog(self._client, keys, backend=self._name, lock_seconds=self._lock_seconds, wait_seconds=self._wait_seconds)

    def progress(self, name: TopicName) -> Sequence[Progress]:
        """Return consumer groups as readers. Raises UnknownTopic.

        A group needs every entry from its oldest pending entry on, and every entry that it has not received yet. A deleted pending entry
        does not count. Redis records no time of a group, so a group never falls silent. `XGROUP DESTROY` ends its claim. A partition keeps
        nothing for a group that its stream does not have.
        """
        log = self.open(name)
        head = log.head()
        needs: dict[tuple[bytes, int], int] = {}
        for partition, groups in enumerate(log.groups(head.partitions)):
            for group, delivered, pending in groups:
                needed = offset_of(delivered) + 1
                needs[group, partition] = min(needed, offset_of(pending)) if pending else needed
        return [
            Progress(
                consumer=_consumer_name(group),
                partition=partition,
                at=None,
                offset=needs.get((group, partition), head.end_offsets[partition]) - 1,
            )
            for group in sorted({group for group, _ in needs})
            for partition in range(head.partitions)
        ]

    def drop(self, name: TopicName) -> None:
        """Delete the topic's keys. Only for scratch topics."""
        keys, partitions = self._keys(name), self.open(name).head().partitions
        with named_errors(self._name, str(name), keys.topic, doing=f"dropping topic {name}"):
            self._client.delete(keys.topic, keys.lock, *keys.streams(range(partitions)))
            self._client.srem(topics_key(self._prefix), str(name))

    def close(self) -> None:
        self._client.close()

    def _keys(self, name: TopicName) -> TopicKeys:
        return TopicKeys(prefix=self._prefix, name=name)


def _consumer_name(group: bytes) -> str:
    """Return the group's name in plans, which differs from consumers that the ledger knows."""
    return f"group {group.decode(errors='replace')}"
