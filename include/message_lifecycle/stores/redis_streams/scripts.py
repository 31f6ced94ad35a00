"""What is done in one step, as Redis runs it: nothing comes between its lines, and every check stands before the first change.

Numbers stay texts, for those of Lua are doubles: ids are compared by length, then by character.
"""

from __future__ import annotations

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

local function told(pairs_)
  local found = {}
  for at = 1, #pairs_, 2 do found[pairs_[at]] = pairs_[at + 1] end
  return found
end

local function last_id(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0' end
  return told(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
end
"""

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

REPLACE = (
    _BEFORE
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
      local is = told(group)
      local pending = is.pending > 0 and redis.call('XPENDING', key, is.name)[2]
      if before(is['last-delivered-id'], last) or (pending and not before(last, pending)) then return {'held', is.name} end
    end
  end
  at = at + 7 + ARGV[at + 6]
end
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
redis.call('HSET', KEYS[1], 'head', ARGV[2])
for at = 2, #KEYS do redis.call('HSET', KEYS[1], 'rows:' .. (at - 2), ARGV[at + 1]) end
return 'done'
"""
