-- List sessions as {number, ledger, last use, counted bytes, held originals, row}, last created first.
-- ARGV: the number that they come after or '+inf', the most to return, or '' and '' and the one wanted.
local function session_of(ledger)
  local row = row_of(ledger)
  local fields = call('HMGET', row, 'created', 'use', 'calls', 'received', 'sent', 'reads', 'held')
  local number = int(tonumber(call('ZSCORE', root .. ':ls', ledger) or call('HGET', row, 'number')))
  local sizes = call('HMGET', root .. ':b', 'k' .. ledger, 'r' .. ledger)
  local counted = int((sizes[1] or 0) + (sizes[2] or 0))
  local used = call('ZSCORE', root .. ':lu', ledger)
  return {number, ledger, used, counted, call('ZCARD', root .. ':h:' .. ledger), fields}
end

if ARGV[3] then
  return call('EXISTS', row_of(ARGV[3])) == 1 and {session_of(ARGV[3])} or {}
end
local found = {}
for _, ledger in ipairs(call('ZREVRANGEBYSCORE', root .. ':ls', ARGV[1], '-inf', 'LIMIT', 0, ARGV[2])) do
  found[#found + 1] = session_of(ledger)
end
return found
