"""POST /v1/chat/completions: reads the body up to the limit, then it is the gateway's."""

from __future__ import annotations

from proxy.exchange import Gateway
from proxy.routes.conversation import Conversation


class ChatRoute:
    """The compacting route."""

    def __init__(self, gateway: Gateway, max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def serve(self, conversation: Conversation) -> None:
        """Answer a chat request."""
        body = await conversation.read(self._max_body_bytes)
        await self._gateway.handle(conversation.exchange(body), conversation)
