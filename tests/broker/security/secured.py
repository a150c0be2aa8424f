"""Brokers with all kinds of listeners, and raw clients that authenticate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.settings import load
from penstock.broker.net.security_settings import Security, SecuritySettings
from penstock.broker.server import BrokerServer
from penstock.security.credentials import HASHES, ITERATIONS, derive
from penstock.security.sasl import ClientExchange
from penstock.security.sasl.plain import PlainClient
from penstock.security.sasl.scram import ScramClient
from penstock.security.tls import TlsFiles, TlsOptions, client_context
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient
from tests.security.certificates import keystore, now_ms, truststore

LISTENERS: Final = (
    "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
)
PASSWORD: Final = "the password of alice"
MECHANISMS: Final = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"


def users_file(directory: Path, *names: str, password: str = PASSWORD) -> str:
    """A file of users, all with the same password."""
    lines = [
        f"{name}:{derive(mechanism, password, salt=b'0123456789', iterations=ITERATIONS).text()}"
        for name in names
        for mechanism in HASHES
    ]
    path = directory / "users"
    path.write_text("\n".join(lines))
    return str(path)


def security(
    tmp_path: Path, overrides: Mapping[str, Mapping[str, object]] | None = None, **more: Any
) -> Security:
    """Settings with a keystore and one user; `more` by their names with underscores."""
    values = {
        "ssl.keystore.location": keystore(tmp_path),
        "ssl.truststore.location": truststore(tmp_path),
        "ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": MECHANISMS,
        "sasl.users.file": users_file(tmp_path, "alice", "bob"),
        "connection.failed.authentication.delay.ms": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return Security(settings=load(SecuritySettings, values), overrides=overrides or {})


async def secured(start: StartBroker, tmp_path: Path, **more: Any) -> BrokerServer:
    """A broker with a listener of each protocol."""
    return await start({"listeners": LISTENERS}, security=security(tmp_path, **more))


def context(tmp_path: Path, name: str = "", **changes: Any) -> ssl.SSLContext:
    """A client's, with a certificate if it has a name."""
    files = TlsFiles(
        keystore=keystore(tmp_path, name, hosts=(), **changes) if name else "",
        truststore=truststore(tmp_path),
    )
    return client_context(files, TlsOptions(), check_host=True, now_ms=now_ms())


def exchange(mechanism: str, user: str = "alice", password: str = PASSWORD) -> ClientExchange:
    if mechanism == "PLAIN":
        return PlainClient(user, password)
    return ScramClient(mechanism, user, password, nonce="nonce-of-a-client")


async def authenticate(
    client: WireClient, mechanism: str, one: ClientExchange | None = None
) -> Any:
    """Authenticate; the last answer, whatever it is."""
    own = one or exchange(mechanism)
    agreed = await client.call("SaslHandshake", 1, {"mechanism": mechanism})
    assert agreed.error_code == 0
    challenge = b""
    while True:
        message = {"auth_bytes": own.respond(challenge)}
        answer = await client.call("SaslAuthenticate", 2, message)
        if answer.error_code:
            return answer
        challenge = answer.auth_bytes
        if own.done or (not challenge and mechanism != "PLAIN"):
            return answer
        if mechanism.startswith("SCRAM") and challenge.startswith(b"v="):
            own.respond(challenge)
            assert own.done
            return answer


def principal(server: BrokerServer) -> str:
    """Return the principal of the only connection."""
    (connection,) = server._connections
    return str(connection.principal)
