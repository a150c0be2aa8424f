"""The secret that all brokers of a cluster share, stored in the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.errors import StaleConfigs
from penstock.control.values import BETWEEN_BROKERS
from penstock.security.peers import SECRET_BYTES, PeerSecret

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.control.plane import ControlPlane

_NAME = ""
_KEY = "key"


async def cluster_secret(control: ControlPlane, randomness: Randomness) -> PeerSecret:
    """Return the cluster's secret. The first broker of a cluster generates and stores it.

    Raises:
        PenstockError: the control plane does not answer.
    """
    row = (await control.image()).entity_configs.get((BETWEEN_BROKERS, _NAME))
    if row is None:
        made = {_KEY: randomness.bits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big").hex()}
        try:
            await control.set_entity_configs(
                kind=BETWEEN_BROKERS, changes={_NAME: made}, expected={_NAME: {}}
            )
        except StaleConfigs:
            made = dict((await control.image()).entity_configs[BETWEEN_BROKERS, _NAME])
        row = made
    return PeerSecret(bytes.fromhex(row[_KEY]))
