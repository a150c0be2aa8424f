"""Clients by every mechanism that they have, and held to ACLs: refused by each, then let go on.

Also what is changed while clients work: certificates, passwords.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from joserfc.jwk import RSAKey
from tests.postgres import postgres_server
from tests.security.exchanges import key_set, signing_key, token

from compat.command_line import COMMAND_LINE
from compat.conftest import missing
from compat.drivers import DRIVERS, Driver, Record, eventually
from compat.parts import PartMissing
from compat.security import ADMIN, SASL_SSL, Need, Realm, Security, grant, read, write
from compat.servers import QUICK_GROUPS, PenstockProcess, running_brokers
from penstock.client import Client
from penstock.client.security import NotAuthenticated
from penstock.security.credentials import HASHES

NO_TOKENS = {"kcat"}
"""Clients that take no token but from a server of them."""
WAYS = [
    (name, way)
    for name in (*DRIVERS, "penstock")
    for way in ("PLAIN", *HASHES, "OAUTHBEARER", "SSL")
    if not (way == "OAUTHBEARER" and name in NO_TOKENS)
]
TOPIC = "t"
PASSWORD_SECONDS = 5.0
"""A second, and what connecting takes on a machine that has much to do."""


def record() -> Record:
    """A record of now."""
    return Record(value=b"v", key=b"k", timestamp=int(time.time() * 1000))


class Guarded:
    """Brokers that know the users of a realm: one by SASL_SSL, one by certificates."""

    def __init__(self, directory: Path) -> None:
        self.realm = Realm(directory)
        self.realm.keystore("broker")
        self.realm.add_users(ADMIN, *DRIVERS, "penstock")
        self._key = signing_key()
        assert isinstance(self._key, RSAKey)
        (directory / "jwks.json").write_bytes(key_set(k1=self._key))
        self.admins = {
            "SSL": self.realm.certificate(ADMIN),
            SASL_SSL: self.realm.user(ADMIN),
        }
        self.brokers: dict[str, PenstockProcess] = {}

    def broker(self, protocol: str) -> PenstockProcess:
        """The broker of a protocol, with a topic, started when it is first asked for."""
        if protocol not in self.brokers:
            configs = {
                **QUICK_GROUPS,
                **self.realm.broker_settings(protocol),
                "sasl.enabled.mechanisms": ",".join(("PLAIN", *HASHES, "OAUTHBEARER")),
                "sasl.oauthbearer.jwks.endpoint.url": (self.realm.directory / "jwks.json").as_uri(),
            }
            place = self.realm.directory / protocol
            made = PenstockProcess(place, protocol=protocol, configs=configs)
            self.brokers[protocol] = made
            made.start()
            with Client(made.bootstrap, security=self.admins[protocol].options()) as client:
                client.create_topic(TOPIC, partitions=1)
        return self.brokers[protocol]

    def security(self, name: str, way: str) -> Security:
        """How a client connects by a mechanism, or by a certificate."""
        if way == "SSL":
            return self.realm.certificate(name)
        if way != "OAUTHBEARER":
            return self.realm.user(name, way)
        path = self.realm.directory / f"{name}.token"
        path.write_text(token(self._key, {"sub": name, "exp": int(time.time()) + 3600}))
        return Security(
            protocol=SASL_SSL,
            mechanism=way,
            user=name,
            truststore=self.realm.truststore,
            token=str(path),
        )

    def logins(self, way: str) -> float:
        """How often somebody was let in by a mechanism, or by a certificate."""
        protocol = "SSL" if way == "SSL" else SASL_SSL
        with urlopen(f"{self.broker(protocol).admin_url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
        labels = f'listener="{protocol}",mechanism="{way}",outcome="success"'
        return float(lines.get(f"penstock_authentications_total{{{labels}}}", 0))

    def allow(self, protocol: str, name: str, *needs: Need) -> None:
        """What a client may do from now on."""
        user = f"CN={name}" if protocol == "SSL" else name
        grant(self.broker(protocol).bootstrap, user, needs, self.admins[protocol])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            broker.kill()


@contextmanager
def opened(name: str, bootstrap: str, security: Security) -> Iterator[Driver]:
    """A driver, which is allowed nothing by itself."""
    try:
        driver = DRIVERS[name](bootstrap, security)
    except PartMissing as error:
        missing(error)
    with driver:
        yield driver


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_every_way_in(guarded: Guarded, name: str, way: str) -> None:
    protocol = "SSL" if way == "SSL" else SASL_SSL
    bootstrap = guarded.broker(protocol).bootstrap
    security = guarded.security(name, way)
    guarded.allow(protocol, name, write(TOPIC), *read(TOPIC))
    before = guarded.logins(way)
    if name == "penstock":
        _both_ways(bootstrap, security)
    else:
        with opened(name, bootstrap, security) as driver:
            guarded.allow(protocol, name, *driver.groups_needed)
            (offset,) = driver.produce(TOPIC, [record()])
            (found,) = driver.consume(TOPIC, {0: offset}, 1)
            assert (found.key, found.value, found.offset) == (b"k", b"v", offset)
    assert guarded.logins(way) > before


def _both_ways(bootstrap: str, security: Security) -> None:
    options = security.options()
    if security.token:
        options["sasl.oauthbearer.token.endpoint.url"] = Path(security.token).as_uri()
    if security.keystore:
        del options["ssl.key.location"]
    with Client(bootstrap, security=options) as client:
        client.write_arrow(TOPIC, pa.table({"value": [b"v"]}))
        assert client.read_arrow(TOPIC).num_rows > 0


@pytest.mark.parametrize("way", ["PLAIN", *HASHES])
def test_apache_kafkas_tools(guarded: Guarded, way: str) -> None:
    address = guarded.broker(SASL_SSL).bootstrap
    who = guarded.security(ADMIN, way)
    try:
        ran = COMMAND_LINE.run(address, "org.apache.kafka.tools.TopicCommand", "--list", who=who)
    except PartMissing as error:
        missing(error)
    assert ran.status == 0, ran.errors
    assert TOPIC in ran.out.split()


REFUSED = {
    "topic": ("TOPIC_AUTHORIZATION_FAILED", "TopicAuthorization", "Topic authorization failed"),
    "group": ("GROUP_AUTHORIZATION_FAILED", "GroupAuthorization"),
    "transaction": ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorization"),
}
"""What clients call it."""


def refused_then_allowed(
    call: Callable[[], object], what: str, allow: Callable[[], None]
) -> object:
    """The call is refused by the client's own error for it, and works once it is allowed."""
    with pytest.raises(Exception, match="|".join(REFUSED[what])):
        call()
    allow()
    return call()


