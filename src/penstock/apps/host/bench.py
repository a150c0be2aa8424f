"""`penstock host bench`: throughput of an agent, compared with its raw socket.

The raw figures are of the same run and sizes: one process writes to a Unix socket pair and the
other reads; and one sends 64 bytes that the other returns.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from penstock.apps.host.command import socket_option
from penstock.apps.loads.figures import percentile
from penstock.apps.loads.unix_socket import RawLimit, echo, forked, take
from penstock.apps.session import Number, State, output_option, show_facts
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.host import HostClient
    from penstock.host.client.futures import PublishFuture

ECHO: Final = b"x" * 64
RAW_BYTES: Final = 64 << 20
"""Between two answers of the process that reads."""
READ_BYTES: Final = 1 << 20
FRAMES_WAITING_MAX: Final = 64
ROUND_TRIPS_MAX: Final = 20_000


@click.command("bench", short_help="Measure an agent.")
@socket_option
@click.option("--topic", default="", help="Topic of the chunks; the log sink needs one.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Partition of the chunks.",
)
@click.option(
    "--size", type=click.IntRange(1, 8 << 20), default=65_536, show_default=True,
    help="Payload bytes of one frame.",
)  # fmt: skip
@click.option(
    "--chunks", type=click.IntRange(1, 4096), default=64, show_default=True,
    help="Chunks of one frame.",
)  # fmt: skip
@click.option(
    "--seconds", type=Number(0.1, 600), default=2.0, show_default=True,
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
    """Measure throughput and round trips, and those of the raw socket."""
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
    """Return payload bytes per second, up to the last acknowledgement."""
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
    """Return chunks of `size` bytes in total."""
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
