"""How soon a change of who may do what is in force on three brokers.

A password is changed, and an ACL is added or removed, through one broker after the other; from the
answer on every broker is asked again and again, all three at a time, until each has taken the
change: it refuses the old password and takes the new one, it shows the topic or hides it. A change
counts when the last of them is through. The brokers' answer to a wrong password is not delayed
here, as it is by default, so that asking is quick.

Prediction: the notice to other brokers is sent with the change, 1 ms; each loads the image, some
5 ms, and the probes of three brokers share two cores: a log-in of SCRAM is 5 ms of the client's
hashing, so two of them on each of three brokers are 20 ms; a look at a topic is 1 ms.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from compat.security import ADMIN, Realm, Security
from compat.servers import PenstockProcess, bootstrap_of, running_brokers
from tests.postgres import postgres_server
from tests.security.access import allow

from benchmarks.harness import Row
from benchmarks.quotas import address_of
from penstock.apps.loads.figures import percentile
from penstock.client import Client
from penstock.client.connection import Connection
from penstock.client.security import NotAuthenticated, client_security
from penstock.security.acls import AclFilter

PROTOCOL = "SASL_PLAINTEXT"
MECHANISM = "SCRAM-SHA-256"
ALICE, BOB, TOPIC = "alice", "bob", "orders"
BROKERS = 3
AIM_MS = 1000.0
WAIT_SECONDS = 30.0
TIMEOUT_MS = 30_000


@contextmanager
def brokers_on_postgres(realm: Realm) -> Iterator[list[str]]:
    """The addresses of three brokers that share a server of PostgreSQL, which syncs."""
    make = partial(PenstockProcess, protocol=PROTOCOL)
    with (
        postgres_server(durable=True) as postgres,
        running_brokers(
            postgres, realm.directory, BROKERS, _settings(realm), make, _login(realm, ADMIN)
        ) as brokers,
    ):
        yield bootstrap_of(brokers).split(",")


@contextmanager
def processes_on_sqlite(realm: Realm) -> Iterator[list[str]]:
    """The addresses of three brokers of one command, which share a file of SQLite."""
    configs = {**_settings(realm), "processes": str(BROKERS), "admin.loopback.trusted": "false"}
    server = PenstockProcess(
        realm.directory / "processes",
        listener="127.0.0.1:0",
        protocol=PROTOCOL,
        configs=configs,
    )
    server.start()
    try:
        yield server.bootstrap.split(",")
    finally:
        server.stop()


def _settings(realm: Realm) -> dict[str, str]:
    asked_often = {
        "connection.failed.authentication.delay.ms": "0",
        "max.failed.authentications.per.ip": "1000000",
    }
    return {**realm.broker_settings(), **asked_often}


def _login(realm: Realm, name: str, password: str = "") -> Security:
    known = replace(realm.user(name, MECHANISM), protocol=PROTOCOL)
    return replace(known, password=password or known.password)


def _connect(address: str, login: Security) -> Connection:
    """An authenticated connection; raises NotAuthenticated."""
    connection = Connection(
        *address_of(address),
        client_id="probe",
        timeout_ms=TIMEOUT_MS,
        connect_timeout_ms=TIMEOUT_MS,
        security=client_security(login.options()),
    )
    try:
        connection.negotiate()
    except BaseException:
        connection.close()
        raise
    return connection


def logs_in(address: str, login: Security) -> bool:
    """Whether a broker takes a password."""
    try:
        _connect(address, login).close()
    except NotAuthenticated:
        return False
    return True


def shown(connection: Connection) -> bool:
    """Whether the user of a connection may know of the topic."""
    request = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
    (topic,) = connection.call("Metadata", request).topics
    return not topic.error_code


def _seconds_until(began: float, seen: Callable[[], bool]) -> float:
    while not seen():
        if time.perf_counter() - began > WAIT_SECONDS:
            raise RuntimeError(f"a change was not in force after {WAIT_SECONDS:.0f} s")
    return time.perf_counter() - began


def _latest(pool: ThreadPoolExecutor, seen: Sequence[Callable[[], bool]]) -> float:
    """Seconds from now until all of them have been seen, which are looked for side by side."""
    return max(pool.map(partial(_seconds_until, time.perf_counter()), seen))


def password_changes(
    realm: Realm, addresses: Sequence[str], pool: ThreadPoolExecutor, count: int
) -> Iterator[float]:
    """Seconds from each answer until every broker refuses the old password and takes the new."""

    def changed(address: str, old: Security, new: Security) -> bool:
        return logs_in(address, new) and not logs_in(address, old)

    with ExitStack() as stack:
        clients = _admins(stack, realm, addresses)
        clients[0].set_password(ALICE, "the first one", mechanism=MECHANISM)
        old = _login(realm, ALICE, "the first one")
        for number in range(count):
            new = _login(realm, ALICE, f"number {number}")
            clients[number % len(clients)].set_password(ALICE, new.password, mechanism=MECHANISM)
            yield _latest(pool, [partial(changed, address, old, new) for address in addresses])
            old = new


def acl_changes(
    realm: Realm, addresses: Sequence[str], pool: ThreadPoolExecutor, count: int
) -> Iterator[float]:
    """Seconds from each answer until every broker shows the topic, or hides it again."""
    binding = allow("describe", "topic", TOPIC, BOB)
    wanted = AclFilter(resource_type="topic", name=TOPIC, principal=f"User:{BOB}")
    with ExitStack() as stack:
        clients = _admins(stack, realm, addresses)
        clients[0].create_topic(TOPIC, 1)
        connections = [_connect(address, _login(realm, BOB)) for address in addresses]
        for connection in connections:
            stack.callback(connection.close)
        for number in range(count):
            client, added = clients[number % len(clients)], number % 2 == 0
            if added:
                client.create_acls([binding])
            else:
                client.delete_acls(wanted)

            def changed(connection: Connection, added: bool = added) -> bool:
                return shown(connection) is added

            yield _latest(pool, [partial(changed, connection) for connection in connections])


def _admins(stack: ExitStack, realm: Realm, addresses: Sequence[str]) -> list[Client]:
    """A client at each broker, of whom every one may be asked."""
    options = _login(realm, ADMIN).options()
    return [stack.enter_context(Client(address, security=options)) for address in addresses]


def measure(*, quick: bool) -> list[Row]:
    """All rows."""
    count = 20 if quick else 200
    rows = []
    for place, running in (
        ("PostgreSQL", brokers_on_postgres),
        ("SQLite of three processes", processes_on_sqlite),
    ):
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
            ThreadPoolExecutor(BROKERS) as pool,
        ):
            realm = Realm(Path(directory))
            realm.keystore("broker")
            realm.add_users(ADMIN, BOB)
            with running(realm) as addresses:
                for what, changes, prediction in (
                    ("a changed password", password_changes, 25.0),
                    ("a changed ACL", acl_changes, 10.0),
                ):
                    taken = [*changes(realm, addresses, pool, count)]
                    rows.append(_row(f"{what}, three brokers, {place}", taken, prediction))
    return rows


def _row(name: str, taken: Sequence[float], prediction: float) -> Row:
    return Row(
        name=f"time until all brokers apply it, p99: {name}",
        value=percentile(taken, 0.99) * 1e3,
        unit="ms",
        prediction=prediction,
        reference=AIM_MS,
        reference_name="the aim",
        lower_is_better=True,
        note=f"{len(taken)} changes: p50 {percentile(taken, 0.5) * 1e3:.1f} ms,"
        f" the last one {max(taken) * 1e3:.1f} ms",
    )
