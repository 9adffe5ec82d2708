-- Look keys up. ARGV: how many keys, the keys, then ledgers whose state is wanted as well.
-- Returns a list of {place of the key, ledger, length, entries, newest} and a list of {entries, newest}.
local count, states, names = tonumber(ARGV[1]), {}, {}

local function state_of(ledger)
  if not states[ledger] then
    local newest = tonumber(call('HGET', row_of(ledger), 'newest') or 0)
    states[ledger] = {call('LLEN', root .. ':e:' .. ledger), newest}
  end
  return states[ledger]
end

local tips, asked = {}, {}
for i = 1, count do
  local known = call('HGET', root .. ':t', ARGV[i + 1])
  if known then
    local number, length = string.match(known, '^(%d+) (%d+)$')
    names[number] = names[number] or call('HGET', root .. ':ids', number)
    local ledger = names[number]
    if ledger and (states[ledger] or call('EXISTS', row_of(ledger)) == 1) then
      local state = state_of(ledger)
      tips[#tips + 1] = {i - 1, ledger, tonumber(length), state[1], state[2]}
    end
  end
end
for i = count + 2, #ARGV do
  asked[#asked + 1] = state_of(ARGV[i])
end
return {tips, asked}
