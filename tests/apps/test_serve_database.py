"""`penstock serve` while PostgreSQL is away: it waits, logs the cause, and starts or ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.client import Client
from tests.apps.test_serve import LOCAL, READY, TIMEOUT_SECONDS, environment, refused, serving
from tests.postgres import PostgresServer, postgres_server

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    """A server that tests may stop."""
    with postgres_server() as server:
        yield server


def words(server: PostgresServer, directory: Path, *more: str) -> list[str]:
    settings = {
        "control.url": server.url("postgres"),
        "diskless.storage.url": (directory / "objects").as_uri(),
    }
    return [*LOCAL, *[word for item in settings.items() for word in ("-X", "=".join(item))], *more]


def waits(process: subprocess.Popen[str]) -> str:
    """The line that says what the start waits for."""
    assert process.stderr is not None
    for line in process.stderr:
        if "; the broker stops after" in line:
            return line
    raise AssertionError(f"it ended with status {process.wait()}")


@contextmanager
def starting(server: PostgresServer, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker of which no line was read."""
    with subprocess.Popen(
        [
            sys.executable, "-m", "penstock", "serve", "--data-dir", str(directory),
            *words(server, directory),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_a_start_waits_until_the_database_answers(mortal: PostgresServer, tmp_path: Path) -> None:
    mortal.stop()
    with starting(mortal, tmp_path) as process:
        line = waits(process)
        assert "the PostgreSQL database postgres on" in line
        assert "control.start.timeout.ms" in line
        mortal.start()
        assert process.stdout is not None
        assert READY.fullmatch(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_start_ends_with_the_cause(mortal: PostgresServer, tmp_path: Path) -> None:
    mortal.stop()
    begun = time.monotonic()
    limit = ("-X", "control.start.timeout.ms=3000")
    status, said = refused("--data-dir", str(tmp_path), *words(mortal, tmp_path, *limit))
    assert status == 1
    assert "cannot connect to the PostgreSQL database postgres on" in said
    assert "control.start.timeout.ms" in said
    assert time.monotonic() - begun < 30


def test_a_start_that_waits_can_be_stopped(mortal: PostgresServer, tmp_path: Path) -> None:
    mortal.freeze()
    try:
        with starting(mortal, tmp_path) as process:
            waits(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    finally:
        mortal.freeze(thaw=True)


def test_what_an_administrator_has_to_mend_is_not_waited_for(
    mortal: PostgresServer, tmp_path: Path
) -> None:
    begun = time.monotonic()
    absent = ("-X", f"control.url={mortal.url('absent')}")
    status, said = refused("--data-dir", str(tmp_path), *words(mortal, tmp_path, *absent))
    assert (status, "absent" in said) == (1, True), said
    assert time.monotonic() - begun < 20


def test_a_producer_starts_while_the_database_is_away(
    mortal: PostgresServer, tmp_path: Path
) -> None:
    with serving(tmp_path, *words(mortal, tmp_path)) as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, line
        with Client(found.group(1)) as client:
            client.create_topic("t")
        mortal.stop()
        producer = Producer({"bootstrap.servers": found.group(1), "enable.idempotence": True})
        begun = time.monotonic()
        producer.produce("t", b"value")
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert time.monotonic() - begun < 20
        process.kill()
