"""`penstock serve --processes 2` as a process: one admin address, children that end, its directory.

Clients that work meanwhile are in `compat/test_processes.py`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.client.admin_http import AdminHttp, Body
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, refused, serving
from tests.ports import two_free_ports

READY = re.compile(r"penstock ready kafka=([0-9.:]+,[0-9.:]+) admin=(127\.0\.0\.1:\d+)\n")
PARTITIONS = 4
VALUES = pa.table({"value": [b"%d" % number for number in range(1_000)]})


def until(held: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not held():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@contextmanager
def two(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Client, AdminHttp]]:
    """Two brokers over a directory: the parent's process, a client, the admin address."""
    with serving(directory, *LOCAL, "--processes", "2") as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, (line, process.stderr.read() if process.stderr else "")
        with Client(found[1]) as client, AdminHttp(f"http://{found[2]}") as admin:
            yield process, client, admin


@contextmanager
def one(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    with (
        serving(directory, *LOCAL) as (process, line),
        Client(line.split("kafka=")[1].split(" ")[0]) as client,
    ):
        yield process, client


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes below the parent that run: the front, then the brokers, as they started."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split() if runs(int(word))]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stored(client: Client, topic: str) -> list[bytes]:
    return sorted(client.read_arrow(topic).column("value").to_pylist())


@pytest.mark.timeout(240)
def test_children_come_again_and_do_not_outlive_the_parent(tmp_path: Path) -> None:
    with two(tmp_path) as (parent, client, admin):
        created = client.create_topic("spread", PARTITIONS)
        assert {partition.leader for partition in created.partitions} == {1, 2}
        client.write_arrow("spread", VALUES)

        front, _, second = children(parent)
        os.kill(second, signal.SIGKILL)
        client.write_arrow("spread", VALUES)  # waits for it
        os.kill(front, signal.SIGKILL)
        until(lambda: not {front, second} & {*children(parent)}, "they are gone")
        until(lambda: len(children(parent)) == 3, "others run for them")
        assert admin.call("GET", "/readyz", timeout_seconds=TIMEOUT_SECONDS).status == 200

        left = children(parent)
        parent.kill()
        until(lambda: not any(runs(pid) for pid in left), "the children stop by themselves")
    with two(tmp_path) as (parent, client, _):
        assert stored(client, "spread") == sorted(VALUES["value"].to_pylist() * 2)
        status, said = refused("--data-dir", str(tmp_path), *LOCAL, "--processes", "2")
        assert status == 1
        assert f"process {parent.pid} runs brokers in it" in said
        parent.terminate()
        assert parent.wait(TIMEOUT_SECONDS) == 0
    status, said = refused("--data-dir", str(tmp_path), *LOCAL)
    assert status == 1
    assert (
        "have replicas on brokers 2, which this command does not start: start it with --processes 2"
        in said
    )


@pytest.mark.long
def test_a_directory_goes_from_one_process_to_two_and_back(tmp_path: Path) -> None:
    with one(tmp_path) as (process, client):
        client.create_topic("early", PARTITIONS)
        client.write_arrow("early", VALUES)
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    with two(tmp_path) as (parent, client, admin):
        client.write_arrow("early", VALUES)
        _check_the_admin_address(admin, client)
        status, said = refused("--data-dir", str(tmp_path), *LOCAL)
        assert status == 1
        assert "stop the broker that uses it, or choose another directory" in said
        client.delete_topic("spread")
        parent.send_signal(signal.SIGINT)
        assert parent.wait(TIMEOUT_SECONDS) == 0
    with one(tmp_path) as (_, client):
        assert stored(client, "early") == sorted(VALUES["value"].to_pylist() * 2)


def _check_the_admin_address(admin: AdminHttp, client: Client) -> None:
    def asked(method: str, path: str, body: Body | None = None) -> tuple[int, str]:
        answer = admin.ask(method, path, body, timeout_seconds=TIMEOUT_SECONDS)
        return answer.status, answer.content.decode()

    client.create_topic("spread", PARTITIONS)
    client.write_arrow("spread", VALUES)
    path = "/v1/topics/spread/partitions/{}/extents?start=0&end=1"
    assert {asked("GET", path.format(each))[0] for each in range(PARTITIONS)} == {200}
    status, text = asked("DELETE", "/v1/sinks/none")
    assert (status, "does not run here" in text or "resource_not_found" in text) == (404, True)
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    browser = HTTPConnection(urlsplit(admin.url).netloc, timeout=TIMEOUT_SECONDS)
    browser.request("DELETE", "/v1/sinks/none", headers={"Origin": "http://attacker.example"})
    assert browser.getresponse().status == 400
    browser.close()
    _, text = asked("GET", "/metrics")
    for broker in (1, 2):
        assert f'penstock_process_up{{broker="{broker}"}} 1.0' in text
        assert f'"node_id":{broker}' in asked("GET", f"/brokers/{broker}/v1/cluster")[1]
    for name in ("3", "x", "9" * 5_000):
        assert asked("GET", f"/brokers/{name}/v1/cluster")[0] == 404
    assert asked("GET", "/v1/topics/none")[0] == 404
    for path in ("/v1/groups", "/health", "/metrics"):
        assert asked("GET", path)[0] == 200
    assert asked("GET", "/v1/groups?limit=1")[0] == 400
    blob = Body(pieces=[bytes(1 << 20)] * 4, size_bytes=4 << 20)
    assert asked("PUT", "/v1/staging/blob", blob)[0] == 201
    assert asked("GET", "/brokers/1/v1/staging")[1] != asked("GET", "/brokers/2/v1/staging")[1]
    assert asked("POST", "/v1/sinks/q/commits/1", Body(pieces=[b"{"], size_bytes=1))[0] == 400


def test_a_broker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    port = two_free_ports() + 1
    with socket.create_server(("127.0.0.1", port)):
        words = ("--data-dir", str(tmp_path), "--processes", "2", "--admin", "127.0.0.1:0")
        status, said = refused(*words, "--listener", f"127.0.0.1:{port - 1}")
    assert status == 1
    first, last = said.splitlines()
    assert first.startswith(f"penstock: broker 2: cannot listen on 127.0.0.1:{port}: ")
    assert last == "penstock: broker 2 ended before all were ready"
