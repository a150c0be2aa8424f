"""Mutual authentication of the brokers of one cluster by a shared secret.

The secret is a row of the control plane. A process that can read it can do everything that a broker
can, so no configuration is needed, and no listener is without authentication between brokers.

Over Kafka's protocol a broker authenticates by SCRAM as `USER`, whose password is derived from the
secret; only this makes a principal `authoriser.PEER`, which may do everything. Over the links of
replicated partitions both sides answer each other's challenge (`proof`). A proof is made of both
nonces, both broker ids, the cluster id and the side that makes it, so it is worthless on another
connection and when it is sent back.

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
    """Secret of the cluster, and keys derived from it."""

    secret: bytes = field(repr=False)

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"penstock {purpose}".encode(), "sha256")

    @property
    def decoys(self) -> bytes:
        """Return the seed of decoy credentials (`credentials.decoy`): the same on all brokers."""
        return self._derive("decoys")

    def client(self, mechanism: str, nonce: str) -> ScramClient:
        """Return an authentication at another broker."""
        from penstock.security.sasl.scram import ScramClient

        return ScramClient(mechanism, USER, self._derive("password").hex(), nonce=nonce)

    def credential(self, mechanism: str) -> ScramCredential:
        """Return the credential of `USER`; slow the first time."""
        return _credential(self, mechanism)

    def name_of(self, cluster_id: str) -> str:
        """Return a name that only brokers of a cluster recognise, without disclosing the id."""
        return hmac.digest(self._derive("cluster"), cluster_id.encode(), "sha256").hex()

    def proof(self, side: str, cluster_id: str, ids: tuple[int, int], nonces: bytes) -> bytes:
        """Return the proof of one side of a link for the other's challenge.

        `ids` and `nonces` are those of the accepting side, then of the connecting one.
        """
        said = f"{side}\0{cluster_id}\0{ids[0]}\0{ids[1]}\0".encode() + nonces
        return hmac.digest(self._derive("links"), said, "sha256")


@functools.lru_cache(maxsize=8)
def _credential(secret: PeerSecret, mechanism: str) -> ScramCredential:
    password, salt = secret._derive("password").hex(), secret._derive("salt")[:_SALT_BYTES]
    return derive(mechanism, password, salt=salt, iterations=ITERATIONS)
