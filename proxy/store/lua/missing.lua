-- Return the refs that are neither stored nor erased. ARGV: refs.
local missing = {}
for _, ref in ipairs(ARGV) do
  local stored = call('HEXISTS', root .. ':o', ref) == 1 and call('EXISTS', root .. ':d:' .. ref) == 1
  if not stored and call('HEXISTS', root .. ':x', ref) == 0 then
    missing[#missing + 1] = ref
  end
end
return missing
