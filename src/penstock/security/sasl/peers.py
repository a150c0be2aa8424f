"""Mutual authentication of the brokers of one cluster, by a shared secret.

The secret is a row of the control plane. A process that can read this row can do everything that a
broker can. Therefore no further configuration is needed, and brokers always authenticate to each
other.

Over Kafka's protocol, a broker authenticates by SCRAM as `USER`, with a password that is derived
from the secret. Only this gives a connection the principal `authoriser.PEER`, which is allowed
everything. Over the connections of replicated partitions, each side answers the other's challenge
with a `proof`. The proof covers both nonces, both broker ids, the cluster id and the side that
sends it. It is therefore useless on another connection, and when it is sent back.

Source: RFC 5869 (keys for different uses are derived separately), RFC 5802.
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
    """Secret that the cluster's brokers share, and the keys that are derived from it."""

    secret: bytes = field(repr=False)

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, f"penstock {purpose}".encode(), "sha256")

    @property
    def decoys(self) -> bytes:
        """The seed of decoy credentials (`credentials.credential_or_decoy`), the same on all
        brokers.
        """
        return self._derive("decoys")

    @property
    def forms(self) -> bytes:
        """The key of the tokens in the console's forms, the same on all brokers."""
        return self._derive("console forms")

    def client(self, mechanism: str, nonce: str) -> ScramClient:
        """Return the SCRAM exchange by which this broker authenticates to another one."""
        from penstock.security.sasl.scram import ScramClient

        return ScramClient(mechanism, USER, self._derive("password").hex(), nonce=nonce)

    def credential(self, mechanism: str) -> ScramCredential:
        """Return the SCRAM credential of `USER`; the first call is slow."""
        return _credential(self, mechanism)

    def name_of(self, cluster_id: str) -> str:
        """Return a name of the cluster that only its brokers can compute from the cluster id.

        The name does not reveal the id.
        """
        return hmac.digest(self._derive("cluster"), cluster_id.encode(), "sha256").hex()

    def proof(self, side: str, cluster_id: str, ids: tuple[int, int], nonces: bytes) -> bytes:
        """Return the proof by which one side of a connection answers the other's challenge.

        `side` names the side that sends the proof. `ids` and `nonces` are first those of the
        accepting side, then those of the connecting side.
        """
        said = f"{side}\0{cluster_id}\0{ids[0]}\0{ids[1]}\0".encode() + nonces
        return hmac.digest(self._derive("links"), said, "sha256")


@functools.lru_cache(maxsize=8)
def _credential(secret: PeerSecret, mechanism: str) -> ScramCredential:
    password, salt = secret._derive("password").hex(), secret._derive("salt")[:_SALT_BYTES]
    return derive(mechanism, password, salt=salt, iterations=ITERATIONS)
