"""Verification of tokens: forgeries and required claims."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from penstock.security.files import UnusableFile
from penstock.security.jwks import PAUSE_SECONDS, TokenVerifier, loader
from penstock.security.tokens import (
    ALGORITHMS,
    JWKS_BYTES_MAX,
    KEYS_MAX,
    TOKEN_BYTES_MAX,
    InvalidKeys,
    InvalidToken,
    TokenRules,
    UnknownKey,
    owner_of,
    parse_key_set,
)
from tests.security.exchanges import (
    NOW,
    NOW_MS,
    claims,
    key_set,
    signing_key,
    token,
)

RULES = TokenRules(issuer="https://issuer", audiences=("penstock", "other"))
RSA = signing_key()
KEYS = parse_key_set(key_set(k1=RSA))


def encoded(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def refused(text: str, match: str | None, rules: TokenRules = RULES) -> None:
    with pytest.raises(InvalidToken, match=match) as error:
        owner_of(text, KEYS, rules, NOW_MS)
    assert text not in str(error.value) or not text


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("RSA", "RS256"), ("RSA", "PS512"), ("EC", "ES256"), ("OKP", "EdDSA")]
)
def test_signed_tokens(kind: str, algorithm: str) -> None:
    key = signing_key(kind)
    keys = parse_key_set(key_set(k1=key, k2=signing_key("EC")))
    owner = owner_of(token(key, algorithm=algorithm), keys, RULES, NOW_MS)
    assert (owner.name, owner.expires_ms) == ("alice", (NOW + 600 + 30) * 1000)


def test_no_algorithm_without_a_private_key_is_in_the_list() -> None:
    listed = {name for names in ALGORITHMS.values() for name in names}
    assert "none" not in listed
    assert not any(name.startswith("HS") for name in listed)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_unsigned_tokens_are_refused(algorithm: str, signature: str) -> None:
    refused(f"{encoded({'alg': algorithm})}.{encoded(claims())}.{signature}", "algorithm")


def test_a_public_key_is_no_password() -> None:
    """Key confusion: HMAC with the bytes of the public key, which everybody has."""
    assert isinstance(RSA, RSAKey)
    for secret in (RSA.as_pem(private=False), RSA.as_der(private=False)):
        try:
            forged = token(OctKey.import_key(secret), algorithm="HS256")
        except ValueError:
            continue  # joserfc itself refuses to sign so
        refused(forged, "algorithm")
    header, payload = encoded({"alg": "HS256", "kid": "k1"}), encoded(claims())
    import hmac

    signed = f"{header}.{payload}".encode()
    signature = hmac.digest(RSA.as_pem(private=False), signed, "sha256")
    refused(f"{header}.{payload}.{encoded(signature)}", "algorithm")


def test_secrets_in_a_key_set_are_left_out() -> None:
    secret = OctKey.import_key("a secret that is long enough for HS256")
    keys = parse_key_set(key_set(k1=secret, k2=RSA))
    with pytest.raises(InvalidToken):
        owner_of(token(secret, algorithm="HS256"), keys, RULES, NOW_MS)
    with pytest.raises(InvalidKeys):
        parse_key_set(key_set(k1=secret))


def test_a_key_signs_by_its_own_algorithms_alone() -> None:
    other = ECKey.generate_key("P-256")
    refused(token(other, algorithm="ES256"), "cannot be used with the type of its key")


def test_keys_that_a_token_brings_along_do_not_count() -> None:
    mine = signing_key()
    public = mine.as_dict(private=False)
    refused(token(mine, jwk=public), "signature")
    refused(token(mine, jku="https://mallory/jwks"), "signature")
    refused(token(mine, key_id=None, jwk=public), "signature")


def test_another_signature_other_claims_another_order() -> None:
    header, payload, signature = token(RSA).split(".")
    for forged in (
        f"{header}.{payload}.",
        f"{header}.{payload}.AAAA",
        f"{header}.{payload}.{signature[:-8]}",
        f"{header}.{encoded(claims(sub='admin'))}.{signature}",
        f"{encoded({'alg': 'RS512', 'kid': 'k1'})}.{payload}.{signature}",
    ):
        refused(forged, "signature")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "a.b",
        "a.b.c.d",
        "a.b.c.d.e",
        "?.?.?",
        f"{encoded(b'[]')}.{encoded(claims())}.AAAA",
        f"{encoded(b'[' * 5000)}.{encoded(claims())}.AAAA",
        f"{encoded({'alg': 5})}.{encoded(claims())}.AAAA",
        f"{encoded({'alg': 'RS256', 'kid': 5})}.{encoded(claims())}.AAAA",
        f"{encoded({'alg': 'RS256', 'crit': ['b64'], 'b64': False})}.x.AAAA",
        "a" * (TOKEN_BYTES_MAX + 1),
    ],
)
def test_what_is_no_token(text: str) -> None:
    refused(text, None)


def test_an_unknown_key_is_said_to_be_one() -> None:
    with pytest.raises(UnknownKey):
        owner_of(token(RSA, key_id="k2"), KEYS, RULES, NOW_MS)
    two = parse_key_set(key_set(k1=RSA, k2=signing_key("EC")))
    with pytest.raises(InvalidToken, match="has no key id"):
        owner_of(token(RSA, key_id=None), two, RULES, NOW_MS)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sub": None}, "claim sub"),
        ({"sub": ""}, "claim sub"),
        ({"sub": 5}, "claim sub"),
        ({"sub": "a" * 1025}, "claim sub"),
        ({"sub": "alice\ud800"}, "claim sub"),
        ({"exp": None}, "has no expiry time"),
        ({"exp": NOW - 30}, "has expired"),
        ({"exp": "soon"}, "must be seconds since 1970"),
        ({"exp": True}, "must be seconds since 1970"),
        ({"exp": 1e300}, "must be seconds since 1970"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"iss": None}, "issuer"),
        ({"iss": "https://issuer/"}, "issuer"),
        ({"iss": ["https://issuer"]}, "issuer"),
        ({"aud": None}, "audience"),
        ({"aud": "penstock2"}, "audience"),
        ({"aud": ["a", 5, None]}, "audience"),
    ],
)
def test_what_a_token_must_say(changes: dict[str, Any], match: str) -> None:
    refused(token(RSA, claims(**changes)), match)


def test_what_a_token_may_say() -> None:
    for changes in (
        {"exp": NOW - 29},
        {"nbf": NOW + 30},
        {"aud": ["x", "other"]},
        {"exp": NOW + 0.5},
    ):
        assert owner_of(token(RSA, claims(**changes)), KEYS, RULES, NOW_MS).name == "alice"
    rules = TokenRules(name_claim="client_id")
    said = claims(client_id="svc", iss=None, aud=None)
    assert owner_of(token(RSA, said), KEYS, rules, NOW_MS).name == "svc"


def test_unsecured_tokens_only_where_they_are_asked_for() -> None:
    unsecured = TokenRules(unsecured=True)
    text = f"{encoded({'alg': 'none'})}.{encoded(claims())}."
    assert owner_of(text, KEYS, unsecured, NOW_MS).name == "alice"
    refused(token(RSA), "only unsigned tokens", unsecured)
    refused(text + "AAAA", "only unsigned tokens", unsecured)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [5, null, "k"]}',
        b"[" * 100_000,
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        b'{"keys": [{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}]}',
        b'{"keys": [' + b"{}," * KEYS_MAX + b"{}]}",
        b" " * (JWKS_BYTES_MAX + 1),
    ],
)
def test_what_is_no_key_set(data: bytes) -> None:
    with pytest.raises(InvalidKeys):
        parse_key_set(data)


def test_keys_for_other_uses_and_weak_ones_are_left_out() -> None:
    entry = {**RSA.as_dict(private=False), "kid": "k1"}
    for extra in ({"use": "enc"}, {"key_ops": ["encrypt"]}):
        with pytest.raises(InvalidKeys):
            parse_key_set(json.dumps({"keys": [{**entry, **extra}]}).encode())
    with pytest.raises(InvalidKeys), pytest.warns(match="2048"):
        parse_key_set(key_set(k1=RSAKey.generate_key(1024)))


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self.seconds


def test_keys_are_looked_for_when_one_is_unknown_but_not_too_often() -> None:
    clock, answers = Hands(), [key_set(k1=RSA), key_set(k2=RSA)]
    asked: list[float] = []

    def load() -> bytes:
        asked.append(clock.seconds)
        return answers[min(len(asked), 2) - 1]

    verifier = TokenVerifier(RULES, load, refresh_seconds=3600, clock=clock)
    assert verifier.due
    assert verifier.verify_with_new_keys(token(RSA)).name == "alice"
    for _ in range(1000):
        with pytest.raises(InvalidToken):
            verifier.verify_with_new_keys(token(RSA, key_id="k2"))
    assert asked == [0]
    clock.seconds = PAUSE_SECONDS
    assert verifier.verify_with_new_keys(token(RSA, key_id="k2")).name == "alice"
    with pytest.raises(UnknownKey):
        verifier.verify(token(RSA))
    assert not verifier.due
    clock.seconds += 3600
    assert verifier.due
    assert verifier.loads.succeeded == 2


def test_a_bad_answer_leaves_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hands()
    answers: list[bytes | OSError] = [key_set(k1=RSA), b"{}", OSError("no route")]

    def load() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    verifier = TokenVerifier(RULES, load, refresh_seconds=1, clock=clock)
    for _ in range(3):
        verifier.refresh()
        clock.seconds += PAUSE_SECONDS
    assert verifier.verify(token(RSA)).name == "alice"
    assert (verifier.loads.succeeded, verifier.loads.failed) == (1, 2)
    assert "keeping the previous token keys" in caplog.text


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys of tests.json"
    path.write_bytes(key_set(k1=RSA))
    load = loader(path.as_uri(), "", Hands())
    assert parse_key_set(load()).keys[0][0] == "k1"
    path.write_bytes(b" " * (4 * JWKS_BYTES_MAX))
    with pytest.raises(UnusableFile, match=f"more than {JWKS_BYTES_MAX} bytes"):
        load()


@pytest.mark.parametrize("url", ["", "keys.json", "http://issuer/keys", "ftp://x/y", "https://"])
def test_keys_from_nowhere_else(url: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        loader(url, "", Hands())
