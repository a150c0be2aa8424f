"""Foreign clients by every mechanism that they have, over SASL_SSL, and with a certificate."""

from __future__ import annotations

import asyncio
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.security.certificates import keystore, truststore
from tests.security.exchanges import key_set, signing_key, token

from compat.command_line import COMMAND_LINE
from compat.conftest import missing
from compat.parts import PartMissing
from penstock.security.credentials import HASHES, ITERATIONS, derive
from penstock.testing import Broker

KEY = signing_key("EC")
PASSWORD = "of alice, with = and ;"
SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = [("SASL_SSL", mechanism) for mechanism in SASL] + [("SSL", "")]


class Secured:
    """A broker with a listener for each protocol, and where its files are."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.ca = truststore(directory)
        self.keystore = keystore(directory, "carol", hosts=())

    def at(self, listener: str) -> str:
        assert self.broker.server is not None
        return f"localhost:{self.broker.server.bound[listener][1]}"

    def principals(self, listener: str) -> set[str]:
        """Who has been let in by a listener, by mechanism."""
        assert self.broker.server is not None
        outcomes = self.broker.server.door._outcomes
        return {one[1] for one in outcomes if one[0] == listener and one[2] == "success"}


def shown() -> str:
    return token(KEY, {"sub": "svc", "exp": time.time() + 600}, algorithm="ES256")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    (directory / "jwks.json").write_bytes(key_set(k1=KEY))
    lines = [
        f"alice:{derive(one, PASSWORD, salt=b'0123456789', iterations=ITERATIONS).text()}"
        for one in HASHES
    ]
    (directory / "users").write_text("\n".join(lines))
    settings = {
        "listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "advertised.listeners": "SSL://localhost:0,SASL_SSL://localhost:0",
        "ssl.keystore.location": keystore(directory),
        "ssl.truststore.location": truststore(directory),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(SASL),
        "sasl.users.file": str(directory / "users"),
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "jwks.json").as_uri(),
    }
    with Broker(settings, admin=False) as broker:
        broker.create_topic("secured")
        yield Secured(broker, directory)


def confluent(secured: Secured, protocol: str, mechanism: str) -> bytes:
    from confluent_kafka import Consumer, Producer, TopicPartition

    config: dict[str, Any] = {
        "bootstrap.servers": secured.at(protocol),
        "security.protocol": protocol,
        "ssl.ca.location": secured.ca,
    }
    if mechanism == "OAUTHBEARER":
        config |= {
            "sasl.mechanism": mechanism,
            "oauth_cb": lambda _: (shown(), time.time() + 500),
        }
    elif mechanism:
        config |= {
            "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORD,
        }  # fmt: skip
    else:
        config |= {"ssl.certificate.location": secured.keystore}
        config |= {"ssl.key.location": secured.keystore}
    producer = Producer(config)
    value = f"confluent {mechanism}".encode()
    placed: list[Any] = []
    producer.produce("secured", value, callback=lambda error, done: placed.append((error, done)))
    assert producer.flush(30) == 0
    error, done = placed[0]
    assert error is None
    consumer = Consumer({**config, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("secured", 0, done.offset())])
        read = consumer.poll(30)
        assert read is not None
        assert read.error() is None
        assert read.value() == value
    finally:
        consumer.close()
    return value


def python_context(secured: Secured, mechanism: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=secured.ca)
    if not mechanism:
        made.load_cert_chain(secured.keystore)
    return made


def kafka_python(secured: Secured, protocol: str, mechanism: str) -> bytes:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return shown()

    config: dict[str, Any] = {
        "bootstrap_servers": secured.at(protocol),
        "security_protocol": protocol,
        "ssl_context": python_context(secured, mechanism),
    }
    if mechanism == "OAUTHBEARER":
        config |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens()}
    elif mechanism:
        config |= {
            "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }  # fmt: skip
    value = f"kafka-python {mechanism}".encode()
    producer = KafkaProducer(**config)
    offset = producer.send("secured", value, partition=0).get(30).offset
    producer.close()
    consumer = KafkaConsumer(**config, consumer_timeout_ms=30_000)
    at = TopicPartition("secured", 0)
    consumer.assign([at])
    consumer.seek(at, offset)
    assert next(consumer).value == value
    consumer.close()
    return value


def aio(secured: Secured, protocol: str, mechanism: str) -> bytes:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return shown()

    value = f"aiokafka {mechanism}".encode()

    async def both_ways() -> None:
        config: dict[str, Any] = {
            "bootstrap_servers": secured.at(protocol),
            "security_protocol": protocol,
            "ssl_context": python_context(secured, mechanism),
        }
        if mechanism == "OAUTHBEARER":
            config |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens()}
        elif mechanism:
            config |= {
                "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD,
            }  # fmt: skip
        async with AIOKafkaProducer(**config) as producer:
            placed = await producer.send_and_wait("secured", value, partition=0)
        async with AIOKafkaConsumer(**config) as consumer:
            at = TopicPartition("secured", 0)
            consumer.assign([at])
            consumer.seek(at, placed.offset)
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == value

    asyncio.run(both_ways())
    return value


CLIENTS: dict[str, Callable[[Secured, str, str], bytes]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio,
}


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_records_go_there_and_back(
    secured: Secured, client: str, protocol: str, mechanism: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CLIENTS[client](secured, protocol, mechanism)
    assert (mechanism or "SSL") in secured.principals(protocol)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_apache_kafkas_tools(secured: Secured, tmp_path: Path, mechanism: str) -> None:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.ca}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required"
        f' username="alice" password="{PASSWORD}";\n'
    )
    try:
        ran = COMMAND_LINE.run(
            secured.at("SASL_SSL"),
            "org.apache.kafka.tools.TopicCommand",
            "--command-config",
            str(config),
            "--list",
        )
    except PartMissing as error:
        missing(error)
    assert ran.status == 0, ran.errors
    assert "secured" in ran.out.split()
