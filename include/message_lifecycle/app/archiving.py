"""The archive of removed messages (RET-7), and the evidence frames that show it to the gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from message_lifecycle.app.services import policy_of
from message_lifecycle.model.erasure import Matches
from message_lifecycle.model.errors import PlanConflict, storage_refused
from message_lifecycle.model.in_values import Needle, ValuePlace
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Archived, Message, digest_messages
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.stores.archive import ParquetArchive

# Frames of evidence that are found above the stores, of the kind that the store's own are.


def add_figures(frames: Mapping[str, object], more: Mapping[str, int]) -> Mapping[str, object]:
    """Return the store's frames, with `more` added to the single row of figures."""
    found: Any = frames["figures"]
    (row,) = found if isinstance(found, list) else found.to_pylist()
    return add_frame(frames, "figures", [{**row, **more}])


def add_frame(frames: Mapping[str, object], name: str, rows: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the store's frames and one more frame: a list of rows if the store's frames are lists, otherwise an Arrow table."""
    if isinstance(frames.get("figures"), list):
        return {**frames, name: list(rows)}
    import pyarrow as pa

    return {**frames, name: pa.Table.from_pylist([dict(row) for row in rows])}


# If the policy sets `archive_to`, an archive keeps the removed messages (RET-7). Staging writes them, the gate compares them, and publish
# checks them again before the removal.
#
# `_going` reads through the store's own reader, so it serves every store that offers the whole log. A store of very large logs needs its
# own version of `_going`, which reads only the messages that the plan removes.


FRAME = "archive"


# Steps for a plan that archives (`Plan.archives`): write, compare, require and drop its file.


def archive(s: Services, plan: Plan) -> None:
    """Write the messages that the plan names to its file in the archive. A second call writes the same.

    Raises:
        StorageFull, UnsafePath: The file cannot be written.
        StorageRefused: An archive that has messages of the topic is not there. A new folder in its place would count as
            the whole archive in every later search for a key.
    """
    for folder in find_lost_archives(s, plan.topic):
        raise storage_refused(folder, "it has archived messages of the topic, and it is not there or not reached")
    _archive(plan).write(plan.topic, plan.plan_id, _removed_messages(s, plan))


def evidence(s: Services, plan: Plan, frames: Mapping[str, object]) -> Mapping[str, object]:
    """Return the store's frames and `archive`: one row about the file, read again and compared with the messages to remove."""
    kept = _read_archived(plan)
    rows = [] if kept is None else [{"rows": kept.rows, "same": kept == digest_messages(_removed_messages(s, plan))}]
    return add_frame(frames, FRAME, rows)


def require(s: Services, plan: Plan) -> None:
    """Check that the archive still has every message to remove, unchanged. Days may lie between gate and publish.

    Raises:
        PlanConflict: Messages are missing from the archive, or differ from the log's.
    """
    kept, rows = _read_archived(plan), plan.expected.removed_rows
    if kept is None or kept.rows != rows:
        raise PlanConflict(plan.plan_id, f"the archive has {0 if kept is None else kept.rows} of the {rows} messages that go")
    if kept != digest_messages(_removed_messages(s, plan)):
        raise PlanConflict(plan.plan_id, "the archive's file and the log do not agree on what goes")


def forget(plan: Plan) -> None:
    """Drop the archive file of a plan that was not published: its messages stay in the log, so the archive must not have them."""
    _archive(plan).drop(plan.topic, plan.plan_id)


# For a key search: the archives that received messages of the topic.


def find_lost_archives(s: Services, name: TopicName) -> list[str]:
    """Return the archives that received messages of the topic but cannot be read now: a disk not mounted, a store not reached.

    An archive that cannot be searched may hold any key.
    """
    return [archive.folder(name) for archive in _archives_of(s, name) if not archive.is_there(name)]


def former_holders(s: Services, name: TopicName, policy: Policy, matches: Matches) -> Iterator[str]:
    """Yield former archives of the topic, from before `archive_to` changed, that hold a searched key.

    A former archive is no longer part of the topic, but a key search must include it. `lost` returns the archives that cannot be searched.
    """
    from message_lifecycle.stores.archive import key_in_archive

    now = None if policy.archive_to is None else _archive_at(policy.archive_to).folder(name)
    for archive in _archives_of(s, name):
        if archive.folder(name) != now and archive.is_there(name) and not key_in_archive(archive, name, "", matches).clean:
            yield archive.to


def find_in_values(s: Services, name: TopicName, needle: Needle) -> list[ValuePlace]:
    """Return the places where values of archived messages hold the key, in every archive that the topic has or had.

    Raises:
        StorageRefused: An archive that has messages of the topic is not there.
    """
    for folder in find_lost_archives(s, name):
        raise storage_refused(folder, "it has archived messages of the topic, and it is not there or not reached")
    now = policy_of(s, name).archive_to
    found = [*_archives_of(s, name), *([] if now is None else [_archive_at(now)])]
    each = {archive.folder(name): archive for archive in found if archive.is_there(name)}.values()
    return [place for archive in each for plan_id in archive.plans(name) for place in archive.find_in_values(name, plan_id, needle)]


def describe_old_copies(s: Services, name: TopicName, until: Instant) -> list[str]:
    """Describe the old copies of archived files that buckets keep, in all archives that the topic has or had.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        until: Consider files written up to this instant.

    Raises:
        Exception: Any error of the bucket's store.
    """
    now = policy_of(s, name).archive_to
    # The current archive may also keep copies for plans that were not published.
    found = [*_archives_of(s, name), *([] if now is None else [_archive_at(now)])]
    each = {archive.folder(name): archive for archive in found}.values()
    return [text for archive in each for text in archive.describe_old_copies(name, until)]


def _archives_of(s: Services, name: TopicName) -> list[ParquetArchive]:
    """Every archive into which something of the topic went, by the ledger's history."""
    done = (outcome.plan_id for _, outcome in s.ledger.history(name) if outcome.archived)
    written = (s.ledger.record(plan_id).plan for plan_id in done if plan_id is not None)
    return [
        _archive_at(to) for to in sorted({to for plan in written for to in [Policy.from_values(plan.policy).archive_to] if to is not None})
    ]


def _read_archived(plan: Plan) -> Archived | None:
    """Return the content of the plan's archive file, or None if no readable file exists. Raises UnsafePath, StorageRefused."""
    import pyarrow as pa

    try:
        return digest_messages(_archive(plan).read(plan.topic, plan.plan_id))
    except (OSError, pa.ArrowException):
        return None


def _removed_messages(s: Services, plan: Plan) -> Iterator[Message]:
    from message_lifecycle.stores.record_log.store import removal_of

    takes = removal_of(plan, plan.expected.removed_rows).taker()
    return (message for message in s.reader.messages(plan.topic) if takes(message.partition, message.offset))


def _archive(plan: Plan) -> ParquetArchive:
    assert plan.log_commit.keep is not None, "asked only where there is one"
    return _archive_at(plan.log_commit.keep)


def _archive_at(to: str) -> ParquetArchive:
    from message_lifecycle.stores.archive import ParquetArchive

    return ParquetArchive(to)
