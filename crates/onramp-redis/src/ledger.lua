-- The ledger of a limit, as `onramp_fleet::Book` specifies it. Redis runs one call of this script
-- at a time, so nobody sees a ledger between two states.
--
-- KEYS: for each place on the way to the root the key of its ledger, "onramp:{ROOT}:ledger:NAME".
-- The keys of limits' terms ("RATE RESERVE") are made of these: Redis wants a right to write each
-- key that is listed for a script, and hosts may not write terms. All these keys are on the same
-- node of a cluster.
-- ARGV: the name of the engine's process, then the words of `onramp_fleet::Act::words`.
-- Result: number of the report, grant, whether the ledger is young (1 or 0), rate, the place that is
-- due (empty: none), and the members as HGETALL returns them; or the one word `overtaken` or `full`.
--
-- A ledger is a hash. Each field but "@" is a member: its name is "LIFE NAME", because a life has 64
-- bits, which a number in Lua has not; its value is seven numbers (when the member's time runs out,
-- the number of its last report, its guaranteed rate, what it holds, for a host what it sends (for a
-- ledger beneath -1), and for a ledger beneath what it should hold and when somebody last found that
-- (-1: never)) and the claim. All rates are below 2^53, so numbers in Lua are exact.
--
-- Field "@" has the ledger's clock, the clock that it follows (its time at the last call, and its
-- name: that of the ledger above, or "@" for the engine's clock), the terms that the ledger last knew
-- (or the lowest rate and the largest reserve that anyone remembered since), what all members hold,
-- what is guaranteed to them, a time before which nobody's time runs out, and the engine's process.
-- With these sums, a call need not look at each member.

local STEP, KEEP, TICK = 150000, 1200000, 100000
local EXPIRY_MS = 60000
local NONE, NEVER = -1, 2 ^ 53
local NUMBERS, NUMBERS_LENGTH = '<ddddddd', 56
local call, unpack_numbers, pack_numbers = redis.call, struct.unpack, struct.pack
local max, min, huge = math.max, math.min, math.huge

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local function get(place, field)
  local text = call('HGET', place.key, field)
  if text then
    local ends, turn, floor, held, used, aim, divided = unpack_numbers(NUMBERS, text)
    return {
      ends = ends, turn = turn, floor = floor, held = held, used = used, aim = aim,
      divided = divided, claim = string.sub(text, NUMBERS_LENGTH + 1),
    }
  end
end

-- Writes a member that held `held` of the ledger and to which `floor` was guaranteed before.
local function put(place, field, m, held, floor)
  local numbers =
    pack_numbers(NUMBERS, m.ends, m.turn, m.floor, m.held, m.used, m.aim, m.divided)
  call('HSET', place.key, field, numbers .. m.claim)
  place.held = place.held + m.held - held
  place.floors = place.floors + m.floor - floor
  place.first = min(place.first, m.ends)
end

