"""What a broker does with records: throughput in both directions, its CPU for it, and latencies.

Throughput is that of the columnar client, in bytes of record values; client and broker share this
host's cores. Latencies are of single records at random moments, as of many independent producers,
and count from the moment at which a record is due: one that has to wait counts as slow. Their event
loop waits by `select`, whose timers are finer than the millisecond of `epoll`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.bench_broker import Bed
from penstock.apps.bench_machine import noise
from penstock.apps.bench_steps import Figures, Step, quantile_hows, quantiles_ms
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.lanes import Lane, Pieces

PARTITIONS: Final = 4
PILOT_BYTES: Final = 4 << 20
PILOT_GROWTH: Final = 4
PILOT_SHARE: Final = 0.25
"""Of a run's time that a pilot must take, so that its rate is not that of a single batch."""
RUN_BYTES_MIN: Final = 1 << 20
RUN_BYTES_MAX: Final = 256 << 20
"""Values of one run; the topic of a run is deleted before the next begins."""
DISKLESS_BYTES_MAX: Final = 64 << 20
"""Likewise; but the objects of a deleted topic stay until they are swept."""
CHUNK_RECORDS: Final = 1_000
KIBIBYTE: Final = 1_024
SMALL_BYTES: Final = 100
RECORDS_PER_SECOND: Final = 200.0
RECORDS_MIN: Final = 10
WARM_UP_RECORDS: Final = 5
_LOCAL: Final[Mapping[str, str]] = {}

_now = SYSTEM_CLOCK.monotonic


class Load:
    """Tables of values that are written to a topic of their own, and perhaps read again.

    The names of its figures are `<stem>produce_<infix>mb_per_s` and so on.
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
        """As much as lasts about so long."""
        if not self._rate:
            self._pilot(seconds)
        share = 2 if self._read else 1
        size_bytes = min(max(self._rate * seconds / share, RUN_BYTES_MIN), self._run_bytes_max)
        return self._once(int(size_bytes), read=self._read)

    def _pilot(self, seconds: float) -> None:
        """Find the rate by which the first run is sized."""
        size_bytes, elapsed = PILOT_BYTES // PILOT_GROWTH, 0.0
        while elapsed < seconds * PILOT_SHARE and size_bytes < self._run_bytes_max:
            size_bytes = min(size_bytes * PILOT_GROWTH, self._run_bytes_max)
            self._once(size_bytes, read=False)
            elapsed = size_bytes / self._rate

    def _once(self, size_bytes: int, *, read: bool) -> Figures:
        table = _values(self._value_bytes, size_bytes)
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
        """Bytes of values per second."""
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
            raise UnavailableError(f"topic {topic}: {found} records came back of {expected}")

    def hows(self, where: str) -> dict[str, str]:
        """The words of how; `where` says what it was written to."""
        places = "1 partition" if self._partitions == 1 else f"{self._partitions} partitions"
        what = f"values of {self._value_bytes} B over {places} of {where}"
        ways = {
            "produce": f"columnar client, acks=all, no compression, {what}",
            "consume": f"columnar client, from the start, of what was just written: {what}",
        }
        return {
            f"{self._names[way]}{figure}": f"{said}{how}"
            for way, how in ways.items()
            for figure, said in (("mb_per_s", ""), ("cpu_s_per_gb", "the broker's CPU; "))
        }


def load_steps(bed: Bed, *, where: str) -> list[Step]:
    """Throughput with 1 KiB and 100 B, and to one partition."""
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
    """Throughput to a diskless topic."""
    load = Load(
        bed,
        stem="diskless_",
        run_bytes_max=DISKLESS_BYTES_MAX,
        configs={"diskless.enable": "true"},
    )
    return Step(label="diskless produce", share=0.08, run=load.run, hows=load.hows(where))


def latency_steps(bed: Bed) -> list[Step]:
    """Single records, to the acknowledgement and to the consumer."""
    paced = (
        f"single records of 1 KiB, acks=all, {RECORDS_PER_SECOND:g} a second at random moments, to"
        " one partition over one connection, from the moment that each is due"
    )
    return [
        Step(
            label="produce latency",
            share=0.1,
            run=lambda seconds: quantiles_ms("produce", _produced(bed, seconds)),
            hows=quantile_hows("produce", f"{paced} to its acknowledgement"),
        ),
        Step(
            label="end-to-end latency",
            share=0.1,
            run=lambda seconds: quantiles_ms("end_to_end", _consumed(bed, seconds)),
            hows=quantile_hows("end_to_end", f"{paced} until a consumer that follows has it"),
        ),
    ]


def _values(value_bytes: int, size_bytes: int) -> Any:
    """A table of about so many bytes; its chunks are one and the same memory."""
    import pyarrow as pa

    content = noise(CHUNK_RECORDS * value_bytes)
    ends = range(value_bytes, len(content) + 1, value_bytes)
    chunk = pa.array([content[end - value_bytes : end] for end in ends], pa.binary())
    count = max(1, size_bytes // len(content))
    return pa.table({"value": pa.chunked_array([chunk] * count)})


def _due(seconds: float) -> list[float]:
    """Moments of a Poisson process from now on, the warm-up's included."""
    count = WARM_UP_RECORDS + max(RECORDS_MIN, int(seconds * RECORDS_PER_SECOND))
    moment, moments = _now(), []
    for _ in range(count):
        moment -= math.log(1.0 - SYSTEM_RANDOMNESS.uniform()) / RECORDS_PER_SECOND
        moments.append(moment)
    return moments


