-- Store originals, all or none. ARGV: ..., quota or '', then per original: ref, ledger ('': none), size,
-- about, bytes.
if is_stranger(registered) then
  return {'stranger'}
end
local quota = tonumber(ARGV[5])
local reply, wanted, new, more = {'done'}, {}, {}, 0
for i = 6, #ARGV, 5 do
  local ref = ARGV[i]
  if call('HEXISTS', root .. ':x', ref) == 1 then
    reply[#reply + 1] = ref
  else
    wanted[#wanted + 1] = i
    if not new[ref] and call('HEXISTS', root .. ':o', ref) == 0 then
      new[ref] = true
      more = more + tonumber(ARGV[i + 2])
    end
  end
end
if quota and more > 0 and tonumber(call('HGET', root, 'kept') or 0) + more > quota then
  return {'full'}
end
for _, i in ipairs(wanted) do
  local ref, ledger, size = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local number, known_size = number_and_size(ref)
  if not number then
    number, known_size = next_number(), size
    call('HSET', root .. ':o', ref, number .. ' ' .. size .. ' ' .. ARGV[i + 3])
    call('ZADD', root .. ':os', number, ref)
    call('HINCRBY', root, 'kept', size)
  end
  if call('EXISTS', root .. ':d:' .. ref) == 0 then -- new, or the server has dropped the bytes by itself
    call('SET', root .. ':d:' .. ref, ARGV[i + 4])
  end
  if ledger ~= '' then
    use_ledger(ledger, now)
    if not call('ZSCORE', root .. ':h:' .. ledger, ref) then
      call('ZADD', root .. ':k:' .. ref, 'NX', next_number(), ledger)
      call('ZADD', root .. ':h:' .. ledger, number, ref)
      call('HINCRBY', row_of(ledger), 'held', known_size)
    end
    keep_ledger(ledger)
  end
  renew_original(ref, now)
end
keep_tenant()
return reply
