-- How things come, stay and go; for the scripts that write. ARGV: now, seconds after which the server drops what nobody
-- renewed, seconds below which that is renewed, whether the tenant is surely registered.

local now, backstop, due, registered = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local function keep(key)
  if call('TTL', key) < due then
    call('EXPIRE', key, backstop)
  end
end

local function keep_tenant()
  for _, name in ipairs(tenant_keys) do
    keep(root .. name)
  end
end

local function keep_ledger(ledger)
  for _, name in ipairs({':l:', ':e:', ':r:', ':h:'}) do
    keep(root .. name .. ledger)
  end
end

local function drop_ledger(ledger)
  call('ZREM', root .. ':lu', ledger)
  for _, ref in ipairs(call('ZRANGE', root .. ':h:' .. ledger, 0, -1)) do
    call('ZREM', root .. ':k:' .. ref, ledger)
  end
  local sizes = call('HMGET', root .. ':b', 'k' .. ledger, 'r' .. ledger)
  call('HDEL', root .. ':b', 'k' .. ledger, 'r' .. ledger)
  call('HINCRBY', root, 'kept', int(0 - (sizes[1] or 0)))
  call('HINCRBY', root, 'record', int(0 - (sizes[2] or 0)))
  local number = call('ZSCORE', root .. ':ls', ledger)
  if number then
    call('HDEL', root .. ':ids', int(tonumber(number)))
    call('ZREM', root .. ':ls', ledger)
  end
  call('UNLINK', row_of(ledger), root .. ':e:' .. ledger, root .. ':r:' .. ledger, root .. ':h:' .. ledger)
  call('HSET', root, 'orphans', '0') -- tips that nobody sees any more are swept from the beginning
end

local function drop_original(ref)
  local _, size = number_and_size(ref)
  call('ZREM', root .. ':ou', ref)
  call('ZREM', root .. ':os', ref)
  call('HDEL', root .. ':o', ref)
  call('HINCRBY', root, 'kept', int(0 - (size or 0)))
  for _, ledger in ipairs(holders_of(ref)) do
    call('ZREM', root .. ':h:' .. ledger, ref)
    call('HINCRBY', row_of(ledger), 'held', int(0 - (size or 0)))
  end
  call('UNLINK', root .. ':d:' .. ref, root .. ':k:' .. ref)
end

-- Renew a ledger, making it if it is new; returns its number.
local function use_ledger(ledger, at)
  local row = row_of(ledger)
  local number = call('HGET', row, 'number')
  if not number then
    if call('ZSCORE', root .. ':ls', ledger) then
      drop_ledger(ledger) -- the server has dropped the row by itself
    end
    number = next_number()
    call('HSET', row, 'number', number, 'created', at)
    call('ZADD', root .. ':ls', number, ledger)
    call('HSET', root .. ':ids', number, ledger)
  end
  call('ZADD', root .. ':lu', 'GT', at, ledger)
  return number
end

local function renew_original(ref, at)
  call('ZADD', root .. ':ou', 'GT', at, ref)
  keep(root .. ':d:' .. ref)
  keep(root .. ':k:' .. ref)
end

-- Point keys at a ledger, except those that belong to another one that lives. Marks are key and length in turn.
local function set_tips(ledger, number, marks)
  local newest = tonumber(call('HGET', row_of(ledger), 'newest') or 0)
  for i = 1, #marks, 2 do
    local known = call('HGET', root .. ':t', marks[i])
    local owner = known and string.match(known, '^%d+')
    if not owner or owner == number or call('HEXISTS', root .. ':ids', owner) == 0 then
      call('HSET', root .. ':t', marks[i], number .. ' ' .. marks[i + 1])
    end
    newest = math.max(newest, tonumber(marks[i + 1]))
  end
  call('HSET', row_of(ledger), 'newest', int(newest))
end

-- A part of the arguments, and where the next part begins.
local function slice(from, count)
  local found = {}
  for i = from, from + count - 1 do
    found[#found + 1] = ARGV[i]
  end
  return found, from + count
end
