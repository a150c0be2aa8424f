"""Client with every protocol and mechanism, and its options by Kafka's names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.errors import InvalidSetting
from penstock.client import Client
from penstock.client.appender import Appender
from penstock.client.security import (
    CONFIG_VARIABLE,
    NotAuthenticated,
    client_security,
    read_properties,
    settings_of,
)
from penstock.security.files import UnusableFile
from penstock.security.sasl import ServerUntrusted
from penstock.testing import Broker
from tests.broker.security.secured import LISTENERS, MECHANISMS, PASSWORD, users_file
from tests.security.certificates import keystore, truststore
from tests.security.exchanges import key_set, signing_key, token

KEY = signing_key("EC")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Broker with a listener for each protocol, and sessions that end after two seconds."""
    made = tmp_path_factory.mktemp("secured")
    (made / "jwks.json").write_bytes(key_set(k1=KEY))
    settings = {
        "listeners": LISTENERS.split(",", 1)[1],
        "ssl.keystore.location": keystore(made),
        "ssl.truststore.location": truststore(made),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISMS,
        "sasl.users.file": users_file(made, "alice"),
        "sasl.oauthbearer.jwks.endpoint.url": (made / "jwks.json").as_uri(),
        "connections.max.reauth.ms": 2_000,
    }
    with Broker(settings, admin=False) as running:
        running.create_topic("t")
        yield running


def at(broker: Broker, listener: str) -> str:
    assert broker.server is not None
    host, port = broker.server.bound[listener]
    return f"{host}:{port}"


def options(tmp_path: Path, protocol: str, mechanism: str) -> dict[str, str]:
    found = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl.truststore.location"] = truststore(tmp_path)
    if protocol == "SSL":
        found["ssl.keystore.location"] = keystore(tmp_path, "carol", hosts=())
    elif mechanism == "OAUTHBEARER":
        said = {"sub": "svc", "exp": time.time() + 600}
        path = tmp_path / "token"
        path.write_text(token(KEY, said, algorithm="ES256"))
        found |= {"sasl.mechanism": mechanism, "sasl.oauthbearer.token.endpoint.url": path.as_uri()}
    elif protocol != "PLAINTEXT":
        found |= {
            "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORD,
        }  # fmt: skip
    return found


WAYS = [("SSL", "")] + [
    (protocol, mechanism)
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
    for mechanism in MECHANISMS.split(",")
]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_records_go_there_and_back(
    broker: Broker, tmp_path: Path, protocol: str, mechanism: str
) -> None:
    topic = f"t-{protocol}-{mechanism or 'certificate'}"
    broker.create_topic(topic, partitions=3)
    table = pa.table({"value": [b"%d" % number * 500 for number in range(2_000)]})
    security = options(tmp_path, protocol, mechanism)
    with Client(at(broker, protocol), security=security, api_timeout_ms=5_000) as client:
        client.write_arrow(topic, table)
        read = client.read_arrow(topic, columns=["value"])
        assert sorted(read["value"].to_pylist()) == sorted(table["value"].to_pylist())


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_an_appender_outlives_its_session(
    broker: Broker, tmp_path: Path, protocol: str
) -> None:
    topic = f"appended-{protocol}"
    await asyncio.get_running_loop().run_in_executor(None, broker.create_topic, topic)
    security = options(tmp_path, protocol, "SCRAM-SHA-256")
    appender = Appender(at(broker, protocol), security=security)
    await appender.start()
    try:
        assert await appender.partitions(topic)
        assert isinstance(await appender.producer_id(), int)
    finally:
        await appender.stop(1)


def test_a_connection_reauthenticates_before_its_session_expires(
    broker: Broker, tmp_path: Path
) -> None:
    assert broker.server is not None
    security = options(tmp_path, "SASL_SSL", "SCRAM-SHA-512")
    with Client(at(broker, "SASL_SSL"), security=security, api_timeout_ms=5_000) as client:
        outcomes = broker.server.security_service._metrics.authentications
        label = ("SASL_SSL", "SCRAM-SHA-512", "reauthenticated")
        enough, deadline = outcomes[label] + 2, time.monotonic() + 20
        while outcomes[label] < enough:
            assert time.monotonic() < deadline
            client.metadata(("t",))
            time.sleep(0.1)
        assert len(client._session.pool._idle) == 1


def test_a_wrong_password_fails_at_once_and_is_not_shown(broker: Broker, tmp_path: Path) -> None:
    security = options(tmp_path, "SASL_SSL", "PLAIN") | {"sasl.password": "hunter2"}
    client = Client(at(broker, "SASL_SSL"), security=security)
    began = time.monotonic()
    with pytest.raises(NotAuthenticated, match="Invalid username or password") as refused, client:
        client.metadata(("t",))
    assert time.monotonic() - began < 5
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(client_security(security))
    assert "hunter2" not in repr(settings_of(security))


def test_a_server_that_is_not_trusted(broker: Broker, tmp_path: Path) -> None:
    security = options(tmp_path, "SASL_SSL", "PLAIN")
    security["ssl.truststore.location"] = truststore(tmp_path, "another CA")
    client = Client(at(broker, "SASL_SSL"), security=security)
    with pytest.raises(ServerUntrusted, match="certificate"), client:
        client.metadata(("t",))


def test_options_of_a_file_that_the_environment_names(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "client.properties"
    named = options(tmp_path, "SASL_SSL", "PLAIN")
    lines = ["# a comment", "acks=all", *[f"{name} = {value}" for name, value in named.items()]]
    path.write_text("\n".join(lines))
    assert read_properties(str(path)) == named
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    with Client(at(broker, "SASL_SSL"), api_timeout_ms=5_000) as client:
        assert client.metadata(("t",)).topics["t"].error_code == 0
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UnusableFile):
        Client(at(broker, "SASL_SSL"))


@pytest.mark.parametrize(
    "jaas",
    [
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" '
        'password="p\\"q";',
        "org.apache.kafka.common.security.scram.ScramLoginModule required\n  username='a'\n"
        "  password='p\"q' ;",
    ],
)
def test_kafkas_form_of_a_password(jaas: str) -> None:
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    begin = client_security(security | {"sasl.jaas.config": jaas}).begin
    assert begin is not None
    assert begin()[1].respond(b"") == b'\0a\0p"q'


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocoll": "SSL"}, "security.protocoll"),
        ({"security.protocol": "SASL_SSL"}, "sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": "secret"}, "sasl.jaas.config"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        client_security(given)
    assert refused.value.name == name
    assert "secret" not in str(refused.value)
