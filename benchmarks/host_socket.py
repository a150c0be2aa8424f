"""The host socket: bytes, round trips and CPU of producer → agent, beside what the kernel allows.

Everything with the same payloads is measured in turn in one run. The agent is a process of its
own with the null sink; the producer is the blocking client. The raw limit is a writer that sends
payloads of the same size over a Unix stream socket, with the same buffers of 4 MiB, to a process
that reads them into one buffer and does nothing with them. Where nothing else is said, a payload is
sent again and again, so it lies in the cache for all contenders alike; fresh payloads are distinct
ones, more than the caches hold, for all alike.

Predictions, from first principles, written before the first measurement. A gigabyte is 10⁹ bytes.

Raw. A byte is copied twice, by the writer into pages that the kernel takes for it, and by the
reader out of them. Each copy is about 0.12 s/GB (8 GB/s), taking and freeing pages 0.05 s/GB on
each side, a call 1 µs. The two sides overlap on two cores: 0.17 to 0.20 s/GB, so 5 GB/s; writes of
64 KiB pay more in wake-ups: 4 GB/s.

DATA_BATCH, 100 chunks a frame. The producer does per frame: lengths 8 µs, header 5 µs, checks and
book-keeping 7 µs, a sendmsg with 101 pieces 10 µs, its share of answers 5 µs: 35 µs, and the copy.
The agent: receive 3 µs, prelude and header 5 µs, checks 10 µs, book-keeping and verdict 10 µs:
30 µs, and the copy. The slower side decides. 64 KiB: 35 µs + 12 µs = 1.4 GB/s, 0.35 of raw.
256 KiB: 35 µs + 45 µs = 3.3 GB/s, 0.65. 1 MiB: 35 µs + 180 µs = 4.9 GB/s, 0.95 of raw.

With the ring, the producer copies once, into memory that both have mapped (0.12 s/GB, no pages to
take), and the agent copies nothing. 1 MiB: 35 µs + 125 µs = 6.5 GB/s, 1.3 of raw; 256 KiB: 66 µs =
4 GB/s, 0.8 of raw; 64 KiB: 43 µs = 1.5 GB/s. A second slice of the same payload stays in the
cache (2 MiB for each core), which can double the copy's speed and bring 1 MiB to 2 of raw.

With payload checksums each side reads every byte once more, at 15 GB/s: 0.07 s/GB on each side, so
0.25 s/GB at 1 MiB: 4 GB/s, 0.75 of raw.

Agent's CPU: 0.17 s/GB for the copy and 30 µs a frame: 0.63 s/GB at 64 KiB, 0.2 at 1 MiB.

Answers: a burst of frames shares one ACCEPTED of about 24 bytes; even one for each frame is
24 / 65,536 = 0.04 % of the payload.

Round trip of 100 B. A blocking echo on one core is two switches and four calls: 10 µs. The client
adds header, checks, a future: 25 µs; the agent 30 µs. So 65 µs, 6 times the echo when both run on
one core, and 2 times where each wakes a sleeping core (50 µs). The aim of 1.5 is out of reach of
interpreted code beside an echo that does nothing, within reach beside one in uvloop on two cores.

DATA, one chunk a frame, saves the producer 15 µs and the agent 10: 64 KiB at 1.9 GB/s, 1 MiB at
5.1 GB/s. An Arrow array of a hundred chunks saves the producer the same 15 µs, with and without the
ring: its values lie in one piece, and its offsets are the lengths.

Bare frames (`peers/host_bare.py`) are what Python must do at least: describe the chunks, 6 µs for a
hundred, encode and check a header, 1.2 and 1.4 µs, copy and send, 9 to 11 µs for 64 KiB; an agent
that answers each receive. So 16 µs a frame at the producer, 4 GB/s if both sides had a core each,
and 20 µs for a round trip on one.

gRPC streams 64 KiB messages at 0.3 GB/s and 1 MiB messages at 0.6 GB/s (three copies more, flow
control of HTTP/2 in 64 KiB windows); HTTP posts 64 KiB in 0.5 ms and 1 MiB in 2 ms: 0.13 and
0.5 GB/s. So the socket streams 5 to 8 times as fast as gRPC.

The whole chain, events of 100 B, with an agent that appends to a broker that syncs: client 0.2 s
per million (a thousand pieces a frame), agent 0.05 s receive, 0.15 s encode, 0.05 s send, broker
0.25 s: 0.7 CPU seconds on two cores, so 1.5 M events/s; with record batches from the producer
(encode 0.1 s there; the agent checks and stamps, 0.1 s) 2 M events/s.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from benchmarks.harness import Row
from benchmarks.peers import grpc_stream, host_bare, http_ingest
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.round_trip import RoundTrip, on_one_core
from penstock.apps.loads.figures import interleaved
from penstock.apps.loads.unix_socket import RawLimit, connect
from penstock.client import Client
from penstock.host.client.blocking import HostClient
from penstock.host.client.futures import PublishFuture
from penstock.host.ring import Ring
from penstock.testing import Broker

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
FRAMES: Final = {"64 KiB": 64 * KIBIBYTE, "256 KiB": 256 * KIBIBYTE, "1 MiB": MEBIBYTE}
CHUNKS_PER_FRAME: Final = 100
READS: Final = {f"raw, reads of {size >> 10} KiB": size for size in (256 << 10, 1 << 20, 4 << 20)}
PIECES: Final = "raw, gathered from 100 pieces"
FRESH_BYTES: Final = 64 * MEBIBYTE
"""Distinct payloads sent in turn, more than the caches hold."""
RING_BYTES: Final = 4 * MEBIBYTE
"""Small enough to stay in the cache that both cores share."""
SMALL_BYTES: Final = 100
PARTITIONS: Final = 4
EVENTS_PER_FRAME: Final = 1_000

PARTS: Final = ("socket", "ring", "checksum", "fresh", "grpc", "http", "round_trip", "chain")
"""`PENSTOCK_BENCH_PARTS=socket,ring` chooses some of them; the raw limit is always measured."""

SINGLE, SOCKET, ARROW = "DATA", "DATA_BATCH", "DATA_BATCH of an Arrow array"
RING, RING_ARROW = f"{SOCKET} in the ring", f"{ARROW} in the ring"
CHECKSUM = "DATA_BATCH with checksums"
BARE, BARE_ARROW = "bare frames", "bare frames of an Arrow array"
BARE_RING, BARE_RING_ARROW = f"{BARE} in the ring", f"{BARE_ARROW} in the ring"
BARES: Final = {SOCKET: BARE, ARROW: BARE_ARROW, RING: BARE_RING, RING_ARROW: BARE_RING_ARROW}
"""Bare program of each contender: the same frames without a client."""
AIMS: Final = {
    (SOCKET, "64 KiB"): 0.5,
    (ARROW, "64 KiB"): 0.5,
    (RING, "256 KiB"): 1.5,
    (RING, "1 MiB"): 1.5,
    (RING_ARROW, "256 KiB"): 1.5,
    (RING_ARROW, "1 MiB"): 1.5,
}
"""Least ratios to the raw socket, by contender and size."""
ROUND_TRIP_AIM: Final = 25.0
"""Microseconds of the median on one core."""
_RING: Final = {"ring_bytes": RING_BYTES, "ring_payload_bytes_min": 1}
CLIENTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    SINGLE: ("socket", {}),
    SOCKET: ("socket", {}),
    ARROW: ("socket", {}),
    RING: ("ring", _RING),
    RING_ARROW: ("ring", _RING),
    CHECKSUM: ("checksum", {"checksum": True}),
}
"""Their parts, and what the producer is told."""
PREDICTIONS: Final[dict[str, dict[str, float]]] = {
    "raw": {"64 KiB": 4_000, "256 KiB": 5_000, "1 MiB": 5_000},
    SINGLE: {"64 KiB": 1_900, "256 KiB": 3_900, "1 MiB": 5_100},
    SOCKET: {"64 KiB": 1_400, "256 KiB": 3_300, "1 MiB": 4_900},
    ARROW: {"64 KiB": 1_900, "256 KiB": 3_900, "1 MiB": 5_100},
    RING: {"64 KiB": 1_500, "256 KiB": 4_000, "1 MiB": 6_500},
    RING_ARROW: {"64 KiB": 2_300, "256 KiB": 5_100, "1 MiB": 7_100},
    CHECKSUM: {"64 KiB": 1_300, "256 KiB": 2_800, "1 MiB": 4_000},
}
FRESH: Final = (SINGLE, SOCKET, ARROW, RING, RING_ARROW)
CPU_PREDICTIONS: Final[dict[str, dict[str, float]]] = {
    SINGLE: {"64 KiB": 0.47, "256 KiB": 0.25, "1 MiB": 0.19},
    SOCKET: {"64 KiB": 0.63, "256 KiB": 0.29, "1 MiB": 0.2},
    ARROW: {"64 KiB": 0.63, "256 KiB": 0.29, "1 MiB": 0.2},
    RING: {"64 KiB": 0.46, "256 KiB": 0.12, "1 MiB": 0.03},
    RING_ARROW: {"64 KiB": 0.46, "256 KiB": 0.12, "1 MiB": 0.03},
    CHECKSUM: {"64 KiB": 0.7, "256 KiB": 0.36, "1 MiB": 0.27},
}
CHAINS: Final = {
    "straight": ("a table by the Kafka client", 3.0),
    "chunks": (f"DATA_BATCH, {EVENTS_PER_FRAME:,} events of 100 B a frame", 1.5),
    "records": ("publish_records of a table", 2.0),
}
"""Topics of the chain: what they get, and how much of it is predicted."""
PEER_SIZES: Final = ("64 KiB", "1 MiB")
GRPC_SHARE, HTTP_SHARE = 4, 8
"""Peers are given a part of the bytes, since they take longer for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    payload_bytes: int
    runs: int
    fresh_runs: int
    round_trips: int
    events: int


