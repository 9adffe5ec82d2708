-- Take a lock unless somebody has it. ARGV: ..., name, milliseconds.
if is_stranger(registered) then
  return {'stranger'}
end
local claim = root .. ':c:' .. ARGV[5]
if call('EXISTS', claim) == 1 then
  return {'held'}
end
local token = next_number()
call('SET', claim, token, 'PX', ARGV[6])
keep_tenant()
return {'done', token}
