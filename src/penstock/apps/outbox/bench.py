"""Command `penstock outbox bench`: compares writes through an outbox with writes of plain files.

Both ways write the same payloads with the same concurrency, in alternating rounds, into temporary
directories below the outbox's root. A plain write creates, writes and syncs a file, renames it, and
syncs the directory; it runs in a thread. The outbox adds a directory for each batch, a checksum,
admission control and, with a topic, the pointer.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.client.session import State, client_options, default_option, show
from penstock.apps.loads.figures import noise, percentile, write_plainly
from penstock.apps.outbox.care import outbox_options, parse_size
from penstock.base.system import SYSTEM_CLOCK

ROUNDS: Final = 3
PAYLOADS_MAX: Final = 100_000
MEBIBYTE: Final = 1 << 20

Start = Callable[[int, bytes], "Future[Any]"]


@dataclass(slots=True)
class _Measured:
    """Results of one way of writing: the seconds of its rounds, and the latency of every write."""

    name: str
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


@click.command("bench", short_help="Compare outbox writes with plain files.")
@outbox_options(topic_required=False)
@default_option("--size", "1m", "Size of a payload in bytes; k, m and g are suffixes.")
@default_option(
    "--count", 96, "Number of payloads to write in each way.", click.IntRange(1, PAYLOADS_MAX)
)
@default_option(
    "--concurrency", 8, "Number of writes in progress at a time.", click.IntRange(1, 256)
)
@click.option("--no-sync", is_flag=True, help="Do not sync files, in both ways.")
@client_options
def bench(
    state: State,
    root: str,
    topic: str | None,
    size: str,
    count: int,
    concurrency: int,
    no_sync: bool,
) -> None:
    """Measure outbox writes, and plain writes, syncs and renames of the same payloads.

    With -t pointers are published too. Their payloads are deleted at the end, so give a topic that
    has no other use.
    """
    size_bytes = parse_size(size, "--size")
    payload = noise(MEBIBYTE) * (size_bytes // MEBIBYTE + 1)
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=root))
    try:
        ways = _run(state, directory, topic, payload[:size_bytes], count, concurrency, not no_sync)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rows = [_row(way, size_bytes, ways[0].seconds) for way in ways]
    facts: dict[str, Any] = {"size_bytes": size_bytes, "count": count, "concurrency": concurrency}
    facts |= {"synced": not no_sync, "ways": rows}
    title = f"{count} payloads of {size_bytes} bytes, {concurrency} writes at a time"
    show(state, rows, title=title, all_as_json=facts)


def _run(
    state: State,
    directory: Path,
    topic: str | None,
    payload: bytes,
    count: int,
    concurrency: int,
    sync: bool,
) -> list[_Measured]:
    from penstock.outbox.settings import OutboxSettings
    from penstock.outbox.writer.blocking import Outbox
    from penstock.outbox.writer.publisher import TopicPublisher

    plain_root, outbox_root = directory / "plain", directory / "outbox"
    plain_root.mkdir()
    outbox_root.mkdir()
    settings = OutboxSettings(
        root=str(outbox_root), topic=topic or "", durable=sync, threshold_bytes=-1,
        in_flight_operations=concurrency, io_threads=concurrency,
        in_flight_bytes=max(1, len(payload)) * concurrency,
        payload_bytes_max=max(1, len(payload)), pending_max=concurrency,
    )  # fmt: skip
    publisher = None if topic is None else TopicPublisher(state.client, topic)
    ways = [_Measured("plain files"), _Measured("outbox" if topic is None else "outbox, published")]
    with ThreadPoolExecutor(concurrency) as pool, Outbox(settings, publisher=publisher) as opened:
        call = opened.write_async if publisher is None else opened.send_async

        def plain(number: int, data: bytes) -> Future[Any]:
            return pool.submit(write_plainly, plain_root, str(number), data, sync)

        def through_outbox(number: int, data: bytes) -> Future[Any]:
            return call(data, partition_id="bench", batch_id=f"b{number}")

        starts: list[Start] = [plain, through_outbox]
        for start in starts:
            start(count, payload).result()  # creates directories and threads
        for number in range(ROUNDS):
            numbers = range(count * number // ROUNDS, count * (number + 1) // ROUNDS)
            for way, start in zip(ways, starts, strict=True):
                _measure(way, start, numbers, payload, concurrency)
    return ways


def _measure(
    way: _Measured, start: Start, numbers: range, payload: bytes, concurrency: int
) -> None:
    """Write payloads with `concurrency` writes in progress, waiting for the oldest first."""
    began = SYSTEM_CLOCK.monotonic()
    under_way: list[tuple[float, Future[Any]]] = []
    for number in numbers:
        if len(under_way) == concurrency:
            _complete(way, *under_way.pop(0))
        future = start(number, payload)
        under_way.append((SYSTEM_CLOCK.monotonic(), future))
    for started, future in under_way:
        _complete(way, started, future)
    way.seconds += SYSTEM_CLOCK.monotonic() - began


def _complete(way: _Measured, started: float, future: Future[Any]) -> None:
    future.result()
    way.latencies.append(SYSTEM_CLOCK.monotonic() - started)


def _row(way: _Measured, size_bytes: int, plain_seconds: float) -> dict[str, Any]:
    count = len(way.latencies)
    return {
        "way": way.name,
        "MB/s": round(count * size_bytes / way.seconds / 1e6, 1),
        "writes/s": round(count / way.seconds, 1),
        "of plain": round(plain_seconds / way.seconds, 2),
        "p50 ms": round(percentile(way.latencies, 0.5) * 1000, 2),
        "p99 ms": round(percentile(way.latencies, 0.99) * 1000, 2),
    }
