"""SCRAM-SHA-256 and -512: both sides prove that they know the password, and neither says it.

    client first   n,,n=NAME,r=NONCE
    server first   r=NONCE+MORE,s=SALT,i=ITERATIONS
    client final   c=biws,r=NONCE+MORE,p=PROOF
    server final   v=SIGNATURE

The proof is made of the password, of both nonces and of everything that was said, so a message of
another exchange proves nothing. Channel binding is not offered: `n` and `y` are taken, `p=` is not.
A user without a credential is shown a salt like any other (`credentials.decoy`), and fails at the
proof. Work on the server is a few hashes; the client derives the password, which is slow.

librdkafka before 2.6.1 says its own nonce twice in the final message, which is taken too: all of
the exchange's nonce is there, and the proof is of what was said.

Source: RFC 5802, RFC 7677; Kafka's `ScramMessages`, `ScramSaslServer` (its error text);
librdkafka #4895.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final

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
from penstock.security.sasl.exchange import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Outcome,
    ServerUntrusted,
)

CLIENT_ITERATIONS_MIN: Final = 4096
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""More is work that a server that nobody trusts yet makes a client do."""
MESSAGE_BYTES_MAX: Final = 8 << 10
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]{1,512}"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authorised>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?:,[A-Za-z]=[^\0,]+)*)"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE})(?:,[A-Za-z]=[^\0,]+)*)"
    rf",p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}})"
    rf"(?:,[A-Za-z]=[^\0,]+)*"
)


class ScramServer:
    """Authentication of one client; `nonce` belongs to this exchange, printable, without commas."""

    def __init__(
        self, mechanism: str, credentials: Credentials, *, nonce: str, secret: bytes
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._credentials = credentials
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
            raise self._failed("a message after the end")
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise self._failed(f"a message of {len(message)} bytes")
            text = message.decode("utf-8")
            if self._credential is None:
                return self._first(text)
            self._ended = True
            return self._final(text, self._credential)
        except UnicodeDecodeError:
            self._ended = True
            raise self._failed("a message that is not UTF-8") from None
        except AuthenticationFailed:
            self._ended = True
            raise

    def _first(self, text: str) -> Challenge:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise self._failed("a first message that is none of SCRAM's")
        self._user = user = _unescape(found["name"])
        if found["authorised"] is not None and _unescape(found["authorised"]) != user:
            raise self._failed("an authorisation id of another")
        kept, self._known = credential_or_decoy(
            self._credentials, self._mechanism, user, self._secret
        )
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
            raise self._failed("a final message that is none of SCRAM's")
        if found["nonce"] not in (self._nonce, self._client_nonce + self._nonce):
            raise self._failed("the nonce of another exchange")
        if _bytes(found["binding"]) != self._header:
            raise self._failed("a channel binding that the first message did not ask for")
        said = f"{self._said},{found['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, said, self._hash)
        key = _xor(_bytes(found["proof"]), signature)
        proved = hmac.compare_digest(hashlib.new(self._hash, key).digest(), credential.stored_key)
        if not proved or self._user is None or not self._known:
            raise self._failed("wrong password" if self._known else "unknown user")
        proof = hmac.digest(credential.server_key, said, self._hash)
        return Accepted(data=b"v=" + b64encode(proof), principal=Principal("User", self._user))

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism}",
            reason=reason,
            user=self._user,
        )


class ScramClient:
    """Authentication at a server, which has to prove itself too."""

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
            raise ServerUntrusted(f"the server did not prove itself by {self._mechanism}")
        self.done = True
        return b""

    def _prove(self, challenge: bytes) -> bytes:
        first = _text(challenge)
        found = _SERVER_FIRST.fullmatch(first)
        if found is None:
            raise ServerUntrusted(f"the server's first message is none of {self._mechanism}")
        nonce, iterations = found["nonce"], int(found["iterations"])
        if not nonce.startswith(self._own_nonce) or nonce == self._own_nonce:
            raise ServerUntrusted("the server's nonce does not begin with the client's")
        if not CLIENT_ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ServerUntrusted(
                f"the server asks for {iterations} iterations; {CLIENT_ITERATIONS_MIN} to"
                f" {CLIENT_ITERATIONS_MAX} are made"
            )
        salt = _bytes(found["salt"])
        if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
            raise ServerUntrusted(f"the server's salt has {len(salt)} bytes")
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
    """Decode a message; empty if it is too long or not UTF-8."""
    try:
        return message.decode() if len(message) <= MESSAGE_BYTES_MAX else ""
    except UnicodeDecodeError:
        return ""


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
