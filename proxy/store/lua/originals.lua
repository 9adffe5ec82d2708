-- List originals as {number, ref, about, first holder}, last stored first. ARGV: the number that they come after
-- or '+inf', the most to return, the ledger that holds them or ''.
local key = ARGV[3] == '' and ':os' or ':h:' .. ARGV[3]
local found = {}
for _, ref in ipairs(call('ZREVRANGEBYSCORE', root .. key, ARGV[1], '-inf', 'LIMIT', 0, ARGV[2])) do
  local about = call('HGET', root .. ':o', ref)
  if about then
    found[#found + 1] = {string.match(about, '^%d+'), ref, about, ARGV[3] == '' and first_holder(ref) or ARGV[3]}
  end
end
return found
