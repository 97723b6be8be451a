-- The ledger of a limit, as `onramp_fleet::Book` specifies it. Redis runs one call of this script
-- at a time, so nobody sees a ledger between two states.
--
-- KEYS: for each place on the way to the root the key of its ledger, then for each limit among the
-- places the key of its terms ("RATE RESERVE").
-- ARGV: the name of the engine's process, then the words of `onramp_fleet::Act::words`.
-- Result: the words of `onramp_fleet::Answer::words`, in any order of the members, or the one word
-- `overtaken` or `full`.
--
-- A ledger is a hash. Field "@" has its clock, the engine's clock at the last call, the lowest rate
-- and the largest reserve that anyone remembered, and the engine's process. Each other field is a
-- member: its name is "LIFE NAME", because a life has 64 bits, which a number in Lua has not; its
-- value is six numbers and the claim. All rates are below 2^53, so numbers in Lua are exact.

local STEP, KEEP, TICK = 200000, 1200000, 100000
local EXPIRY_MS = 60000
local NONE = -1
local call, unpack_numbers, pack_numbers = redis.call, struct.unpack, struct.pack
local max, min, huge = math.max, math.min, math.huge

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local function read(text)
  local ends, turn, floor, held, aim, divided = unpack_numbers('<dddddd', text)
  return {
    ends = ends, turn = turn, floor = floor, held = held, aim = aim, divided = divided,
    claim = string.sub(text, 49),
  }
end

local function put(place, field, member)
  place.members[field] = member
  local m = member
  local numbers = pack_numbers('<dddddd', m.ends, m.turn, m.floor, m.held, m.aim, m.divided)
  call('HSET', place.key, field, numbers .. m.claim)
end

