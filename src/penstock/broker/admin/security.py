"""Certificates and users in files, taken into use when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.security.service import SecurityService


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What this view uses."""

    node_id: int
    door: SecurityService


async def reload(parts: Parts, request: Request) -> dict[str, Any]:
    """What could not be taken into use, in sentences; what was before stays then."""
    return {"node_id": parts.node_id, "failures": await parts.door.entrance.reload()}
