"""Delegation tokens, stored as entity configs of kind `delegation-token` in the metadata image.

The name of each entity is the token's id. Expired tokens are removed with the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.control.access import change_configs
from penstock.control.values.topics import DELEGATION, MetadataImage
from penstock.security.credentials import (
    ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    Shape,
    parse_credential,
)
from penstock.security.delegation import DelegationToken, token_of

if TYPE_CHECKING:
    from penstock.control.plane import ControlPlane

TokenRows = Mapping[str, dict[str, str]]
"""Stored form of tokens by id."""
TokenChange = Callable[[TokenRows], TokenRows]
"""Function that takes all tokens and returns the new form of the tokens to change."""


class ClusterTokens:
    """Lookup of delegation tokens in the newest metadata image, for authentication."""

    def __init__(
        self, image: Callable[[], MetadataImage | None], now_ms: Callable[[], int]
    ) -> None:
        self._image = image
        self._now_ms = now_ms

    def token(self, token_id: str) -> DelegationToken | None:
        """Return a token that has not expired."""
        row = self._row(token_id)
        token = token_of(row) if row else None
        return None if token is None or token.is_expired(self._now_ms()) else token

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        if self.token(user) is None:
            return None
        return parse_credential(self._row(user)[mechanism])

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return {Shape(mechanism, SALT_BYTES, ITERATIONS): 1}

    def _row(self, token_id: str) -> dict[str, str]:
        image = self._image()
        return {} if image is None else dict(image.entity_configs.get((DELEGATION, token_id), {}))


def tokens_of(image: MetadataImage) -> dict[str, dict[str, str]]:
    """Return the stored form of all tokens of an image, by id."""
    return {
        name: dict(row) for (kind, name), row in image.entity_configs.items() if kind == DELEGATION
    }


async def change_tokens(control: ControlPlane, now_ms: int, change: TokenChange) -> None:
    """Change tokens in one write, and remove the expired ones; an empty form removes a token.

    Calls `change` again, with the new tokens, after each concurrent change.

    Raises:
        StaleConfigs: the same tokens changed concurrently during each of `ATTEMPTS_MAX` attempts.
        InvalidError: there would be more than `ENTITY_CONFIGS_MAX` tokens.
    """

    def plan(image: MetadataImage) -> tuple[TokenRows, TokenRows]:
        known = tokens_of(image)
        expired = [name for name, row in known.items() if token_of(row).is_expired(now_ms)]
        changes = {**{name: {} for name in expired}, **change(known)}
        return changes, {name: known.get(name, {}) for name in changes}

    await change_configs(control, DELEGATION, plan)
