-- Return what one tenant has: originals, bytes, sessions.
local sizes = call('HMGET', root, 'kept', 'record')
return {call('ZCARD', root .. ':os'), int((sizes[1] or 0) + (sizes[2] or 0)), call('ZCARD', root .. ':ls')}
