"""What security costs: TLS beside plaintext and beside Apache Kafka's TLS, and many log-ins.

Throughput: the same confluent-kafka client produces to and fetches from each broker by its
PLAINTEXT and by its SSL listener, in turn; the certificates are the same. Client and broker share
the cores, so the broker's processor time per gigabyte says more than the pace.

Log-ins: a client sends a record every few milliseconds over a connection of its own, alone and
while others authenticate by SCRAM-SHA-512 over new connections as fast as four at a time can. They
hash their password on the same cores, so this is measured in three ways (`peers.beside`).

Prediction: AES-GCM runs at 3 to 5 GB/s on a core of this kind, so 0.2 to 0.35 s/GB for the cipher;
Python's and uvloop's TLS pass 16 KiB a record and copy twice, which makes it 1 to 1.5 s/GB more
than plaintext. Apache Kafka cannot use sendfile under TLS and decrypts in Java: 1 to 2 s/GB more.
A log-in is a handshake (1 ms), four requests and, for SCRAM, two hashes: verifying needs no
iterations, those are the client's. So 1,000 log-ins take some 3 s of one core, and what others
wait for is one handshake at a time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

from tests.ports import free_port

from benchmarks.harness import Row
from benchmarks.peers.apache_kafka import ApacheKafka
from benchmarks.peers.beside import ELSEWHERE, HERE, explained, load_makers
from benchmarks.peers.load import (
    PLAINTEXT,
    Load,
    Shape,
    create_topic,
    delete_topic,
    fetch,
    medians,
    produce,
)
from benchmarks.peers.single import APACHE, PENSTOCK
from benchmarks.quotas import QUIET, Connection, address_of, frame, quiet_latencies
from penstock.apps.loads.figures import cpu_seconds, percentile
from penstock.client.connection import Connection as Client
from penstock.client.security import client_security
from penstock.security.credentials import ITERATIONS, derive
from penstock.security.data.secret_files import write_private
from penstock.security.development_ca import common_name, new_authority
from penstock.testing import Broker

OURS, OURS_TLS, KAFKAS_TLS = PENSTOCK, f"{PENSTOCK}, TLS", f"{APACHE}, TLS"
MECHANISM = "SCRAM-SHA-512"
USER, PASSWORD = "alice", "a password of alice"
LOGINS = 1_000
AIM_TIMES = 1.5
AT_ONCE = 4
TIMEOUT_MS = 30_000
SALT = b"0123456789abcdef"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One listener of a broker, and what a client needs for it."""

    plaintext: str
    bootstrap: str
    pid: int
    security: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A server's keystore, the authority that it is verified by, one user with a password."""

    keystore: str
    truststore: str
    users: str

    def settings(self) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.truststore,
        }


def files(directory: Path) -> Files:
    """Make them."""
    now_ms = int(time.time() * 1000)
    authority = new_authority(now_ms, "benchmark CA")
    keystore, truststore, users = (directory / name for name in ("keystore", "ca", "users"))
    issued = authority.issue(common_name("broker"), now_ms, hosts=("localhost", "127.0.0.1"))
    write_private(keystore, issued)
    truststore.write_bytes(authority.pem)
    kept = derive(MECHANISM, PASSWORD, salt=SALT, iterations=ITERATIONS)
    users.write_text(f"{USER}:{kept.text()}\n")
    return Files(keystore=str(keystore), truststore=str(truststore), users=str(users))


def listeners(*protocols: str) -> dict[str, str]:
    """An address on loopback for each protocol."""
    return {protocol: f"127.0.0.1:{free_port()}" for protocol in protocols}


def texts(addresses: Mapping[str, str]) -> str:
    """Listeners as the setting has them."""
    return ",".join(f"{protocol}://{address}" for protocol, address in addresses.items())


@contextmanager
def ways(made: Files) -> Iterator[dict[str, Way]]:
    """Both brokers, each by its listeners."""
    tls = {"security.protocol": "ssl", "ssl.ca.location": made.truststore}
    ours, theirs = listeners("SSL"), listeners("PLAINTEXT", "SSL")
    controller = free_port()
    kafkas = {
        "listeners": f"{texts(theirs)},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": texts(theirs),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        **made.settings(),
    }
    with ExitStack() as stack:
        settings = {"listeners": texts(ours), **made.settings()}
        broker = stack.enter_context(Broker(settings, process=True, admin=False))
        ours["PLAINTEXT"] = broker.bootstrap
        port = int(theirs["PLAINTEXT"].rpartition(":")[2])
        kafka = stack.enter_context(ApacheKafka(configs=kafkas, ports=(port, controller)))
        assert broker.pid is not None
        yield {
            name: Way(
                plaintext=addresses["PLAINTEXT"],
                bootstrap=addresses["SSL" if security else "PLAINTEXT"],
                pid=pid,
                security=security,
            )
            for name, addresses, pid, security in (
                (OURS, ours, broker.pid, PLAINTEXT),
                (OURS_TLS, ours, broker.pid, tls),
                (APACHE, theirs, kafka.pid, PLAINTEXT),
                (KAFKAS_TLS, theirs, kafka.pid, tls),
            )
        }


