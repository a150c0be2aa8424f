"""SaslHandshake and SaslAuthenticate: who a client is; the door (`security/service.py`) decides.

Source: KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.broker.connection import RequestContext
from penstock.broker.security.service import SecurityService


@dataclass(frozen=True, slots=True)
class Parts:
    """What these handlers use of a broker."""

    door: SecurityService


def sasl_handshake(parts: Parts, context: RequestContext, request: Any) -> Mapping[str, Any]:
    """Agree on a mechanism.

    Raises:
        IllegalState: there is nothing to authenticate.
    """
    return parts.door.handshake(context.connection, request.mechanism)


async def sasl_authenticate(
    parts: Parts, context: RequestContext, request: Any
) -> Mapping[str, Any]:
    """Take one message of the mechanism.

    Raises:
        IllegalState: no mechanism was agreed on.
    """
    return await parts.door.authenticate(
        context.connection, bytes(request.auth_bytes), context.started
    )
