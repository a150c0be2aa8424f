"""The broker of the compose file: its command, its health check and the topic, from the image."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client
from tests.deploy.agreement import compose, option
from tests.deploy.files import COMPOSE, DEPLOY, documents
from tests.deploy.image import command

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    found: dict[str, Any] = documents(DEPLOY / COMPOSE)[0]["services"]["broker"]
    return found


@pytest.fixture
def broker(service: dict[str, Any], image: Path, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Its address and process; what the file says of places and ports is replaced."""
    here = {
        "/var/lib/penstock": str(tmp_path),
        "0.0.0.0:9092": "127.0.0.1:0",
        "127.0.0.1:9644": "127.0.0.1:0",
        "advertised.listeners=PLAINTEXT://broker:9092": "num.partitions=1",
    }
    assert set(here) <= set(service["command"])
    words = [here.get(word, word) for word in service["command"]]
    with subprocess.Popen(command(image, *words), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("penstock ready kafka=")
            yield line.split()[2].partition("=")[2], process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()


def health(service: dict[str, Any], image: Path, address: str) -> int:
    kind, name, *words = service["healthcheck"]["test"]
    assert (kind, name) == ("CMD", "penstock")
    words[words.index("127.0.0.1:9092")] = address
    return subprocess.run(
        command(image, *words), capture_output=True, timeout=SECONDS_MAX, check=False
    ).returncode


def test_a_broker_that_runs_is_healthy(
    service: dict[str, Any], image: Path, broker: tuple[str, int]
) -> None:
    assert health(service, image, broker[0]) == 0


def test_the_producer_finds_its_topic(image: Path, broker: tuple[str, int]) -> None:
    words = documents(DEPLOY / COMPOSE)[0]["services"]["topic"]["command"]
    here = [broker[0] if word == "broker:9092" else word for word in words]
    for _ in range(2):  # as often as the file is brought up
        subprocess.run(command(image, *here), check=True, timeout=SECONDS_MAX)
    producer = compose(DEPLOY).producer
    assert producer is not None
    with Client(broker[0]) as client:
        assert client.read_arrow(option(producer.command, "--topic")).num_rows == 0


def test_one_that_does_not_is_not(service: dict[str, Any], image: Path) -> None:
    assert health(service, image, "127.0.0.1:1") != 0
