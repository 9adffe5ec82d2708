-- What all scripts share. KEYS[1] is the root of one tenant: a hash of its counters, and the beginning of the names
-- of all its other keys, which carry the tenant as their hash tag and so lie in one slot of a cluster:
--   :o  ref -> "number size about"      :d:<ref>  bytes of an original     :k:<ref>  its holders, first one first
--   :os refs by number                  :ou refs by last use               :x  tombstones: ref -> when
--   :ls ledgers by number               :lu ledgers by last use            :ids  number -> ledger
--   :l:<ledger> row                     :e:<ledger> entries                :r:<ledger> record: index -> "size data"
--   :h:<ledger> refs that it holds      :b  bytes of entries ("k"..ledger) and of the record ("r"..ledger)
--   :t  key of a tip -> "number-of-ledger length"     :f facts     :c:<name> claims     :w:<store> last batch
-- What is counted lies in keys of the tenant, so that the sums stay right when the server drops keys of one ledger.
-- The first write of every script can be refused for want of memory if it adds something, and cannot if it only
-- removes: so a full server refuses additions whole and still lets things go.

local root = KEYS[1]
local call = redis.call
local tenant_keys = {'', ':o', ':os', ':ou', ':ls', ':lu', ':ids', ':b', ':t'}

-- Numbers are doubles here; they are written out in full.
local function int(number)
  return string.format('%.0f', number)
end

-- A number that no thing of this tenant had before, and that grows with time over all tenants.
local function next_number()
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local number = math.max(tonumber(call('HGET', root, 'last') or 0) + 1, now)
  call('HSET', root, 'last', int(number))
  return int(number)
end

-- Whether the list of tenants does not have this one yet; then the caller adds it and comes again.
local function is_stranger(registered)
  return registered == '0' and call('EXISTS', root) == 0
end

local function row_of(ledger)
  return root .. ':l:' .. ledger
end

local function number_and_size(ref)
  local about = call('HGET', root .. ':o', ref)
  if about then
    return string.match(about, '^(%d+) (%d+) ')
  end
end

-- The ledgers that hold an original and live, first holder first.
local function holders_of(ref)
  local found = {}
  for _, ledger in ipairs(call('ZRANGE', root .. ':k:' .. ref, 0, -1)) do
    if call('EXISTS', row_of(ledger)) == 1 then
      found[#found + 1] = ledger
    end
  end
  return found
end

local function first_holder(ref)
  return holders_of(ref)[1] or ''
end