@pytest.mark.parametrize("name", DRIVERS)
def test_refused_until_an_acl_allows_it(guarded: Guarded, name: str) -> None:
    broker = guarded.broker(SASL_SSL)
    topic, group = f"{name}-topic", f"{name}-group"
    admin = guarded.admins[SASL_SSL].options()
    with Client(broker.bootstrap, security=admin) as client:
        client.create_topic(topic, partitions=1)
    allow = partial(guarded.allow, SASL_SSL, name)
    with opened(name, broker.bootstrap, guarded.realm.user(name)) as driver:
        allow(*driver.groups_needed)
        if name == "kcat":  # its driver asks for offsets first
            allow(("describe", "topic", topic))

        def produce() -> object:
            return driver.produce(topic, [record()])

        assert refused_then_allowed(produce, "topic", lambda: allow(write(topic))) == [0]
        consume = partial(driver.consume, topic, {0: 0}, 1)
        found = refused_then_allowed(consume, "topic", lambda: allow(*read(topic)))
        assert isinstance(found, list)
        assert len(found) == 1
        commit = partial(driver.commit, group, topic, {0: (1, "")})
        if name == "confluent-kafka":  # its commit waits for a coordinator
            commit = partial(_reads_in, driver, group, topic)
        # KafkaJS looks for a coordinator again and again
        if "commit" in driver.able and name != "kafkajs":
            refused_then_allowed(commit, "group", lambda: allow(("read", "group", group)))
        if "transactions" in driver.able:
            _in_a_transaction(driver, name, topic, group, allow)


