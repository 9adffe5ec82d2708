-- Append to a ledger that is as long as the caller thinks. ARGV: ..., ledger, at, bytes of the entries before
-- compression, how many entries, the entries, then marks: key and length in turn.
if is_stranger(registered) then
  return {'stranger'}
end
local ledger, at, size, count = ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local version = call('LLEN', root .. ':e:' .. ledger)
if version ~= at then
  return {'conflict', version}
end
local entries, following = slice(9, count)
local number = use_ledger(ledger, now)
for _, entry in ipairs(entries) do
  call('RPUSH', root .. ':e:' .. ledger, entry)
end
call('HINCRBY', root, 'kept', size)
call('HINCRBY', root .. ':b', 'k' .. ledger, size)
set_tips(ledger, number, slice(following, #ARGV - following + 1))
keep_ledger(ledger)
keep_tenant()
return {'done', version + count}
