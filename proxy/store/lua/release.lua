-- Let go of a lock that is still held with that token. ARGV: name, token.
local claim = root .. ':c:' .. ARGV[1]
if call('GET', claim) == ARGV[2] then
  call('DEL', claim)
end
return 1
