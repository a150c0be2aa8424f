"""The table of outages in `docs/guides/operating.md`, walked: each command names the true cause.

Commands run in this process, so that their time is not that of an interpreter's start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.testing import Broker
from tests.apps.conftest import Run, bare
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import S3Server, s3_server
from tests.security.certificates import keystore

__all__ = ["bare"]

SECONDS = 5.0
SHORT = (
    "-X", "delivery.timeout.ms=2500", "-X", "request.timeout.ms=2500",
    "-X", "socket.connection.setup.timeout.ms=1000",
)  # fmt: skip
COMMANDS = {
    "doctor": ("doctor",),
    "cluster status": ("cluster", "status"),
    "topic list": ("topic", "list", *SHORT),
    "produce": ("produce", "t", *SHORT),
    "consume": ("consume", "t", "-e", *SHORT),
}
DATABASE = "database: "
STORE = "object store: "
REFUSED = "refused the connection: no broker is running there"
SILENT = "did not answer"
TLS = "expects TLS, and this client connects without it"
WORKS = ""
"""The command needs nothing that is away."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as store:
        yield store


def walk(run: Run, bootstrap: str, expected: dict[str, str]) -> None:
    """Run each command, and check that it names the cause in time."""
    for name, cause in expected.items():
        begun = SYSTEM_CLOCK.monotonic()
        ran = run("-b", bootstrap, *COMMANDS[name], stdin="a\n")
        seconds = SYSTEM_CLOCK.monotonic() - begun
        assert cause in ran.out + ran.err, (name, ran)
        assert (ran.status == 0) is (cause == WORKS), (name, ran)
        assert seconds < SECONDS, (name, seconds)


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_broker_that_is_killed_or_stopped(bare: Run) -> None:
    with Broker(process=True, admin=False) as broker:
        broker.create_topic("t")
        with stopped(broker):
            walk(bare, broker.bootstrap, dict.fromkeys(COMMANDS, SILENT))
        broker.kill()
        walk(bare, broker.bootstrap, dict.fromkeys(COMMANDS, REFUSED))


@pytest.mark.parametrize("frozen", [False, True], ids=["stopped", "frozen"])
def test_a_database_that_is_away(
    bare: Run, server: PostgresServer, tmp_path: Path, frozen: bool
) -> None:
    places = {"control.url": server.schema(), "diskless.storage.url": tmp_path.as_uri()}
    with Broker(places, process=True, admin=False) as broker:
        broker.create_topic("t")
        server.freeze() if frozen else server.stop()
        try:
            walk(
                bare,
                broker.bootstrap,
                {
                    "doctor": DATABASE, "cluster status": DATABASE, "topic list": WORKS,
                    "consume": WORKS,
                },
            )  # fmt: skip
        finally:
            server.freeze(thaw=True) if frozen else server.start()


def test_a_store_that_is_away(bare: Run, store: S3Server) -> None:
    options = ",".join(f"{name}={value}" for name, value in store.options().items())
    settings = {
        "diskless.storage.url": store.fresh_url(), "diskless.storage.options": options,
    }  # fmt: skip
    with Broker(settings, process=True, admin=False) as broker:
        broker.create_topic("t", configs={"diskless.enable": "true"})
        store.freeze()
        try:
            walk(
                bare,
                broker.bootstrap,
                {
                    "doctor": STORE, "cluster status": STORE, "topic list": WORKS,
                    "produce": STORE,
                },
            )  # fmt: skip
        finally:
            store.freeze(thaw=True)


def test_a_port_that_expects_tls(bare: Run, tmp_path: Path) -> None:
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": keystore(tmp_path)}
    with Broker(settings, admin=False) as broker:
        assert broker.server is not None
        host, port = broker.server.bound["SSL"]
        walk(bare, f"{host}:{port}", dict.fromkeys(COMMANDS, TLS))


def test_an_agent_that_is_away(bare: Run, tmp_path: Path) -> None:
    socket = str(tmp_path / "absent.sock")
    nowhere = f"127.0.0.1:{free_port()}"
    for words in (
        ("-b", nowhere, "doctor", "--agent", socket),
        ("host", "send", "--socket", socket, "--timeout", "2"),
    ):
        begun = SYSTEM_CLOCK.monotonic()
        ran = bare(*words, stdin="a\n")
        assert f"socket {socket}: No such file or directory" in ran.out + ran.err
        assert ran.status != 0
        assert SYSTEM_CLOCK.monotonic() - begun < SECONDS