def _produced(bed: Bed, seconds: float) -> list[float]:
    with bed.topic() as topic:
        due = _due(seconds)
        done = _run(_paced(bed, topic, due))
    return _latencies(due, done)


def _consumed(bed: Bed, seconds: float) -> list[float]:
    # the client closes first, which ends a reading that still waits
    with bed.topic() as topic, ThreadPoolExecutor(1) as pool, bed.connect() as client:
        due = _due(seconds)
        following = pool.submit(_follow, client, topic, len(due), bed.timeout_ms)
        _run(_paced(bed, topic, due))
        done = following.result()
    if len(done) != len(due):
        raise UnavailableError(f"topic {topic}: {len(done)} records came of {len(due)}")
    return _latencies(due, done)


def _latencies(due: Sequence[float], done: Sequence[float]) -> list[float]:
    pairs = list(zip(due, done, strict=True))[WARM_UP_RECORDS:]
    return [end - start for start, end in pairs]


def _follow(client: Client, topic: str, count: int, idle_timeout_ms: int) -> list[float]:
    """When each record came, by offset."""
    came: list[float] = []
    batches = client.iter_arrow(
        topic,
        end=None,
        columns=("value",),
        max_records=count,
        idle_timeout_ms=idle_timeout_ms,
    )
    for batch in batches:
        came += [_now()] * batch.num_rows
    return came


def _run(work: Any) -> list[float]:
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=loop) as runner:
        found: list[float] = runner.run(work)
    return found


async def _paced(bed: Bed, topic: str, due: Sequence[float]) -> list[float]:
    """Append one record at each moment; when each was acknowledged.

    Raises:
        PenstockError: one was refused.
    """
    from penstock.client.appender import Appender
    from penstock.client.lanes import Lane
    from penstock.client.retry import RetryPolicy

    appender = Appender(
        bed.bootstrap,
        client_id="penstock-bench",
        retry=RetryPolicy(delivery_timeout_ms=bed.timeout_ms),
        request_timeout_ms=bed.timeout_ms,
        api_timeout_ms=bed.timeout_ms,
    )
    await appender.start()
    try:
        await appender.partitions(topic)
        lane = Lane(-1, -1, topic, 0, False)
        async with asyncio.timeout(due[-1] - _now() + bed.timeout_ms / 1000):
            return await _append(appender.append, lane, _one_record(), due)
    except TimeoutError:
        text = f"topic {topic}: {appender.pending_appends} records were not acknowledged in time"
        raise UnavailableError(text) from None
    finally:
        await appender.stop(0.0)


async def _append(
    append: Callable[[Lane, Sequence[Pieces], int, Any], PenstockError | None],
    lane: Lane,
    record: Pieces,
    due: Sequence[float],
) -> list[float]:
    loop, ended = asyncio.get_running_loop(), [0.0] * len(due)
    left, over = len(due), loop.create_future()

    def done(index: int, error: PenstockError | None) -> None:
        nonlocal left
        ended[index] = _now()
        left -= 1
        if error is not None and not over.done():
            over.set_exception(error)
        if not left and not over.done():
            over.set_result(None)

    def send(index: int) -> None:
        refused = append(lane, [record], -1, lambda error: done(index, error))
        if refused is not None:
            done(index, refused)

    behind = loop.time() - _now()
    timers = [loop.call_at(moment + behind, send, index) for index, moment in enumerate(due)]
    try:
        await over
    finally:
        for timer in timers:
            timer.cancel()
    return ended


def _one_record() -> Pieces:
    import pyarrow as pa

    from penstock.client.lanes import Pieces
    from penstock.records.columnar import encode_batches

    table = pa.table({"value": pa.array([noise(KIBIBYTE)], pa.binary())})
    (batch,) = encode_batches(table, now_ms=SYSTEM_CLOCK.now_ms())
    return Pieces(batch.data, batch.record_count)
