"""Reload of certificate and user files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.security.service import SecurityService


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    node_id: int
    security_service: SecurityService


async def reload(parts: Parts, request: Request) -> dict[str, Any]:
    """Reload the files; return failures as sentences. Previous contents stay in use then."""
    return {
        "node_id": parts.node_id,
        "failures": await parts.security_service.listener_group.reload(),
    }
