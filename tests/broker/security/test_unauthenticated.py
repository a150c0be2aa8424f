"""Authentication over raw sockets, by listener, and requests before it."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.net.peers import Peers
from penstock.broker.net.security import FRAME_BYTES_MAX
from penstock.broker.server import BrokerServer
from penstock.client.security import NotAuthenticated
from penstock.control.access import change_credentials
from penstock.security import AclAuthoriser, jwks
from penstock.security.audit import AuditEvent
from penstock.security.credentials import SCRAM_SHA_256, ScramCredential, Shape, derive
from penstock.security.sasl import ClientExchange
from penstock.security.sasl.oauthbearer import OAuthBearerClient
from penstock.security.sasl.peers import PeerSecret
from penstock.security.tokens import JWKS_BYTES_MAX
from penstock.wire.kafka.apis import APIS
from tests.broker.conftest import StartBroker
from tests.broker.security.secured import (
    LISTENERS,
    MECHANISMS,
    PASSWORD,
    authenticate,
    context,
    exchange,
    principal,
    secured,
    security,
    users_file,
)
from tests.broker.wire_client import WireClient, batch
from tests.security.certificates import keystore, truststore
from tests.security.exchanges import SigningKey, key_set, signing_key, token
from tests.security.key_server import HEAD, answering

AUTHENTICATION_FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM = 58, 34, 33
SASL_MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


async def open_to(
    server: BrokerServer, listener: str, tmp_path: Path, name: str = ""
) -> WireClient:
    secure = context(tmp_path, name) if listener.endswith("SSL") else None
    return await WireClient.connect(server.bound[listener], secure)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def gone(server: BrokerServer) -> None:
    await until(lambda: not server._connections)
    assert server.security_service.limits.waiting == 0


async def raw_tokens(client: WireClient, mechanism: str, own: ClientExchange) -> None:
    """Authenticate by SaslHandshake version 0 and tokens without headers."""
    agreed = await client.call("SaslHandshake", 0, {"mechanism": mechanism})
    assert agreed.error_code == 0
    challenge = b""
    for _ in range(1 if mechanism == "PLAIN" else 2):
        token = own.respond(challenge)
        client.writer.write(len(token).to_bytes(4, "big") + token)
        challenge = await client.receive()
    if mechanism == "PLAIN":
        assert challenge == b""
    else:
        own.respond(challenge)  # checks the server's signature
    assert own.done


@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
async def test_clients_may_send_raw_tokens(
    start_broker: StartBroker, tmp_path: Path, mechanism: str
) -> None:
    server = await secured(start_broker, tmp_path)
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    await raw_tokens(client, mechanism, exchange(mechanism))
    assert principal(server) == "User:alice"
    await client.create("orders")
    again = await client.call("SaslHandshake", 0, {"mechanism": mechanism})
    assert again.error_code == ILLEGAL_STATE
    await client.close()
    await gone(server)


async def test_a_rejected_raw_token_ends_the_connection(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    for message in (b"\0a\0b", bytes(40), b""):
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        await client.call("SaslHandshake", 0, {"mechanism": "PLAIN"})
        client.writer.write(len(message).to_bytes(4, "big") + message)
        assert await client.closed_by_server()
        await client.close()
    await gone(server)
    counts = server.security_service._metrics.authentications
    assert counts["SASL_PLAINTEXT", "PLAIN", "failure"] == 2  # the empty frame is none


class Failing:
    """Credential store that cannot be read."""

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        raise RuntimeError("the store is closed")

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return {}


async def test_an_internal_error_during_raw_tokens_ends_the_connection(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await secured(start_broker, tmp_path)
    server.security_service.cluster_users = Failing()
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    await client.call("SaslHandshake", 0, {"mechanism": "PLAIN"})
    client.writer.write(b"\0\0\0\x0a\0nobody\0pw")
    assert await client.closed_by_server()
    await client.close()
    await gone(server)
    assert "the store is closed" in caplog.text


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
async def test_authenticated_principals_may_do_everything(
    start_broker: StartBroker, tmp_path: Path, listener: str, mechanism: str
) -> None:
    server = await secured(start_broker, tmp_path)
    client = await open_to(server, listener, tmp_path)
    await client.call(
        "ApiVersions", 4, {"client_software_name": "t", "client_software_version": "1"}
    )
    assert server.security_service.limits.waiting == 1
    answer = await authenticate(client, mechanism)
    assert answer.error_code == 0
    assert principal(server) == "User:alice"
    assert server.security_service.limits.waiting == 0
    await client.create("orders")
    assert (await client.produce("orders", batch(b"x" * 500_000))).error_code == 0
    fetched = await client.fetch("orders")
    assert len(fetched.records) > 500_000
    await client.close()
    await gone(server)


async def test_a_certificate_authenticates_a_client(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    client = await open_to(server, "SSL", tmp_path, "carol")
    await client.create("orders")
    assert principal(server) == "User:CN=carol"
    assert (await client.produce("orders", batch(b"x" * 3_000_000))).error_code == 0
    assert len((await client.fetch("orders", partition_max_bytes=4_000_000)).records) > 3_000_000
    await client.close()
    await gone(server)
    client = await open_to(server, "SSL", tmp_path)
    await client.find("orders")
    assert principal(server) == "User:ANONYMOUS"
    await client.close()


async def test_rules_map_a_certificates_name(start_broker: StartBroker, tmp_path: Path) -> None:
    rules = "RULE:^CN=([a-z]+)@acme$/$1/U"
    server = await secured(start_broker, tmp_path, ssl_principal_mapping_rules=rules)
    client = await open_to(server, "SSL", tmp_path, "carol@acme")
    await client.find("orders")
    assert principal(server) == "User:CAROL"
    await client.close()
    stranger = await open_to(server, "SSL", tmp_path, "carol@other")
    assert await stranger.closed_by_server()
    await stranger.close()
    await gone(server)


async def test_a_listener_that_requires_certificates(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path, ssl_client_auth="required")
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):  # noqa: PT012  (TLS 1.3 says so late)
        client = await open_to(server, "SSL", tmp_path)
        await client.find("orders")
    await until(lambda: not server.security_service.limits.waiting)
    # What is required of the one is not asked by the other, unless it says so itself.
    client = await open_to(server, "SASL_SSL", tmp_path)
    assert (await authenticate(client, "PLAIN")).error_code == 0
    await client.close()


@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
async def test_a_wrong_password_and_an_unknown_user_read_the_same(
    start_broker: StartBroker, tmp_path: Path, mechanism: str
) -> None:
    server = await secured(start_broker, tmp_path)
    answers = []
    for user, password in (("alice", "wrong"), ("mallory", PASSWORD)):
        client = await open_to(server, "SASL_SSL", tmp_path)
        answer = await authenticate(client, mechanism, exchange(mechanism, user, password))
        assert answer.error_code == AUTHENTICATION_FAILED
        answers.append((answer.error_message, answer.auth_bytes, answer.session_lifetime))
        assert await client.closed_by_server()
        await client.close()
    assert answers[0] == answers[1]
    assert "alice" not in answers[0][0]
    await gone(server)


async def test_failures_are_answered_after_the_same_time(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path, connection_failed_authentication_delay_ms=300)
    took = []
    for user in ("alice", "mallory"):
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
        began = time.monotonic()
        await client.call("SaslAuthenticate", 2, {"auth_bytes": f"\0{user}\0wrong".encode()})
        took.append(time.monotonic() - began)
        await client.close()
    # Timers count from when their turn of the loop began.
    assert all(seconds >= 0.25 for seconds in took)


async def test_nothing_else_before_authentication(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    others = [key for key in APIS if key not in (17, 18, 36)]
    assert len(others) > 40
    for key in others:
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        client.writer.write(b"\0\0\0\x20" + key.to_bytes(2, "big") + bytes(30))
        assert await client.closed_by_server()
        await client.close()
    await gone(server)


async def test_the_state_of_authentication_bounds_what_comes_next(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    answer = await client.call(
        "SaslAuthenticate", 2, {"auth_bytes": b"\0alice\0" + PASSWORD.encode()}
    )
    assert answer.error_code == ILLEGAL_STATE
    agreed = await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert set(agreed.mechanisms) == set(MECHANISMS.split(","))
    client.writer.write(client.frame("ApiVersions", 0, {}))
    assert await client.closed_by_server()
    await client.close()

    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    answer = await client.call("SaslHandshake", 1, {"mechanism": "GSSAPI"})
    assert answer.error_code == UNSUPPORTED_MECHANISM
    assert set(answer.mechanisms) == set(MECHANISMS.split(","))
    assert await client.closed_by_server()
    await client.close()
    await gone(server)


async def test_listeners_without_sasl_have_none(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await secured(start_broker, tmp_path)
    for listener in ("PLAINTEXT", "SSL"):
        client = await open_to(server, listener, tmp_path)
        answer = await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
        assert answer.error_code == ILLEGAL_STATE
        # Nobody becomes a user by the way that brokers have in.
        refused = await authenticate(client, "SCRAM-SHA-256")
        assert refused.error_code == AUTHENTICATION_FAILED
        assert await client.closed_by_server()
        await client.close()
    await gone(server)


async def test_a_token_authenticates_until_it_expires(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    key = signing_key()
    (tmp_path / "jwks.json").write_bytes(key_set(k1=key))
    server = await secured(
        start_broker,
        tmp_path,
        sasl_oauthbearer_jwks_endpoint_url=(tmp_path / "jwks.json").as_uri(),
        sasl_oauthbearer_expected_audience="penstock",
        sasl_oauthbearer_clock_skew_seconds=0,
    )
    ends = int(time.time()) + 3
    said = {"sub": "svc", "aud": "penstock", "exp": ends}
    client = await open_to(server, "SASL_SSL", tmp_path)
    answer = await authenticate(client, "OAUTHBEARER", OAuthBearerClient(lambda: token(key, said)))
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime.total_seconds() <= 3
    assert principal(server) == "User:svc"
    await client.find("orders")
    await asyncio.sleep(max(0.0, ends - time.time()) + 0.05)
    client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    assert await client.closed_by_server()
    await client.close()

    client = await open_to(server, "SASL_SSL", tmp_path)
    refused = await authenticate(client, "OAUTHBEARER", OAuthBearerClient(lambda: token(key, said)))
    assert refused.error_code == AUTHENTICATION_FAILED
    assert json.loads(refused.error_message) == {"status": "invalid_token"}
    await client.close()


async def test_a_new_signing_key_is_found(start_broker: StartBroker, tmp_path: Path) -> None:
    old, new, path = signing_key("EC"), signing_key("EC"), tmp_path / "jwks.json"
    path.write_bytes(key_set(k1=old))
    server = await secured(start_broker, tmp_path, sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
    tokens = server.security_service.listeners["SASL_SSL"].tokens
    assert tokens is not None
    tokens._tried = None  # as if that had been a while ago
    path.write_bytes(key_set(k2=new))
    said = {"sub": "svc", "exp": time.time() + 60}
    client = await open_to(server, "SASL_SSL", tmp_path)
    shown = token(new, said, algorithm="ES256", key_id="k2")
    answer = await authenticate(client, "OAUTHBEARER", OAuthBearerClient(lambda: shown))
    assert answer.error_code == 0
    await client.close()


async def test_keys_over_https_stay_until_there_are_better_ones(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "PAUSE_SECONDS", 0.0)
    old, new = signing_key("EC"), signing_key("EC")
    own, strange = keystore(tmp_path, "keys"), keystore(tmp_path, "strange", ca="another CA")
    elsewhere = keystore(tmp_path, "elsewhere", hosts=["keys.example"])
    tls, said = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), key_set(k1=old)
    tls.load_cert_chain(own)

    async def let_in(key: SigningKey, key_id: str) -> bool:
        text = token(key, {"sub": "svc", "exp": time.time() + 60}, algorithm="ES256", key_id=key_id)
        client = await open_to(server, "SASL_SSL", tmp_path)
        answer = await authenticate(client, "OAUTHBEARER", OAuthBearerClient(lambda: text))
        await client.close()
        return bool(answer.error_code == 0)

    with answering(tmp_path, lambda: iter([HEAD % len(said), said]), tls) as url:
        server = await secured(
            start_broker,
            tmp_path,
            sasl_oauthbearer_jwks_endpoint_url=url,
            sasl_oauthbearer_jwks_truststore_location=truststore(tmp_path),
        )
        tokens = server.security_service.listeners["SASL_SSL"].tokens
        assert tokens is not None
        assert await let_in(old, "k1")
        good, bloated = key_set(k2=new), key_set(k2=new) + b" " * JWKS_BYTES_MAX
        for certificate, body in ((strange, good), (elsewhere, good), (own, bloated)):
            tls.load_cert_chain(certificate)
            said = body
            failed = tokens.loads.failed
            assert not await let_in(new, "k2")
            assert tokens.loads.failed == failed + 1
            assert await let_in(old, "k1")
        said = good
        assert await let_in(new, "k2")
        assert not await let_in(old, "k1")


async def test_reauthentication(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await secured(start_broker, tmp_path, connections_max_reauth_ms=60_000)
    client = await open_to(server, "SASL_SSL", tmp_path)
    answer = await authenticate(client, "SCRAM-SHA-512")
    assert answer.session_lifetime.total_seconds() == 60
    (connection,) = server._connections
    early = await client.call("SaslHandshake", 1, {"mechanism": "SCRAM-SHA-512"})
    assert early.error_code == ILLEGAL_STATE
    assert connection.authentication is not None
    connection.authentication._since -= 2
    first_end = connection.authentication.expires
    await client.find("orders")
    answer = await authenticate(client, "SCRAM-SHA-512")
    assert answer.error_code == 0
    assert connection.authentication.expires > first_end
    await client.find("orders")
    await client.close()
    await gone(server)


async def test_a_session_that_has_ended_takes_only_authentication(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path, connections_max_reauth_ms=1_100)
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    await authenticate(client, "PLAIN")
    await asyncio.sleep(1.2)
    assert (await authenticate(client, "PLAIN")).error_code == 0
    await client.find("orders")
    await asyncio.sleep(1.2)
    client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    assert await client.closed_by_server()
    await client.close()


@pytest.mark.parametrize("other", ["user", "mechanism", "request between"])
async def test_reauthentication_keeps_the_principal(
    start_broker: StartBroker, tmp_path: Path, other: str
) -> None:
    server = await secured(start_broker, tmp_path)
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    await authenticate(client, "PLAIN")
    (connection,) = server._connections
    assert connection.authentication is not None
    connection.authentication._since -= 2
    if other == "user":
        answer = await authenticate(client, "PLAIN", exchange("PLAIN", "bob"))
        assert answer.error_code == AUTHENTICATION_FAILED
        assert "Cannot change principals" in answer.error_message
    elif other == "mechanism":
        answer = await client.call("SaslHandshake", 1, {"mechanism": "SCRAM-SHA-256"})
        assert answer.error_code == UNSUPPORTED_MECHANISM
    else:
        await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
        client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    assert await client.closed_by_server()
    assert connection.principal.name == "alice"
    await client.close()
    await gone(server)


async def test_large_requests_only_after_authentication(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    for size in (FRAME_BYTES_MAX + 1, 1 << 24, 2**31 - 1, -1):
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        client.writer.write(size.to_bytes(4, "big", signed=True) + b"\0\x24\0\x02" + bytes(64))
        assert await client.closed_by_server()
        await client.close()
    await gone(server)


async def test_new_certificates_are_for_new_connections(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await secured(start_broker, tmp_path)
    path = Path(server.security_service._settings.ssl_keystore_location)

    def shown(client: WireClient) -> str:
        certificate = client.writer.get_extra_info("ssl_object").getpeercert()
        return str(certificate["subject"][0][0][1])

    old = await open_to(server, "SSL", tmp_path)
    assert shown(old) == "broker"
    keystore(tmp_path, "renewed")
    (tmp_path / "renewed.keystore.pem").replace(path)
    assert await server.security_service.listener_group.reload() == []
    new = await open_to(server, "SSL", tmp_path)
    assert shown(new) == "renewed"
    await old.find("orders")

    path.write_bytes(b"no certificate")
    failures = await server.security_service.listener_group.reload()
    assert len(failures) == 2  # both listeners that have it
    assert "no certificates in PEM" in failures[0]
    newest = await open_to(server, "SASL_SSL", tmp_path)
    assert shown(newest) == "renewed"
    values = {
        (sample.metric.name, sample.labels): sample.value
        for sample in server.security_service.samples()
    }
    assert values["penstock_security_files_not_reloaded_total", ("certificates",)] == 2
    for client in (old, new, newest):
        await client.close()


async def test_users_of_a_file_come_and_go(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await secured(start_broker, tmp_path)
    users_file(tmp_path, "bob")
    await server.security_service.listener_group.reload()
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    assert (await authenticate(client, "PLAIN")).error_code == AUTHENTICATION_FAILED
    await client.close()
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    assert (await authenticate(client, "PLAIN", exchange("PLAIN", "bob"))).error_code == 0
    await client.close()


async def test_users_of_the_cluster(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await secured(start_broker, tmp_path)
    made = derive(SCRAM_SHA_256, "of carol", salt=b"0123456789", iterations=4096)
    await change_credentials(server.control, lambda _: {"carol": {SCRAM_SHA_256: made}})
    await server.cluster.refresh()
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        answer = await authenticate(client, mechanism, exchange(mechanism, "carol", "of carol"))
        assert answer.error_code == 0
        await client.close()
    client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
    answer = await authenticate(
        client, "SCRAM-SHA-512", exchange("SCRAM-SHA-512", "carol", "of carol")
    )
    assert answer.error_code == AUTHENTICATION_FAILED
    await client.close()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_brokers_may_do_everything_by_any_listener(
    start_broker: StartBroker, tmp_path: Path, listener: str
) -> None:
    server = await start_broker(
        {"listeners": LISTENERS},
        security=security(tmp_path, inter_broker_listener_name=listener),
        authoriser=AclAuthoriser(),
    )
    peers = Peers(lambda _: server.bound[listener], server.security_service.as_client)
    answer = await peers.call(2, "DescribeLogDirs", {"topics": None})
    assert answer.error_code == 0
    assert principal(server) == "Broker:cluster"
    await peers.close()
    await gone(server)

    # Who has another secret is nobody.
    server.security_service.secret = PeerSecret(b"another secret of the same length")
    stranger = Peers(lambda _: server.bound[listener], server.security_service.as_client)
    with pytest.raises(NotAuthenticated):
        await stranger.call(2, "DescribeLogDirs", {"topics": None})
    await stranger.close()
    await gone(server)


class Heard:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)

    def close(self) -> None: ...


async def test_authentications_are_audited_without_secrets(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    settings = security(tmp_path)
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    server = await start_broker({"listeners": listeners}, security=settings, audit=heard)
    for user, password in (("alice", PASSWORD), ("alice", "hunter2"), ("mallory", "hunter2")):
        client = await open_to(server, "SASL_PLAINTEXT", tmp_path)
        await authenticate(client, "PLAIN", exchange("PLAIN", user, password))
        await client.close()
    said = [
        (event.outcome, event.principal, event.mechanism, event.reason) for event in heard.events
    ]
    assert said == [
        ("success", "User:alice", "PLAIN", ""),
        ("failure", "User:alice", "PLAIN", "wrong password"),
        ("failure", "User:mallory", "PLAIN", "unknown user"),
    ]
    for secret in ("hunter2", PASSWORD):
        assert secret not in caplog.text
        assert secret not in repr(heard.events)


async def test_a_bad_file_ends_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    settings = security(tmp_path, ssl_keystore_location=str(tmp_path / "nowhere.pem"))
    with pytest.raises(Exception, match=r"nowhere\.pem cannot be read"):
        await start_broker({"listeners": "SSL://127.0.0.1:0"}, security=settings)


async def test_a_listener_has_settings_of_its_own(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    own = {"SASL_PLAINTEXT": {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}}
    listeners = "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
    server = await start_broker({"listeners": listeners}, security=security(tmp_path, own))
    for listener, expected in (("SASL_PLAINTEXT", UNSUPPORTED_MECHANISM), ("SASL_SSL", 0)):
        client = await open_to(server, listener, tmp_path)
        answer = await client.call("SaslHandshake", 1, {"mechanism": "PLAIN"})
        assert answer.error_code == expected
        await client.close()
