"""Parsers of bytes from unauthenticated clients, each as a function of bytes.

A target may reject its input with the errors that its module documents. Any other exception is
a fault, and so is an authenticated client without valid credentials.
"""

from __future__ import annotations

import functools
import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.broker.net.authentication import AUTHENTICATE, HANDSHAKE, Authentication
from penstock.security.credentials import FileCredentials, parse_users
from penstock.security.development_ca import common_name, new_authority
from penstock.security.http_credentials import check_meant, read_authorization
from penstock.security.listeners.certificate_names import PrincipalMapper, distinguished_name
from penstock.security.sasl import Accepted, Challenge
from penstock.security.sasl.oauthbearer import OAuthBearerServer
from penstock.security.sasl.plain import PlainServer
from penstock.security.sasl.scram import ScramClient, ScramServer
from penstock.security.tokens import KeySet, TokenOwner, TokenRules, owner_of, parse_key_set
from penstock.wire.kafka.apis import API_VERSIONS, APIS, BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.framing import check_length, read_request_header, request_frame
from tests.security.exchanges import NOW_MS, SECRET, claims, key_set, signing_key, token, users

MECHANISM: Final = "SCRAM-SHA-256"
USER: Final = "a,l=ice"
MESSAGES: Final = b"\n"
"""Between the messages of an exchange."""
RULES: Final = TokenRules(issuer="https://issuer", audiences=("penstock",))
DOOR: Final = (API_VERSIONS, HANDSHAKE, AUTHENTICATE)
_SLOW: Final = re.compile(rb"i=[0-9]{5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Parser with `run`, which raises if it finds a fault; `seeds` are known inputs."""

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()
    """What is worth putting somewhere."""

    def __call__(self, data: bytes) -> None:
        try:
            self.run(data)
        except PenstockError as error:
            str(error).encode()


def _known(name: str) -> None:
    if name not in (USER, "alice"):
        raise AssertionError(f"{name!r} was accepted")


# Kafka's protocol


def frame(data: bytes) -> None:
    """Read a length, a header and a request as before authentication."""
    if len(data) < 4:
        return
    check_length(int.from_bytes(data[:4], "big", signed=True), 64 << 10)
    body = memoryview(data)[4:]
    authentication = Authentication([MECHANISM], lambda _: PlainServer(users(), SECRET), 0.0)
    authentication.check(int.from_bytes(body[:2], "big", signed=True), 0.0)
    header = read_request_header(body)
    api = APIS[header.api_key]
    if api.serves(header.api_version):
        request, end = decoder(api.name, header.api_version, "request")(body, header.body_offset)
        if end > len(body):
            raise AssertionError(f"{request} reaches beyond the frame")


def _frames() -> list[bytes]:
    bodies = {
        "ApiVersions": [(0, b""), (3, b"\2a\2b\0"), (4, b"\2a\2b\0")],
        "SaslHandshake": [(1, b"\0\5PLAIN")],
        "SaslAuthenticate": [(0, b"\0\0\0\4abcd"), (2, b"\5abcd\0")],
    }
    return [
        request_frame(BY_NAME[name].key, version, 1, b"me", body)
        for name, all_of_it in bodies.items()
        for version, body in all_of_it
    ]


# SASL


@functools.cache
def known() -> FileCredentials:
    return users("alice", USER)


def _server() -> ScramServer:
    return ScramServer(MECHANISM, known(), nonce="server", secret=SECRET)


def _client() -> ScramClient:
    return ScramClient(MECHANISM, USER, f"secret of {USER}", nonce="client")


def scram_server(data: bytes) -> None:
    server = _server()
    for message in data.split(MESSAGES)[:3]:
        found = server.step(message)
        if isinstance(found, Accepted):
            _known(found.principal.name)


def scram_client(data: bytes) -> None:
    """Read the messages of a false server."""
    if _SLOW.search(data):
        return
    client = _client()
    client.respond(b"")
    for message in data.split(MESSAGES)[:2]:
        client.respond(message)
    if client.done:
        (good, proof), (challenge, shown) = (
            messages.split(MESSAGES)[:2] for messages in (_dialogue()[1][0], data)
        )
        if challenge != good or b64decode(shown[2:]) != b64decode(proof[2:]):
            raise AssertionError("a server that knows no password was trusted")


@functools.cache
def _dialogue() -> tuple[list[bytes], list[bytes]]:
    """Return the messages of a client and of a server."""
    client, server = _client(), _server()
    first = client.respond(b"")
    challenge = server.step(first)
    assert isinstance(challenge, Challenge)
    final = client.respond(challenge.data)
    proved = server.step(final)
    assert isinstance(proved, Accepted)
    return [MESSAGES.join([first, final]), first], [MESSAGES.join([challenge.data, proved.data])]


def plain(data: bytes) -> None:
    """Check everything before the password, whose hash takes long."""
    PlainServer(known(), SECRET).step(data)


class _Keys:
    """Token verification with one known key."""

    def verify(self, token: str) -> TokenOwner:
        return owner_of(token, _key_set(), RULES, NOW_MS)

    verify_with_new_keys = verify


@functools.cache
def _key() -> Any:
    return signing_key("EC")


@functools.cache
def _key_set() -> KeySet:
    return parse_key_set(key_set(k1=_key()))


def oauthbearer(data: bytes) -> None:
    found = OAuthBearerServer(_Keys()).step(data)
    if isinstance(found, Accepted):
        _known(found.principal.name)


def _shown() -> list[bytes]:
    good = token(_key(), claims(), algorithm="ES256").encode()
    return [b"n,,\1auth=Bearer " + good + b"\1\1", b"n,a=alice,\1auth=bearer " + good + b"\1\1"]


# Tokens and keys


def token_header(data: bytes) -> None:
    owner_of(f"{urlsafe_b64encode(data).decode()}.e30.AAAA", _key_set(), RULES, NOW_MS)


def token_claims(data: bytes) -> None:
    """Check claims as if they were signed."""
    rules = TokenRules(unsecured=True)
    header = urlsafe_b64encode(b'{"alg":"none"}').decode()
    owner = owner_of(f"{header}.{urlsafe_b64encode(data).decode()}.", KeySet(), rules, NOW_MS)
    owner.name.encode()
    owner.expires_ms.to_bytes(8, "big")


def keys(data: bytes) -> None:
    parse_key_set(data)


# Certificates, HTTP, files


def certificate(data: bytes) -> None:
    mapper = PrincipalMapper(r"RULE:^CN=([^,]*),.*$/$1/L,DEFAULT")
    mapper.name(distinguished_name(data)).encode()


def _certificates() -> list[bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    made = new_authority(NOW_MS, "fuzzed").issue(common_name("fuzz,ed"), NOW_MS)
    found = x509.load_pem_x509_certificates(made[made.index(b"-----BEGIN CERT") :])
    return [certificate.public_bytes(Encoding.DER) for certificate in found]


def authorization(data: bytes) -> None:
    """Headers of HTTP are Latin-1."""
    read_authorization([line.decode("latin-1") for line in data.split(MESSAGES)])


def meant(data: bytes) -> None:
    """Check Host and Origin of a request that changes something."""
    host, _, origin = data.decode("latin-1").partition("\n")
    check_meant(
        {"host": host} | ({"origin": origin} if origin else {}), {"localhost"}, "admin.hosts"
    )


def users_file(data: bytes) -> None:
    parse_users(data)


def _users() -> list[bytes]:
    kept = known().credential(MECHANISM, "alice")
    assert kept is not None
    return [f"# users\n\nalice:{kept.text()}\nbob:{kept.text()}".encode()]


JSON: Final = (
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"9" * 5000,
    b"[" * 3000,
)


@functools.cache
def targets() -> dict[str, Target]:
    """Return all targets by name."""
    header = b'{"alg":"ES256","kid":"k1","typ":"JWT","crit":["b64"],"b64":false}'
    sasl = (b"=2C", b"=3D", b"n,,", b"y,,", b"p=tls-unique,,", b"\0", b"i=4096", b"i=-1", b"m=x,")
    names = (
        b"[",
        b"]",
        b"[::1]",
        b"@",
        b"%",
        b":",
        b"http://",
        b"localhost",
        b"127.0.0.1",
        b"null",
    )
    return {
        "frame": Target(run=frame, seeds=_frames(), words=(b"\xff\xff\xff\xff\x0f", b"\x7f\xff")),
        "scram_server": Target(run=scram_server, seeds=_dialogue()[0], words=sasl),
        "scram_client": Target(run=scram_client, seeds=_dialogue()[1], words=sasl),
        "plain": Target(run=plain, seeds=[b"\0alice\0secret", b"alice\0alice\0x"], words=sasl),
        "oauthbearer": Target(run=oauthbearer, seeds=_shown(), words=(*sasl, b"\1", b".")),
        "token_header": Target(run=token_header, seeds=[header, header[:25] + b"}"], words=JSON),
        "token_claims": Target(
            run=token_claims, seeds=[json.dumps(claims(iat=1, nbf=1)).encode()], words=JSON
        ),
        "keys": Target(
            run=keys,
            seeds=[key_set(k1=_key(), k2=signing_key("OKP"))],
            words=(*JSON, b'"key_ops":'),
        ),
        "certificate": Target(run=certificate, seeds=_certificates()),
        "authorization": Target(
            run=authorization,
            seeds=[b"Basic YWxpY2U6c2VjcmV0", b"Bearer a.b.c", b"Basic YQ==\nBearer a"],
        ),
        "meant": Target(
            run=meant, seeds=[b"localhost:9644\nhttp://localhost:9644", b"[::1]:1"], words=names
        ),
        "users_file": Target(run=users_file, seeds=_users(), words=(b"$", b":SCRAM-", b"\n", b"=")),
    }
