"""Names of keys, entries of streams, removals, and scripts.

The braces put all keys of a topic into one slot of a cluster. Only then can one step change them together. No topic's name holds a brace
(NAME-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName

DEFAULT_PREFIX = "lifecycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKeys:
    """Keys of one topic. `prefix` separates a backend's keys from other data on the server."""

    prefix: str
    name: TopicName

    @property
    def topic(self) -> str:
        """A hash: the head, and the expected number of entries in each stream."""
        return f"{self.prefix}:{{{self.name}}}"

    @property
    def lock(self) -> str:
        return f"{self.topic}:lock"

    def stream(self, partition: int) -> str:
        return f"{self.topic}:{partition}"

    def streams(self, partitions: Iterable[int]) -> list[str]:
        return [self.stream(partition) for partition in partitions]


def topics_key(prefix: str) -> str:
    """Return the key of a set with the names of all topics, so that nobody must search a server's keys for them."""
    return f"{prefix}:topics"


# A message as an entry of a stream, and back (see docs/backends.md for the layout).
#
# An entry's id is its offset plus one, then `-0`. So ids begin above 0-0, ascend like offsets, and give the offset without the entry. A
# missing value of a message has no field. Any other field exists, even if empty, so that null and empty stay different.


APPEND_TIME, EVENT_TIME, KEY, VALUE, SEGMENT, ORIGIN_OFFSET, HEADER = b"t", b"e", b"k", b"v", b"s", b"o", b"h:"
Field = str | bytes | int


def id_of(offset: int) -> str:
    return f"{offset + 1}-0"


def offset_of(entry_id: bytes) -> int:
    """Return the offset for the id of an entry. Raises ValueError."""
    return int(entry_id.partition(b"-")[0]) - 1


def fields_of(message: Message) -> list[Field]:
    """Return names and values in turn. Times are microseconds since 1970. Headers come last, in their order."""
    found: list[Field] = [SEGMENT, message.segment]
    for name, value in (
        (APPEND_TIME, message.append_time),
        (EVENT_TIME, message.event_time),
        (ORIGIN_OFFSET, message.origin_offset),
        (KEY, message.key),
        (VALUE, message.value),
    ):
        if value is not None:
            found += [name, value]
    for header, content in message.headers:
        found += [HEADER + header.encode(), content]
    return found


Entry = Any
"""An entry as XRANGE returns it: an id, then a list of alternating names and values."""


def message_of(partition: int, entry: Entry) -> Message:
    """Return the message of an entry. Raises ValueError if the entry is not ours."""
    entry_id, pairs = entry
    if not entry_id.endswith(b"-0") or len(pairs) % 2:
        raise ValueError(f"entry {entry_id.decode()} that no topic of ours has")
    single: dict[bytes, bytes] = {}
    headers: list[tuple[str, bytes]] = []
    for at in range(0, len(pairs), 2):
        name, value = pairs[at], pairs[at + 1]
        if name.startswith(HEADER):
            headers.append((name[len(HEADER) :].decode(), value))
        else:
            single[name] = value
    if SEGMENT not in single or single.keys() - {SEGMENT, APPEND_TIME, EVENT_TIME, ORIGIN_OFFSET, KEY, VALUE}:
        raise ValueError(f"entry {entry_id.decode()} with fields that no message has")
    times: Sequence[Instant | None] = [Instant(int(single[name])) if name in single else None for name in (APPEND_TIME, EVENT_TIME)]
    return Message(
        partition=partition,
        offset=offset_of(entry_id),
        append_time=times[0],
        key=single.get(KEY),
        value=single.get(VALUE),
        segment=int(single[SEGMENT]),
        headers=tuple(headers),
        event_time=times[1],
        origin_offset=int(single[ORIGIN_OFFSET]) if ORIGIN_OFFSET in single else None,
    )


# A removal from one stream: first the whole beginning, as far as possible, then single entries.


