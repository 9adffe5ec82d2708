-- Return recorded messages as index and "size data" in turn, in order. ARGV: ledger, first index, index to stop before.
local record, first, stop = root .. ':r:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wanted, found = {}, {}
for _, index in ipairs(call('HKEYS', record)) do
  local number = tonumber(index)
  if first <= number and number < stop then
    wanted[#wanted + 1] = number
  end
end
table.sort(wanted)
for _, number in ipairs(wanted) do
  found[#found + 1] = int(number)
  found[#found + 1] = call('HGET', record, int(number))
end
return found
