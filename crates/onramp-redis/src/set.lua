-- Writes limits if nobody has changed one since they were read.
--
-- KEYS: the hash of all limits, then the keys of terms.
-- ARGV: the version that was read (empty: none), the new version, the number of limits, for each
-- limit its name and text, and for each key of terms its text.
-- Result: 1, or 0 if the version is another one.

local version = redis.call('HGET', KEYS[1], '') or ''
if version ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], '', ARGV[2])
local at = 4
for _ = 1, tonumber(ARGV[3]) do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for i = 2, #KEYS do
  redis.call('SET', KEYS[i], ARGV[at])
  at = at + 1
end
return 1
