"""RecordLog over Redis: one stream a partition and one hash a topic, changed together by one script each time.

The hash holds the head, and how many entries each stream should have; a script goes on only while the head is, byte for byte, the one
that its caller has seen. The lock saves work and is given back by itself when its holder dies; what makes changes safe is that check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

import redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from message_lifecycle.model.errors import (
    PlanConflict,
    TableBusy,
    UnknownTopic,
    damaged_log,
    foreign_key,
    invalid_append,
    log_locked,
    log_replaced,
)
from message_lifecycle.model.message import Message
from message_lifecycle.stores.record_log.head import Head, head_of
from message_lifecycle.stores.record_log.log import Removal
from message_lifecycle.stores.redis_streams import layout
from message_lifecycle.stores.redis_streams.layout import Field, TopicKeys, Trim, fields_of, id_of, message_of, offset_of, trim_of
from message_lifecycle.stores.redis_streams.server import named_errors

PAGE = 1_000
"""Entries asked for at once."""
FIELDS_MOST = 7_000
"""Of one message: Lua hands no more than 8,000 values to a command."""
ARGUMENTS_MOST = 1_000_000
"""Of one script: Redis takes no more than 2^20."""
LOOKS_MOST = 5
"""How often a removal by another writer is noted again, where the next one has come meanwhile."""


def text_of(head: Head) -> str:
    """As it is kept, and compared."""
    return json.dumps(head.to_json(), sort_keys=True, separators=(",", ":"))


class RedisLog:
    """The log of one topic. `lock_seconds`: after so long a lock is free again, whoever held it."""

    def __init__(self, client: redis.Redis, keys: TopicKeys, *, backend: str, lock_seconds: float, wait_seconds: float) -> None:
        self._client, self._keys, self._backend = client, keys, backend
        self._lock_seconds, self._wait_seconds = lock_seconds, wait_seconds
        self._seen: tuple[str, Head] | None = None
        self._held: Lock | None = None

    def head(self) -> Head:
        """Where another writer has removed entries, that is a generation of its own from here on.

        Raises UnknownTopic, DamagedLog, ForeignKey."""
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
        """The head, and by partition the entries that should be and those that are there."""
        # How many streams there are never changes, and only the head says so.
        known = range(self._seen[1].partitions if self._seen is not None else 0)
        told = self._script(layout.LOOK, known)
        if told[0] is None:
            raise UnknownTopic(str(self._keys.name))
        text = told[0].decode()
        head = self._parsed(text)
        if len(known) != head.partitions:
            self._seen = (text, head)
            return self._look()
        rows, found = [int(n) for n in told[1::3]], [int(n) for n in told[2::3]]
        for partition, newest in enumerate(told[3::3]):
            strange = not newest.endswith(b"-0") or offset_of(newest) >= head.end_offsets[partition]
            if strange or found[partition] > rows[partition]:
                raise foreign_key(str(self._keys.name), self._keys.stream(partition), "has entries that we did not write")
        return text, head, rows, found

    def _parsed(self, text: str) -> Head:
        try:
            return head_of(json.loads(text))
        except ValueError as error:
            raise damaged_log(self._keys.topic, str(error), "the head of a topic, as JSON") from error

    def scan(self) -> tuple[int, Iterator[Message]]:
        head = self.head()
        return head.generation, self._scan(head)

    def _scan(self, head: Head) -> Iterator[Message]:
        for partition in range(head.partitions):
            for entries in self._pages(partition):
                # Before any of them is given on: what was removed meanwhile may be missing among them.
                found = self.head().generation
                if found != head.generation:
                    raise log_replaced(str(self._keys.name), found, head.generation)
                for entry in entries:
                    yield self._message(partition, entry)

    def _message(self, partition: int, entry: Any) -> Message:
        try:
            return message_of(partition, entry)
        except ValueError as error:
            raise foreign_key(str(self._keys.name), self._keys.stream(partition), f"holds {error}") from error

    def _pages(self, partition: int, last: str = "+") -> Iterator[list[Any]]:
        """Entries in order, up to the id `last`."""
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

    def append(self, messages: Sequence[Message], head: Head) -> None:
        """All in one step. Raises InvalidAppend for what is too large for one, ForeignKey, TableBusy."""
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
        told = self._script(layout.APPEND, partitions, arguments, doing=f"appending to topic {self._keys.name}")
        if told == b"moved":
            raise TableBusy(f"appending to topic {self._keys.name}", 1)
        if told != b"done":
            raise foreign_key(str(self._keys.name), told.decode(), "has entries that we did not write")
        self._seen = (text_of(head), head)

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        """Trimmed exactly where whole beginnings of streams go, by id for the rest.

        Raises PlanConflict also where a consumer group has come to need what would go by retention: Redis itself does not look."""
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
        told = self._script(layout.REPLACE, [trim.partition for trim in trims], arguments, doing=doing)
        match told[0]:
            case b"done":
                self._seen = (text_of(head), head)
            case b"held":
                self._conflict(removal, f"the consumer group {told[1].decode(errors='replace')} still needs what would go")
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
        lock = self._client.lock(self._keys.lock, timeout=self._lock_seconds, blocking_timeout=self._wait_seconds, sleep=0.02)
        with self._errors(self._keys.lock):
            if not lock.acquire():
                raise log_locked(str(self._keys.name), "another writer", self._wait_seconds)
        self._held = lock
        try:
            yield
        finally:
            self._held = None
            # It has lapsed and is another's: then it was the check of the head that kept the two apart.
            with suppress(LockNotOwnedError), self._errors(self._keys.lock):  # another has it now
                lock.release()

    def _keep_lock(self) -> None:
        """Who reads a long log under the lock would lose it on the way, and begin anew for whatever another has written meanwhile."""
        if self._held is not None:
            with suppress(LockNotOwnedError), self._errors(self._keys.lock):
                self._held.reacquire()

    def _known(self) -> tuple[str, Head]:
        assert self._seen is not None, "who changes a log has looked at it"
        return self._seen

    def _script(self, script: str, partitions: Sequence[int], arguments: Sequence[Field] = (), *, doing: str | None = None) -> Any:
        with self._errors(self._keys.topic, doing=doing):
            # Not by its digest: a server that was started anew does not know it, and the text costs little.
            return self._client.eval(script, 1 + len(partitions), self._keys.topic, *self._keys.streams(partitions), *arguments)

    def _errors(self, key: str, *, doing: str | None = None) -> Any:
        return named_errors(self._backend, str(self._keys.name), key, doing=doing)
