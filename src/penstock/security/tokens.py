"""Verification of signed tokens (JWT) with public keys (JWKS).

Only signatures by private keys are accepted. The list of algorithms has neither `none` nor HMAC;
HMAC would make a public key usable as a password. A key is used only for algorithms of its own
type. Keys inside a token, and URLs of keys in it, are ignored. A token must have an expiry time
and, if audiences are configured, one of these.

A setting accepts unsigned tokens instead, for development.

Source: RFC 7515, 7517, 7519, 8725 (best practices); KIP-768; joserfc verifies signatures.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from msgspec import Struct

from penstock.base.errors import InvalidError

ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
}
"""Signature algorithms that are accepted for each type of key."""
TOKEN_BYTES_MAX: Final = 16 << 10
JWKS_BYTES_MAX: Final = 256 << 10
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
NAME_CHARACTERS_MAX: Final = 1024
_SEGMENTS: Final = 3
_CURVES: Final = frozenset({"P-256", "P-384", "P-521", "Ed25519"})

PublicKey = RSAKey | ECKey | OKPKey


class InvalidToken(InvalidError):
    """Invalid token; the message never contains the token."""

    code: ClassVar[str] = "sasl_authentication_failed"

    def __init__(self, message: str, *, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class UnknownKey(InvalidToken):
    """Token that is signed with an unknown key; loading the keys again may help."""


class InvalidKeys(InvalidError):
    """Text that is not a valid set of keys."""

    code: ClassVar[str] = "invalid_config"


class TokenRules(Struct, frozen=True, kw_only=True):
    """Requirements that a token must meet.

    If `audiences` has items, the token must have one of them. An empty `issuer` accepts every
    issuer. `unsecured` accepts unsigned tokens, and only these.
    """

    issuer: str = ""
    audiences: tuple[str, ...] = ()
    name_claim: str = "sub"
    clock_skew_seconds: int = 30
    unsecured: bool = False


class TokenOwner(Struct, frozen=True, kw_only=True):
    """Owner of a token; `expires_ms` is the expiry time in milliseconds since 1970."""

    name: str
    expires_ms: int


class SignedWith(Struct, frozen=True, kw_only=True):
    """Algorithm and key id from a token's header."""

    algorithm: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class KeySet:
    """Set of public keys by id; it never contains HMAC secrets."""

    keys: tuple[tuple[str | None, PublicKey], ...] = field(default=(), repr=False)

    def find(self, signed: SignedWith) -> PublicKey:
        """Return the key with the token's key id; for a token without key id, the only key.

        Raises:
            UnknownKey: no key has this id.
            InvalidToken: the key cannot be used with the token's algorithm, or the token names no
                key and there is not exactly one.
        """
        if signed.key_id is None and len(self.keys) != 1:
            raise InvalidToken(f"the token has no key id, but there are {len(self.keys)} keys")
        named = [key for name, key in self.keys if signed.key_id is None or name == signed.key_id]
        if not named:
            raise UnknownKey("the token is signed with an unknown key")
        for key in named:
            if signed.algorithm in ALGORITHMS[key.key_type]:
                return key
        raise InvalidToken("the token's algorithm cannot be used with the type of its key")


def parse_key_set(data: bytes) -> KeySet:
    """Parse a JWKS; keys of other types, for other uses, or of weak sizes are ignored.

    Raises:
        InvalidKeys: the set is malformed, too large, or has no usable key.
    """
    if len(data) > JWKS_BYTES_MAX:
        raise InvalidKeys(f"the JWKS has more than {JWKS_BYTES_MAX} bytes, the limit")
    try:
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidKeys("the JWKS must be a JSON object with a list named keys") from None
    if len(entries) > KEYS_MAX:
        raise InvalidKeys(f"the JWKS has {len(entries)} keys; the limit is {KEYS_MAX}")
    keys = [found for entry in entries if (found := _public_key(entry)) is not None]
    if not keys:
        raise InvalidKeys("the JWKS has no public key for signatures with RSA, EC or Ed25519")
    return KeySet(tuple(keys))


