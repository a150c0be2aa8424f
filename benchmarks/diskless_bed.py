"""What the benchmarks of diskless topics stand on: an S3 server behind a slow network, brokers.

The S3 server is the one that the tests use, a gateway in Go over a directory of this machine. The
network before it delays what goes towards it, so that every request takes some milliseconds more;
it counts requests where they are sent. Server, network, broker and clients share the cores.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compat.servers import PenstockProcess
from tests.s3 import S3Server, s3_server

from benchmarks.peers.bare_client import BatchTemplate, Link, produced
from benchmarks.peers.process import PeerProcess

HISTORY_BATCH_RECORDS = 64
HISTORY_VALUE_BYTES = 1000
IN_FLIGHT = 8
HOUR_MS = 3_600_000


class RemoteStore:
    """A bucket behind a network whose latency can be set."""

    def __init__(self, s3: S3Server, network: PeerProcess) -> None:
        self._network = network
        self.url = s3.fresh_url()
        self.options = s3.options(f"http://127.0.0.1:{network.said}")
        self.near = s3.options()
        """The way past the network."""

    @property
    def configs(self) -> dict[str, str]:
        """The settings of a broker that uses it."""
        return self.configs_of(self.options)

    def configs_of(self, options: Mapping[str, str]) -> dict[str, str]:
        """The same on one of the ways to it."""
        text = ",".join(f"{name}={value}" for name, value in options.items())
        return {"diskless.storage.url": self.url, "diskless.storage.options": text}

    def slow(self, latency_ms: float) -> None:
        """Let each request take so much longer from now on."""
        self._network.ask(f"latency {latency_ms}")

    def forget(self) -> None:
        """Forget the requests so far."""
        self._network.ask("forget")

    def requests(self, verb: str) -> list[float]:
        """When requests of a verb were sent since the last `forget`, in monotonic seconds."""
        return [at for at, what in json.loads(self._network.ask("requests")) if what == verb]


@contextmanager
def remote_store(*, keep_alive: bool = False) -> Iterator[RemoteStore]:
    """An empty store, not slowed yet. By default it answers one request a connection."""
    server = s3_server(keep_alive=keep_alive)
    with server as s3, PeerProcess("benchmarks.peers.slow_network", str(s3.port)) as network:
        yield RemoteStore(s3, network)


@contextmanager
def broker(directory: Path, configs: Mapping[str, str]) -> Iterator[PenstockProcess]:
    """A running broker over a directory that may have been another's before."""
    process = PenstockProcess(directory, configs=configs).start()
    try:
        yield process
    finally:
        process.stop()


def port_of(process: PenstockProcess) -> int:
    """A broker's port on loopback."""
    return int(process.bootstrap.rpartition(":")[2])


def metrics(process: PenstockProcess) -> dict[str, float]:
    """A broker's metrics now, by name and labels as they are exposed."""
    with urllib.request.urlopen(f"{process.admin_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def write_history(port: int, topic: str, *, partitions: int, batches: int) -> int:
    """Fill a topic with so many batches per partition, an hour old; returns the bytes of one.

    Partitions are written in turn, so that objects hold a batch of each.
    """
    return asyncio.run(_write_history(port, topic, range(partitions), batches))


async def _write_history(port: int, topic: str, partitions: Sequence[int], count: int) -> int:
    template = BatchTemplate(HISTORY_BATCH_RECORDS, HISTORY_VALUE_BYTES)
    links = [await Link.open(port) for _ in partitions]
    written_ms = int(time.time() * 1000) - HOUR_MS
    size_bytes = 0
    for number in range(count + IN_FLIGHT):
        for partition, link in zip(partitions, links, strict=True):
            if number < count:
                request = template.request(topic, partition, timestamp_ms=written_ms)
                size_bytes = len(request)
                await link.send(request)
            if number >= IN_FLIGHT:
                produced(await link.receive())
    for link in links:
        link.close()
    return size_bytes
