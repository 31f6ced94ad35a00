"""The kinds of errors, and errors about input: names, settings, times, messages, readers, documents and views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

# The kinds of errors, which decide the exit status, and the code that output shows for each error.


EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4
EXIT_INTERNAL = 70


class LifecycleError(Exception):
    """Root of all our errors: a text that says what to do, and a code. The code of a class is its name."""

    exit_code: ClassVar[int] = EXIT_INTERNAL

    def __init__(self, text: str = "", *, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code or type(self).__name__


class BadInput(LifecycleError):
    """The caller gave something wrong. The system changed nothing."""

    exit_code = EXIT_BAD_INPUT


class Refused(LifecycleError):
    """The request is well formed, but a rule forbids it now. The system changed nothing."""

    exit_code = EXIT_REFUSED


class Unavailable(LifecycleError):
    """A needed system does not answer. The system changed nothing, and the caller can try again."""

    exit_code = EXIT_UNAVAILABLE


def code_of(error: object) -> str:
    """Return the name that output shows: the code of our errors, the type of others."""
    return error.code if isinstance(error, LifecycleError) else type(error).__name__


# Names, settings, times, messages, scenarios.


# An error shows only the first and the last of a longer list.
_SHOWN = 10


class InvalidName(BadInput):
    """A stream, topic, consumer or document name breaks NAME-1."""

    ALLOWED: ClassVar[str] = (
        "letters, marks, digits, '_', '.', '-' and white space, 1 to 255 bytes of UTF-8, not '.' or '..', no '-' first, "
        "and zero-width joiners only between letters"
    )

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"invalid name {name!r}: {reason}. Allowed: {self.ALLOWED}.")


class InvalidSetting(BadInput):
    """A configuration value breaks NUM-1. The error names file, key, value and the allowed values."""

    def __init__(self, *, where: str, key: str, value: object, allowed: str) -> None:
        self.where, self.key, self.value, self.allowed = where, key, value, allowed
        super().__init__(f"{where}: {key} = {value!r} is not valid. Allowed: {allowed}.")


class InvalidInstant(BadInput):
    """A text is not a point in time."""

    def __init__(self, text: object) -> None:
        self.text = text
        super().__init__(
            f"{text!r} is not a point in time. Allowed: ISO 8601 in UTC (2026-11-21T00:00:00Z) or integer microseconds since 1970."
        )


def future_as_of(*, as_of: str, now: str, skew_seconds: int) -> Refused:
    """CLK-1: `as_of` is later than the ledger's clock plus the skew. Deleting by it would be deleting early."""
    return Refused(
        f"as_of {as_of} is in the future. The ledger's clock says {now}, and allows {skew_seconds} s more. Give a time in the past.",
        code="FutureAsOf",
    )


def clock_skewed(*, host: str, ledger: str, skew_seconds: int) -> Refused:
    """The machine's clock differs from the ledger's.

    Iceberg would write the wrong time to tables, and later commits by right clocks would fail.
    """
    return Refused(
        f"this machine's clock says {host}, and the ledger's clock {ledger}. Allowed: clock_skew = {skew_seconds} s apart. "
        "Nothing was committed. Set this machine's clock (NTP), then run again.",
        code="ClockSkewed",
    )


def invalid_append(reason: str) -> BadInput:
    """An append that is not allowed: into a mirror, or at an offset that is not free (MSG-4, MSG-5)."""
    return BadInput(f"append refused: {reason}", code="InvalidAppend")