-- Reads all members, and lets go of those whose time has run out.
local function members(place)
  local all = place.members
  if place.has_all then
    return all
  end
  place.has_all = true
  local gone = {}
  local fields = call('HGETALL', place.key)
  for i = 1, #fields, 2 do
    local field = fields[i]
    if field ~= '@' and not all[field] then
      local member = read(fields[i + 1])
      if member.ends > place.clock then
        all[field] = member
      else
        gone[#gone + 1] = field
      end
    end
  end
  if gone[1] then
    call('HDEL', place.key, unpack(gone))
  end
  return all
end

-- Reads one member.
local function get(place, field)
  local member = place.members[field]
  if member or place.has_all then
    return member
  end
  local text = call('HGET', place.key, field)
  if text then
    member = read(text)
    if member.ends > place.clock then
      place.members[field] = member
      return member
    end
  end
end

local function sum(place, what)
  local total = 0
  for _, member in pairs(members(place)) do
    total = total + member[what]
  end
  return total
end

-- Moves the clocks of all ledgers on the way, and makes the ledgers that do not exist.
local epoch, act, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local way = {}
local terms_at = count
for i = 1, count do
  local at = 1 + 3 * i
  local key = KEYS[i]
  local place = { key = key, child = '0 ' .. string.match(key, ':ledger:(.*)$'), members = {} }
  place.is_limit = ARGV[at] == '1'
  if place.is_limit then
    terms_at = terms_at + 1
    place.terms_key = KEYS[terms_at]
  end
  local rate, reserve = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local head = call('HGET', key, '@')
  local clock, seen, low, high, process
  if head then
    clock, seen, low, high, process = string.match(head, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
    -- The engine wrote the ledger to a file and began again, or got it from another engine: there
    -- may be holders that this ledger does not know.
    if process ~= epoch then
      call('DEL', key)
      head = false
    end
  end
  if head then
    place.clock = clock + min(max(now - seen, 0), STEP)
    place.rate, place.reserve = min(low, rate), max(high, reserve)
  else
    place.has_all = true
    place.clock, place.rate, place.reserve = 0, rate, reserve
  end
  local text = '%.0f %.0f %.0f %.0f %s'
  call('HSET', key, '@', text:format(place.clock, now, place.rate, place.reserve, epoch))
  call('PEXPIRE', key, EXPIRY_MS)
  if place.is_limit then
    local terms = call('GET', place.terms_key)
    if terms then
      rate, reserve = string.match(terms, '^(%d+) (%d+)')
      place.rate, place.reserve = tonumber(rate), tonumber(reserve)
    end
  end
  place.is_young = place.clock < KEEP
  way[i] = place
end

local function own(place)
  return place.is_limit and place.rate or huge
end

-- What is set aside for hosts that the ledger does not know.
local function aside(place)
  return place.is_limit and max(place.reserve - sum(place, 'floor'), 0) or 0
end

local function used(place)
  return sum(place, 'held') + aside(place)
end

local function free(at)
  local rate = own(way[at])
  if at < count then
    local member = get(way[at + 1], way[at].child)
    rate = min(rate, member and member.held or 0)
  end
  return max(rate - used(way[at]), 0)
end

-- Renews what each ledger holds of the ledger above, and returns the highest place for which nobody
-- has divided the rate of the ledger above for a tick.
local function touch()
  local due = ''
  for at = 1, count - 1 do
    local place, above = way[at], way[at + 1]
    local holds = used(place)
    local floor = place.is_limit and place.reserve or sum(place, 'floor')
    local member = get(above, place.child)
    if not member then
      local claim = ('1;%.0f;%.0f'):format(floor * 1024, floor)
      member = { turn = 0, held = 0, aim = NONE, divided = NONE, claim = claim }
    end
    member.floor = floor
    member.held = max(member.held, holds)
    member.ends = above.clock + KEEP
    put(above, place.child, member)
    if member.divided == NONE or above.clock - member.divided >= TICK then
      due = at - 1
    end
  end
  return due
end

local function answer(at, turn, granted, due)
  local place = way[at]
  local rate = own(place)
  if at < count then
    local member = get(way[at + 1], place.child)
    rate = min(rate, member.aim == NONE and member.held or member.aim)
  end
  local words = { turn, granted, place.is_young and 1 or 0, max(rate - aside(place), 0), due }
  local size = #words
  for field, member in pairs(members(place)) do
    local space = string.find(field, ' ', 1, true)
    words[size + 1] = string.sub(field, space + 1)
    words[size + 2] = string.sub(field, 1, space - 1)
    words[size + 3] = member.claim
    words[size + 4] = member.held
    size = size + 4
  end
  return words
end

local rest = 4 + 3 * count
if act == 'report' then
  local host, claim, life = ARGV[rest], ARGV[rest + 1], ARGV[rest + 2]
  local turn, floor = tonumber(ARGV[rest + 3]), tonumber(ARGV[rest + 4])
  local holding, want = tonumber(ARGV[rest + 5]), tonumber(ARGV[rest + 6])
  local field = life .. ' ' .. host
  local place = way[1]
  local before = get(place, field)
  if before and before.turn >= turn then
    return { 'overtaken' }
  end
  if not before then
    for at = 1, count do
      if way[at].is_limit then
        if sum(way[at], 'floor') + floor > way[at].reserve then
          return { 'full' }
        end
        break
      end
    end
  end
  local known = before and before.held or floor
  local most
  if place.is_young then
    most = max(known, holding)
  else
    most = known + free(1)
  end
  local held = max(min(want, most), floor)
  put(place, field, {
    ends = place.clock + KEEP, turn = turn, floor = floor, held = held, aim = NONE, divided = NONE,
    claim = claim,
  })
  local due = touch()
  return answer(1, turn, held, due)
elseif act == 'climb' then
  local at, claim, want = ARGV[rest] + 1, ARGV[rest + 1], tonumber(ARGV[rest + 2])
  touch()
  local place, above = way[at], way[at + 1]
  local member = get(above, place.child)
  member.claim = claim
  if want then
    local most = above.is_young and member.held or member.held + free(at + 1)
    member.held = max(min(want, most), used(place), member.floor)
    member.aim = want
    member.divided = above.clock
  end
  put(above, place.child, member)
  return answer(at + 1, 0, member.held, '')
end
return redis.error_reply('ERR expected report or climb')
