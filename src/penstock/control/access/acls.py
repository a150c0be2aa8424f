"""ACL bindings as rows: each is one of the image's entities, named by its stored form."""

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
"""What a row has beside its name."""
ATTEMPTS_MAX: Final = 10
"""How often a change is computed anew, because another one came between."""

Change = Callable[[Sequence[AclBinding]], tuple[Iterable[AclBinding], Iterable[AclBinding]]]
"""From all bindings to those that are added, and those that are removed."""


def bindings_of(image: MetadataImage) -> list[AclBinding]:
    """All bindings of an image, in order; but for what a newer Penstock has stored."""
    found: list[AclBinding] = []
    for kind, name in image.entity_configs:
        if kind == ACL:
            try:
                found.append(binding_of(name))
            except InvalidAcl as error:
                logger.warning("an ACL is left out: %s", error)
    return sorted(found)


async def change_acls(control: ControlPlane, change: Change) -> None:
    """Add and remove bindings in one write; `change` may be called several times, the last counts.

    What is there already is added without effect.

    Raises:
        StaleConfigs: others changed the same bindings again and again.
        InvalidError: there would be too many bindings, or too long ones.
    """
    for attempt in range(ATTEMPTS_MAX):
        known = bindings_of(await control.image())
        added, removed = change(known)
        there = set(known)
        gone = {one.text(): ROW for one in removed}
        new = {one.text(): ROW for one in added if one not in there}
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