class UnknownTopic(BadInput):
    """The catalog has no table for this topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist. List the topics: `lifecycle topic list`. Create one: `lifecycle topic create`.")


def unknown_partition(topic: str, partition: int, known: Sequence[int]) -> BadInput:
    """The topic has no such partition."""
    some = ", ".join(map(str, known)) if len(known) < _SHOWN else f"{known[0]} to {known[-1]}"
    return BadInput(
        f"topic {topic!r} has no partition {partition}. Its partitions: {some}. Show them: `lifecycle topic describe {topic}`.",
        code="UnknownPartition",
    )


def invalid_topic_uri(text: str, reason: str) -> BadInput:
    """A text with `://` that is not the URI of one of our topics."""
    return BadInput(
        f"{text!r} is not a topic: {reason}. Allowed: `stream/topic`, or persistent://TENANT/NAMESPACE/TOPIC for the stream TENANT.NAMESPACE. "
        "The tenant has no dot, and -partition-N may follow.",
        code="InvalidTopicUri",
    )


def offset_not_given(topic: str, partition: int, offset: int, end_offset: int) -> BadInput:
    """A request names an offset that the log has not reached yet, so nobody can know its message."""
    return BadInput(
        f"partition {partition} of topic {topic!r} has no offset {offset} yet. Its next offset is {end_offset}. Nothing was removed. "
        f"Show the offsets: `lifecycle read {topic} --raw`.",
        code="OffsetNotGiven",
    )


def topic_exists(topic: str) -> Refused:
    """A topic has this name already (NAME-1)."""
    return Refused(f"topic {topic!r} exists already. Change its settings: `lifecycle topic alter`.", code="TopicExists")


class InvalidScenario(BadInput):
    """A scenario file is wrong. The error names the place in it."""

    def __init__(self, where: str, found: object, allowed: str) -> None:
        self.where, self.found, self.allowed = where, found, allowed
        super().__init__(f"{where}: found {found!r}. Allowed: {allowed}.")


# Bytes of another system's layout.


class WireError(BadInput):
    """Bytes that break their layout, or a value that the layout cannot hold. The error names the field, the byte, and the allowed content."""

    def __init__(self, *, layout: str, field: str, offset: int, found: str, allowed: str) -> None:
        self.layout, self.field, self.offset, self.found, self.allowed = layout, field, offset, found, allowed
        super().__init__(f"{layout}: {field} at byte {offset}: found {found}. Allowed: {allowed}.")


# Consumers, replicas and their origins.


def unknown_consumer(topic: str, consumer: str) -> BadInput:
    """The topic has no registered consumer of this name."""
    return BadInput(
        f"consumer {consumer!r} of topic {topic!r} is not registered. List the consumers: `lifecycle consumer list`.",
        code="UnknownConsumer",
    )


def invalid_progress(consumer: str, reason: str) -> BadInput:
    """A consumer's commit is impossible: its offset is below 0, or the log has not reached it yet."""
    return BadInput(f"commit of consumer {consumer!r} refused: {reason}", code="InvalidProgress")


def another_topic(topic: str, consumer: str, *, read: str, there: str) -> Refused:
    """A consumer commits, but it has read another topic of this name, which was deleted or replaced."""
    return Refused(
        f"commit of consumer {consumer!r} refused: it read the topic with uuid {read}, but topic {topic!r} has uuid {there}. "
        "Let the consumer read the present topic from its beginning.",
        code="AnotherTopic",
    )


def topic_uuid_needed(topic: str, consumer: str, *, there: str) -> Refused:
    """A commit that may come from a reader of an earlier topic of this name. Accepting it would release messages that nobody has read."""
    return Refused(
        f"commit of consumer {consumer!r} refused: an earlier topic had the name {topic!r}, and the commit does not say which topic the "
        f"consumer read. If it read the present topic, add --topic-uuid {there}. If not, let it read from the beginning.",
        code="TopicUuidNeeded",
    )


def replica_progress(topic: str, replica: str) -> Refused:
    """TTL-6: only a replica's own table records its progress. A person's commit could release messages that were never copied."""
    return Refused(
        f"{replica!r} is a replica of topic {topic!r}, so only copying moves its progress. Copy: `lifecycle topic copy {replica}`.",
        code="ReplicaProgress",
    )


def origin_behind(topic: str, origin: str, partition: int, copied: int, end_offset: int) -> Refused:
    """TTL-6: a replica has copied offsets that its origin has not reached. The origin is therefore not the log that the replica has copied."""
    return Refused(
        f"topic {topic!r} has copied partition {partition} of {origin!r} up to offset {copied}, but the partition ends at {end_offset}. "
        "Someone restored or recreated the origin. Nothing was copied, and earlier copies stay. Create a new replica: "
        f"`lifecycle topic create NAME --set origin={origin} --set role=ROLE`. Then remove this one: "
        f"`lifecycle consumer remove {origin} {topic}`.",
        code="OriginBehind",
    )


def another_origin(topic: str, origin: str, copied_uuid: str, found_uuid: str) -> Refused:
    """TTL-6, MSG-5: the origin's table is not the table that the replica has copied. Its offsets name other messages."""
    return Refused(
        f"topic {topic!r} has copied another log of the name {origin!r}: table {copied_uuid} then, {found_uuid} now. "
        "Someone recreated the origin. Nothing was copied, and earlier copies stay. Create a new replica: "
        f"`lifecycle topic create NAME --set origin={origin} --set role=ROLE`. Then remove this one: "
        f"`lifecycle consumer remove {origin} {topic}`.",
        code="AnotherOrigin",
    )


