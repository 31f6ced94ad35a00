"""Generated work on the log of one topic: appends, readers, holds, what removes, and what takes it back."""

from __future__ import annotations

from hypothesis import strategies as st

from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, TruncateLog
from message_lifecycle.model.setting_list import Value
from tests.logs import SECOND
from tests.sequences import RELEASE, UNDO, Run, Step, erase, hold, work_of

PARTITIONS = 2
OWN: tuple[dict[str, Value], ...] = (
    {"message_expiry": 20, "segment_size_bytes": 6},
    {"message_expiry": 30, "allow_msg_ttl": True, "subject_delete_marker_ttl": 60, "segment_size_bytes": 20},
    {"max_total_bytes": 12, "max_age_seconds": 40, "message_expiry": 60, "segment_size_bytes": 6},
    {"max_records": 2, "retention_scope": "key", "segment_size_bytes": 1000, "subject_delete_marker_ttl": 60},
    {"max_records": 3, "max_age_seconds": 20, "subject_delete_marker_ttl": 60, "segment_size_bytes": 20},
    {"cleanup_policy": "compact", "delete_retention": 20.0, "segment_size_bytes": 6, "max_age_seconds": 20},
    {"cleanup_policy": "compact", "allow_msg_ttl": True, "subject_delete_marker_ttl": 60, "segment_size_bytes": 20},
)
_HEADERS = {3: (("Nats-TTL", b"15s"),), 4: (("KV-Operation", b"PURGE"),)}
"""By the size of the value."""
KEYS = st.sampled_from([b"a", b"b", b"", None])
WORKS: tuple[Work, ...] = ("message_cleaner", "message_cleaner", "retention", "compaction", "compaction", "purge_compacted", "reclaim")


def seen(run: Run) -> object:
    """Return the log, the compacted view with the tail, and the log's end offsets."""
    reader = run.world.services.reader
    view = [] if run.world.services.stores.view.view(run.name) is None else read_compacted(run.world.services, run.name)
    return [_told(m) for m in reader.messages(run.name)], [_told(m) for m in view], dict(reader.end_offsets(run.name))


def _told(message: Message) -> tuple[object, ...]:
    return message.partition, message.offset, message.key, message.value, message.append_time, message.headers


def _end(run: Run, partition: int) -> int:
    return run.world.services.reader.end_offsets(run.name).get(partition, 0)


def _append(new: tuple[tuple[int, bytes | None, int, int], ...]) -> Step:
    def do(run: Run) -> object:
        made = [
            NewMessage(
                partition=partition, key=key, value=b"v" * size, append_time=Instant((run.now_s - age) * SECOND) if age < 9 else None,
                headers=_HEADERS.get(size, ()),
            )
            for partition, key, size, age in new
        ]  # fmt: skip
        return run.world.writer.append(run.name, made, policy_of(run.world.services, run.name))

    return Step(f"append{new}", do)


def _hold_range(partition: int, first: int, more: int) -> Step:
    def do(run: Run) -> object:
        span = HeldRange(partition=partition, first=first, last=first + more)
        run.holds.append(place_hold(run.world.services, run.name, by="ada", why="case 7", offsets=span).hold_id)
        return None

    return Step(f"hold {partition}:{first} and {more} more", do)


def _commit(partition: int, offset: int) -> Step:
    def do(run: Run) -> object:
        end = _end(run, partition)
        run.world.services.ledger.commit(run.name, "c", partition, offset % (end + 1), run.now, end_offset=end)
        return None

    return Step(f"commit {partition}:{offset}", do)


def _remove(numbers: list[int]) -> Step:
    def do(run: Run) -> object:
        log = list(run.world.services.reader.messages(run.name))
        at = {(m.partition, m.offset) for m in (log[number % len(log)] for number in numbers)} if log else {(0, 0)}
        return run.carry_out(RemoveMessages(positions=tuple(sorted(at))), 1)

    return Step(f"remove the messages {numbers}", do)


def _truncate(partition: int, at: int) -> Step:
    def do(run: Run) -> object:
        return run.carry_out(TruncateLog(partition=partition, before=1 + at % max(1, _end(run, partition))), 1)

    return Step(f"truncate {partition} at {at}", do)


def _remove_null_keys(partition: int, at: int) -> Step:
    def do(run: Run) -> object:
        end = max(1, _end(run, partition))
        return run.carry_out(RemoveNullKeys(partition=partition, first=at % end, last=end - 1), 1)

    return Step(f"remove null keys of {partition} from {at}", do)


def _seal(partition: int) -> Step:
    return Step(f"seal {partition}", lambda run: run.world.writer.seal(run.name, partition))


_OF = st.integers(0, PARTITIONS - 1)
_NEW = st.tuples(_OF, KEYS, st.integers(0, 9), st.integers(0, 9))
_OFFSET = st.integers(0, 9)
APPENDS = st.lists(_NEW, min_size=1, max_size=6).map(lambda new: _append(tuple(new)))
STEPS: st.SearchStrategy[Step] = st.one_of(
    APPENDS,
    APPENDS,
    st.builds(work_of, st.sampled_from(WORKS), st.integers(0, 40)),
    st.builds(work_of, st.sampled_from(WORKS), st.integers(0, 40)),
    st.builds(work_of, st.sampled_from(WORKS), st.integers(0, 40)),
    UNDO,
    UNDO,
    st.lists(st.sampled_from([b"a", b"b", b""]), min_size=1, max_size=3).map(erase),
    st.sampled_from([b"a", b""]).map(hold),
    st.builds(_hold_range, _OF, _OFFSET, st.integers(0, 3)),
    RELEASE,
    st.builds(_commit, _OF, _OFFSET),
    _OF.map(_seal),
    st.lists(st.integers(0, 20), min_size=1, max_size=3).map(_remove),
    st.builds(
        lambda key, before: work_of(PurgeKey(key=key, before=before), 1), st.sampled_from([b"a", b""]), st.one_of(st.none(), _OFFSET)
    ),
    st.builds(_truncate, _OF, _OFFSET),
    st.builds(_remove_null_keys, _OF, _OFFSET),
)
SEQUENCES = st.tuples(
    st.lists(_NEW, min_size=4, max_size=10).map(lambda new: _append(tuple(new))), st.lists(STEPS, min_size=4, max_size=12)
).map(lambda found: (found[0], *found[1]))
