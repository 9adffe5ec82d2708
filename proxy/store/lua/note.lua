-- Write notes and renewals once, however often they are sent; returns how many records found no room.
-- ARGV: ..., quota or '', name of the store and number of its batch, seconds for which that is remembered, how many
-- notes, then per note: ledger, when, what is known of it, calls, received, sent, reads, how many marks, key and
-- length of each, how many messages, index, size and data of each; then renewals: ref and when in turn.
local quota, batch = tonumber(ARGV[5]), root .. ':w:' .. ARGV[6]
local done = call('GET', batch)
if done and string.match(done, '^%d+') == ARGV[7] then
  return {'done', tonumber(string.match(done, '%d+$'))}
end
local i, dropped = 10, 0
if tonumber(ARGV[9]) > 0 and is_stranger(registered) then
  return {'stranger'}
end

local function write_record(ledger, messages)
  local record, size, replaced = root .. ':r:' .. ledger, 0, 0
  for m = 1, #messages, 3 do
    size = size + tonumber(messages[m + 1])
  end
  local used = call('HMGET', root, 'kept', 'record')
  if quota and (used[1] or 0) + (used[2] or 0) + size > quota then
    dropped = dropped + 1
    return
  end
  for m = 1, #messages, 3 do
    local old = call('HGET', record, messages[m])
    replaced = replaced + (old and tonumber(string.match(old, '^%d+')) or 0)
    call('HSET', record, messages[m], messages[m + 1] .. ' ' .. messages[m + 2])
  end
  call('HINCRBY', root, 'record', int(size - replaced))
  call('HINCRBY', root .. ':b', 'r' .. ledger, int(size - replaced))
end

for _ = 1, tonumber(ARGV[9]) do
  local ledger, at = ARGV[i], ARGV[i + 1]
  local number, row = use_ledger(ledger, at), row_of(ledger)
  call('HSET', row, 'use', ARGV[i + 2])
  for c, counter in ipairs({'calls', 'received', 'sent', 'reads'}) do
    call('HINCRBY', row, counter, ARGV[i + 2 + c])
  end
  local marks, messages
  marks, i = slice(i + 8, 2 * tonumber(ARGV[i + 7]))
  messages, i = slice(i + 1, 3 * tonumber(ARGV[i]))
  set_tips(ledger, number, marks)
  if #messages > 0 then
    write_record(ledger, messages)
  end
  keep_ledger(ledger)
end
for t = i, #ARGV, 2 do
  if call('HEXISTS', root .. ':o', ARGV[t]) == 1 then
    renew_original(ARGV[t], ARGV[t + 1])
  end
end
if call('EXISTS', root) == 1 then
  keep_tenant()
end
call('SET', batch, ARGV[7] .. ' ' .. dropped, 'EX', ARGV[8])
return {'done', dropped}