-- Lets go of members whose time has run out.
local function let_go(place)
  local gone = {}
  place.held, place.floors, place.first = 0, 0, NEVER
  local fields = call('HGETALL', place.key)
  for i = 1, #fields, 2 do
    if fields[i] ~= '@' then
      local ends, _, floor, held = unpack_numbers('<dddd', fields[i + 1])
      if ends > place.clock then
        place.held = place.held + held
        place.floors = place.floors + floor
        place.first = min(place.first, ends)
      else
        gone[#gone + 1] = fields[i]
      end
    end
  end
  if gone[1] then
    call('HDEL', place.key, unpack(gone))
  end
end

-- Moves the clocks of all ledgers on the way, the highest first, and makes the ledgers that do not
-- exist. A ledger beneath follows the clock of the ledger above.
local epoch, act, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local way = {}
local leader, leads, step = '@', now, STEP
for i = count, 1, -1 do
  local at = 1 + 3 * i
  local key = KEYS[i]
  local tree, name = string.match(key, '^(.-):ledger:(.*)$')
  local place = { key = key, child = '0 ' .. name, leader = leader, leads = leads }
  local rate, reserve = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  place.clock, place.held, place.floors, place.first = 0, 0, 0, NEVER
  local head = call('HGET', key, '@')
  if head then
    local clock, led, by, low, high, held, floors, first, process =
      string.match(head, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
    if process ~= epoch then
      -- The engine wrote the ledger to a file and began again, or got it from another engine: there
      -- may be holders that this ledger does not know.
      call('DEL', key)
    elseif by == leader and step == huge and leads - led >= KEEP then
      -- Nobody has called this ledger for the time of a lease: its limit may have been elsewhere
      -- meanwhile, and there may be holders there that this ledger does not know.
      call('DEL', key)
    else
      place.clock = tonumber(clock)
      if by == leader then
        place.clock = place.clock + min(max(leads - led, 0), step)
      end
      place.held, place.floors, place.first = tonumber(held), tonumber(floors), tonumber(first)
      rate, reserve = min(low, rate), max(high, reserve)
      if place.clock >= place.first then
        let_go(place)
      end
    end
  end
  place.is_young = place.clock < KEEP
  place.is_limit = ARGV[at] == '1'
  place.rate, place.reserve = huge, 0
  if place.is_limit then
    local terms = call('GET', tree .. ':limit:' .. name)
    if terms then
      rate, reserve = string.match(terms, '^(%d+) (%d+)')
    end
    place.rate, place.reserve = tonumber(rate), tonumber(reserve)
  end
  place.low, place.high = tonumber(rate), tonumber(reserve)
  way[i] = place
  leader, leads, step = name, place.clock, huge
end

local function save()
  for i = 1, count do
    local p = way[i]
    local head = ('%.0f %.0f %s %.0f %.0f %.0f %.0f %.0f %s'):format(
      p.clock, p.leads, p.leader, p.low, p.high, p.held, p.floors, p.first, epoch)
    call('HSET', p.key, '@', head)
    call('PEXPIRE', p.key, EXPIRY_MS)
  end
end

-- What is set aside for hosts that the ledger does not know.
local function aside(place)
  return max(place.reserve - place.floors, 0)
end

local function used(place)
  return place.held + aside(place)
end

-- What the ledger may give out in all: its limit, but not more than it holds of the limit above,
-- less what the ledger above has given out too much.
local function rate_of(at)
  local rate = way[at].rate
  if at == count then
    return rate
  end
  local member = get(way[at + 1], way[at].child)
  local excess = max(used(way[at + 1]) - rate_of(at + 1), 0)
  return min(rate, max((member and member.held or 0) - excess, 0))
end

-- Renews what each ledger holds of the ledger above, and returns the highest place for which nobody
-- has divided the rate of the ledger above for a tick.
local function touch()
  local due = ''
  for at = 1, count - 1 do
    local place, above = way[at], way[at + 1]
    local floor = place.is_limit and place.reserve or place.floors
    local member = get(above, place.child)
    local held_before, floor_before = 0, 0
    if member then
      held_before, floor_before = member.held, member.floor
    else
      local claim = ('1;%.0f;%.0f'):format(floor * 1024, floor)
      member = { turn = 0, held = 0, used = NONE, aim = NONE, divided = NONE, claim = claim }
    end
    -- What is set aside for a host that the ledger beneath has let go of is the business of the
    -- ledger above from now on.
    local less = max(floor_before - floor, 0)
    member.floor = floor
    member.held = max(member.held - less, used(place))
    member.ends = above.clock + KEEP
    put(above, place.child, member, held_before, floor_before)
    if member.divided == NONE or above.clock - member.divided >= TICK / 2 then
      due = at - 1
    end
  end
  return due
end
touch()

local function answer(at, turn, granted, due)
  local place = way[at]
  local rate = place.rate
  if at < count then
    local member = get(way[at + 1], place.child)
    rate = min(rate, member.aim == NONE and member.held or member.aim)
  end
  rate = max(rate - aside(place), 0)
  save()
  return { turn, granted, place.is_young and 1 or 0, rate, due, call('HGETALL', place.key) }
end

local function refuse(why)
  save()
  return { why }
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
    return refuse('overtaken')
  end
  if not before then
    for at = 1, count do
      if way[at].is_limit then
        if way[at].floors + floor > way[at].reserve then
          return refuse('full')
        end
        break
      end
    end
  end
  local known = before and before.held or floor
  -- What the ledger knew of the host can be more than the host holds, if a report was late. So the
  -- host keeps what both know of, and gets more only while all shares together fit.
  local most = holding
  if not place.is_young then
    most = max(min(known, holding), known + rate_of(1) - used(place), 0)
  end
  -- What is guaranteed to a host fits, except for a moment after an operator raised it.
  local held = min(max(want, floor), most)
  local member = {
    ends = place.clock + KEEP, turn = turn, floor = floor, held = held,
    used = tonumber(ARGV[rest + 7]) or 0, aim = NONE, divided = NONE, claim = claim,
  }
  put(place, field, member, before and before.held or 0, before and before.floor or 0)
  local due = touch()
  return answer(1, turn, held, due)
elseif act == 'climb' then
  local at, claim, want = ARGV[rest] + 1, ARGV[rest + 1], tonumber(ARGV[rest + 2])
  local place, above = way[at], way[at + 1]
  local member = get(above, place.child)
  local before = member.held
  member.claim = claim
  if want then
    local free = above.is_young and 0 or max(rate_of(at + 1) - used(above), 0)
    member.held = max(min(want, before + free), used(place), member.floor)
    member.aim = want
    member.divided = above.clock
  end
  put(above, place.child, member, before, member.floor)
  return answer(at + 1, 0, member.held, '')
end
return redis.error_reply('ERR expected report or climb')
