"""The table of outages in `docs/guides/operating.md`: each command names the true cause in time.

Commands run in this process, so that their time is not that of an interpreter's start.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from penstock.apps.cli import main
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client
from penstock.testing import Agent, Broker
from tests.client.proxy import Proxy
from tests.machine import disk_of
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import S3Server, s3_server
from tests.security.certificates import keystore, truststore

pytestmark = pytest.mark.timeout(180)
logger = logging.getLogger(__name__)
SECONDS: Final = 2 * 5.0
"""Twice the time that the guide promises: the run has more processes than cores."""
SHORT: Final = (
    "-X", "delivery.timeout.ms=3000", "-X", "request.timeout.ms=2500",
    "-X", "socket.connection.setup.timeout.ms=1000",
)  # fmt: skip
COMMANDS: Final = {
    "doctor": ("doctor",),
    "cluster status": ("cluster", "status"),
    "topic list": ("topic", "list", *SHORT),
    "produce": ("produce", "t", *SHORT),
    "consume": ("consume", "t", "-e", *SHORT),
    "pipeline run": ("pipeline", "run", "{file}"),
    "host send": ("host", "send", "--socket", "{socket}", "--topic", "t", "--timeout", "6"),
}
FAILS_OVER: Final = ("topic list", "produce", "consume", "host send")
"""Another replica leads at once where the process of a leader has died."""
SLOW: Final = pytest.mark.parametrize(
    "columns",
    [("doctor", "produce"), pytest.param(tuple(COMMANDS), marks=pytest.mark.long)],
    ids=["sample", "all"],
)
"""Rows where commands wait; the short run has a sample of them."""
GOES_ON: Final = "goes on"
"""The command needs nothing that is away."""
CHECKED: Final = "has no topic absent"
"""The end of a pipeline that got past its check of brokers: Spark is not started."""
DATABASE: Final = "database: "
STORE: Final = "object store: "
DISK: Final = "No space left on device"
REFUSED: Final = "refused the connection: no broker is running there"
SILENT: Final = "did not answer"
TLS: Final = "expects TLS, but this client connects without it"
NO_TLS: Final = "Check whether this port expects TLS"
EXPIRED: Final = "certificate has expired"
CLOCK: Final = "differs from this machine's clock by about 3"
"""An hour is 3,599 s to 3,601 s, as seen from here."""
AHEAD: Final = """
import time
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + 3600
time.time_ns = lambda: nanoseconds() + 3600 * 10**9
"""
PIPELINE: Final = """
name = "outage"
[source.lines]
topic = "t"
format = "text"
[sink.copy]
from = "lines"
topic = "absent"
[errors]
dead_letters = "outage.dead"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as store:
        yield store


class Output(io.StringIO):
    """Standard output or error of a command, that notes when a cause appears."""

    def __init__(self, cause: str) -> None:
        super().__init__()
        self._cause = cause
        self._begun = SYSTEM_CLOCK.monotonic()
        self.seconds: float | None = None

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.seconds is None and self._cause in " ".join(self.getvalue().split()):
            self.seconds = SYSTEM_CLOCK.monotonic() - self._begun
        return written


