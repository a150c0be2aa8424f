"""ACL bindings and SCRAM credentials, stored as entity configs in the metadata image."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.control.values.errors import StaleConfigs
from penstock.control.values.topics import ACL, SCRAM, MetadataImage
from penstock.security.acls import AclBinding, InvalidAcl, binding_of, has_control_characters
from penstock.security.credentials import (
    InvalidCredential,
    ScramCredential,
    Shape,
    parse_credential,
    shapes_of,
)
from penstock.security.sasl.peers import USER

if TYPE_CHECKING:
    from penstock.control.plane import ControlPlane


ATTEMPTS_MAX: Final = 10
"""Attempts to write a change. A concurrent change of the same entities fails an attempt."""

Configs = Mapping[str, Mapping[str, str]]
"""Configs by entity; an empty config removes the entity."""


async def change_configs(
    control: ControlPlane, kind: str, plan: Callable[[MetadataImage], tuple[Configs, Configs]]
) -> None:
    """Write changes of entities of one kind, unless there are none.

    `plan` returns the changes, and the configs that the entities must have before. It is called
    again, with the new image, after each concurrent change.

    Raises:
        StaleConfigs: the same entities changed concurrently during each of `ATTEMPTS_MAX` attempts.
        InvalidError: there would be more than `ENTITY_CONFIGS_MAX` entities, or a name is too long.
    """
    for attempt in range(ATTEMPTS_MAX):
        changes, expected = plan(await control.image())
        if not changes:
            return
        try:
            await control.set_entity_configs(kind=kind, changes=changes, expected=expected)
            return
        except StaleConfigs:
            if attempt == ATTEMPTS_MAX - 1:
                raise


# ACL bindings, stored as entity configs of kind `acl` in the metadata image.
#
# The name of each entity is the text form of its binding (`AclBinding.text`).


logger = logging.getLogger(__name__)

ROW: Final = {"version": "1"}
"""Config stored for each binding. The binding itself is the entity's name."""

Change = Callable[[Sequence[AclBinding]], tuple[Iterable[AclBinding], Iterable[AclBinding]]]
"""Function that takes all bindings and returns (bindings to add, bindings to remove)."""


def bindings_of(image: MetadataImage) -> list[AclBinding]:
    """Return the bindings of an image, sorted.

    Logs and skips a binding that cannot be parsed, such as one that a newer Penstock has stored.
    """
    found: list[AclBinding] = []
    for kind, name in image.entity_configs:
        if kind == ACL:
            try:
                found.append(binding_of(name))
            except InvalidAcl as error:
                logger.warning("ignoring a stored ACL: %s", error)
    return sorted(found)


async def change_acls(control: ControlPlane, change: Change) -> None:
    """Add and remove bindings in one write. Adding a binding that exists has no effect.

    Calls `change` again, with the new bindings, after each concurrent change.

    Raises:
        StaleConfigs: the same bindings changed concurrently during each of `ATTEMPTS_MAX` attempts.
        InvalidError: there would be more than `ENTITY_CONFIGS_MAX` bindings, or a binding is too
            long.
    """

    def plan(image: MetadataImage) -> tuple[Configs, Configs]:
        known = bindings_of(image)
        added, removed = change(known)
        there = set(known)
        gone = {binding.text(): ROW for binding in removed}
        new = {binding.text(): ROW for binding in added if binding not in there}
        return {**{name: {} for name in gone}, **new}, gone

    await change_configs(control, ACL, plan)


# SCRAM credentials, stored as entity configs of kind `scram` in the metadata image.
#
# There is one entity per user. Its config maps each mechanism to the text form of a credential.


USER_CHARS_MAX: Final = 249

Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""Credentials by user, then by mechanism."""
CredentialChange = Callable[[Credentials], Mapping[str, Mapping[str, ScramCredential]]]
"""Function that takes all credentials and returns the new credentials of the users to change.

An empty map removes a user.
"""


class ClusterUsers:
    """Lookup of SCRAM credentials in the newest metadata image, for authentication."""

    def __init__(self, image: Callable[[], MetadataImage | None]) -> None:
        self._image = image
        self._counted: object = None
        self._shapes = shapes_of([])

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        image = self._image()
        if image is None:
            return None
        text = image.entity_configs.get((SCRAM, user), {}).get(mechanism)
        return None if text is None else parse_credential(text)

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        image = self._image()
        if image is not None and image.entity_configs is not self._counted:
            self._counted = image.entity_configs
            self._shapes = shapes_of(found for _, found in _users_of(image))
        return self._shapes[mechanism]


def check_user(name: str) -> None:
    """Reject an invalid user name.

    Raises:
        InvalidCredential: it is empty, too long, reserved for brokers, or has control characters.
    """
    if name == USER:
        raise InvalidCredential(f"the user name {USER} is reserved for connections between brokers")
    if not name:
        raise InvalidCredential("the name of a user must not be empty")
    if len(name) > USER_CHARS_MAX:
        raise InvalidCredential(
            f"the name of a user has {len(name)} characters; the limit is {USER_CHARS_MAX}"
        )
    if has_control_characters(name):
        raise InvalidCredential("the name of a user has control characters")


def credentials_of(image: MetadataImage) -> dict[str, dict[str, ScramCredential]]:
    """Return the SCRAM credentials of an image, by user, then by mechanism."""
    return dict(_users_of(image))


def _users_of(image: MetadataImage) -> Iterator[tuple[str, dict[str, ScramCredential]]]:
    for (kind, user), row in image.entity_configs.items():
        if kind == SCRAM:
            yield user, {mechanism: parse_credential(text) for mechanism, text in row.items()}


async def change_credentials(control: ControlPlane, change: CredentialChange) -> None:
    """Change the credentials of users in one write.

    Calls `change` again, with the new credentials, after each concurrent change.

    Raises:
        StaleConfigs: the same users changed concurrently during each of `ATTEMPTS_MAX` attempts.
        InvalidError: there would be more than `ENTITY_CONFIGS_MAX` users, or a name is too long.
    """

    def plan(image: MetadataImage) -> tuple[Configs, Configs]:
        known = credentials_of(image)
        changes = {user: _row(found) for user, found in change(known).items()}
        return changes, {user: _row(known.get(user, {})) for user in changes}

    await change_configs(control, SCRAM, plan)


def _row(credentials: Mapping[str, ScramCredential]) -> dict[str, str]:
    return {mechanism: credential.text() for mechanism, credential in credentials.items()}
