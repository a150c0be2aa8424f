"""Benchmark of the throughput of many records, in both directions, and of the broker's CPU time.

Throughput is in bytes of record values, with the columnar client. Client and broker share the cores
of this host.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from penstock.apps.bench.broker import Bed
from penstock.apps.bench.steps import Figures, Step
from penstock.apps.loads.figures import one_record, values
from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.client.protocol import Node


PARTITIONS: Final = 4
PILOT_BYTES: Final = 4 << 20
PILOT_GROWTH: Final = 4
PILOT_SHARE: Final = 0.25
"""Part of a run's time that the pilot run must take at least; a shorter one would time a single
batch.
"""
RUN_BYTES_MIN: Final = 1 << 20
RUN_BYTES_MAX: Final = 256 << 20
"""Most bytes of values in one run. Its topic is deleted before the next run begins."""
DISKLESS_BYTES_MAX: Final = 64 << 20
"""Most bytes of values in one run of a diskless topic, whose objects remain after the deletion of
the topic until a broker sweeps them.
"""
KIBIBYTE: Final = 1_024
SMALL_BYTES: Final = 100
_LOCAL: Final[Mapping[str, str]] = {}

_now = SYSTEM_CLOCK.monotonic


class Load:
    """Benchmark of one topic: produces tables of values and, with `read`, consumes them.

    Its figures are named `<stem>produce_<infix>mb_per_s` and `<stem>produce_<infix>cpu_s_per_gb`,
    and with `consume` in place of `produce`.
    """

    def __init__(
        self,
        bed: Bed,
        *,
        value_bytes: int = KIBIBYTE,
        partitions: int = PARTITIONS,
        stem: str = "",
        infix: str = "",
        read: bool = False,
        run_bytes_max: int = RUN_BYTES_MAX,
        configs: Mapping[str, str] = _LOCAL,
    ) -> None:
        self._bed = bed
        self._value_bytes = value_bytes
        self._partitions = partitions
        self._names = {way: f"{stem}{way}_{infix}" for way in ("produce", "consume")}
        self._read = read
        self._run_bytes_max = run_bytes_max
        self._configs = configs
        self._rate = 0.0

    def run(self, seconds: float) -> Figures:
        """Run the load once, for about `seconds`, and return its figures."""
        if not self._rate:
            self._pilot(seconds)
        share = 2 if self._read else 1
        size_bytes = min(max(self._rate * seconds / share, RUN_BYTES_MIN), self._run_bytes_max)
        return self._once(int(size_bytes), read=self._read)

    def _pilot(self, seconds: float) -> None:
        """Measure the produce rate with growing amounts; `run` derives the size of runs from it."""
        size_bytes, elapsed = PILOT_BYTES // PILOT_GROWTH, 0.0
        while elapsed < seconds * PILOT_SHARE and size_bytes < self._run_bytes_max:
            size_bytes = min(size_bytes * PILOT_GROWTH, self._run_bytes_max)
            self._once(size_bytes, read=False)
            elapsed = size_bytes / self._rate

    def _once(self, size_bytes: int, *, read: bool) -> Figures:
        table = values(self._value_bytes, size_bytes)
        found: dict[str, float] = {}
        with self._bed.topic(self._partitions, self._configs) as topic:
            self._rate = self._timed(
                "produce", table.num_rows, lambda: self._bed.client.write_arrow(topic, table), found
            )
            if read:
                self._timed(
                    "consume", table.num_rows, lambda: self._consume(topic, table.num_rows), found
                )
        return found

    def _timed(
        self, way: str, records: int, work: Callable[[], object], found: dict[str, float]
    ) -> float:
        """Time `work`, which produces or consumes `records`; return its bytes of values per second.

        Adds the throughput and the broker's CPU time per GB to `found`. `way` is `produce` or
        `consume`.
        """
        size_bytes = records * self._value_bytes
        cpu_before, began = self._bed.cpu_seconds(), _now()
        work()
        rate = size_bytes / (_now() - began)
        cpu_after = self._bed.cpu_seconds()
        found[f"{self._names[way]}mb_per_s"] = rate / 1e6
        if cpu_before is not None and cpu_after is not None:
            found[f"{self._names[way]}cpu_s_per_gb"] = (cpu_after - cpu_before) / size_bytes * 1e9
        return rate

    def _consume(self, topic: str, expected: int) -> None:
        batches = self._bed.client.iter_arrow(topic, columns=("value",))
        found = sum([batch.num_rows for batch in batches])
        if found != expected:
            raise UnavailableError(f"topic {topic}: read {found} of {expected} records")

    def hows(self, where: str) -> dict[str, str]:
        """Return for each figure the description of how it is measured, for the calibration.

        `where` names the kind of topic.
        """
        partitions = "1 partition" if self._partitions == 1 else f"{self._partitions} partitions"
        what = f"values of {self._value_bytes} B over {partitions} of {where}"
        ways = {
            "produce": f"columnar client, acks=all, no compression, {what}",
            "consume": f"columnar client, from the start of the records just written: {what}",
        }
        return {
            f"{self._names[way]}{figure}": f"{said}{how}"
            for way, how in ways.items()
            for figure, said in (("mb_per_s", ""), ("cpu_s_per_gb", "CPU time of the broker; "))
        }


def load_steps(bed: Bed, *, where: str) -> list[Step]:
    loads = {
        "1 KiB values": (0.16, Load(bed, read=True)),
        "100 B values": (0.16, Load(bed, value_bytes=SMALL_BYTES, infix="100b_", read=True)),
        "one partition": (0.08, Load(bed, partitions=1, stem="partition_")),
    }
    return [
        Step(label=label, share=share, run=load.run, hows=load.hows(where))
        for label, (share, load) in loads.items()
    ]


def diskless_step(bed: Bed, *, where: str) -> Step:
    load = Load(
        bed, stem="diskless_", run_bytes_max=DISKLESS_BYTES_MAX, configs={"diskless.enable": "true"}
    )
    return Step(label="diskless produce", share=0.08, run=load.run, hows=load.hows(where))


# Benchmark of small produce requests per second, from many producers.
#
# Every connection has one request in flight, like a producer that waits for its acknowledgement.
# When the answer arrives, the connection sends the same request again. The figure therefore covers
# the broker's whole path, from the socket to the synced journal and back. One commit of the journal
# may contain a request of every connection. Each answer is decoded and checked for errors.


CONNECTIONS: Final = 64
WARM_UP_REQUESTS: Final = 2 * CONNECTIONS


def request_step(bed: Bed, *, where: str) -> Step:
    how = (
        f"answered produce requests a second, each with one record of {SMALL_BYTES} B, acks=all;"
        f" over {CONNECTIONS} connections with one request in flight each, to partitions of"
        f" {where} that one broker leads"
    )
    return Step(
        label="small requests",
        share=0.08,
        run=lambda seconds: _answered(bed, seconds),
        hows={"requests_per_s": how},
    )


def _answered(bed: Bed, seconds: float) -> Figures:
    from penstock.client.connection import Connection
    from penstock.client.produce import Batch, ProduceRequest, produce_call

    with bed.topic(PARTITIONS) as topic, ExitStack() as stack:
        node, led = _led_by_one(bed, topic)
        record = one_record(SMALL_BYTES).data
        crowd = selectors.DefaultSelector()
        stack.callback(crowd.close)
        for number in range(CONNECTIONS):
            connection = Connection(
                node.host,
                node.port,
                client_id="penstock-bench",
                timeout_ms=bed.timeout_ms,
                connect_timeout_ms=bed.timeout_ms,
            )
            stack.enter_context(closing(connection))
            batch = Batch(partition=led[number % len(led)], data=record, record_count=1)
            call = produce_call(
                ProduceRequest(node.node_id, (batch,)),
                topic=topic,
                acks=-1,
                timeout_ms=bed.timeout_ms,
                correlation_id=number,
                client_id=connection.client_id,
            )
            crowd.register(connection, selectors.EVENT_READ, (connection, call))
            connection.send(call)
        _asked_again(crowd, bed.timeout_ms, WARM_UP_REQUESTS, _now())
        began = _now()
        count = _asked_again(crowd, bed.timeout_ms, 0, began + seconds)
        return {"requests_per_s": count / (_now() - began)}


def _led_by_one(bed: Bed, topic: str) -> tuple[Node, list[int]]:
    """Return the leader of partition 0, and the indexes of all partitions that it leads.

    The benchmark of small requests produces only to these, so that it measures one broker.
    """
    known = bed.client.metadata([topic])
    partitions = known.topics[topic].partitions
    node = known.nodes.get(partitions[0].leader)
    if node is None:
        raise UnavailableError(f"partition 0 of topic {topic} has no leader")
    return node, [partition.index for partition in partitions if partition.leader == node.node_id]


def _asked_again(
    crowd: selectors.BaseSelector, timeout_ms: int, at_least: int, until: float
) -> int:
    """Repeat the produce request of every connection; return the number of successful answers.

    When a connection receives an answer, it sends the same request again. The function returns at
    the time `until`, but not before `at_least` answers. Answers with a retriable error are not
    counted, such as those of a broker that does not have the new topic yet.

    Raises:
        PenstockError: a request was rejected, or too few answers arrived within the timeout.
    """
    from penstock.client.errors import broker_error, is_retriable
    from penstock.client.produce import read_acknowledgements

    count, deadline = 0, until + timeout_ms / 1000
    while count < at_least or _now() < until:
        ready = crowd.select(max(0.0, deadline - _now()))
        if not ready or _now() > deadline:
            raise UnavailableError(f"only {count} requests were answered within {timeout_ms} ms")
        for key, _ in ready:
            connection, call = key.data
            for answer in read_acknowledgements(connection.receive()).values():
                if answer.error_code and not is_retriable(answer.error_code):
                    raise broker_error(answer.error_code, "produce of one record", answer.message)
                count += not answer.error_code
            connection.send(call)
    return count
