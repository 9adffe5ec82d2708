"""The scripts that run inside the server: each is one atomic step, on the keys of one tenant.

They lie in `lua/`: `prelude` is part of all, `life` of those that write. A script is sent by its digest; a server that
does not know it (yet, or after a restart) is sent the text once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

_FOLDER = Path(__file__).with_name("lua")


class Script(Struct, frozen=True):
    """A script and the digest under which servers know it."""

    text: str
    digest: str


def _load(*names: str) -> Script:
    text = "\n".join((_FOLDER / f"{name}.lua").read_text("utf-8") for name in names)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _load_reading(name: str) -> Script:
    return _load("prelude", name)


def _load_writing(name: str) -> Script:
    return _load("prelude", "life", name)


PUT = _load_writing("put")
APPEND = _load_writing("append")
NOTE = _load_writing("note")
ERASE = _load_writing("erase")
DELETE = _load_writing("delete")
EXPIRE = _load_writing("expire")
CLAIM = _load_writing("claim")
FACT = _load_writing("fact")
REFUSE = _load_writing("refuse")
SESSION = _load_writing("session")
RELEASE = _load_reading("release")
FIND = _load_reading("find")
GET = _load_reading("get")
MISSING = _load_reading("missing")
ORIGINALS = _load_reading("originals")
SESSIONS = _load_reading("sessions")
RECORD = _load_reading("record")
TOTALS = _load_reading("totals")
