"""Credentials of a listener's users, from the brokers, a file or the cluster, in this order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.security import Credentials, ScramCredential
from penstock.security.credentials import Shape
from penstock.security.peers import USER, PeerSecret

Lookup = Callable[[], Credentials]
"""Source of current credentials."""


class UserCredentials:
    """Credentials of a file and of the cluster; implements `Credentials`."""

    def __init__(self, lookups: Sequence[Lookup]) -> None:
        self._lookups = lookups

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        for lookup in self._lookups:
            found = lookup().credential(mechanism, user)
            if found is not None:
                return found
        return None

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        counts = Counter[Shape]()
        for lookup in self._lookups:
            counts.update(lookup().shapes(mechanism))
        return counts


class PeerCredentials:
    """Credentials of `users` and of brokers, whose name is reserved; implements `Credentials`."""

    def __init__(self, secret: PeerSecret, users: Credentials) -> None:
        self._secret = secret
        self._users = users

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        if user == USER:
            return self._secret.credential(mechanism)
        return self._users.credential(mechanism, user)

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return self._users.shapes(mechanism)
