-- Drop some of what was last used before a time, else sweep some tips of dropped ledgers.
-- ARGV: ..., the time, the most things and the most work for one step, tips for one step.
-- Returns how many sessions and originals went, and whether there may be more to do.
local before, most, room = '(' .. ARGV[5], ARGV[6], tonumber(ARGV[7])
local gone = 0
for _, ledger in ipairs(call('ZRANGEBYSCORE', root .. ':lu', '-inf', before, 'LIMIT', 0, most)) do
  room = room - 1 - call('ZCARD', root .. ':h:' .. ledger)
  if gone > 0 and room < 0 then
    break
  end
  drop_ledger(ledger)
  gone = gone + 1
end
for _, ref in ipairs(call('ZRANGEBYSCORE', root .. ':ou', '-inf', before, 'LIMIT', 0, most)) do
  drop_original(ref)
  gone = gone + 1
end
local cursor = call('HGET', root, 'orphans')
if gone > 0 then
  keep_tenant()
end
if gone > 0 or not cursor then
  return {gone, gone}
end
local scanned = call('HSCAN', root .. ':t', cursor, 'COUNT', ARGV[8])
for i = 1, #scanned[2], 2 do
  local owner = string.match(scanned[2][i + 1], '^%d+')
  if call('HEXISTS', root .. ':ids', owner) == 0 then
    call('HDEL', root .. ':t', scanned[2][i])
  end
end
if scanned[1] == '0' then
  call('HDEL', root, 'orphans')
  return {0, 0}
end
call('HSET', root, 'orphans', scanned[1])
return {0, 1}
