"""Compressed batches that a broker has to open, and what they cost other clients: p99 of a record.

A client produces a record every 5 ms and fetches it, alone and while another client sends produce
requests of 20 batches each to a compacted topic, again and again:

* bombs: 0.9 MB of gzip that unpack to 900 MiB, which the broker refuses;
* headers: 4 kB of gzip with 20 million empty headers, which it stores.

The same requests are sent to a topic that is not there too, so that the broker receives them and
opens nothing. The sender shares the cores with client and broker, so each load is measured at
another broker of the machine as well (`peers.beside`).

Prediction: the loop receives 18 MB, 256 KiB at a time, and a process of lower priority opens them.
So opening adds little to receiving, 1.5 times, on cores that nothing else occupies. Receiving and
sending 18 MB on two cores cost four times the p99 alone.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any, Final

from tests.broker.wire_client import WireClient
from tests.records.nonsense import framed, sealed
from tests.records.reference import varint

from benchmarks.harness import Row
from benchmarks.peers.beside import ELSEWHERE, HERE, compared_rows, load_makers
from benchmarks.peers.load import create_topic
from benchmarks.peers.steady_requests import Phase, steady_requests
from benchmarks.quotas import address_of
from penstock.apps.loads.figures import percentile
from penstock.records import Codec
from penstock.testing import Broker

STEADY, COMPACTED, UNKNOWN = "steady", "compacted", "not there"
BATCHES = 20
BOMB_BYTES = 900 << 20
HEADERS = 20_000_000
SETTLE_SECONDS = 0.5
ALONE, NOT_OPENED = "without them", "the same to a topic that is not there"
PREDICTED_TIMES: Final = {NOT_OPENED: 1.5, ALONE: 4.0}
AIM_TIMES = 2.0


def bomb() -> bytes:
    """A batch that unpacks to 900 MiB of zeros."""
    return sealed(bytes(BOMB_BYTES), 1, codec=Codec.GZIP)


def headers() -> bytes:
    """A batch of one record with a key and 20 million headers, each an empty name and value."""
    head = b"\0\0\0" + varint(1) + b"k" + varint(0) + varint(HEADERS)
    return sealed(framed(head + bytes(2 * HEADERS)), 1, codec=Codec.GZIP)


LOADS: Final[dict[str, Callable[[], bytes]]] = {"bombs": bomb, "20 million headers": headers}


_ByWay = dict[tuple[str, str], list[float]]


@cache
def batch_of(name: str) -> bytes:
    """The batch of a load, made once a process."""
    return LOADS[name]()


def request_of(name: str, topic: str) -> dict[str, Any]:
    """The produce request of a load to a topic."""
    rows = [{"index": number, "records": batch_of(name)} for number in range(BATCHES)]
    return {
        "acks": -1,
        "timeout": 60_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }


def prepare(name: str) -> None:
    """Make a load's batch beforehand: some seconds."""
    batch_of(name)


def send(name: str, topic: str, port: int, seconds: float) -> float:
    """Send such requests, one after the other; return how many were answered."""

    async def run() -> float:
        client = await WireClient.connect(("127.0.0.1", port))
        request = request_of(name, topic)
        answered, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            await client.call("Produce", 9, request)
            answered += 1
        await client.close()
        return answered

    return asyncio.run(run())


def measure(*, quick: bool) -> list[Row]:
    """Measure each load; return a row for each."""
    rounds, seconds = (1, 2.0) if quick else (3, 4.0)
    p99: _ByWay = defaultdict(list)
    answered: _ByWay = defaultdict(list)
    with ExitStack() as stack:
        pools = stack.enter_context(load_makers())
        brokers = [stack.enter_context(Broker(process=True, admin=False)) for _ in range(2)]
        ports = [address_of(broker.bootstrap)[1] for broker in brokers]
        for broker in brokers:
            compacted = {"cleanup.policy": "compact", "max.message.bytes": "2000000"}
            create_topic(broker.bootstrap, COMPACTED, BATCHES, compacted)
        create_topic(brokers[0].bootstrap, STEADY, 1)
        steady = stack.enter_context(steady_requests(ports[0], STEADY))
        steady.phase(time.monotonic(), 1.0)
        ways = {
            HERE: (COMPACTED, ports[0]),
            NOT_OPENED: (UNKNOWN, ports[0]),
            ELSEWHERE: (COMPACTED, ports[1]),
        }
        for name in LOADS:
            pools[HERE].apply(prepare, (name,))
        for _ in range(rounds):
            for name in LOADS:
                time.sleep(SETTLE_SECONDS)
                p99[name, ALONE].append(_p99(steady.phase(time.monotonic(), seconds)))
                for way, (topic, port) in ways.items():
                    running = pools[HERE].apply_async(send, (name, topic, port, seconds + 1))
                    begun = time.monotonic() + SETTLE_SECONDS
                    p99[name, way].append(_p99(steady.phase(begun, seconds)))
                    answered[name, way].append(running.get())
    return [row for name in LOADS for row in _rows(name, p99, answered)]


def _p99(phase: Phase) -> float:
    return percentile([record.produce + record.fetch for record in phase.taken], 0.99) * 1e3


def _rows(name: str, p99: _ByWay, answered: _ByWay) -> list[Row]:
    elsewhere = statistics.median(p99[name, ELSEWHERE])
    requests = ", ".join(
        f"{statistics.median(answered[name, way]):.0f} {words}"
        for way, words in ((HERE, "were answered"), (NOT_OPENED, "that are not opened"))
    )
    return compared_rows(
        f"p99 of a record's produce and fetch beside {name}",
        {way: p99[name, way] for way in (HERE, *PREDICTED_TIMES)},
        PREDICTED_TIMES,
        AIM_TIMES,
        f"requests: {requests}; the same at another broker: {elsewhere:.1f} ms",
    )
