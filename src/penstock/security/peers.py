"""How brokers of one cluster prove to each other that they are: by a secret that only they have.

The secret is a row of the control plane. Whoever can read that is a broker in all but name, so
nothing has to be configured, and no listener is without authentication between brokers.

Over Kafka's protocol a broker authenticates by SCRAM as `USER`, whose password is derived from the
secret; nothing else makes a principal `authoriser.PEER`, who may do everything. Over the links of
replicated partitions both sides answer each other's challenge (`proof`): a proof is made of both
nonces, of both brokers' ids, of the cluster's id and of which side makes it, so it is worth nothing
on another connection, nor when it is sent back.

Source: RFC 5869 (keys for different uses are derived apart), RFC 5802.
"""

from __future__ import annotations

import functools
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.security.credentials import ITERATIONS, ScramCredential, derive

if TYPE_CHECKING:
    from penstock.security.sasl.scram import ScramClient

USER: Final = "__penstock_broker"
SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PeerSecret:
    """The secret, and what is derived from it."""

    secret: bytes = field(repr=False)

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"penstock {purpose}".encode(), "sha256")

    @property
    def decoys(self) -> bytes:
        """What decoys are made with (`credentials.decoy`): the same on all brokers."""
        return self._derive("decoys")

    def client(self, mechanism: str, nonce: str) -> ScramClient:
        """One authentication at another broker."""
        from penstock.security.sasl.scram import ScramClient

        return ScramClient(mechanism, USER, self._derive("password").hex(), nonce=nonce)

    def credential(self, mechanism: str) -> ScramCredential:
        """What `USER` has; slow the first time."""
        return _credential(self, mechanism)

    def name_of(self, cluster_id: str) -> str:
        """Return a name that only brokers of a cluster recognise: it does not show the id."""
        return hmac.digest(self._derive("cluster"), cluster_id.encode(), "sha256").hex()

    def proof(self, side: str, cluster_id: str, ids: tuple[int, int], nonces: bytes) -> bytes:
        """What one side of a link says to the other's challenge.

        `ids` and `nonces` are those of the side that was dialled, then of the one that dialled.
        """
        said = f"{side}\0{cluster_id}\0{ids[0]}\0{ids[1]}\0".encode() + nonces
        return hmac.digest(self._derive("links"), said, "sha256")


@functools.lru_cache(maxsize=8)
def _credential(secret: PeerSecret, mechanism: str) -> ScramCredential:
    password, salt = secret._derive("password").hex(), secret._derive("salt")[:_SALT_BYTES]
    return derive(mechanism, password, salt=salt, iterations=ITERATIONS)
