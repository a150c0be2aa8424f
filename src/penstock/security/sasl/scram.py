"""SCRAM-SHA-256 and -512: both sides prove that they know the password without sending it.

    client first   n,,n=NAME,r=NONCE
    server first   r=NONCE+MORE,s=SALT,i=ITERATIONS
    client final   c=biws,r=NONCE+MORE,p=PROOF
    server final   v=SIGNATURE

The proof covers the password, both nonces and all previous messages, so a message from another
exchange proves nothing. Channel binding is not supported: the server accepts the flags `n` and `y`,
and rejects `p=`. A user without a credential gets a salt like any other
(`credentials.credential_or_decoy`), and fails at the proof. The server computes only a few hashes;
the client hashes the password, which is slow.

A client with the extension `tokenauth=true` logs in with a delegation token (`delegation.py`).

librdkafka before 2.6.1 sends its own nonce twice in the final message. This is accepted too: the
exchange's whole nonce is present, and the proof covers the bytes that were sent.

Source: RFC 5802, RFC 7677; Kafka's `ScramMessages`, `ScramSaslServer` (its error text); librdkafka
#4895.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final, Protocol

from penstock.security.authoriser import Principal
from penstock.security.credentials import (
    HASHES,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    Credentials,
    ScramCredential,
    credential_or_decoy,
    salted_password,
)
from penstock.security.delegation import EXTENSION, DelegationToken
from penstock.security.sasl.exchange import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Outcome,
    ServerUntrusted,
)

CLIENT_ITERATIONS_MIN: Final = 4096
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""Most iterations that a client computes, because the server is not trusted yet."""
MESSAGE_BYTES_MAX: Final = 8 << 10
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]{1,512}"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authorised>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})"
    r"(?P<extensions>(?:,[A-Za-z]+=[^\0,]+)*))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE})(?:,[A-Za-z]=[^\0,]+)*)"
    rf",p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}})"
    rf"(?:,[A-Za-z]=[^\0,]+)*"
)


class Tokens(Credentials, Protocol):
    """Port of a store of delegation tokens, with their ids as user names."""

    def token(self, token_id: str) -> DelegationToken | None:
        """Return a token that has not expired."""


class ScramServer:
    """Server's side of SCRAM, for one client.

    `nonce` must be unique to this exchange, printable, and without commas. `secret` is the seed of
    decoy credentials. Without `tokens`, clients cannot log in with a delegation token.
    """

    def __init__(
        self,
        mechanism: str,
        credentials: Credentials,
        *,
        nonce: str,
        secret: bytes,
        tokens: Tokens | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._credentials = credentials
        self._tokens = tokens
        self._delegated: Tokens | None = None
        """Store of the client's delegation token; None if the client is a user."""
        self._own_nonce = nonce
        self._secret = secret
        self._user: str | None = None
        self._known = False
        self._header = b""
        self._said = ""
        self._client_nonce = self._nonce = ""
        self._credential: ScramCredential | None = None
        self._ended = False

    def step(self, message: bytes) -> Outcome:
        if self._ended:
            raise self._failed("message after the end of the exchange")
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise self._failed(
                    f"the message has {len(message)} bytes; the limit is {MESSAGE_BYTES_MAX}"
                )
            text = message.decode("utf-8")
            if self._credential is None:
                return self._first(text)
            self._ended = True
            return self._final(text, self._credential)
        except UnicodeDecodeError:
            self._ended = True
            raise self._failed("the message is not UTF-8") from None
        except AuthenticationFailed:
            self._ended = True
            raise

    def _first(self, text: str) -> Challenge:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise self._failed("malformed first message of SCRAM")
        self._user = user = _unescape(found["name"])
        if found["authorised"] is not None and _unescape(found["authorised"]) != user:
            raise self._failed("the authorisation id is another user")
        credentials = self._credentials
        if EXTENSION in found["extensions"].split(","):
            if self._tokens is None:
                raise self._failed("delegation tokens are disabled")
            credentials = self._delegated = self._tokens
        kept, self._known = credential_or_decoy(credentials, self._mechanism, user, self._secret)
        self._credential = kept
        self._header = found["header"].encode()
        self._client_nonce = found["nonce"]
        self._nonce = self._client_nonce + self._own_nonce
        challenge = f"r={self._nonce},s={b64encode(kept.salt).decode()},i={kept.iterations}"
        self._said = f"{found['bare']},{challenge}"
        return Challenge(data=challenge.encode())

    def _final(self, text: str, credential: ScramCredential) -> Accepted:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise self._failed("malformed final message of SCRAM")
        if found["nonce"] not in (self._nonce, self._client_nonce + self._nonce):
            raise self._failed("the nonce is of another exchange")
        if _bytes(found["binding"]) != self._header:
            raise self._failed("the channel binding differs from the first message's")
        said = f"{self._said},{found['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, said, self._hash)
        key = _xor(_bytes(found["proof"]), signature)
        proved = hmac.compare_digest(hashlib.new(self._hash, key).digest(), credential.stored_key)
        if not proved or self._user is None or not self._known:
            raise self._failed("wrong password" if self._known else "unknown user")
        proof = hmac.digest(credential.server_key, said, self._hash)
        data = b"v=" + b64encode(proof)
        if self._delegated is None:
            return Accepted(data=data, principal=Principal("User", self._user))
        token = self._delegated.token(self._user)
        if token is None:
            raise self._failed("the delegation token has expired")
        return Accepted(
            data=data,
            principal=token.owner,
            expires_ms=min(token.expires_ms, token.max_ms),
            by_token=True,
        )

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism}",
            reason=reason,
            user=self._user,
        )


class ScramClient:
    """Client's side of SCRAM; it also verifies that the server knows the password."""

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._own_nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        self._sent_first = False
        self._expected: bytes | None = None
        self.done = False

    def respond(self, challenge: bytes) -> bytes:
        if not self._sent_first:
            self._sent_first = True
            return f"n,,{self._bare}".encode()
        if self._expected is None:
            return self._prove(challenge)
        signature = _bytes(challenge[2:].decode("ascii", "replace"))
        if challenge[:2] != b"v=" or not hmac.compare_digest(signature, self._expected):
            raise ServerUntrusted(
                f"the server did not prove by {self._mechanism} that it knows the password"
            )
        self.done = True
        return b""

    def _prove(self, challenge: bytes) -> bytes:
        first = _text(challenge)
        found = _SERVER_FIRST.fullmatch(first)
        if found is None:
            raise ServerUntrusted(f"the server's first message of {self._mechanism} is malformed")
        nonce, iterations = found["nonce"], int(found["iterations"])
        if not nonce.startswith(self._own_nonce) or nonce == self._own_nonce:
            raise ServerUntrusted("the server's nonce does not begin with the client's")
        if not CLIENT_ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ServerUntrusted(
                f"the server requests {iterations} iterations, but the client computes only"
                f" {CLIENT_ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX}"
            )
        salt = _bytes(found["salt"])
        if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
            raise ServerUntrusted(
                f"the server's salt has {len(salt)} bytes, but must have {SALT_BYTES_MIN} to"
                f" {SALT_BYTES_MAX}"
            )
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        unproved = f"c=biws,r={nonce}"
        said = f"{self._bare},{first},{unproved}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, said, self._hash))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._expected = hmac.digest(server_key, said, self._hash)
        return f"{unproved},p={b64encode(proof).decode()}".encode()


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        return b""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _text(message: bytes) -> str:
    """Decode a message; return an empty text if it is too long or not UTF-8."""
    try:
        return message.decode() if len(message) <= MESSAGE_BYTES_MAX else ""
    except UnicodeDecodeError:
        return ""


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
