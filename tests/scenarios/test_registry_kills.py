"""Three brokers on PostgreSQL serve the schema registry, and are killed and restarted in turn.

A client registers meanwhile, and repeats a request at the next broker when one does not answer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from compat.servers import PenstockProcess

from tests.ports import free_port

CLIENTS: Final = 3
SUBJECTS: Final = 10
REQUEST_SECONDS: Final = 5.0
REGISTRATION_SECONDS: Final = 60.0
"""Time limit of one registration, over all its attempts."""
PACE_SECONDS: Final = 0.12
"""Pause between a client's registrations, so that they last over many kills."""
AGREE_SECONDS: Final = 30.0
HEADERS: Final = {"content-type": "application/vnd.schemaregistry.v1+json"}


class Broker:
    """Broker process with its registry's address."""

    def __init__(self, number: int, directory: Path, control_url: str) -> None:
        self.port = free_port()
        configs = {
            "node.id": str(number),
            "control.url": control_url,
            "diskless.storage.url": f"file://{directory.parent / 'objects'}",
            "registry.enable": "true",
            "registry.listener": f"127.0.0.1:{self.port}",
        }
        self.process = PenstockProcess(directory, configs=configs)


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request; return the status and the decoded response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, body=sent, headers=HEADERS)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def text_of(number: int) -> str:
    """Return the text of one of the schemas, all of which are compatible with each other."""
    fields = [{"name": f"f{number}", "type": "int", "default": number}]
    return json.dumps({"type": "record", "name": "R", "fields": fields}, separators=(",", ":"))


class Client:
    """Client that registers schemas one after the other, whichever brokers live."""

    def __init__(self, ports: Sequence[int], first: int) -> None:
        self._ports = itertools.cycle([*ports[first:], *ports[:first]])
        self._port = next(self._ports)
        self.ids: dict[str, int] = {}
        self.retries = 0

    def register(self, number: int) -> None:
        text = text_of(number)
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while True:
            status, answer = self._once(number, text)
            if status == 200:
                self.ids[text] = answer["id"]
                return
            assert status in (0, 503), f"registration {number} got {status}: {answer}"
            assert time.monotonic() < deadline, f"registration {number} got no answer: {answer}"
            self.retries += 1
            self._port = next(self._ports)

    def _once(self, number: int, text: str) -> tuple[int, Any]:
        path = f"/subjects/s{number % SUBJECTS}/versions"
        try:
            return ask(self._port, "POST", path, {"schema": text})
        except (OSError, http.client.HTTPException, ValueError) as error:
            return 0, error


@pytest.fixture
def brokers(tmp_path: Path, postgres_url: str) -> Iterator[list[Broker]]:
    made = [Broker(number, tmp_path / f"{number}", postgres_url) for number in (1, 2, 3)]
    with ExitStack() as stack:
        for broker in made:
            stack.enter_context(broker.process)
        yield made


def kill_in_turn(brokers: Sequence[Broker], ended: threading.Event) -> int:
    """Kill and restart one broker after the other until `ended`; return the number of kills."""
    chance = random.Random(7)
    for kills, broker in enumerate(itertools.cycle(brokers)):
        if ended.wait(chance.uniform(0.05, 0.3)):
            return kills
        broker.process.kill()
        ended.wait(chance.uniform(0.0, 0.3))
        broker.process.start()
    raise AssertionError


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "registrations", [90, pytest.param(1_000, marks=pytest.mark.long)], ids=["sample", "all"]
)
def test_registrations_outlive_the_brokers(brokers: list[Broker], registrations: int) -> None:
    ended = threading.Event()
    ports = [broker.port for broker in brokers]
    clients = [Client(ports, first) for first in range(CLIENTS)]

    def run(client: Client, first: int) -> None:
        for number in range(first, registrations, CLIENTS):
            client.register(number)
            ended.wait(PACE_SECONDS)

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        killing = pool.submit(kill_in_turn, brokers, ended)
        try:
            for running in [pool.submit(run, client, n) for n, client in enumerate(clients)]:
                running.result()
        finally:
            ended.set()
        kills = killing.result()
    assert kills >= registrations // 90
    assert sum(client.retries for client in clients), "no client met a killed broker"
    for client in clients:
        ids = list(client.ids.values())
        assert ids == sorted(set(ids)), "the ids that one client gets only grow"
    ids_by_text = {text: found for client in clients for text, found in client.ids.items()}
    assert len(ids_by_text) == registrations
    assert len(set(ids_by_text.values())) == registrations, "no id names two schemas"
    check_agreement(ports, ids_by_text)


def check_agreement(ports: Sequence[int], ids_by_text: dict[str, int]) -> None:
    """Check that all brokers have exactly the registered schemas, without gaps in versions."""
    expected = sorted((found, text) for text, found in ids_by_text.items())
    for port in ports:
        deadline = time.monotonic() + AGREE_SECONDS
        listed: list[Any] = []
        while len(listed) != len(expected) and time.monotonic() < deadline:
            status, listed = ask(port, "GET", "/schemas?deleted=true")
            assert status == 200
        assert sorted((found["id"], found["schema"]) for found in listed) == expected
        versions: dict[str, list[int]] = {}
        for found in listed:
            versions.setdefault(found["subject"], []).append(found["version"])
        assert all(own == list(range(1, len(own) + 1)) for own in versions.values())
