"""Benchmark of the latency of single records, to their acknowledgement and to a consumer.

Records are due at random moments, as if many independent producers sent them. A latency counts from
the moment at which the record is due, so it includes a delay before the send. The event loop uses
`select`, because its timers are finer than the milliseconds of `epoll`.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.apps.bench.broker import Bed
from penstock.apps.bench.steps import Figures, Step, quantile_hows
from penstock.apps.loads.figures import moments, one_record, quantiles_ms
from penstock.apps.process.daemon import run_async
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.producer_partitions import Pieces, ProducerPartition

VALUE_BYTES: Final = 1_024
RECORDS_PER_SECOND: Final = 200.0
RECORDS_MIN: Final = 10
WARM_UP_RECORDS: Final = 5

_APPENDER_LOG: Final = logging.getLogger("penstock.client.appender")

_now = SYSTEM_CLOCK.monotonic


def latency_steps(bed: Bed) -> list[Step]:
    paced = (
        f"single records of 1 KiB, acks=all, {RECORDS_PER_SECOND:g} a second at random moments, to"
        " one partition over one connection"
    )
    return [
        Step(
            label="produce latency",
            share=0.1,
            run=lambda seconds: quantiles_ms("produce", _produced(bed, seconds)),
            hows=quantile_hows(
                "produce", f"{paced}; from the moment that a record is due to its acknowledgement"
            ),
        ),
        Step(
            label="end-to-end latency",
            share=0.1,
            run=lambda seconds: _consumed(bed, seconds),
            hows=quantile_hows(
                "end_to_end",
                f"{paced}; from the moment that a record is due until a consumer has received it",
            )
            | quantile_hows(
                "delivery",
                f"{paced}; from the acknowledgement of a record until a consumer has received it"
                " (0 if the consumer was first)",
            ),
        ),
    ]


def _due(seconds: float) -> list[float]:
    """Return the times at which records are to be sent, including the records of the warm-up."""
    count = WARM_UP_RECORDS + max(RECORDS_MIN, int(seconds * RECORDS_PER_SECOND))
    return moments(_now(), count, RECORDS_PER_SECOND)


def _produced(bed: Bed, seconds: float) -> list[float]:
    with bed.topic() as topic:
        due = _due(seconds)
        done = run_async(_paced(bed, topic, due), _select_loop)
    return _latencies(due, done)


def _consumed(bed: Bed, seconds: float) -> Figures:
    # the client closes first, which ends a reading that still waits
    with bed.topic() as topic, ThreadPoolExecutor(1) as pool, bed.connect() as client:
        due = _due(seconds)
        following = pool.submit(_follow, client, topic, len(due), bed.timeout_ms)
        acknowledged = run_async(_paced(bed, topic, due), _select_loop)
        came = following.result()
    if len(came) != len(due):
        raise UnavailableError(f"topic {topic}: read {len(came)} of {len(due)} records")
    return quantiles_ms("end_to_end", _latencies(due, came)) | quantiles_ms(
        "delivery", [max(0.0, latency) for latency in _latencies(acknowledged, came)]
    )


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _latencies(due: Sequence[float], done: Sequence[float]) -> list[float]:
    pairs = list(zip(due, done, strict=True))[WARM_UP_RECORDS:]
    return [end - start for start, end in pairs]


def _follow(client: Client, topic: str, count: int, idle_timeout_ms: int) -> list[float]:
    """Read `count` records as they are appended; return the arrival time of each, by offset."""
    came: list[float] = []
    batches = client.iter_arrow(
        topic, end=None, columns=("value",), max_records=count, idle_timeout_ms=idle_timeout_ms
    )
    for batch in batches:
        came += [_now()] * batch.num_rows
    return came


def _select_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _paced(bed: Bed, topic: str, due: Sequence[float]) -> list[float]:
    """Append one record at each time of `due`; return their acknowledgement times in this order.

    Raises:
        PenstockError: a record was rejected, or was not acknowledged in time.
    """
    from penstock.client.appender import Appender
    from penstock.client.errors import RETRY
    from penstock.client.producer_partitions import ProducerPartition

    appender = Appender(
        bed.bootstrap,
        client_id="penstock-bench",
        retry=replace(RETRY, timeout_ms=bed.timeout_ms),
        request_timeout_ms=bed.timeout_ms,
        api_timeout_ms=bed.timeout_ms,
    )
    await appender.start()
    try:
        await appender.partitions(topic)
        lane = ProducerPartition(-1, -1, topic, 0, False)
        async with asyncio.timeout(due[-1] - _now() + bed.timeout_ms / 1000):
            return await _append(appender.append, lane, one_record(VALUE_BYTES), due)
    except TimeoutError:
        text = (
            f"topic {topic}: {appender.pending_appends} records were not acknowledged within"
            f" {bed.timeout_ms} ms"
        )
        raise UnavailableError(text) from None
    finally:
        _APPENDER_LOG.addFilter(_nothing)  # the error reports unacknowledged records
        await appender.stop(0.0)
        _APPENDER_LOG.removeFilter(_nothing)


async def _append(
    append: Callable[[ProducerPartition, Sequence[Pieces], int, Any], PenstockError | None],
    lane: ProducerPartition,
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
