"""`penstock host bench`: what an agent takes, beside what its socket could do at all.

The raw figures are of the same run and the same sizes: one process writes to a Unix socket pair
as fast as it can, the other reads; and one sends 64 bytes that the other sends back.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from penstock.apps.host.command import socket_option
from penstock.apps.session import State, output_option, show_facts
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.host import HostClient
    from penstock.host.client.futures import PublishFuture

BUFFER_BYTES: Final = 4 << 20
ECHO_BYTES: Final = 64
FRAMES_WAITING_MAX: Final = 64
ROUND_TRIPS_MAX: Final = 20_000


@click.command("bench", short_help="Measure an agent.")
@socket_option
@click.option("--topic", default="", help="Topic of the chunks; the log sink needs one.")
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--size", type=click.IntRange(1, 8 << 20), default=65_536, show_default=True,
    help="Payload bytes of one frame.",
)  # fmt: skip
@click.option(
    "--chunks", type=click.IntRange(1, 4096), default=64, show_default=True,
    help="Chunks of one frame.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=2.0, show_default=True,
    help="Duration of each of the four parts.",
)  # fmt: skip
@click.option(
    "--ring", type=click.IntRange(min=0), default=0, show_default=True,
    help="Bytes of shared memory for payloads.",
)  # fmt: skip
@output_option
def bench(
    state: State,
    path: str,
    topic: str,
    partition: int,
    size: int,
    chunks: int,
    seconds: float,
    ring: int,
) -> None:
    """Measure throughput and round trips, and the raw socket's beside them."""
    raw_bytes_per_second = _raw_throughput(size, seconds)
    raw_trips = _raw_round_trips(seconds)
    from penstock.host import HostClient

    topics = (topic,) if topic else ()
    client = HostClient(path, topics=topics, ring_bytes=ring, client_name="penstock host bench")
    target = _Target(topic, partition if topic else None)
    with client:
        client.wait_started()
        bytes_per_second = _throughput(client, target, _pieces(size, chunks), seconds)
        trips = _round_trips(client, target, seconds)
    results = {
        "frame_bytes": size,
        "chunks_per_frame": chunks,
        "megabytes_per_second": round(bytes_per_second / 1e6, 1),
        "chunks_per_second": round(bytes_per_second / size * chunks),
        "raw_megabytes_per_second": round(raw_bytes_per_second / 1e6, 1),
        "ratio_of_raw": round(bytes_per_second / raw_bytes_per_second, 3),
        "round_trip_p50_us": _microseconds(trips, 0.5),
        "round_trip_p99_us": _microseconds(trips, 0.99),
        "raw_round_trip_p50_us": _microseconds(raw_trips, 0.5),
        "raw_round_trip_p99_us": _microseconds(raw_trips, 0.99),
    }
    show_facts(state, results, ("figure", "value"))


class _Target(NamedTuple):
    topic: str
    partition: int | None


def _throughput(client: HostClient, target: _Target, pieces: list[bytes], seconds: float) -> float:
    """Payload bytes per second, the last answer included."""
    size, sent = sum(map(len, pieces)), 0
    waiting: deque[PublishFuture] = deque()
    now = SYSTEM_CLOCK.monotonic
    began = now()
    while now() - began < seconds:
        waiting.append(client.publish_batch(pieces, topic=target.topic, partition=target.partition))
        sent += size
        if len(waiting) > FRAMES_WAITING_MAX:
            waiting.popleft().result()
    for future in waiting:
        future.result()
    return sent / (now() - began)


def _round_trips(client: HostClient, target: _Target, seconds: float) -> list[float]:
    payload, trips, now = b"x" * ECHO_BYTES, list[float](), SYSTEM_CLOCK.monotonic
    began = now()
    while now() - began < seconds and len(trips) < ROUND_TRIPS_MAX:
        start = now()
        client.send(payload, topic=target.topic, partition=target.partition)
        trips.append(now() - start)
    return trips


def _pieces(size: int, count: int) -> list[bytes]:
    """So many chunks, which are `size` bytes together."""
    count = min(count, size)
    cuts = [size * index // count for index in range(count + 1)]
    return [b"x" * (end - start) for start, end in pairwise(cuts)]


def _microseconds(trips: list[float], quantile: float) -> float:
    ordered = sorted(trips)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] * 1e6, 1)


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return pair


def _raw_throughput(size: int, seconds: float) -> float:
    near, far = _pair()
    child = os.fork()
    if not child:
        near.close()
        buffer = bytearray(1 << 20)
        while far.recv_into(buffer):
            pass
        os._exit(0)
    far.close()
    payload, sent, now = b"x" * size, 0, SYSTEM_CLOCK.monotonic
    began = now()
    while now() - began < seconds:
        near.sendall(payload)
        sent += size
    near.close()
    os.waitpid(child, 0)
    return sent / (now() - began)


def _raw_round_trips(seconds: float) -> list[float]:
    near, far = _pair()
    child = os.fork()
    if not child:
        near.close()
        while piece := far.recv(ECHO_BYTES):
            far.sendall(piece)
        os._exit(0)
    far.close()
    payload, now = b"x" * ECHO_BYTES, SYSTEM_CLOCK.monotonic
    trips: list[float] = []
    began = now()
    while now() - began < seconds and len(trips) < ROUND_TRIPS_MAX:
        start = now()
        near.sendall(payload)
        near.recv(ECHO_BYTES, socket.MSG_WAITALL)
        trips.append(now() - start)
    near.close()
    os.waitpid(child, 0)
    return trips