def throughput(made: Files, *, quick: bool) -> Iterator[Row]:
    """Produce and fetch of each shape by each way in turn."""
    runs = 1 if quick else 3
    shapes = [
        Shape(records=100_000 if quick else 200_000, value_bytes=1024, partitions=1, linger_ms=50),
        Shape(records=20_000 if quick else 50_000, value_bytes=1024, partitions=1, linger_ms=0),
    ]
    with ways(made) as found:
        for shape in shapes:
            loads: dict[tuple[str, str], list[Load]] = defaultdict(list)
            for run in range(runs):
                for number, (name, way) in enumerate(found.items()):
                    topic = f"load-{shape.linger_ms}-{run}-{number}"
                    create_topic(way.plaintext, topic, 1)
                    for verb, work in (("produce", produce), ("fetch", fetch)):
                        load = work(way.bootstrap, way.pid, topic, shape, way.security)
                        loads[verb, name].append(load)
                    delete_topic(way.plaintext, topic)
            yield from _rows(loads, shape)


def _rows(loads: Mapping[tuple[str, str], list[Load]], shape: Shape) -> Iterator[Row]:
    for verb, predicted in (("produce", 2.5), ("fetch", 2.0)):
        pace = medians(loads, verb, lambda load: load.megabytes_per_second)
        cpu = medians(loads, verb, lambda load: load.cpu_seconds_per_gigabyte)
        for reference in (OURS, KAFKAS_TLS):
            yield Row(
                name=f"{verb} over TLS, {shape.name}",
                value=pace[OURS_TLS],
                unit="MB/s",
                reference=pace[reference],
                reference_name=reference,
                note=f"{APACHE} without TLS: {pace[APACHE]:.0f} MB/s",
            )
        for reference in (OURS, KAFKAS_TLS):
            yield Row(
                name=f"broker CPU, {verb} over TLS, {shape.name}",
                value=cpu[OURS_TLS],
                unit="s/GB",
                prediction=predicted,
                reference=cpu[reference],
                reference_name=reference,
                lower_is_better=True,
                note=f"{APACHE} without TLS: {cpu[APACHE]:.2f} s/GB",
            )


def log_in(address: tuple[str, int], options: Mapping[str, str], count: int) -> None:
    """Authenticate so many times over new connections, some at a time; each is closed at once."""
    security = client_security(options)

    def once(_: int) -> None:
        client = Client(
            *address,
            client_id="log-in",
            timeout_ms=TIMEOUT_MS,
            connect_timeout_ms=TIMEOUT_MS,
            security=security,
        )
        client.negotiate()
        client.close()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(once, range(count)))


class LogIns:
    """What a quiet client's latency was, alone and beside log-ins, and what those cost."""

    def __init__(self, quiet: Connection) -> None:
        self._quiet = quiet
        self.alone: list[float] = []
        self.beside: dict[str, list[float]] = defaultdict(list)
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def without(self) -> None:
        """Nobody logs in."""
        self.alone.append(percentile(quiet_latencies(self._quiet, 3.0), 0.99) * 1e3)

    def with_them(self, way: str, pool: Pool, job: tuple[object, ...], pid: int) -> None:
        """Somebody does, until he has done so often enough; `pid` is the broker's."""
        before, began = cpu_seconds(pid) or 0.0, time.perf_counter()
        running = pool.apply_async(log_in, (*job, LOGINS))
        latencies: list[float] = []
        while not running.ready():
            latencies += quiet_latencies(self._quiet, 0.2)
        running.get()
        self.beside[way].append(percentile(latencies, 0.99) * 1e3)
        if way == HERE:
            self.seconds.append((time.perf_counter() - began) / LOGINS)
            self.cpu.append(((cpu_seconds(pid) or 0.0) - before) / LOGINS)


def log_ins(made: Files, *, quick: bool) -> Iterator[Row]:
    """A quiet client's p99 alone and beside a thousand log-ins."""
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": made.truststore,
    }
    with ExitStack() as stack:
        pools = stack.enter_context(load_makers())
        brokers, jobs = [], []
        for _ in range(2):
            addresses = listeners("SASL_SSL")
            settings = {
                "listeners": texts(addresses),
                "sasl.enabled.mechanisms": MECHANISM,
                "sasl.users.file": made.users,
                **made.settings(),
            }
            broker = Broker(settings, process=True, admin=False)
            brokers.append(stack.enter_context(broker))
            jobs.append((address_of(addresses["SASL_SSL"]), options))
        create_topic(brokers[0].bootstrap, QUIET, 1)
        quiet = Connection(address_of(brokers[0].bootstrap), frame(QUIET, QUIET, 100))
        stack.callback(quiet.close)
        for way, pool in pools.items():
            pool.apply(log_in, (*jobs[way == ELSEWHERE], 8))
        quiet_latencies(quiet, 1.0)
        found = LogIns(quiet)
        for _ in range(1 if quick else 3):
            for way, pool in pools.items():
                found.without()
                found.with_them(way, pool, jobs[way == ELSEWHERE], brokers[0].pid or 0)
    p99 = {way: statistics.median(rounds) for way, rounds in found.beside.items()}
    for name, reference in (
        ("without them", statistics.median(found.alone)),
        ("the same at another broker", p99[ELSEWHERE]),
    ):
        yield Row(
            name=f"p99 of a record's produce beside {LOGINS:,} log-ins by {MECHANISM} over TLS",
            value=p99[HERE],
            unit="ms",
            prediction=3.0,
            reference=reference,
            reference_name=name,
            lower_is_better=True,
            note=f"the aim is {AIM_TIMES:g} times; {AT_ONCE} at a time,"
            f" {1 / statistics.median(found.seconds):.0f} a second; {explained(p99)}",
        )
    yield Row(
        name="broker CPU of a log-in",
        value=statistics.median(found.cpu) * 1e3,
        unit="ms",
        prediction=2.0,
        note="with what the quiet client costs meanwhile",
    )


def measure(*, quick: bool) -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        made = files(Path(directory))
        return [*throughput(made, quick=quick), *log_ins(made, quick=quick)]
