"""Notifications of a daemon to its supervisor, over real datagram sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.apps.process.daemon import VARIABLE, notify, notify_ready, notify_stopping
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, environment


@pytest.fixture(params=["path", "abstract"])
def supervisor(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[socket.socket, str]]:
    name = f"{tmp_path}/n" if request.param == "path" else f"@penstock-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1))
        receiver.settimeout(5)
        yield receiver, name


def test_the_supervisor_is_notified(supervisor: tuple[socket.socket, str]) -> None:
    receiver, name = supervisor
    assert notify_ready({VARIABLE: name})
    assert receiver.recv(100) == b"READY=1"
    assert notify_stopping(20_000, {VARIABLE: name})
    assert receiver.recv(100) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000"


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}, {VARIABLE: "vsock:2:1"}])
def test_without_a_supervisor_nothing_happens(environment: dict[str, str]) -> None:
    assert not notify_ready(environment)


def test_a_missing_supervisor_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not notify("READY=1", environment={VARIABLE: f"{tmp_path}/gone"})
    assert "READY=1" in caplog.text


def test_a_supervisor_that_does_not_read_is_ignored(tmp_path: Path) -> None:
    path = f"{tmp_path}/n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        told = [notify("STATUS=" + "x" * 1000, environment={VARIABLE: path}) for _ in range(2000)]
    assert told[0]
    assert not told[-1]


@pytest.mark.parametrize(
    "command",
    [
        ("serve", *LOCAL),
        ("serve", "--processes", "2", *LOCAL),
        ("registry", "serve", "--listener", "127.0.0.1:0"),
    ],
    ids=" ".join,
)
def test_a_command_notifies_that_it_is_ready_and_that_it_stops(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    path = f"{tmp_path}/n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(TIMEOUT_SECONDS)
        with subprocess.Popen(
            [sys.executable, "-m", "penstock", *command, "--data-dir", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(NOTIFY_SOCKET=path),
        ) as process:
            try:
                assert receiver.recv(100) == b"READY=1"
                assert process.stdout is not None
                assert process.stdout.readline().startswith("penstock ready ")
                process.send_signal(signal.SIGTERM)
                stopping, extension = receiver.recv(100).decode().splitlines()
                assert process.wait(TIMEOUT_SECONDS) == 0
            finally:
                process.kill()
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):  # child processes send nothing
            receiver.recv(100)
    assert stopping == "STOPPING=1"
    assert int(extension.removeprefix("EXTEND_TIMEOUT_USEC=")) >= 20_000_000
