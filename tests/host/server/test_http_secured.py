"""The HTTP front with TLS, and authentication there: passwords, tokens, certificates."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.base.settings import load
from penstock.host.server.agent import HostAgent
from penstock.host.server.http import NAME, OCTETS
from penstock.host.server.settings import HttpSecuritySettings
from penstock.security.files import UnusableFile
from penstock.security.listeners import listener_group
from penstock.security.tls import TlsFiles, TlsOptions, client_context
from tests.host.server.peers import GateSink, serving, until
from tests.host.server.test_access import PASSWORD, TOKEN, basic, guarded, http_rules
from tests.host.server.test_http import LOCAL, Answer, call
from tests.security.certificates import keystore, now_ms, truststore
from tests.security.exchanges import key_set, signing_key, token

KEY = signing_key("EC")
NAMED = '[[rule]]\nname = "{}"\nprincipal = "User:{}"\ntopics = ["clicks"]\n'


def encrypted(directory: Path, **more: str) -> HttpSecuritySettings:
    """Settings with TLS; `more` by their names behind `host.http.`, with underscores."""
    values = {
        "security.protocol": "SSL",
        "ssl.keystore.location": keystore(directory, "agent"),
        "ssl.truststore.location": truststore(directory),
        **{name.replace("_", "."): text for name, text in more.items()},
    }
    return load(HttpSecuritySettings, {f"host.http.{name}": text for name, text in values.items()})


def client(directory: Path, name: str = "", ca: str = "test CA") -> ssl.SSLContext:
    """A client's context, with a certificate if it has a name."""
    files = TlsFiles(
        keystore=keystore(directory, name, hosts=()) if name else "",
        truststore=truststore(directory, ca),
    )
    return client_context(files, TlsOptions(), check_host=True, now_ms=now_ms())


async def publish(
    agent: HostAgent, tls: ssl.SSLContext | None, headers: Mapping[str, str] | None = None
) -> Answer:
    shown = {"content-type": OCTETS, **(headers or {})}
    return await call(agent, "POST", "/v1/ingest?topic=clicks", b"one", shown, tls=tls)


