-- Drop an original for good. ARGV: ..., ref.
if call('HEXISTS', root .. ':o', ARGV[5]) == 0 then
  return 0
end
drop_original(ARGV[5])
call('HSET', root .. ':x', ARGV[5], now)
keep_tenant()
return 1
