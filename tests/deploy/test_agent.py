"""The agent's life as the deployment's files define it: start, health, producer, stop.

The commands are the files' own, run from the image; only places and addresses are replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.deploy.agreement import DRAIN, HEALTH, SOCKET, compose, option, setting, systemd
from tests.deploy.files import DEPLOY, ROOT, UNIT, unit_values
from tests.deploy.image import command, script

SECONDS_MAX = 60
READINGS = 50


@dataclass(frozen=True, slots=True)
class Agent:
    process: subprocess.Popen[str]
    path: str
    image: Path
    supervisor: socket.socket

    def told(self) -> str:
        """The next message to the supervisor."""
        return self.supervisor.recv(1000).decode()

    def health(self) -> str:
        """Return a supervisor's view, which retries when a busy machine answers too late."""
        by = time.monotonic() + SECONDS_MAX
        while "no answer in" in (said := health(self.image, self.path)):
            assert time.monotonic() < by
        return said


def health(image: Path, path: str) -> str:
    """Return the command's complaint, nothing from a healthy agent."""
    words = replaced(HEALTH, {SOCKET: path})
    done = subprocess.run(
        command(image, *words), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    return done.stderr or f"status {done.returncode}" if done.returncode else ""


def replaced(words: Sequence[str], here: dict[str, str]) -> list[str]:
    assert set(here) <= set(words)
    return [here.get(word, word) for word in words]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the address of a socket has 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="p-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        producer = compose(DEPLOY).producer
        assert producer is not None
        started.create_topic(option(producer.command, "--topic"))
        yield started


@pytest.fixture
def agent(folder: Path, broker: Broker, image: Path) -> Iterator[Agent]:
    """The unit's command, under a supervisor."""
    path = str(folder / "run" / "host.sock")
    serve = systemd(DEPLOY).serve
    words = replaced(serve, {SOCKET: path, option(serve, "--bootstrap"): broker.bootstrap})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(folder / "notify"))
        supervisor.settimeout(SECONDS_MAX)
        with subprocess.Popen(
            command(image, *words),
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
            text=True,
        ) as process:
            try:
                yield Agent(process, path, image, supervisor)
            finally:
                process.kill()


def test_the_unit_lets_machine_code_be_loaded() -> None:
    assert "Service.MemoryDenyWriteExecute" not in unit_values(DEPLOY / UNIT)


@pytest.mark.long
def test_the_health_check_fails_without_an_agent(folder: Path, image: Path) -> None:
    path = str(folder / "host.sock")
    assert health(image, path) != ""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        assert health(image, path) != "", "a socket file without a listener"


@pytest.mark.long
def test_an_agent_starts_serves_and_stops(agent: Agent, broker: Broker) -> None:
    assert agent.told() == "READY=1"
    assert agent.health() == ""
    place = Path(agent.path)
    assert stat.S_IMODE(place.stat().st_mode) == 0o660
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o770

    assert produce(agent) == f'{{"accepted": {READINGS}}}'
    with broker.client() as client:
        values = client.read_arrow("host-demo").column("value").to_pylist()
    assert len(values) == READINGS

    agent.process.send_signal(signal.SIGTERM)
    stopping = agent.told().splitlines()
    assert stopping[0] == "STOPPING=1"
    drain_ms = int(setting(systemd(DEPLOY).serve, DRAIN))
    assert int(stopping[1].partition("=")[2]) > drain_ms * 1000
    stop_seconds = systemd(DEPLOY).stop_seconds
    assert stop_seconds is not None
    assert agent.process.wait(stop_seconds) == 0
    assert not place.exists()
    assert agent.health() != ""


def produce(agent: Agent) -> str:
    """Run the sample producer as the compose file does, for a few readings; what it printed."""
    producer = compose(DEPLOY).producer
    assert producer is not None
    words = replaced(producer.command, {SOCKET: agent.path})
    program = ROOT / "examples" / "host_producer.py"
    few = ("--interval", "0", "--count", str(READINGS))
    done = subprocess.run(
        script(agent.image, program, *words, *few),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
