"""Publishing to a real broker: order, coalescing, rejections, queues, a broker that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.base.crc import crc32c
from penstock.client import Client
from penstock.client.errors import MessageTooLarge, UnknownTopic
from penstock.outbox.errors import OutboxBusy, OutboxClosed, PublishFailed, PublishRefused
from penstock.outbox.pointer import OutboxRecord, decode_pointer, decode_record
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.publisher import TopicPublisher
from penstock.outbox.writer.writer import OutboxWriter
from penstock.testing import Broker

ROOT = Path(__file__).resolve().parents[2]


def record(number: int, *, key: bytes = b"p", size: int = 5) -> OutboxRecord:
    return OutboxRecord(
        key=key,
        value=b"%d" % number + b"x" * size,
        headers=(("number", b"%d" % number), ("kind", b"test")) if number % 3 else (),
    )


@pytest.fixture
def topic(outbox_broker: Broker) -> str:
    name = f"publish-{uuid4().hex[:8]}"
    outbox_broker.create_topic(name, configs={"max.message.bytes": "100000"})
    return name


def rows_of(broker: Broker, topic: str) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    with broker.client() as client:
        rows = client.read_arrow(topic).to_pylist()
    return [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in rows
    ]


async def test_records_arrive_as_they_are(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    await publisher.start()
    records = [record(number) for number in range(10)]
    await publisher.publish(records[:4])
    await publisher.publish([])
    await publisher.publish(records[4:])
    await publisher.stop()
    assert rows_of(outbox_broker, topic) == [
        (item.key, item.value, list(item.headers)) for item in records
    ]


async def test_concurrent_publishes_share_writes_and_keep_their_order(
    outbox_broker: Broker, topic: str
) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    await publisher.start()
    count = 3000
    await asyncio.gather(*[publisher.publish([record(number)]) for number in range(count)])
    publishes = publisher.counts.publishes
    await publisher.stop()
    values = [value for _, value, _ in rows_of(outbox_broker, topic)]
    assert values == [record(number).value for number in range(count)]
    assert publishes <= 5, "the first alone, then a thousand at a time"


async def test_one_that_is_refused_fails_alone(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    await publisher.start()
    sizes = [5, 5, 200_000, 5, 5]
    calls = [publisher.publish([record(n, size=size)]) for n, size in enumerate(sizes)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    await publisher.stop()
    assert [type(result) for result in results] == [
        type(None), type(None), MessageTooLarge, type(None), type(None),
    ]  # fmt: skip
    values = {value for _, value, _ in rows_of(outbox_broker, topic)}
    assert values == {record(number).value for number in (0, 1, 3, 4)}


async def test_a_payload_of_many_megabytes_may_travel_inline(
    outbox_broker: Broker, tmp_path: Path
) -> None:
    topic = f"large-{uuid4().hex[:8]}"
    outbox_broker.create_topic(topic, configs={"max.message.bytes": str(8 << 20)})
    settings = OutboxSettings(root=str(tmp_path), threshold_bytes=8 << 20)
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    payload = os.urandom(5 << 20)
    async with OutboxWriter(settings, publisher=publisher) as writer:
        result = await writer.send(payload, partition_id="p")
        assert result.inline
        with pytest.raises(PublishRefused):
            await writer.send(payload + payload[: 3 << 20], partition_id="p")
    assert [value for _, value, _ in rows_of(outbox_broker, topic)] == [payload]


async def test_a_topic_that_is_not_there(outbox_broker: Broker, tmp_path: Path) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, "no-such-topic")
    await publisher.start()
    with pytest.raises(UnknownTopic):
        await publisher.publish([record(1)])
    await publisher.stop()
    settings = OutboxSettings(root=str(tmp_path), threshold_bytes=0)
    again = TopicPublisher(outbox_broker.bootstrap, "no-such-topic")
    async with OutboxWriter(settings, publisher=again) as writer:
        with pytest.raises(PublishRefused, match="no-such-topic"):
            await writer.send(b"payload", partition_id="p")
    assert len(list(tmp_path.rglob("data.bin"))) == 1, "the file stays"


async def test_the_queue_is_bounded(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic, queue_records=10, queue_bytes=1000)
    await publisher.start()
    calls = [asyncio.create_task(publisher.publish([record(number)])) for number in range(30)]
    large = asyncio.create_task(publisher.publish([record(99, size=2000)]))
    results = await asyncio.gather(*calls, large, return_exceptions=True)
    await publisher.stop()
    busy = [result for result in results if isinstance(result, OutboxBusy)]
    assert len(busy) == 21
    assert "10 records are queued, and 1 more exceed the limit of 10" in str(busy[0])
    assert len(rows_of(outbox_broker, topic)) == 10


async def test_the_queue_is_bounded_in_bytes(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic, queue_bytes=1000)
    await publisher.start()
    calls = [publisher.publish([record(number, size=300)]) for number in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    await publisher.stop()
    assert sum(result is None for result in results) == 3
    assert all("the limit of 1000" in str(result) for result in results if result is not None)


async def test_a_stopped_publisher_takes_nothing(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    with pytest.raises(OutboxClosed):
        await publisher.publish([record(1)])
    await publisher.start()
    waiting = [asyncio.create_task(publisher.publish([record(number)])) for number in range(50)]
    await asyncio.sleep(0)
    await publisher.stop()
    await asyncio.gather(*waiting)
    with pytest.raises(OutboxClosed):
        await publisher.publish([record(1)])
    assert len(rows_of(outbox_broker, topic)) == 50


async def test_a_cancelled_publish_does_not_delay_others(outbox_broker: Broker, topic: str) -> None:
    publisher = TopicPublisher(outbox_broker.bootstrap, topic)
    await publisher.start()
    calls = [asyncio.create_task(publisher.publish([record(number)])) for number in range(20)]
    await asyncio.sleep(0)
    calls[10].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    await publisher.stop()
    assert [number for number, result in enumerate(results) if result is not None] == [10]


DELIVERY_MS = 500


async def sent_at_last(writer: OutboxWriter) -> None:
    """Send a batch, and again if needed: the short timeouts may expire before a broker answers."""
    async with asyncio.timeout(60):
        while True:
            with suppress(PublishFailed):
                await writer.send(b"before", partition_id="p", batch_id="before", at_ms=0)
                return


async def test_a_broker_that_dies(tmp_path: Path) -> None:
    """The publish fails, the file stays, and the same batch is sent when a broker is back."""
    directory = tmp_path / "broker"
    root = tmp_path / "root"
    root.mkdir()
    directory.mkdir()
    with Broker(process=True, directory=directory) as broker:
        broker.create_topic("pointers")
        publisher = TopicPublisher(
            lambda: Client(
                broker.bootstrap,
                api_timeout_ms=60_000,
                delivery_timeout_ms=DELIVERY_MS,
            ),
            "pointers",
        )
        settings = OutboxSettings(root=str(root), threshold_bytes=0)
        async with OutboxWriter(settings, publisher=publisher) as writer:
            await sent_at_last(writer)
            broker.kill()
            with pytest.raises(PublishFailed) as caught:
                await writer.send(b"after", partition_id="p")
            identity = caught.value.identity
            assert identity is not None
            assert len(list(root.rglob("data.bin"))) == 2
    with Broker(directory=directory) as broker:
        back = TopicPublisher(broker.bootstrap, "pointers")
        async with OutboxWriter(settings, publisher=back) as writer:
            result = await writer.send(
                b"after",
                partition_id="p",
                batch_id=identity.batch_id,
                at_ms=identity.at_ms,
            )
            assert result.idempotent_existing_write
        pointers = [decode_pointer(value) for _, value, _ in rows_of(broker, "pointers")]
    sizes = [pointer.size_bytes for pointer in pointers]
    assert list(dict.fromkeys(sizes)) == [6, 5]
    assert sizes.count(5) == 1


SENDER = """
import asyncio, os, sys
from penstock.outbox.writer.publisher import TopicPublisher
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.writer import OutboxWriter