class Walk:
    """Runs the table's commands, of which `host send` needs an agent that has met the brokers."""

    def __init__(
        self, patch: pytest.MonkeyPatch, directory: Path, bootstrap: str, socket: Path | str = ""
    ) -> None:
        self._patch = patch
        self._bootstrap = bootstrap
        self._places = {"{file}": str(directory / "outage.toml"), "{socket}": str(socket)}
        (directory / "outage.toml").write_text(PIPELINE)

    def __call__(
        self,
        outage: str,
        cause: str,
        but: Mapping[str, str] | None = None,
        columns: Sequence[str] = tuple(COMMANDS),
    ) -> None:
        """Check that each command names the cause in time; `but` are those with another cause."""
        causes = dict.fromkeys(COMMANDS, cause) | dict(but or {})
        names = [name for name in columns if name != "host send" or self._places["{socket}"]]
        wrong = list(filter(None, (self._wrong(outage, name, causes[name]) for name in names)))
        assert not wrong, "\n".join(wrong)

    def accepted(self) -> bool:
        """Return whether a command still gets its answer."""
        return self._ran(("topic", "list"), GOES_ON)[1] == 0

    def _wrong(self, outage: str, name: str, cause: str) -> str:
        words = [self._places.get(word, word) for word in COMMANDS[name]]
        end = CHECKED if name == "pipeline run" else ""
        seconds, status, text = self._ran(words, end if cause == GOES_ON else cause)
        shown = "-" if seconds is None else f"{seconds:.1f} s"
        logger.info("%s, %s: %s", outage, name, shown)
        failed = cause == GOES_ON and not end and status != 0
        late = seconds is None or seconds >= SECONDS
        return f"{outage}, {name}: {shown}, status {status}: {text}" if failed or late else ""

    def _ran(self, words: Sequence[str], cause: str) -> tuple[float | None, int, str]:
        """Run a command; return when it named the cause (was done, without one), and its end."""
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
        begun = SYSTEM_CLOCK.monotonic()
        raw = io.BytesIO()
        out, err = io.TextIOWrapper(raw), Output(cause or "\0")
        status = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(["-b", self._bootstrap, *words])
            except SystemExit as ended:
                status = int(ended.code or 0)
            out.flush()
        seconds = SYSTEM_CLOCK.monotonic() - begun
        text = " ".join((raw.getvalue().decode() + err.getvalue()).split())
        named = err.seconds if err.seconds is not None else (seconds if cause in text else None)
        return named, status, text


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def agent_of(bootstrap: str, settings: Mapping[str, str] | None = None) -> Iterator[Agent]:
    """An agent that has written a record, so that it knows the topic."""
    with Agent(bootstrap, settings) as agent:
        with agent.client(topics=["t"]) as producer:
            producer.publish(b"a", topic="t").result()
        yield agent


@contextmanager
def three_brokers(
    server: PostgresServer, directory: Path, advertised: Sequence[str]
) -> Iterator[dict[int, Broker]]:
    """Brokers 1 to 3; the session timeout is longer than a test."""
    url = server.schema()
    with ExitStack() as stack:
        brokers = {}
        for node_id in (1, 2, 3):
            settings = {
                "node.id": node_id,
                "control.url": url,
                "diskless.storage.url": directory.as_uri(),
                "replication.listener": "127.0.0.1:0",
                "default.replication.factor": 3,
                "broker.session.timeout.ms": 60_000,
                "advertised.listeners": f"PLAINTEXT://{advertised[node_id - 1]}",
            }
            brokers[node_id] = stack.enter_context(Broker(settings, process=True, admin=False))
        yield brokers