IDS_AT_ONCE = 1_000
"""The most ids in one text, because Lua passes at most 8,000 values to a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """A removal from one stream.

    Attributes:
        first: The number of entries that leave from the beginning.
        keep_from: The first id that may remain after these entries.
        last: The last id that leaves.
        beside: Other ids that leave, although an entry before them stays.
        by_count: Every entry leaves because of `max_records`.
    """

    partition: int
    first: int
    keep_from: str
    last: str
    beside: tuple[str, ...]
    by_count: bool

    @property
    def rows(self) -> int:
        return self.first + len(self.beside)

    def arguments(self) -> list[Field]:
        """Return the arguments for `REPLACE`."""
        texts = [" ".join(self.beside[at : at + IDS_AT_ONCE]) for at in range(0, len(self.beside), IDS_AT_ONCE)]
        how = "MAXLEN" if self.by_count else "MINID"
        return [self.partition, self.first, how, self.keep_from, self.last, len(self.beside), len(texts), *texts]


def trim_of(partition: int, end: int, takes: Callable[[int, int], bool], ids: Iterable[bytes], *, by_count: bool) -> Trim:
    """Return the removal from one stream.

    Args:
        partition: The partition of the stream.
        end: No message leaves from this offset on.
        takes: Returns True if the message at (partition, offset) leaves.
        ids: The ids of all entries from the first on.
        by_count: Every entry leaves because of `max_records`.
    """
    first, keep_from, last = 0, "", "0-0"
    beside: list[str] = []
    for entry_id in ids:
        if not takes(partition, offset_of(entry_id)):
            keep_from = keep_from or entry_id.decode()
            continue
        last = entry_id.decode()
        if keep_from:
            beside.append(last)
        else:
            first += 1
    return Trim(
        partition=partition,
        first=first,
        keep_from=keep_from or id_of(end),
        last=last,
        beside=tuple(beside),
        by_count=by_count,
    )


# Scripts that Redis runs in one step: no other command comes in between, and every check is before the first change.
#
# Numbers stay texts, because numbers of Lua are doubles. Scripts compare ids by length, then by character.


_BEFORE = """
local function before(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if am ~= bm then
    if #am ~= #bm then return #am < #bm end
    return am < bm
  end
  if #as ~= #bs then return #as < #bs end
  return as < bs
end

local function fields(pairs_)
  local found = {}
  for at = 1, #pairs_, 2 do found[pairs_[at]] = pairs_[at + 1] end
  return found
end

local function last_id(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0' end
  return fields(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
end
"""

_OLDEST_PENDING = """
-- The oldest pending entry of a group that the stream still has; false if there is none. An entry that was deleted stays in the group's
-- list of pending entries, and nobody can read it any more. Each turn jumps to the next entry that is there.
local function oldest_pending(stream, group)
  local there = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  while there do
    local pending = redis.call('XPENDING', stream, group, there[1], '+', 1)[1]
    if not pending then return false end
    there = redis.call('XRANGE', stream, pending[1], '+', 'COUNT', 1)[1]
    if there and there[1] == pending[1] then return there[1] end
  end
  return false
end
"""

GROUPS = (
    _BEFORE
    + _OLDEST_PENDING
    + """
-- KEYS: topic, its streams. Gives by stream its consumer groups: name, id delivered last, and the oldest pending entry that is there, or ''.
local found = {}
for at = 2, #KEYS do
  local groups = {}
  if redis.call('EXISTS', KEYS[at]) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[at])) do
      local is = fields(group)
      groups[#groups + 1] = {is.name, is['last-delivered-id'], is.pending > 0 and oldest_pending(KEYS[at], is.name) or ''}
    end
  end
  found[#found + 1] = groups
end
return found
"""
)

CREATE = """
-- KEYS: topic, its streams. ARGV: head.
if redis.call('EXISTS', KEYS[1]) == 1 then return 'there' end
for at = 2, #KEYS do
  if redis.call('EXISTS', KEYS[at]) == 1 then return KEYS[at] end
end
redis.call('HSET', KEYS[1], 'head', ARGV[1])
return 'done'
"""

LOOK = (
    _BEFORE
    + """
-- KEYS: topic, its streams. Gives the head, then by stream: entries that we have written and not removed, entries, newest id.
local found = {redis.call('HGET', KEYS[1], 'head')}
for at = 2, #KEYS do
  found[#found + 1] = redis.call('HGET', KEYS[1], 'rows:' .. (at - 2)) or '0'
  found[#found + 1] = redis.call('XLEN', KEYS[at])
  found[#found + 1] = last_id(KEYS[at])
end
return found
"""
)

APPEND = (
    _BEFORE
    + """
-- KEYS: topic, streams. ARGV: head as it was, head as it becomes, by stream its partition, entries and first id, and then the
-- entries: stream (1 is the first), id, number of fields, fields.
if redis.call('HGET', KEYS[1], 'head') ~= ARGV[1] then return 'moved' end
local streams = #KEYS - 1
for at = 1, streams do
  if not before(last_id(KEYS[at + 1]), ARGV[3 * at + 2]) then return KEYS[at + 1] end
end
redis.call('HSET', KEYS[1], 'head', ARGV[2])
for at = 1, streams do
  redis.call('HINCRBY', KEYS[1], 'rows:' .. ARGV[3 * at], ARGV[3 * at + 1])
end
local at = 3 * streams + 3
while at <= #ARGV do
  local fields = tonumber(ARGV[at + 2])
  redis.call('XADD', KEYS[tonumber(ARGV[at]) + 1], ARGV[at + 1], unpack(ARGV, at + 3, at + 2 + fields))
  at = at + 3 + fields
end
return 'done'
"""
)

# A server at its `maxmemory` refuses a command that may take memory, unless the script has written before. PERSIST is such a write: without
# memory, and without effect on a key that has no time to live. Only APPEND does without PERSIST, because messages take memory.

LOCK = """
-- KEYS: lock. ARGV: token, milliseconds.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('PERSIST', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

REPLACE = (
    _BEFORE
    + _OLDEST_PENDING
    + """
-- KEYS: topic, streams that lose entries. ARGV: head as it was, head as it becomes, 'retention' where groups hold what they need, and
-- by stream: partition, entries that go from its beginning, how those are trimmed (MINID, MAXLEN), the id that is then the first, the
-- last id that goes, entries that go beside, number of texts that list their ids.
if redis.call('HGET', KEYS[1], 'head') ~= ARGV[1] then return {'moved'} end
local at = 4
for stream = 2, #KEYS do
  local key, last = KEYS[stream], ARGV[at + 4]
  local rows = redis.call('HGET', KEYS[1], 'rows:' .. ARGV[at]) or '0'
  if redis.call('XLEN', key) ~= tonumber(rows) then return {'drift'} end
  if ARGV[3] == 'retention' and redis.call('EXISTS', key) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local is = fields(group)
      local pending = is.pending > 0 and oldest_pending(key, is.name)
      if before(is['last-delivered-id'], last) or (pending and not before(last, pending)) then return {'held', is.name} end
    end
  end
  at = at + 7 + ARGV[at + 6]
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'head', ARGV[2])
at = 4
for stream = 2, #KEYS do
  local key, first, beside = KEYS[stream], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 5])
  redis.call('HINCRBY', KEYS[1], 'rows:' .. ARGV[at], -first - beside)
  if first > 0 and ARGV[at + 2] == 'MAXLEN' then
    redis.call('XTRIM', key, 'MAXLEN', '=', redis.call('XLEN', key) - first)
  elseif first > 0 then
    redis.call('XTRIM', key, 'MINID', '=', ARGV[at + 3])
  end
  for text = at + 7, at + 6 + ARGV[at + 6] do
    local ids = {}
    for id in string.gmatch(ARGV[text], '%S+') do ids[#ids + 1] = id end
    redis.call('XDEL', key, unpack(ids))
  end
  at = at + 7 + ARGV[at + 6]
end
return {'done'}
"""
)

NOTICE = """
-- Another writer has removed entries. KEYS: topic, streams. ARGV: head as it was, head as it becomes, entries by stream now.
if redis.call('HGET', KEYS[1], 'head') ~= ARGV[1] then return 'moved' end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'head', ARGV[2])
for at = 2, #KEYS do redis.call('HSET', KEYS[1], 'rows:' .. (at - 2), ARGV[at + 1]) end
return 'done'
"""
