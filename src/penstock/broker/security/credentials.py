"""Credentials of a listener's users: of brokers, from a file, and from the control plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.security import Credentials, ScramCredential
from penstock.security.credentials import Shape
from penstock.security.peers import USER, PeerSecret

Lookup = Callable[[], Credentials]
"""Function that returns the current credentials of one source."""


class UserCredentials:
    """Credentials of several sources; the first that knows a user decides."""

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
    """Credentials of `users`, and of brokers, which have the reserved user name `USER`."""

    def __init__(self, secret: PeerSecret, users: Credentials) -> None:
        self._secret = secret
        self._users = users

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        if user == USER:
            return self._secret.credential(mechanism)
        return self._users.credential(mechanism, user)

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return self._users.shapes(mechanism)
