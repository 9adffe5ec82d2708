-- Refuse refs from now on, in place of what is stored under them. ARGV: ..., refs.
if is_stranger(registered) then
  return {'stranger'}
end
for i = 5, #ARGV do
  if call('HEXISTS', root .. ':o', ARGV[i]) == 1 then
    drop_original(ARGV[i])
  end
  call('HSETNX', root .. ':x', ARGV[i], now)
end
return {'done'}
