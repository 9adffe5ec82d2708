"""Asking for a compaction of a session, for its next request to make.

The history is the client's to send, so nobody else can compact it: the wish is written into the ledger, where every
replica finds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.core.ledger import Wished
from proxy.errors import BadRequest
from proxy.occasion import summarise_policy
from proxy.presets import Preset
from proxy.sessions import Sessions
from proxy.store.base import Session


class CannotCompact(BadRequest):
    """The session's preset makes no compactions."""

    status = 409
    code = "no_compactions"


async def wish(sessions: Sessions, session: Session, presets: Mapping[str, Preset]) -> str:
    """Have the session compacted by its next request; returns the strategy. Raises CannotCompact or StoreError.

    To wish twice is to wish once.
    """
    preset = presets.get(session.preset)
    policy = None if preset is None or preset.shadow else summarise_policy(preset)
    if policy is None:
        raise CannotCompact(
            f"preset {session.preset!r}, which this session's last request used, makes no compactions; "
            "use one with summarise_history, as balanced has it"
        )
    ledger = await sessions.reload(session.tenant, session.id)
    if not ledger.is_wished:
        await sessions.append_later(session.tenant, ledger, [Wished("api")])
    return policy.strategy