# Documents, their changes and their clients.


def not_a_document_topic(topic: str) -> BadInput:
    """The request is about documents, but the topic holds messages."""
    return BadInput(
        f"topic {topic} holds messages, not documents. Create a topic of documents: `lifecycle topic create TOPIC --set fold=text_splice`.",
        code="NotADocumentTopic",
    )


def is_a_document_topic(topic: str) -> BadInput:
    """The request is about messages, but the topic holds changes of documents."""
    return BadInput(
        f"topic {topic} holds documents, not messages. Read it with `lifecycle document pull` or `lifecycle document history`. "
        "The operation `snapshot_with_purge` removes its changes.",
        code="IsADocumentTopic",
    )


def unknown_document(topic: str, document: str) -> BadInput:
    """The topic never stored a change of the document."""
    return BadInput(
        f"topic {topic} has no document {document}. List the documents: `lifecycle document describe {topic}`.", code="UnknownDocument"
    )


def invalid_server_seq(document: str, found: int, allowed: str) -> BadInput:
    """A server_seq that is not the next one (SNP-1), or that the document has not reached (SNP-2)."""
    return BadInput(f"document {document}: server_seq {found}. Allowed: {allowed}. Nothing was stored.", code="InvalidServerSeq")


class EpochMismatch(Refused):
    """The client's base was purged. The client must fetch the document again (SNP-7)."""

    def __init__(self, document: str, client: str | None, brought: int, epoch: int, reason: str) -> None:
        self.document, self.client, self.brought, self.epoch = document, client, brought, epoch
        super().__init__(
            f"document {document}: {'a client' if client is None else f'client {client}'} has epoch {brought}, but the document has epoch "
            f"{epoch}: {reason}. Attach again (`lifecycle document attach`). Edits that were not pushed are lost. Make them again on the new "
            "snapshot."
        )


class InvalidChange(BadInput):
    """A fold cannot apply this change. The change blocks its document (SNP-10)."""

    def __init__(self, document: str, server_seq: int, reason: str) -> None:
        self.document, self.server_seq, self.reason = document, server_seq, reason
        super().__init__(f"document {document}, server_seq {server_seq}: the fold cannot apply this change: {reason}")


def invalid_change_line(place: str, field: str, found: str, allowed: str) -> BadInput:
    """A line of a file of changes that is not one change."""
    return BadInput(f"{place}: {field}: found {found}. Allowed: {allowed}. Nothing was stored.", code="InvalidChangeLine")


# Compacted views.


class CompactedTableMissing(Refused):
    """The compacted view of a topic is missing or unreadable. The log is no substitute, because it may be trimmed (CMP-4)."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"topic {topic}: the compacted view cannot be read: {reason}. The log is no substitute, because it may lack messages of the view. "
            f"See the last compaction: `lifecycle compact {topic} --status`."
        )


def compacted_table_there(topic: str, table: str) -> Refused:
    """The view is in order. A new start would throw it away."""
    return Refused(
        f"topic {topic} has a compacted view, in table {table}. Run `lifecycle compact` without --anew. "
        "To give the view up, with the messages that only it has, drop that table first.",
        code="CompactedTableThere",
    )


def horizon_beyond_log(topic: str, partition: int, horizon: int, end_offset: int) -> Refused:
    """The view claims messages that the log never had. Somebody restored or recreated one of the two."""
    return Refused(
        f"topic {topic}, partition {partition}: the horizon of the view is offset {horizon}, but the log ends before {end_offset}. "
        "Someone restored or recreated the log or the view. Nothing was changed. If the log is right, drop the view's table and run "
        "`lifecycle compact --anew`.",
        code="HorizonBeyondLog",
    )


def topic_without_keys(topic: str) -> BadInput:
    """No message of the topic has a key, so compaction would only copy it."""
    return BadInput(
        f"topic {topic}: none of its messages has a key, so there is nothing to compact. The view did not change.",
        code="TopicWithoutKeys",
    )


class CompactionRunning(Refused):
    """Another compaction of the topic is under way (CMP-10)."""

    def __init__(self, topic: str, plan_id: str) -> None:
        self.topic, self.plan_id = topic, plan_id
        super().__init__(f"topic {topic}: another compaction is running (plan {plan_id[:12]}). Try again when it has ended.")