def _reads_in(driver: Driver, group: str, topic: str) -> None:
    """Be a member of a group until a record has come."""
    member = driver.join(group, topic)
    try:
        eventually(lambda: bool(member.records()), lambda: member.assignment())
    finally:
        with suppress(Exception):  # it may have ended by itself
            member.close()


def _in_a_transaction(
    driver: Driver, name: str, topic: str, group: str, allow: Callable[[Need], None]
) -> None:
    identifier = f"{name}-transactions"
    begun = partial(driver.transactional, identifier)
    need = ("write", "transactional_id", identifier)
    producer = refused_then_allowed(begun, "transaction", lambda: allow(need))
    with producer:  # type: ignore[attr-defined]
        producer.begin()  # type: ignore[attr-defined]
        producer.send(topic, [record()])  # type: ignore[attr-defined]
        producer.send_offsets(group, topic, {0: 1})  # type: ignore[attr-defined]
        producer.end(commit=True)  # type: ignore[attr-defined]
    assert len(driver.consume(topic, {0: 1}, 1, committed=True)) == 1


@pytest.mark.long
def test_certificates_are_renewed_under_load(guarded: Guarded) -> None:
    broker = guarded.broker(SASL_SSL)
    names = ("confluent-kafka", "aiokafka")
    counts, failures = dict.fromkeys(names, 0), []
    over = threading.Event()

    def load(name: str) -> None:
        try:
            with opened(name, broker.bootstrap, guarded.realm.user(name)) as driver:
                while not over.is_set():  # each call connects anew
                    driver.produce(TOPIC, [record()])
                    counts[name] += 1
        except BaseException as error:
            failures.append(error)

    for name in names:
        guarded.allow(SASL_SSL, name, write(TOPIC))
    threads = [threading.Thread(target=load, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            renew(guarded, counts)
            assert not failures
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures


def renew(guarded: Guarded, counts: dict[str, int]) -> None:
    """Give the broker another certificate, and wait until clients have gone on with it."""
    before = shown(guarded)
    guarded.realm.keystore("broker")
    eventually(lambda: shown(guarded) != before, lambda: "the former certificate")
    enough = {name: count + 3 for name, count in counts.items()}
    eventually(lambda: all(counts[name] >= enough[name] for name in counts), lambda: counts)


def shown(guarded: Guarded) -> bytes | None:
    """The certificate that a new connection is shown."""
    host, _, port = guarded.broker(SASL_SSL).bootstrap.rpartition(":")
    context = guarded.security(ADMIN, "PLAIN").context()
    assert isinstance(context, ssl.SSLContext)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True)


@pytest.mark.long
def test_a_password_that_is_changed_is_changed_on_all_brokers(
    tmp_path: Path,
) -> None:
    realm = Realm(tmp_path / "realm")
    realm.keystore("broker")
    realm.add_users(ADMIN)
    admin = realm.user(ADMIN)
    with ExitStack() as stack:
        make = partial(PenstockProcess, protocol=SASL_SSL)
        postgres = stack.enter_context(postgres_server())
        brokers = stack.enter_context(
            running_brokers(postgres, tmp_path, 3, realm.broker_settings(), make, admin)
        )
        client = stack.enter_context(Client(brokers[0].bootstrap, security=admin.options()))
        for said in ("the first one", "another one"):
            began = time.monotonic()
            client.set_password("alice", said)
            for broker in brokers:
                eventually(partial(let_in, broker, realm, said), lambda: "refused")
            assert time.monotonic() - began < PASSWORD_SECONDS
        for broker in brokers:
            assert not let_in(broker, realm, "the first one")


def let_in(broker: PenstockProcess, realm: Realm, said: str) -> bool:
    """Whether alice gets in by a password."""
    options = {**realm.user("alice").options(), "sasl.password": said}
    try:
        with Client(broker.bootstrap, security=options) as client:
            client.list_topics()
    except NotAuthenticated:
        return False
    return True
