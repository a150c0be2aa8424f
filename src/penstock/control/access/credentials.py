"""SCRAM credentials as rows: a user is one of the image's entities, with a text per mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.control.access.acls import ATTEMPTS_MAX
from penstock.control.errors import StaleConfigs
from penstock.control.values import SCRAM
from penstock.security.credentials import ScramCredential, parse_credential

if TYPE_CHECKING:
    from penstock.control.plane import ControlPlane
    from penstock.control.values import MetadataImage

Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""By user and mechanism."""
CredentialChange = Callable[[Credentials], Mapping[str, Mapping[str, ScramCredential]]]
"""From what all users have to what some have from now on; nothing ends a user."""


def credentials_of(image: MetadataImage) -> dict[str, dict[str, ScramCredential]]:
    """What is kept of all passwords, by user and mechanism."""
    return {
        user: {mechanism: parse_credential(text) for mechanism, text in row.items()}
        for (kind, user), row in image.entity_configs.items()
        if kind == SCRAM
    }


async def change_credentials(control: ControlPlane, change: CredentialChange) -> None:
    """Change what users have, in one write; `change` may be called several times, the last counts.

    Raises:
        StaleConfigs: others changed the same users again and again.
        InvalidError: there would be too many users, or too long names.
    """
    for attempt in range(ATTEMPTS_MAX):
        known = credentials_of(await control.image())
        changed = change(known)
        if not changed:
            return
        try:
            await control.set_entity_configs(
                kind=SCRAM,
                changes={user: _row(found) for user, found in changed.items()},
                expected={user: _row(known.get(user, {})) for user in changed},
            )
            return
        except StaleConfigs:
            if attempt == ATTEMPTS_MAX - 1:
                raise


def _row(credentials: Mapping[str, ScramCredential]) -> dict[str, str]:
    return {mechanism: one.text() for mechanism, one in credentials.items()}
