"""Command `penstock host bench`: throughput and round trips of an agent, and of a raw Unix socket.

The raw figures come from the same run, with the same sizes. For throughput one process writes to a
socket pair and another reads. For round trips one process sends 64 bytes, which the other returns.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from penstock.apps.client.session import Number, State, default_option, output_option, show_facts
from penstock.apps.host.command import socket_option
from penstock.apps.loads.figures import percentile
from penstock.apps.loads.unix_socket import RawLimit, echo, forked, take
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.host import HostClient
    from penstock.host.client.futures import PublishFuture

ECHO: Final = b"x" * 64
RAW_BYTES: Final = 64 << 20
"""Bytes written to the raw socket for each answer of the reading process."""
READ_BYTES: Final = 1 << 20
FRAMES_WAITING_MAX: Final = 64
ROUND_TRIPS_MAX: Final = 20_000


@click.command("bench", short_help="Measure an agent.")
@socket_option
@click.option(
    "--topic", default="", help="Topic to send chunks to; required if the agent has the log sink."
)
@default_option(
    "--partition", 0, "Partition to send chunks to, if a topic is given.", click.IntRange(min=0)
)
@default_option("--size", 65_536, "Size of a frame's payload in bytes.", click.IntRange(1, 8 << 20))
@default_option("--chunks", 64, "Number of chunks in a frame.", click.IntRange(1, 4096))
@default_option(
    "--seconds", 2.0, "Duration of each of the four measurements in seconds.", Number(0.1, 600)
)
@default_option(
    "--ring",
    0,
    "Size of the ring in shared memory for payloads, in bytes; 0 sends them over the socket.",
    click.IntRange(min=0),
)
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
    """Measure throughput and round trips of an agent, and compare them with a raw Unix socket.

    The agent passes the chunks to its sink: the log sink appends them to the topic.
    """
    raw_bytes_per_second = _raw_throughput(size, seconds)
    raw_trips = _raw_round_trips(seconds)
    from penstock.host import HostClient

    topics = (topic,) if topic else ()
    client = HostClient(path, topics=topics, ring_bytes=ring, client_name="penstock host bench")
    target = _Target(topic, partition if topic else None)
    with client:
        client.wait_started()
        bytes_per_second = _throughput(client, target, _pieces(size, chunks), seconds)
        send = partial(client.send, ECHO, topic=target.topic, partition=target.partition)
        trips = _round_trips(send, seconds)
    results = {
        "frame_bytes": size,
        "chunks_per_frame": chunks,
        "megabytes_per_second": round(bytes_per_second / 1e6, 1),
        "chunks_per_second": round(bytes_per_second / size * chunks),
        "raw_megabytes_per_second": round(raw_bytes_per_second / 1e6, 1),
        "ratio_of_raw": round(bytes_per_second / raw_bytes_per_second, 3),
        "round_trip_p50_us": round(percentile(trips, 0.5) * 1e6, 1),
        "round_trip_p99_us": round(percentile(trips, 0.99) * 1e6, 1),
        "raw_round_trip_p50_us": round(percentile(raw_trips, 0.5) * 1e6, 1),
        "raw_round_trip_p99_us": round(percentile(raw_trips, 0.99) * 1e6, 1),
    }
    show_facts(state, results, ("figure", "value"))


class _Target(NamedTuple):
    topic: str
    partition: int | None


def _throughput(client: HostClient, target: _Target, pieces: list[bytes], seconds: float) -> float:
    """Send chunks for `seconds`; return payload bytes per second until all are acknowledged."""
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


def _round_trips(there_and_back: Callable[[], object], seconds: float) -> list[float]:
    trips, now = list[float](), SYSTEM_CLOCK.monotonic
    began = now()
    while now() - began < seconds and len(trips) < ROUND_TRIPS_MAX:
        start = now()
        there_and_back()
        trips.append(now() - start)
    return trips


def _pieces(size: int, count: int) -> list[bytes]:
    """Return up to `count` chunks with `size` bytes in total."""
    count = min(count, size)
    cuts = [size * index // count for index in range(count + 1)]
    return [b"x" * (end - start) for start, end in pairwise(cuts)]


def _raw_throughput(size: int, seconds: float) -> float:
    payload, now = b"x" * size, SYSTEM_CLOCK.monotonic
    count = max(1, RAW_BYTES // size)
    with forked(take) as connection:
        limit, sent, began = RawLimit(connection), 0, now()
        while now() - began < seconds:
            limit.write(payload, count, READ_BYTES)
            sent += size * count
        return sent / (now() - began)


def _raw_round_trips(seconds: float) -> list[float]:
    with forked(echo) as connection:

        def there_and_back() -> None:
            connection.sendall(ECHO)
            connection.recv(len(ECHO), socket.MSG_WAITALL)

        return _round_trips(there_and_back, seconds)
