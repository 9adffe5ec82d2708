-- Return an original as {about, bytes, first holder}, 1 for a tombstone, 0 for nothing. ARGV: ref.
local ref = ARGV[1]
local about = call('HGET', root .. ':o', ref)
local data = about and call('GET', root .. ':d:' .. ref)
if data then
  return {about, data, first_holder(ref)}
end
return call('HEXISTS', root .. ':x', ref)