def bootstrap_of(brokers: Mapping[int, Broker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers.values())


def leader_of_the_only_partition(brokers: Mapping[int, Broker]) -> int:
    with Client(bootstrap_of(brokers)) as client:
        client.create_topic("t", replication_factor=3)
        return client.metadata(["t"]).topics["t"].partitions[0].leader


@SLOW
def test_one_broker_of_three(
    monkeypatch: pytest.MonkeyPatch,
    server: PostgresServer,
    tmp_path: Path,
    columns: tuple[str, ...],
) -> None:
    """The leader behind a link that loses all packets, then stopped, then killed."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy()) for _ in range(3)]
        advertised = [proxy.address for proxy in proxies]
        brokers = stack.enter_context(three_brokers(server, tmp_path, advertised))
        for node_id, broker in brokers.items():
            host, port = broker.bootstrap.rsplit(":", 1)
            proxies[node_id - 1].target = (host, int(port))
        leader = leader_of_the_only_partition(brokers)
        agent = stack.enter_context(agent_of(",".join(advertised)))
        walk = Walk(monkeypatch, tmp_path, ",".join(advertised), agent.socket)
        proxies[leader - 1].hold()
        walk("cut link", SILENT, {"topic list": GOES_ON}, columns)
        proxies[leader - 1].resume()
        with stopped(brokers[leader]):
            walk("one stopped", SILENT, {"topic list": GOES_ON}, columns)
        brokers[leader].kill()
        proxies[leader - 1].close()
        walk("one killed", REFUSED, dict.fromkeys(FAILS_OVER, GOES_ON))


@pytest.mark.parametrize(
    "frozen", [False, pytest.param(True, marks=pytest.mark.long)], ids=["stopped", "frozen"]
)
def test_a_database_that_is_away(
    monkeypatch: pytest.MonkeyPatch, server: PostgresServer, tmp_path: Path, frozen: bool
) -> None:
    places = {"control.url": server.schema(), "diskless.storage.url": tmp_path.as_uri()}
    with Broker(places, process=True, admin=False) as broker:
        broker.create_topic("t")
        with agent_of(broker.bootstrap) as agent:
            server.freeze() if frozen else server.stop()
            try:
                Walk(monkeypatch, tmp_path, broker.bootstrap, agent.socket)(
                    f"database {'frozen' if frozen else 'stopped'}",
                    GOES_ON,
                    dict.fromkeys(("doctor", "cluster status", "pipeline run"), DATABASE),
                )
            finally:
                server.freeze(thaw=True) if frozen else server.start()


def test_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch, store: S3Server, tmp_path: Path
) -> None:
    options = ",".join(f"{name}={value}" for name, value in store.options().items())
    settings = {
        "diskless.storage.url": store.fresh_url(), "diskless.storage.options": options,
    }  # fmt: skip
    with Broker(settings, process=True, admin=False) as broker:
        broker.create_topic("t", configs={"diskless.enable": "true"})
        with agent_of(broker.bootstrap) as agent:
            store.freeze()
            try:
                Walk(monkeypatch, tmp_path, broker.bootstrap, agent.socket)(
                    "store away", STORE, {"topic list": GOES_ON, "consume": GOES_ON}
                )
            finally:
                store.freeze(thaw=True)


def fill_the_log(broker: Broker) -> None:
    """Write records until the log has no room for the smallest: it reserves some ahead."""
    with broker.client(delivery_timeout_ms=500) as client:
        for size in (1_000_000, 20_000, 500, 1):
            records = pa.table({"value": [bytes(size)]})
            with contextlib.suppress(PenstockError):
                for _ in range(400):
                    client.write_arrow("t", records)
                pytest.fail("the disk is not full")


@pytest.mark.long
def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(disk_of("96m", tmp_path / "disk"))
        broker = stack.enter_context(Broker(directory=disk, process=True))
        broker.create_topic("t")
        agent = stack.enter_context(agent_of(broker.bootstrap))
        free = os.statvfs(disk)
        with (disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
        fill_the_log(broker)
        Walk(monkeypatch, tmp_path, broker.bootstrap, agent.socket)(
            "disk full", DISK, {"topic list": GOES_ON, "consume": GOES_ON}
        )


def test_a_port_that_expects_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plaintext listener got TLS, which clients and the agent do not know."""
    settings = {"ssl.keystore.location": keystore(tmp_path)}
    with Broker(admin=False) as before:
        before.create_topic("t")
        with agent_of(before.bootstrap) as agent:
            before.stop()
            settings["listeners"] = f"SSL://{before.bootstrap}"
            with Broker(settings, admin=False):
                Walk(monkeypatch, tmp_path, before.bootstrap, agent.socket)("TLS expected", TLS)


def client_options(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands connect with TLS."""
    options = directory / "client.properties"
    trusted = truststore(directory)
    options.write_text(f"security.protocol=SSL\nssl.truststore.location={trusted}\n")
    options.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_CLIENT_CONFIG", str(options))


@SLOW
def test_a_port_without_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    """An agent with options for TLS ends at its start, and names the cause."""
    client_options(tmp_path, monkeypatch)
    with Broker(admin=False) as broker:
        Walk(monkeypatch, tmp_path, broker.bootstrap)("TLS client", NO_TLS, columns=columns)


def test_an_expired_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client_options(tmp_path, monkeypatch)
    seconds = 8
    path = keystore(tmp_path, days=seconds / 86_400)
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with Broker(settings, admin=False) as broker:
        assert broker.server is not None
        host, port = broker.server.bound["SSL"]
        address = f"{host}:{port}"
        with Client(address) as client:
            client.create_topic("t")
        with agent_of(address) as agent:
            walk = Walk(monkeypatch, tmp_path, address, agent.socket)
            while walk.accepted():
                pass
            walk("certificate expired", EXPIRED, {"host send": GOES_ON})


def test_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The broker's process reads a clock that is an hour ahead."""
    (tmp_path / "sitecustomize.py").write_text(AHEAD)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        broker = Broker(process=True)
        broker.start()
    try:
        broker.create_topic("t")
        with agent_of(broker.bootstrap) as agent:
            Walk(monkeypatch, tmp_path, broker.bootstrap, agent.socket)(
                "clock off", GOES_ON, {"doctor": CLOCK}
            )
    finally:
        broker.__exit__(None, None, None)


def test_an_agent_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = tmp_path / "absent.sock"
    monkeypatch.setenv("PENSTOCK_HOST_SOCKET_PATH", str(absent))
    named = f"socket {absent}: No such file or directory"
    with Broker() as broker:
        broker.create_topic("t")
        Walk(monkeypatch, tmp_path, broker.bootstrap, absent)(
            "agent away", GOES_ON, {"doctor": named, "host send": named}
        )
