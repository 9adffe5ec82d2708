-- Drop a session and the originals that nobody else holds. ARGV: ..., session.
local session = ARGV[5]
if call('EXISTS', row_of(session)) == 0 then
  return 0
end
for _, ref in ipairs(call('ZRANGE', root .. ':h:' .. session, 0, -1)) do
  if #holders_of(ref) == 1 then
    drop_original(ref)
  end
end
drop_ledger(session)
keep_tenant()
return 1
