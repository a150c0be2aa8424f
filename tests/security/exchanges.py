"""Users, tokens and keys that the tests of authentication share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from penstock.security import ScramCredential
from penstock.security.credentials import HASHES, ITERATIONS, FileCredentials, derive
from penstock.security.sasl import Accepted, Challenge, Later, Outcome, ServerExchange

SECRET = b"what decoys are made with"
SALT = b"0123456789abcdef"
NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000


class _Registry(jws.JWSRegistry):
    """Signs by any algorithm."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


SigningKey = RSAKey | ECKey | OKPKey | OctKey


def users(*names: str, password: str = "secret of {}") -> FileCredentials:
    """Users with a credential for each mechanism."""
    kept: dict[tuple[str, str], ScramCredential] = {}
    for name in names:
        for mechanism in HASHES:
            kept[mechanism, name] = derive(
                mechanism, password.format(name), salt=SALT, iterations=ITERATIONS
            )
    return FileCredentials(kept)


def outcome(exchange: ServerExchange, message: bytes) -> Outcome:
    """The outcome of a step, found at once if it is slow."""
    found = exchange.step(message)
    return found.find() if isinstance(found, Later) else found


def challenge(exchange: ServerExchange, message: bytes) -> bytes:
    found = outcome(exchange, message)
    assert isinstance(found, Challenge)
    return found.data


def accepted(exchange: ServerExchange, message: bytes) -> Accepted:
    found = outcome(exchange, message)
    assert isinstance(found, Accepted)
    return found


def signing_key(kind: str = "RSA") -> SigningKey:
    if kind == "RSA":
        return RSAKey.generate_key(2048)
    return ECKey.generate_key("P-256") if kind == "EC" else OKPKey.generate_key("Ed25519")


def key_set(**keys: SigningKey) -> bytes:
    """A JWKS of public keys by their ids."""
    entries = [
        {**key.as_dict(private=key.key_type == "oct"), "kid": name} for name, key in keys.items()
    ]
    return json.dumps({"keys": entries}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token; a change to None removes a claim."""
    said = {"sub": "alice", "iss": "https://issuer", "aud": "penstock", "exp": NOW + 600}
    return {name: value for name, value in {**said, **changes}.items() if value is not None}


def token(
    key: SigningKey,
    said: Mapping[str, Any] | None = None,
    *,
    algorithm: str = "RS256",
    key_id: str | None = "k1",
    **header: Any,
) -> str:
    named = {"alg": algorithm, **({} if key_id is None else {"kid": key_id}), **header}
    text = json.dumps(claims() if said is None else said)
    registry = _Registry(strict_check_header=False)
    return jws.serialize_compact(named, text, key, registry=registry)
