"""The servers that the suite runs against: Penstock in a process of its own, or Apache Kafka.

`PENSTOCK_COMPAT_SERVER` chooses: `penstock` (the default), `apache`, or `HOST:PORT` of one that is
running already. With `PENSTOCK_COMPAT_TOPICS=diskless` Penstock makes every topic diskless, on
SQLite and a directory, or with `PENSTOCK_COMPAT_STORES=postgres-s3` on PostgreSQL and S3. With
`PENSTOCK_COMPAT_TOPICS=replicated` three brokers have a copy of every topic each, and one after the
other is restarted, one every `PENSTOCK_COMPAT_RESTART_SECONDS` (20; 0 restarts none). With
`PENSTOCK_COMPAT_SECURITY=sasl_ssl` they are secured (`security.py`).
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, Protocol, Self

from benchmarks.peers.apache_kafka import ApacheKafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server

from compat.security import Security, harness, realm
from compat.security import protocol as suites_protocol
from penstock.testing import Broker

READY = re.compile(rb"penstock ready kafka=(\S+) admin=(\S+)")
START_TIMEOUT_SECONDS = 60
COPIES = {
    "default.replication.factor": "3",
    "replication.listener": "127.0.0.1:0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings of a broker whose topics have a copy on each of three."""
STOP_TIMEOUT_SECONDS = 60
STOP_LOOK_SECONDS = 1


