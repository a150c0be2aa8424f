"""ACL bindings, stored as entity configs of kind `acl` in the metadata image.

The name of each entity is the text form of its binding (`AclBinding.text`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.control.errors import StaleConfigs
from penstock.control.values import ACL
from penstock.security.acls import AclBinding, InvalidAcl, binding_of

if TYPE_CHECKING:
    from penstock.control.plane import ControlPlane
    from penstock.control.values import MetadataImage

logger = logging.getLogger(__name__)

ROW: Final = {"version": "1"}
"""Config stored for each binding. The binding itself is the entity's name."""
ATTEMPTS_MAX: Final = 10
"""Attempts to write a change. A concurrent change of the same entities fails an attempt."""

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
    for attempt in range(ATTEMPTS_MAX):
        known = bindings_of(await control.image())
        added, removed = change(known)
        there = set(known)
        gone = {binding.text(): ROW for binding in removed}
        new = {binding.text(): ROW for binding in added if binding not in there}
        if not gone and not new:
            return
        try:
            await control.set_entity_configs(
                kind=ACL, changes={**{name: {} for name in gone}, **new}, expected=gone
            )
            return
        except StaleConfigs:
            if attempt == ATTEMPTS_MAX - 1:
                raise
