"""Outbox for threads: futures, many threads, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.outbox import Outbox, OutboxSettings
from penstock.outbox.errors import BatchConflict, InvalidPartitionId, OutboxClosed, RootUnavailable
from penstock.outbox.pointer import decode_record
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check that a test leaves no thread; threads of other tests may end any time."""
    before = set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - before
    ours = [thread for thread in started if thread.name.startswith("outbox")]
    for thread in ours:
        thread.join(10)  # one that was told to end may still be on its way
    assert [thread.name for thread in ours if thread.is_alive()] == []


@pytest.fixture
def topic(outbox_broker: Broker) -> str:
    name = f"blocking-{uuid4().hex[:8]}"
    outbox_broker.create_topic(name, partitions=3)
    return name


def test_many_threads_send(outbox_broker: Broker, topic: str, tmp_path: Path) -> None:
    settings = OutboxSettings(root=str(tmp_path), topic=topic, threshold_bytes=500)

    def work(thread: int) -> list[bool]:
        return [
            outbox.send(
                b"x" * (number * 100), partition_id=f"p{thread}", batch_id=f"{thread}-{number}"
            ).inline
            for number in range(12)
        ]

    with Outbox(settings, outbox_broker.bootstrap) as outbox, ThreadPoolExecutor(6) as pool:
        inline = list(pool.map(work, range(6)))
        published = [
            sample.value
            for sample in outbox.samples()
            if sample.metric.name == "penstock_outbox_published_records_total"
        ]
    assert inline == [[True] * 6 + [False] * 6] * 6
    assert sum(value for value in published if isinstance(value, int)) == 72
    with outbox_broker.client() as client:
        rows = client.read_arrow(topic).to_pylist()
    order: dict[bytes, list[str]] = {}
    for row in rows:
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        what = decode_record(row["key"], row["value"], headers)
        order.setdefault(row["key"], []).append(what.batch_id)
    assert order == {
        f"p{thread}".encode(): [f"{thread}-{number}" for number in range(12)] for thread in range(6)
    }


def test_futures_and_a_close_that_finishes_them(
    outbox_broker: Broker, topic: str, tmp_path: Path
) -> None:
    settings = OutboxSettings(
        root=str(tmp_path), topic=topic, threshold_bytes=0, in_flight_operations=2
    )
    outbox = Outbox(settings, outbox_broker.bootstrap)
    released: list[int] = []
    futures = [
        outbox.send_async(b"payload", partition_id="p", released=partial(released.append, number))
        for number in range(50)
    ]
    outbox.close()
    outbox.close()
    assert all(not future.result(0).inline for future in futures)
    assert sorted(released) == list(range(50))
    assert len(list(tmp_path.rglob("data.bin"))) == 50
    with pytest.raises(OutboxClosed):
        outbox.send(b"x", partition_id="p")
    with pytest.raises(OutboxClosed):
        outbox.write_async(b"x", partition_id="p")


def test_files_alone_need_no_broker(tmp_path: Path) -> None:
    with Outbox(OutboxSettings(root=str(tmp_path))) as outbox:
        first = outbox.write(b"x", partition_id="p", batch_id="b", at_ms=0)
        again = outbox.write(b"x", partition_id="p", batch_id="b", at_ms=0)
        assert (first.idempotent_existing_write, again.idempotent_existing_write) == (False, True)
        with pytest.raises(BatchConflict, match="batch b: p/year=1970"):
            outbox.write([b"", b"y"], partition_id="p", batch_id="b", at_ms=0)
        with pytest.raises(InvalidPartitionId):
            outbox.write(b"x", partition_id="../p")


def test_a_cancelled_future_affects_no_other_call(tmp_path: Path) -> None:
    with Outbox(OutboxSettings(root=str(tmp_path), in_flight_operations=1)) as outbox:
        gate = threading.Event()

        def hold() -> None:
            """Called by the first on the outbox's thread: most of the others have to wait."""
            assert gate.wait(60)

        first = outbox.write_async(b"x" * 10_000, partition_id="p", released=hold)
        futures = [first]
        futures += [outbox.write_async(b"x" * 10_000, partition_id="p") for _ in range(29)]
        cancelled = [future.cancel() for future in futures[::3]]
        gate.set()
        others = [future for number, future in enumerate(futures) if number % 3]
        assert all(future.result(60).pointer.size_bytes == 10_000 for future in others)
    assert any(cancelled)
    assert len(list(tmp_path.rglob("data.bin"))) >= len(others)
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_an_outbox_that_cannot_start_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(RootUnavailable):
        Outbox(OutboxSettings(root=str(tmp_path / "no")))
