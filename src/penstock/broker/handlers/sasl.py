"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.broker.connection import RequestContext
from penstock.broker.security.service import SecurityService


@dataclass(frozen=True, slots=True)
class Sasl:
    security_service: SecurityService

    def sasl_handshake(self, context: RequestContext, request: Any) -> Mapping[str, Any]:
        """Agree on a mechanism; raises IllegalState."""
        return self.security_service.handshake(context.connection, request.mechanism)

    async def sasl_authenticate(self, context: RequestContext, request: Any) -> Mapping[str, Any]:
        """Handle one message of the mechanism; raises IllegalState."""
        return await self.security_service.authenticate(
            context.connection, bytes(request.auth_bytes), context.started
        )
