"""The pure core: bytes, values and state machines; no sockets, no clock, nothing random."""
