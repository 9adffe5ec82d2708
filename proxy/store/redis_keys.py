"""How things are called on a Redis server.

All keys begin with the prefix of the URL. What belongs to a tenant has its name as hash tag, so that it lies in one
slot of a cluster and a script may change all of it at once; the scripts make these keys out of the root (see
`lua/prelude.lua`). A tenant therefore lives on one node; different tenants are spread over all of them.
"""

from __future__ import annotations

from urllib.parse import quote

PING_SPREAD = 4096
"""So many keys of different slots are tried to find one on each node of a cluster."""


def as_bytes(name: str) -> bytes:
    """Return a name as it goes into keys and arguments; any text can be a name."""
    return name.encode("utf-8", "surrogatepass")


def as_text(name: bytes) -> str:
    """Return the name that `as_bytes` has written."""
    return name.decode("utf-8", "surrogatepass")


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.schema = f"{prefix}:schema"
        self.secret = f"{prefix}:secret"
        self.tenants = f"{prefix}:tenants"

    def root(self, tenant: str) -> str:
        """Return the root of a tenant; its name is quoted, so that no tag ends early or is empty."""
        return f"{self._prefix}:{{t.{quote(as_bytes(tenant), safe='')}}}"

    def facts(self, tenant: str) -> str:
        """Return the hash of what was learnt for a tenant."""
        return f"{self.root(tenant)}:f"

    def entries(self, tenant: str, ledger: str) -> bytes:
        """Return the list of a ledger's entries."""
        return as_bytes(f"{self.root(tenant)}:e:{ledger}")

    def ping(self, number: int) -> str:
        """Return one of many keys that only prove that a node takes writes."""
        return f"{self._prefix}:ping:{number}"
