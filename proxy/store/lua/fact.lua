-- Remember something learnt. ARGV: ..., key, packed value.
if is_stranger(registered) then
  return {'stranger'}
end
call('HSET', root .. ':f', ARGV[5], ARGV[6])
return {'done'}