class PenstockProcess:
    """`penstock serve` as a process of its own, on loopback, over one data directory.

    As a context manager it runs meanwhile, and is killed in the end.
    """

    def __init__(
        self,
        directory: Path,
        *,
        listener: str = "",
        protocol: str = "",
        configs: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "penstock"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`program` is run as `penstock`, wherever that is; `clock` counts what it may take.

        `protocol` is the suite's by default.
        """
        self._clock = clock
        self.directory = directory
        # Ports that nobody is given by chance while the broker is restarted.
        self.listener = listener or f"127.0.0.1:{free_port()}"
        self._protocol = protocol
        self._admin = f"127.0.0.1:{free_port()}"
        if listener:
            self._admin = f"{listener.rpartition(':')[0]}:0"
        self._program = program
        own = realm()
        self.configs = {**({} if own is None else own.broker_settings()), **(configs or {})}
        self.bootstrap = ""
        self.admin_url = ""
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise RuntimeError("Penstock is not running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process is there: it was started, and has not died or been ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the broker has said so far on its standard error."""
        return (self.directory / "broker.log").read_text(errors="replace")

    def start(self) -> Self:
        """Start the broker and wait for its ready line."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "broker.toml"
        lines = (f'"{name}" = "{value}"\n' for name, value in self.configs.items())
        config.write_text("".join(lines))
        protocol = self._protocol or suites_protocol()
        listener = f"{protocol}://{self.listener}"
        command = [*self._program, "serve", "--config", str(config)]
        places = ["--data-dir", str(self.directory / "data"), "--listener", listener]
        begun = time.perf_counter()
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *places, "--admin", self._admin],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        found = self._ready_line()
        self.start_seconds = time.perf_counter() - begun
        self.bootstrap = found[1].decode()
        self.admin_url = f"http://{found[2].decode()}"
        self.listener = self.bootstrap
        return self

    def _ready_line(self) -> re.Match[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = self._clock() + START_TIMEOUT_SECONDS
        said = b""
        while self._clock() < deadline:
            if wait([self._process.stdout.fileno()], 0.1):
                piece = os.read(self._process.stdout.fileno(), 65536)
                said += piece
                if found := READY.search(said):
                    return found
                if not piece:
                    break
        self.kill()
        raise RuntimeError(
            f"penstock serve was not ready within {START_TIMEOUT_SECONDS} s:\n"
            f"{said.decode(errors='replace')}\n{self.log[-4000:]}"
        )

    def kill(self) -> None:
        """End the broker at once, as a power cut ends it."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End the broker in good order, and return its status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        deadline = self._clock() + STOP_TIMEOUT_SECONDS
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(STOP_LOOK_SECONDS)
                if self._clock() > deadline:
                    process.kill()
                    process.wait()
                    raise RuntimeError(f"penstock serve did not stop:\n{self.log[-4000:]}")
        finally:
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def running_brokers(
    postgres: PostgresServer,
    directory: Path,
    count: int,
    configs: Mapping[str, str],
    make: Callable[..., PenstockProcess] = PenstockProcess,
    admin: Security | None = None,
) -> Iterator[list[PenstockProcess]]:
    """So many brokers on a database and a store of their own, by rising node id from 1.

    `make` has the parameters of `PenstockProcess`; `admin` is who may see them all, by default the
    suite. Each broker knows all of them.
    """
    with ExitStack() as stack:
        shared = {
            "control.url": postgres.url(stack.enter_context(postgres.database())),
            "diskless.storage.url": (directory / "objects").as_uri(),
            **QUICK_GROUPS,
            **configs,
        }
        brokers = []
        for node in range(1, count + 1):
            place = directory / f"broker-{node}"
            broker = make(place, configs={**shared, "node.id": str(node)})
            stack.callback(broker.kill)
            brokers.append(broker.start())
        await_all_known(brokers, admin)
        yield brokers


def _known(admin: AdminClient) -> int:
    """How many brokers are told of; the connection that asks may be about to be given up."""
    with suppress(KafkaException):
        return len(admin.list_topics(timeout=10).brokers)
    return 0


class Addressed(Protocol):
    """A broker of any kind."""

    @property
    def bootstrap(self) -> str:
        """Its address."""


def bootstrap_of(brokers: Sequence[Addressed]) -> str:
    """The addresses of all of them."""
    return ",".join(broker.bootstrap for broker in brokers)


def await_all_known(brokers: Sequence[Addressed], admin: Security | None = None) -> None:
    """Until each broker knows all of them."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    for broker in brokers:
        asking = AdminClient({**harness(broker.bootstrap, admin), "log_level": 0})
        while _known(asking) < len(brokers):
            if time.monotonic() > deadline:
                raise RuntimeError("the brokers do not know each other")
            time.sleep(0.05)


QUICK_GROUPS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
"""Groups in which members hear of each other soon."""

QUOTA_WINDOWS: Final = 3
QUICK: Final = {
    "quota.window.num": str(QUOTA_WINDOWS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""What a server does after a time is seen soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: `name` is `penstock`, `apache` or `other`."""

    name: str
    bootstrap: str


@contextmanager
def server() -> Iterator[Server]:
    """The server that the environment asks for."""
    wanted = chosen()
    if wanted == "apache":
        with ApacheKafka(configs=QUICK) as kafka:
            yield Server(name="apache", bootstrap=kafka.bootstrap)
    elif wanted == "penstock" and topics() == "replicated":
        with (
            tempfile.TemporaryDirectory(prefix="penstock-compat-") as directory,
            postgres_server() as postgres,
            running_brokers(postgres, Path(directory), 3, {**COPIES, **QUICK}) as brokers,
            _restarting(brokers),
        ):
            yield Server(name="penstock", bootstrap=bootstrap_of(brokers))
    elif wanted == "penstock":
        with (
            tempfile.TemporaryDirectory(prefix="penstock-compat-") as directory,
            stores() as places,
        ):
            configs = {**QUICK_GROUPS, **QUICK, **places}
            broker = PenstockProcess(Path(directory), configs=configs).start()
            try:
                yield Server(name="penstock", bootstrap=broker.bootstrap)
            finally:
                broker.stop()
    else:
        yield Server(name="other", bootstrap=wanted)


class Restartable(Protocol):
    """A process that can be killed and started again in its place."""

    def start(self) -> object:
        """Start, or start again."""

    def kill(self) -> None:
        """End at once."""


class Killable(Addressed, Restartable, Protocol):
    """A broker that can be killed and started again."""


def killed_in_turn(
    processes: Sequence[Restartable], seconds: float, seed: int
) -> Iterator[Restartable]:
    """Kill each process and start it again, in an order from the seed; yield it after its start.

    Begin again until `seconds` have passed and each process was killed.
    """
    order = random.Random(seed).sample(processes, len(processes))
    until = time.monotonic() + seconds
    for number, process in enumerate(itertools.cycle(order)):
        if number >= len(order) and time.monotonic() > until:
            return
        process.kill()
        process.start()
        yield process


class AnyOf:
    """Brokers of one cluster, of which one at a time is killed and started again."""

    def __init__(self, brokers: Sequence[PenstockProcess]) -> None:
        self.bootstrap = bootstrap_of(brokers)
        self._next = itertools.cycle(brokers)
        self._killed = brokers[0]

    def kill(self) -> None:
        self._killed = next(self._next)
        self._killed.kill()

    def start(self) -> None:
        self._killed.start()


@contextmanager
def one_or_three(
    directory: Path, count: int, configs: Mapping[str, str] = {}
) -> Iterator[Killable]:
    """Run one broker, or three with replicated topics, whatever the environment asks for."""
    with ExitStack() as stack:
        if count == 1:
            yield stack.enter_context(Broker(configs, process=True))
        else:
            postgres = stack.enter_context(postgres_server())
            replicated = {**COPIES, "min.insync.replicas": "2", **configs}
            brokers = running_brokers(postgres, directory, count, replicated)
            yield AnyOf(stack.enter_context(brokers))


@contextmanager
def killable(directory: Path, configs: Mapping[str, str] = {}) -> Iterator[Killable]:
    """A broker of its own, of the kind that the environment asks for, with further `configs`."""
    if chosen() == "apache":
        directory.mkdir(parents=True, exist_ok=True)
        with ApacheKafka(
            directory, configs={"group.min.session.timeout.ms": "1000", **configs}
        ) as kafka:
            yield kafka
        return
    with stores() as places:
        process = PenstockProcess(
            directory, configs={"group.initial.rebalance.delay.ms": "0", **places, **configs}
        )
        process.start()
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _restarting(brokers: Sequence[PenstockProcess]) -> Iterator[None]:
    """Stop one broker after the other in good order meanwhile, and start it again at once."""
    seconds = float(os.environ.get("PENSTOCK_COMPAT_RESTART_SECONDS", "20"))
    over = threading.Event()

    def restart() -> None:
        for broker in itertools.cycle(brokers):
            if over.wait(seconds):
                return
            broker.stop()
            broker.start()

    thread = threading.Thread(target=restart, daemon=True)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if seconds:
            thread.join()


def topics() -> str:
    """Where Penstock has its topics: `local`, `diskless` or `replicated`."""
    return os.environ.get("PENSTOCK_COMPAT_TOPICS", "local")


@contextmanager
def stores() -> Iterator[dict[str, str]]:
    """The settings by which all topics are where the environment wants them, while they hold."""
    if topics() != "diskless":
        yield {}
    elif os.environ.get("PENSTOCK_COMPAT_STORES", "") != "postgres-s3":
        yield {"log.diskless.enable": "true"}
    else:
        from tests.s3 import s3_server

        with postgres_server() as postgres, postgres.database() as name, s3_server() as s3:
            yield {
                "log.diskless.enable": "true",
                "control.url": postgres.url(name),
                "diskless.storage.url": s3.fresh_url(),
                "diskless.storage.options": ",".join(
                    f"{option}={value}" for option, value in s3.options().items()
                ),
            }


def chosen() -> str:
    """Which server the suite runs against."""
    return os.environ.get("PENSTOCK_COMPAT_SERVER", "penstock")
