"""ACL bindings as entities of the image; an entity's name is the binding's stored form."""

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
"""Content of a row, beside its name."""
ATTEMPTS_MAX: Final = 10
"""Attempts to compute a change while concurrent changes invalidate it."""

Change = Callable[[Sequence[AclBinding]], tuple[Iterable[AclBinding], Iterable[AclBinding]]]
"""Function from all bindings to the added and the removed ones."""


def bindings_of(image: MetadataImage) -> list[AclBinding]:
    """Return the bindings of an image, in order. Bindings of a newer Penstock are left out."""
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

    `change` may be called several times; the result of the last call counts.

    Raises:
        StaleConfigs: others changed the same bindings again and again.
        InvalidError: there would be too many bindings, or too long ones.
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