async def main(bootstrap, topic, root, attempt):
    settings = OutboxSettings(root=root, threshold_bytes=50)
    publisher = TopicPublisher(bootstrap, topic)
    async with OutboxWriter(settings, publisher=publisher) as writer:
        async def lane(lane):
            for number in range(1000):
                payload = b"%d-%d " % (lane, number) * (number % 50)
                await writer.send(
                    payload, partition_id=f"p{lane}", batch_id=f"{lane}-{number}", at_ms=0
                )
                os.write(1, b"%d-%d\\n" % (lane, number))
        await asyncio.gather(*[lane(number) for number in range(4)])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
@pytest.mark.slow
def test_senders_killed_over_a_real_topic(
    outbox_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """At any time acknowledged records are on the topic, in order, and files are complete."""
    acknowledged: set[str] = set()
    for attempt in range(3):
        command = [sys.executable, "-c", SENDER, outbox_broker.bootstrap, topic]
        with subprocess.Popen(
            [*command, str(tmp_path), str(attempt)], cwd=ROOT, stdout=subprocess.PIPE
        ) as sender:
            assert sender.stdout is not None
            said = b""
            while said.count(b"\n") < 20 + 60 * attempt:
                part = os.read(sender.stdout.fileno(), 4096)
                assert part, "the sender ended before it was killed"
                said += part
            sender.send_signal(signal.SIGKILL)
            said += sender.stdout.read()
        assert sender.returncode == -signal.SIGKILL
        acknowledged.update(said.decode().split("\n")[: said.count(b"\n")])
        seen: dict[str, list[int]] = {}
        for key, value, headers in rows_of(outbox_broker, topic):
            what = decode_record(key, value, headers)
            payload = value
            if headers[0][1] == b"pointer":
                payload = (tmp_path / decode_pointer(value).file_path).read_bytes()
            lane, _, number = what.batch_id.partition("-")
            assert payload == f"{lane}-{number} ".encode() * (int(number) % 50)
            assert crc32c(payload) == what.crc32c
            seen.setdefault(lane, []).append(int(number))
        found = {f"{lane}-{number}" for lane, numbers in seen.items() for number in numbers}
        assert acknowledged <= found
        for numbers in seen.values():
            firsts = sorted(set(numbers), key=numbers.index)
            assert firsts == list(range(len(firsts))), "each lane in its order"