QUICK: Final = Effort(
    payload_bytes=192 << 20, runs=3, fresh_runs=5, round_trips=1_000, events=300_000
)
FULL: Final = Effort(
    payload_bytes=768 << 20, runs=7, fresh_runs=15, round_trips=10_000, events=2_000_000
)


def measure(*, quick: bool, parts: Collection[str] = ()) -> list[Row]:
    """Rows for `parts`, by default for those that the environment names, or all of them."""
    chosen = parts or os.environ.get("PENSTOCK_BENCH_PARTS", ",".join(PARTS)).split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        raise ValueError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    effort = QUICK if quick else FULL
    rows: list[Row] = []
    with Stage(chosen) as stage:
        for size in FRAMES:
            rows += _throughput(stage, size, effort)
            if "fresh" in chosen:
                rows += _fresh(stage, size, effort)
        rows += _answers(stage)
        if "round_trip" in chosen:
            rows += _round_trips(stage, effort)
        if "chain" in chosen:
            rows += _chain(stage, effort)
    return rows


class Stage:
    """The processes of one run, and the producers' connections to them."""

    def __init__(self, parts: Collection[str]) -> None:
        self.parts = parts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            folder = tempfile.TemporaryDirectory(prefix="penstock-")
            self._folder = Path(stack.enter_context(folder))
            _, raw_path = self.process("penstock.apps.loads.unix_socket", "take")
            self.raw = RawLimit(connect(raw_path))
            stack.callback(self.raw.close)
            bare, bare_path = self.process("benchmarks.peers.host_bare")
            self.bare_pid = bare.pid
            self.bare = host_bare.Producer(bare_path)
            stack.callback(self.bare.close)
            self.agent, self.agent_path = self.process("benchmarks.peers.host_agent", "null")
            self.grpc: dict[str, grpc_stream.Producer] = {}
            self.pids = [self.agent.pid]
            if "grpc" in self.parts:
                for kind in ("sync", "aio"):
                    peer, path = self.process("benchmarks.peers.grpc_stream", kind)
                    self.pids.append(peer.pid)
                    self.grpc[f"gRPC, {kind} server"] = producer = grpc_stream.Producer(path)
                    stack.callback(producer.close)
            self.http: http_ingest.Producer | None = None
            if "http" in self.parts:
                server = stack.enter_context(PeerProcess("benchmarks.peers.http_ingest"))
                self.pids.append(server.pid)
                self.http = http_ingest.Producer(int(server.said))
                stack.callback(self.http.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def process(self, module: str, *arguments: str) -> tuple[PeerProcess, str]:
        """Start a peer; it and the path of its socket."""
        name = "-".join((module.rpartition(".")[2], *arguments)).replace(":", "-")
        path = str(self._folder / name)
        return self._stack.enter_context(PeerProcess(module, *arguments, path)), path


def _throughput(stage: Stage, size: str, effort: Effort) -> list[Row]:
    """Payload bytes a second with frames of one size, and the agent's CPU for them."""
    frame_bytes = FRAMES[size]
    count = effort.payload_bytes // frame_bytes
    cpu: dict[str, list[float]] = defaultdict(list)
    own: dict[str, list[float]] = defaultdict(list)
    chunks = _chunks(frame_bytes)
    whole, array = b"".join(chunks), pa.array(chunks, pa.binary())

    def ours(name: str, client: HostClient) -> Callable[[], float]:
        publish: Callable[[], PublishFuture] = (
            partial(client.publish, whole)
            if name == SINGLE
            else partial(client.publish_batch, array if name in (ARROW, RING_ARROW) else chunks)
        )

        def run() -> float:
            before, own_before = stage.agent.cpu_seconds(), time.process_time()
            begun = time.perf_counter()
            for _ in range(count):
                last = publish()
            client.flush()
            elapsed = time.perf_counter() - begun
            last.result()
            gigabytes = frame_bytes * count / 1e9
            cpu[name].append((stage.agent.cpu_seconds() - before) / gigabytes)
            own[name].append((time.process_time() - own_before) / gigabytes)
            return frame_bytes * count / elapsed / 1e6

        return run

    def raw(read_bytes: int) -> Callable[[], float]:
        return lambda: stage.raw.write(whole, count, read_bytes)

    contenders = {name: raw(read_bytes) for name, read_bytes in READS.items()}
    contenders[PIECES] = lambda: stage.raw.write_pieces(chunks, count, MEBIBYTE)
    with ExitStack() as clients:
        contenders[BARE] = partial(stage.bare.batches, chunks, count)
        contenders[BARE_ARROW] = partial(stage.bare.batches, array, count)
        if "ring" in stage.parts:
            ring = Ring.create(RING_BYTES)
            clients.callback(ring.close)
            contenders[BARE_RING] = partial(stage.bare.batches, chunks, count, ring)
            contenders[BARE_RING_ARROW] = partial(stage.bare.batches, array, count, ring)
        for name, (part, options) in CLIENTS.items():
            if part in stage.parts:
                client = HostClient(stage.agent_path, **options)
                clients.callback(client.close)
                client.wait_started()
                contenders[name] = ours(name, client)
        if size in PEER_SIZES:
            contenders |= _peers(stage, chunks, count)
        figures = interleaved(contenders, runs=effort.runs)
    return [*_limit_rows(size, figures, _medians(cpu), _medians(own)), *_peer_rows(size, figures)]


def _fresh(stage: Stage, size: str, effort: Effort) -> list[Row]:
    """Payloads that are not in the cache, as when an application has just made others."""
    frame_bytes = FRAMES[size]
    frames = [_chunks(frame_bytes, number) for number in range(FRESH_BYTES // frame_bytes)]
    wholes = [b"".join(chunks) for chunks in frames]
    arrays = [pa.array(chunks, pa.binary()) for chunks in frames]

    def ours(publish: Callable[[Any], PublishFuture], what: Sequence[Any]) -> float:
        begun = time.perf_counter()
        for future in [publish(payload) for payload in what]:
            future.result()
        elapsed = time.perf_counter() - begun
        return frame_bytes * len(what) / elapsed / 1e6

    with ExitStack() as stack:
        clients = {name: HostClient(stage.agent_path, **CLIENTS[name][1]) for name in FRESH}
        for client in clients.values():
            stack.callback(client.close)
            client.wait_started()
        contenders: dict[str, Callable[[], float]] = {
            "raw": partial(stage.raw.write_each, wholes, MEBIBYTE),
            SINGLE: partial(ours, clients[SINGLE].publish, wholes),
            SOCKET: partial(ours, clients[SOCKET].publish_batch, frames),
            ARROW: partial(ours, clients[ARROW].publish_batch, arrays),
            RING: partial(ours, clients[RING].publish_batch, frames),
            RING_ARROW: partial(ours, clients[RING_ARROW].publish_batch, arrays),
        }
        figures = interleaved(contenders, runs=effort.fresh_runs)
    return [
        Row(
            name=f"{name}, fresh payloads, {size}",
            value=figures[name],
            unit="MB/s",
            prediction=PREDICTIONS[name][size],
            reference=figures["raw"],
            reference_name="raw AF_UNIX, fresh payloads",
        )
        for name in FRESH
    ]


def _peers(stage: Stage, chunks: Sequence[bytes], count: int) -> dict[str, Callable[[], float]]:
    """gRPC and HTTP with the same payloads, gRPC with the same chunks too."""
    payload = b"".join(chunks)
    contenders: dict[str, Callable[[], float]] = {}
    for name, producer in stage.grpc.items():
        share = count // GRPC_SHARE
        contenders[f"{name}, bytes"] = partial(producer.payloads, payload, share)
        contenders[f"{name}, repeated bytes"] = partial(producer.batches, chunks, share)
    if stage.http is not None:
        contenders["HTTP"] = partial(stage.http.post, payload, count // HTTP_SHARE)
    return contenders


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


def _limit_rows(
    size: str, figures: dict[str, float], cpu: dict[str, float], own: dict[str, float]
) -> list[Row]:
    """The raw limit, and ours beside it."""
    best = max(READS, key=figures.__getitem__)
    rows = [
        Row(
            name=f"raw AF_UNIX, writes of {size}",
            value=figures[best],
            unit="MB/s",
            prediction=PREDICTIONS["raw"][size],
            note=", ".join(f"{name}: {figures[name]:,.0f}" for name in (*READS, PIECES)),
        )
    ]
    for name in cpu:
        rows += [
            Row(
                name=f"{name}, {size}",
                value=figures[name],
                unit="MB/s",
                prediction=PREDICTIONS[name][size],
                reference=figures[best],
                reference_name="raw AF_UNIX",
                aim_ratio=AIMS.get((name, size)),
                limit=_limit(name, size, figures, figures[best]),
                bare=figures.get(BARES.get(name, "")),
            ),
            Row(
                name=f"agent's CPU, {name}, {size}",
                value=cpu[name],
                unit="s/GB",
                prediction=CPU_PREDICTIONS[name][size],
                note=f"the producer's own: {own[name]:.2f} s/GB",
            ),
        ]
    rows += [
        Row(
            name=f"{name}, {size}",
            value=figures[name],
            unit="MB/s",
            reference=figures[best],
            reference_name="raw AF_UNIX",
        )
        for name in BARES.values()
        if name in figures
    ]
    return rows


def _limit(name: str, size: str, figures: dict[str, float], raw: float) -> str:
    """Return why an aim is out of reach, by the figures of this run; empty without an aim."""
    if (name, size) not in AIMS:
        return ""
    bare = figures[BARES[name]]
    least, own = FRAMES[size] / bare, FRAMES[size] / figures[name]
    return (
        f"A raw write of {size} takes {FRAMES[size] / raw:.1f} µs. The bare program, which only"
        f" describes, encodes, copies and answers frames in Python, takes {least:.1f} µs a frame"
        f" ({bare / raw:.2f} of raw). The client and its agent take {own:.1f} µs, with"
        " credit, order, what is kept to be sent again, time limits and checks."
    )


def _peer_rows(size: str, figures: dict[str, float]) -> list[Row]:
    """Like beside like: single payloads, chunks; of gRPC's two servers the better one."""
    rows = []
    for ours, ending in ((SINGLE, ", bytes"), (SOCKET, ", repeated bytes"), (SINGLE, "HTTP")):
        peers = [name for name in figures if name.endswith(ending)]
        if peers and ours in figures:
            best = max(peers, key=figures.__getitem__)
            rows.append(
                Row(
                    name=f"{ours}, {size}, beside {best.partition(',')[0]}",
                    value=figures[ours],
                    unit="MB/s",
                    prediction=PREDICTIONS[ours][size],
                    reference=figures[best],
                    reference_name=best,
                )
            )
    return rows


def _chunks(frame_bytes: int, number: int = 0) -> list[bytes]:
    """A hundred chunks that make the payload of frame `number`."""
    each = frame_bytes // CHUNKS_PER_FRAME
    payload = (bytes(range(248)) + number.to_bytes(8, "big")) * (frame_bytes // 256)
    cuts = [*range(0, each * CHUNKS_PER_FRAME, each), frame_bytes]
    return [payload[start:end] for start, end in pairwise(cuts)]


def _round_trips(stage: Stage, effort: Effort) -> list[Row]:
    """100 B there and an answer back, one at a time, on one core and wherever the kernel likes."""
    payload = bytes(SMALL_BYTES)
    together: dict[str, list[RoundTrip]] = defaultdict(list)
    apart: dict[str, list[RoundTrip]] = defaultdict(list)
    with ExitStack() as stack:
        client = HostClient(stage.agent_path)
        stack.callback(client.close)
        client.wait_started()
        contenders: dict[str, Callable[[], object]] = {"agent": partial(client.send, payload)}
        contenders[BARE] = partial(stage.bare.send, payload)
        pids = [*stage.pids, stage.bare_pid]
        for name in ("blocking", "uvloop"):
            peer, path = stage.process("penstock.apps.loads.unix_socket", name)
            pids.append(peer.pid)
            connection = stack.enter_context(connect(path))
            contenders[f"{name} echo"] = _echoed(connection, payload)
        for name, producer in stage.grpc.items():
            contenders[name] = partial(producer.send, payload)
        if stage.http is not None:
            contenders["HTTP"] = partial(stage.http.send, payload)
        for _ in range(effort.runs):
            with on_one_core(pids):
                for name, action in contenders.items():
                    together[name].append(_timed(action, effort.round_trips))
            for name, action in contenders.items():
                apart[name].append(_timed(action, effort.round_trips))
    return [
        *_round_trip_rows("one core", together, (65, 120)),
        *_round_trip_rows("any core", apart, (90, 200)),
    ]


def _echoed(connection: socket.socket, payload: bytes) -> Callable[[], object]:
    def action() -> None:
        connection.sendall(payload)
        left = len(payload)
        while left:
            left -= len(connection.recv(left))

    return action


def _timed(action: Callable[[], object], count: int) -> RoundTrip:
    clock = time.perf_counter_ns
    durations = []
    for _ in range(count // 10):
        action()
    for _ in range(count):
        begun = clock()
        action()
        durations.append((clock() - begun) / 1000)
    durations.sort()
    return RoundTrip(p50=statistics.median(durations), p99=durations[int(count * 0.99)])


def _round_trip_rows(
    place: str, trips: dict[str, list[RoundTrip]], predictions: tuple[float, float]
) -> list[Row]:
    rows = []
    for which, prediction in zip(("p50", "p99"), predictions, strict=True):
        middle = {
            name: statistics.median(getattr(trip, which) for trip in found)
            for name, found in trips.items()
        }
        aim = _round_trip_aim(middle) if (place, which) == ("one core", "p50") else {}
        rows += [
            Row(
                name=f"round trip of 100 B, {which}, {place}",
                value=middle["agent"],
                unit="µs",
                prediction=prediction,
                reference=middle[echo],
                reference_name=echo,
                lower_is_better=True,
                **(aim if echo == "blocking echo" else {}),
            )
            for echo in middle
            if echo != "agent"
        ]
    return rows


def _round_trip_aim(medians: dict[str, float]) -> dict[str, Any]:
    bare = medians[BARE]
    return {
        "aim_value": ROUND_TRIP_AIM,
        "limit": f"An echo takes {medians['blocking echo']:.1f} µs, the bare program, which only"
        f" encodes and decodes the two frames in Python, {bare:.1f}. The"
        f" {medians['agent'] - bare:.1f} µs above it are credit, order, what is kept to be sent"
        " again, time limits and checks of both sides.",
        "bare": bare,
    }


def _answers(stage: Stage) -> list[Row]:
    """What the agent said, of what it was sent, over the whole load."""
    figures = json.loads(stage.agent.ask("stats"))
    if not figures["bytes_in"]:
        return []
    return [
        Row(
            name="answers of the agent, of the bytes sent to it",
            value=100 * figures["bytes_out"] / figures["bytes_in"],
            unit="%",
            prediction=0.04,
        )
    ]


def _chain(stage: Stage, effort: Effort) -> list[Row]:
    """Events of 100 B from a producer through the agent to a broker that syncs."""
    events = [b"%0100d" % number for number in range(EVENTS_PER_FRAME)]
    column = pa.chunked_array([pa.array(events, pa.binary())] * (effort.events // EVENTS_PER_FRAME))
    data = pa.table({"value": column})
    with Broker(process=True) as broker, broker.client() as straight, ExitStack() as stack:
        for name in CHAINS:
            straight.create_topic(name, partitions=PARTITIONS)
        _, path = stage.process("benchmarks.peers.host_agent", broker.bootstrap)
        client = HostClient(path, topics=tuple(CHAINS))
        stack.callback(client.close)
        client.wait_started()
        contenders: dict[str, Callable[[], float]] = {
            "straight": partial(_wrote, straight, data),
            "chunks": partial(_published, client, events, effort.events),
            "records": partial(_published_records, client, data),
        }
        figures = interleaved(contenders, runs=effort.runs)
        for name in CHAINS:
            _check_count(straight, name, effort.events * effort.runs)
    return [
        Row(
            name=f"producer → agent → durable log, {CHAINS[key][0]}",
            value=figures[key],
            unit="M events/s",
            prediction=CHAINS[key][1],
            reference=figures["straight"],
            reference_name="the same table straight to the broker",
        )
        for key in ("chunks", "records")
    ]


def _wrote(client: Client, data: pa.Table) -> float:
    begun = time.perf_counter()
    client.write_arrow("straight", data)
    return float(data.num_rows) / (time.perf_counter() - begun) / 1e6


def _published(client: HostClient, events: list[bytes], count: int) -> float:
    begun = time.perf_counter()
    futures = [
        client.publish_batch(events, topic="chunks", partition=number % PARTITIONS)
        for number in range(count // len(events))
    ]
    client.flush()
    elapsed = time.perf_counter() - begun
    for future in futures:
        future.result()
    return count / elapsed / 1e6


def _published_records(client: HostClient, data: pa.Table) -> float:
    begun = time.perf_counter()
    futures = client.publish_records("records", data)
    client.flush()
    elapsed = time.perf_counter() - begun
    for future in futures:
        future.result()
    return float(data.num_rows) / elapsed / 1e6


def _check_count(client: Client, topic: str, expected: int) -> None:
    """What was accepted has to be there once."""
    found = sum(batch.num_rows for batch in client.iter_arrow(topic, columns=("value",)))
    if found != expected:
        raise RuntimeError(f"{topic}: {found} records of {expected}")