async def test_passwords_and_tokens_over_tls(tmp_path: Path) -> None:
    sink, tls = GateSink(), client(tmp_path)
    options: dict[str, Any] = {"http_listener": LOCAL, "http_security": encrypted(tmp_path)}
    async with guarded(tmp_path / "rules", http_rules(), sink, **options) as (agent, noted):
        assert (await publish(agent, tls, basic("web", PASSWORD))).status == 200
        assert (await publish(agent, tls, basic("web", "wrong"))).status == 401
        token = {"authorization": f"bearer {TOKEN}"}
        assert (await call(agent, "GET", "/v1/status", headers=token, tls=tls)).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await publish(agent, client(tmp_path, ca="another CA"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await publish(agent, None, basic("web", PASSWORD))
    assert sink.accepted == [b"one"]
    assert noted.facts("principal", "mechanism") == [
        ("authentication", "success", "User:web", "basic"),
        ("authentication", "failure", "User:ANONYMOUS", "basic"),
        ("authentication", "success", "User:eye", "bearer"),
    ]


async def test_wrong_passwords_of_an_address_are_bounded(tmp_path: Path) -> None:
    security = encrypted(tmp_path, max_failed_authentications_per_ip="3")
    tls, token = client(tmp_path), {"authorization": f"bearer {TOKEN}"}
    options: dict[str, Any] = {"http_listener": LOCAL, "http_security": security}
    async with guarded(tmp_path / "rules", http_rules(), **options) as (agent, _):
        answers = [await publish(agent, tls, basic("web", f"guess {n}")) for n in range(4)]
        assert [answer.status for answer in answers] == [401, 401, 429, 429]
        assert answers[-1].headers["connection"] == "close"
        assert (await publish(agent, tls, basic("web", PASSWORD))).status == 429
        assert (await call(agent, "GET", "/v1/status", headers=token, tls=tls)).status == 200
        assert (await call(agent, "GET", "/livez", tls=tls)).status == 200


async def test_signed_tokens(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(k1=KEY))
    security = encrypted(
        tmp_path,
        sasl_oauthbearer_jwks_endpoint_url=(tmp_path / "jwks.json").as_uri(),
        sasl_oauthbearer_expected_audience="agents",
    )
    options: dict[str, Any] = {"http_listener": LOCAL, "http_security": security}
    rules, tls = NAMED.format("clicker", "clicks") + http_rules(), client(tmp_path)

    def bearer(**said: Any) -> dict[str, str]:
        claims = {"sub": "clicker", "aud": "agents", "exp": time.time() + 60, **said}
        return {"authorization": f"bearer {token(KEY, claims, algorithm='ES256')}"}

    async with guarded(tmp_path / "rules", rules, **options) as (agent, noted):
        assert (await publish(agent, tls, bearer())).status == 200
        for said in ({"sub": "stranger"}, {"sub": "web"}, {"aud": "brokers"}, {"exp": 1}):
            assert (await publish(agent, tls, bearer(**said))).status == 401, said
        fixed = {"authorization": f"bearer {TOKEN}"}
        assert (await call(agent, "GET", "/metrics", headers=fixed, tls=tls)).status == 200
    assert [(event.principal, event.reason) for event in noted.events] == [
        ("User:clicks", ""),
        ("User:ANONYMOUS", "host.acl.file has no rule for stranger"),
        ("User:ANONYMOUS", "host.acl.file has no rule for web"),
        ("User:ANONYMOUS", "the token has another audience (claim aud)"),
        ("User:ANONYMOUS", "the token has expired"),
        ("User:eye", ""),
    ]


async def test_certificates_of_clients(tmp_path: Path) -> None:
    rules = NAMED.format("carol", "carol")
    mapping = "RULE:^CN=(.*)$/$1/"
    security = encrypted(tmp_path, ssl_client_auth="requested", ssl_principal_mapping_rules=mapping)
    options: dict[str, Any] = {"http_listener": LOCAL, "http_security": security}
    async with guarded(tmp_path / "rules", rules, **options) as (agent, noted):
        assert (await publish(agent, client(tmp_path, "carol"))).status == 200
        assert (await publish(agent, client(tmp_path, "mallory"))).status == 401
        assert (await publish(agent, client(tmp_path))).status == 401
    assert noted.facts("principal", "mechanism") == [
        ("authentication", "success", "User:carol", "SSL"),
        ("authentication", "failure", "User:ANONYMOUS", "SSL"),
        ("authentication", "failure", "User:ANONYMOUS", ""),
    ]


async def test_a_client_without_a_required_certificate_is_refused(tmp_path: Path) -> None:
    security = encrypted(tmp_path, ssl_client_auth="required")
    async with serving(http_listener=LOCAL, http_security=security) as agent:
        assert (await publish(agent, client(tmp_path, "carol"))).status == 200
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await publish(agent, client(tmp_path))


async def test_certificates_are_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_group, "LOOK_SECONDS", 0.01)
    security, tls = encrypted(tmp_path), client(tmp_path)
    async with serving(http_listener=LOCAL, http_security=security) as agent:
        assert agent.http is not None

        async def shown() -> bytes:
            assert agent.http is not None
            _, writer = await asyncio.open_connection(*agent.http.address, ssl=tls)
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            await writer.wait_closed()
            assert isinstance(certificate, bytes)
            return certificate

        async def counted(name: str) -> float:
            answer = await call(agent, "GET", "/metrics", tls=tls)
            lines = answer.body.decode().splitlines()
            (line,) = [sample for sample in lines if sample.startswith(name)]
            return float(line.rpartition(" ")[2])

        first = await shown()
        path = Path(keystore(tmp_path, "agent"))
        files = agent.http.listener_group.listeners[NAME].tls
        assert files is not None
        await until(lambda: files.reloads)
        second = await shown()
        assert second != first
        nonsense = tmp_path / "nonsense"
        nonsense.write_text("nonsense")
        nonsense.replace(path)  # at once: a file that is half written is a failure of its own
        await until(lambda: files.failure)
        assert await shown() == second
        assert await counted("penstock_security_files_not_reloaded_total") == 1
        assert await counted("penstock_tls_certificate_ends_timestamp_seconds") > time.time()


async def test_handshakes_that_fail_are_counted_and_bounded(tmp_path: Path) -> None:
    security = encrypted(tmp_path, max_failed_authentications_per_ip="2")
    async with serving(http_listener=LOCAL, http_security=security) as agent:
        for _ in range(3):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await publish(agent, None)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await publish(agent, client(tmp_path))
        assert agent.http is not None
        values = {
            sample.metric.name: (sample.value, *sample.labels)
            for sample in agent.http.listener_group.samples()
        }
    assert values["penstock_tls_handshakes_failed_total"] == (2, NAME)
    assert values["penstock_unauthenticated_connections_refused_total"] == (
        2, NAME, "max.failed.authentications.per.ip",
    )  # fmt: skip


async def test_takeover_of_a_port_with_tls(tmp_path: Path) -> None:
    security, tls = encrypted(tmp_path), client(tmp_path)
    sinks = [GateSink(), GateSink()]
    options: dict[str, Any] = {"socket_takeover": True, "http_security": security}
    async with serving(sinks[0], http_listener=LOCAL, **options) as old:
        assert old.http is not None
        port = f"127.0.0.1:{old.http.address[1]}"
        async with serving(sinks[1], http_listener=port, **options) as new:
            old.http.drain()
            for _ in range(20):
                assert (await publish(new, tls)).status == 200
    assert [len(sink.accepted) for sink in sinks] == [0, 20]


async def test_files_of_no_use_keep_it_from_starting(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"ssl\.keystore\.location is not set"):
        async with serving(
            http_listener=LOCAL, http_security=HttpSecuritySettings(security_protocol="SSL")
        ):
            pass
