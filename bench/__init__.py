"""The benchmark: what the gateway costs, next to a bare relay on the same server and the same HTTP transport.

python -m bench [--only TEXT] [--rounds N] [--json]

cells      what is sent: sizes, streaming or not, untouched or compacted
load       sends it, over a few connections that stay open
upstream   a provider as fast as can be, a process of its own
relay      the bare relay, a process of its own
process    starts these, and reads their CPU time and memory
rounds     measures a cell: gateway, relay and no gateway at all in turns, so that a busy machine slows all alike
report     prints
"""