def _public_key(entry: Any) -> tuple[str | None, PublicKey] | None:
    if not isinstance(entry, dict) or str(entry.get("kty")) not in ALGORITHMS:
        return None
    uses = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        return None
    if entry["kty"] != "RSA" and str(entry.get("crv")) not in _CURVES:
        return None
    public: dict[str, str | list[str]] = {
        name: value
        for name, value in entry.items()
        if name in ("kty", "crv", "x", "y", "n", "e") and isinstance(value, str)
    }
    try:
        key = JWKRegistry.import_key(public)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(key, (RSAKey, ECKey, OKPKey)):
        return None
    if isinstance(key, RSAKey) and not RSA_BITS_MIN <= key.public_key.key_size <= RSA_BITS_MAX:
        return None
    name = entry.get("kid")
    return name if isinstance(name, str) else None, key


def owner_of(token: str, keys: KeySet, rules: TokenRules, now_ms: int) -> TokenOwner:
    """Verify a token and return its owner.

    Raises:
        UnknownKey: the token is signed with a key that is not in `keys`.
        InvalidToken: the token is malformed, or its signature or a claim is invalid.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidToken(f"the token has {len(token)} characters; the limit is {TOKEN_BYTES_MAX}")
    if token.count(".") != _SEGMENTS - 1:
        raise InvalidToken(f"the token must have {_SEGMENTS} parts, separated by dots")
    signed = _header(token)
    payload = _unsigned(token, signed) if rules.unsecured else _verified(token, keys, signed)
    return _owner(_object(payload, "claims"), rules, now_ms // 1000)


class _Registry(jws.JWSRegistry):
    """Registry that accepts the requested algorithm, even under a deprecated name (EdDSA)."""

    max_header_length = max_payload_length = TOKEN_BYTES_MAX

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


def _header(token: str) -> SignedWith:
    header = _object(_decoded(token.partition(".")[0]), "header")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise InvalidToken("the token's header must have its algorithm and key id as text")
    if "crit" in header:
        raise InvalidToken("the token's header requires extensions (crit)")
    return SignedWith(algorithm=algorithm, key_id=key_id)


def _unsigned(token: str, signed: SignedWith) -> bytes:
    _, payload, signature = token.split(".")
    if signed.algorithm != "none" or signature:
        raise InvalidToken("the token is signed, but only unsigned tokens are accepted")
    return _decoded(payload)


def _verified(token: str, keys: KeySet, signed: SignedWith) -> bytes:
    if not any(signed.algorithm in names for names in ALGORITHMS.values()):
        raise InvalidToken("the token's algorithm is not accepted")
    key = keys.find(signed)
    registry = _Registry(algorithms=[signed.algorithm], strict_check_header=False)
    try:
        payload = jws.deserialize_compact(token, key, registry=registry).payload
    except (JoseError, ValueError, TypeError):
        raise InvalidToken("the token's signature is invalid") from None
    if payload is None:
        raise InvalidToken("the token has no claims")
    return payload


def _decoded(segment: str) -> bytes:
    try:
        return b64decode(segment + "=" * (-len(segment) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidToken("the token's parts must be base64url") from None


def _object(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidToken(f"the token's {what} must be a JSON object")
    return value


def _owner(claims: Mapping[str, Any], rules: TokenRules, now: int) -> TokenOwner:
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX or _has_half(name):
        raise InvalidToken(
            f"the token's claim {rules.name_claim} must be a name of 1 to"
            f" {NAME_CHARACTERS_MAX} characters"
        )
    skew = rules.clock_skew_seconds
    expires = _time(claims, "exp")
    if expires is None:
        raise InvalidToken("the token has no expiry time (claim exp)", owner=name)
    if expires + skew <= now:
        raise InvalidToken("the token has expired", owner=name)
    for claim in ("nbf", "iat"):
        begins = _time(claims, claim)
        if begins is not None and begins - skew > now:
            raise InvalidToken(f"the token is not valid yet (claim {claim})", owner=name)
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise InvalidToken("the token has another issuer (claim iss)", owner=name)
    if rules.audiences and not {*_audiences(claims)} & {*rules.audiences}:
        raise InvalidToken("the token has another audience (claim aud)", owner=name)
    return TokenOwner(name=name, expires_ms=(expires + skew) * 1000)


def _has_half(name: str) -> bool:
    """Return whether a name has a lone surrogate, which is valid in JSON but not in UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def _time(claims: Mapping[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise InvalidToken(f"the token's claim {claim} must be seconds since 1970")
    return int(value)


def _audiences(claims: Mapping[str, Any]) -> Sequence[str]:
    value = claims.get("aud")
    values = value if isinstance(value, list) else [value]
    return [value for value in values if isinstance(value, str)]
