-- Give a session the figures and times of another store. ARGV: ..., ledger, when it was created and last used, what is
-- known of it, calls, received, sent, reads, and the least that the greatest length of its marks is to be.
if is_stranger(registered) then
  return {'stranger'}
end
local ledger = ARGV[5]
local row = row_of(ledger)
use_ledger(ledger, ARGV[6])
call('HSET', row, 'created', ARGV[6], 'use', ARGV[8])
for c, counter in ipairs({'calls', 'received', 'sent', 'reads'}) do
  call('HSET', row, counter, ARGV[8 + c])
end
call('HSET', row, 'newest', int(math.max(tonumber(call('HGET', row, 'newest') or 0), tonumber(ARGV[13]))))
call('ZADD', root .. ':lu', ARGV[7], ledger)
keep_ledger(ledger)
keep_tenant()
return {'done'}
