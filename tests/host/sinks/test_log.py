"""The log sink on a real broker: identity, order, refusals, bounds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.base.buffers import ReceivePool
from penstock.base.errors import InvalidSetting, PenstockError
from penstock.client import Client, UnknownTopic
from penstock.host.port import ACCEPTED, ChunkFormat, Chunks, Failed
from penstock.host.sinks.log import LogSink, LogSinkOptions
from penstock.records import BatchHeader, decode_header, encode_header, seal, split_batches
from penstock.testing import Broker
from tests.host.sinks.conftest import log_sink
from tests.host.sinks.frames import WAIT_SECONDS, Fate, batch, batches, fates, frame, leased, stored

Topic = Callable[..., str]
LAST_SEQUENCE = 2**31 - 1


def headers(broker: Broker, topic: str, partition: int = 0) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    with Client(broker.bootstrap) as client:
        while True:
            fetched = client.fetch_raw(topic, partition, found[-1].next_offset if found else 0)
            if not fetched.data:
                return found
            found += split_batches(fetched.data)


async def refused(broker: Broker, chunks: Chunks) -> Failed:
    async with log_sink(broker.bootstrap) as sink:
        (verdict,) = await fates(sink, [chunks])
        assert isinstance(verdict, Failed)
        assert sink.retained_bytes == 0
        assert sink.retained_frames == 0
        return verdict


async def test_a_frame_becomes_one_batch_with_its_producers_identity(
    log_broker: Broker, topic: Topic
) -> None:
    name = topic()
    values = [b"one", b"", b"three" * 50_000, b"four"]
    frames = [
        frame(values, topic=name, producer_id=901, producer_epoch=3, log_sequence=0),
        frame([b"gaps", b"too"], gap=b"??", topic=name, producer_id=901, producer_epoch=3,
              log_sequence=4, first_sequence=4),
    ]  # fmt: skip
    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, frames) == [ACCEPTED, ACCEPTED]
    assert stored(log_broker.bootstrap, name) == [*values, b"gaps", b"too"]
    first, second = headers(log_broker, name)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (901, 3, 0)
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (901, 3, 4)
    assert (first.record_count, second.record_count) == (4, 2)


async def test_record_batches_are_stamped_and_keep_their_records(
    log_broker: Broker, topic: Topic
) -> None:
    name = topic()
    first = batches([[b"a", b"b"], [b"c"]], topic=name, producer_id=902, log_sequence=0)
    foreign = frame(
        [batch([b"d"], producer_id=5, producer_epoch=9, base_sequence=70)],
        topic=name, producer_id=902, log_sequence=3, first_sequence=2,
        format=ChunkFormat.RECORD_BATCH,
    )  # fmt: skip
    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, [first, foreign]) == [ACCEPTED, ACCEPTED]
    assert stored(log_broker.bootstrap, name) == [b"a", b"b", b"c", b"d"]
    found = headers(log_broker, name)
    assert [header.base_sequence for header in found] == [0, 2, 3]
    assert {(header.producer_id, header.producer_epoch) for header in found} == {(902, 0)}


async def test_compressed_batches_pass_unopened(log_broker: Broker, topic: Topic) -> None:
    name = topic()
    packed = batch([b"same" * 100] * 20, codec=4)
    chunks = frame(
        [packed], topic=name, producer_id=903, log_sequence=0, event_count=20,
        format=ChunkFormat.RECORD_BATCH,
    )  # fmt: skip
    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, [chunks]) == [ACCEPTED]
    (header,) = headers(log_broker, name)
    assert header.codec == 4
    assert header.size_bytes == len(packed)
    assert stored(log_broker.bootstrap, name) == [b"same" * 100] * 20


async def test_without_a_log_sequence_nothing_is_recognised(
    log_broker: Broker, topic: Topic
) -> None:
    name = topic()
    frames = [frame([b"x"], topic=name) for _ in range(2)]
    frames.append(batches([[b"y"]], topic=name))
    owned = batch([b"z"], producer_id=5, producer_epoch=9, base_sequence=70)
    frames.append(frame([owned], topic=name, format=ChunkFormat.RECORD_BATCH))
    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, frames) == [ACCEPTED] * 4
    assert sorted(stored(log_broker.bootstrap, name)) == [b"x", b"x", b"y", b"z"]
    assert {header.producer_id for header in headers(log_broker, name)} == {-1}


async def test_frames_sent_again_by_another_agent_are_on_the_log_once(
    log_broker: Broker, topic: Topic
) -> None:
    name = topic()

    def frames() -> list[Chunks]:
        # Three and two batches: what a lane may have unacknowledged.
        mixed: list[Chunks] = [
            frame([b"%d" % (at + index) for index in range(3)], topic=name, producer_id=904,
                  log_sequence=at, first_sequence=at)
            for at in (0, 3, 6)
        ]  # fmt: skip
        pair = [[b"9", b"10"], [b"11"]]
        return [*mixed, batches(pair, topic=name, producer_id=904, log_sequence=9)]

    for _ in range(3):
        async with log_sink(log_broker.bootstrap) as sink:
            assert await fates(sink, frames()) == [ACCEPTED] * 4
    assert stored(log_broker.bootstrap, name) == [b"%d" % number for number in range(12)]


async def test_sequences_wrap_where_kafkas_do(log_broker: Broker, topic: Topic) -> None:
    name = topic()
    frames = [
        batches([[b"a", b"b"], [b"c", b"d"]], topic=name, log_sequence=LAST_SEQUENCE - 2,
                producer_id=905),
        frame([b"e"], topic=name, log_sequence=1, producer_id=905),
    ]  # fmt: skip
    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, frames) == [ACCEPTED, ACCEPTED]
    found = [header.base_sequence for header in headers(log_broker, name)]
    assert found == [LAST_SEQUENCE - 2, LAST_SEQUENCE, 1]


async def test_out_of_order_comes_back_to_be_sent_again(log_broker: Broker, topic: Topic) -> None:
    name = topic()
    async with log_sink(log_broker.bootstrap) as sink:
        one = frame([b"1"], topic=name, producer_id=906, log_sequence=0)
        assert await fates(sink, [one]) == [ACCEPTED]
        (early,) = await fates(sink, [frame([b"3"], topic=name, producer_id=906, log_sequence=2)])
        assert isinstance(early, Failed)
        assert early.retryable
        assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in early.reason
        rest = [
            frame([value], topic=name, producer_id=906, log_sequence=at)
            for at, value in ((1, b"2"), (2, b"3"))
        ]
        assert await fates(sink, rest) == [ACCEPTED, ACCEPTED]
        assert sink.counts.failed_frames == 1
    assert stored(log_broker.bootstrap, name) == [b"1", b"2", b"3"]


async def test_a_newer_epoch_starts_at_zero_and_shuts_the_older_out(
    log_broker: Broker, topic: Topic
) -> None:
    name = topic()

    def of_epoch(epoch: int, sequence: int, value: bytes) -> Chunks:
        return frame(
            [value], topic=name, producer_id=907, producer_epoch=epoch, log_sequence=sequence
        )

    async with log_sink(log_broker.bootstrap) as sink:
        assert await fates(sink, [of_epoch(0, 0, b"a"), of_epoch(0, 1, b"b")]) == [ACCEPTED] * 2
        (gap,) = await fates(sink, [of_epoch(1, 2, b"c")])
        assert isinstance(gap, Failed)
        assert gap.retryable
        assert await fates(sink, [of_epoch(1, 0, b"c")]) == [ACCEPTED]
        (fenced,) = await fates(sink, [of_epoch(0, 2, b"d")])
        assert isinstance(fenced, Failed)
        assert not fenced.retryable
        assert "INVALID_PRODUCER_EPOCH" in fenced.reason
    assert stored(log_broker.bootstrap, name) == [b"a", b"b", b"c"]


def spoiled(**changes: int) -> bytes:
    """A batch of two records whose header says something else, with the right checksum."""
    data = bytearray(batch([b"one", b"two"]))
    data[:61] = encode_header(decode_header(data)._replace(**changes))
    seal(data)
    return bytes(data)


def damaged(at: int) -> bytes:
    data = bytearray(batch([b"one", b"two"]))
    data[at] ^= 1
    return bytes(data)


BAD = {
    "records damaged": (damaged(65), "checksum"),
    "header damaged": (damaged(30), "checksum"),
    "cut short": (batch([b"one", b"two"])[:-1], "bytes, but its batch states"),
    "followed by more": (batch([b"one", b"two"]) + b"!", "but its batch states"),
    "no header": (b"x" * 60, "shorter than a batch header"),
    "empty": (b"", "shorter than a batch header"),
    "old magic": (spoiled(magic=1), "magic 1"),
    "unknown magic": (spoiled(magic=3), "magic 3"),
    "too many records": (spoiled(record_count=3), "last offset delta"),
    "no records": (spoiled(record_count=0, last_offset_delta=0), "0 records"),
    "more records than bytes": (spoiled(record_count=99, last_offset_delta=98), "do not fit"),
    "transactional": (spoiled(attributes=0x10, producer_id=4, producer_epoch=0, base_sequence=0),
                      "transactional"),
    "control": (spoiled(attributes=0x20), "control"),
    "unknown codec": (spoiled(attributes=6), "codec 6"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_an_invalid_batch_is_refused_permanently_before_anything_is_sent(
    name: str, log_broker: Broker, topic: Topic
) -> None:
    content, reason = BAD[name]
    where = topic()
    good = batch([b"good"])
    chunks = frame(
        [good, content], topic=where, producer_id=908, log_sequence=0, event_count=3,
        format=ChunkFormat.RECORD_BATCH,
    )  # fmt: skip
    verdict = await refused(log_broker, chunks)
    assert not verdict.retryable
    assert reason in verdict.reason
    assert stored(log_broker.bootstrap, where) == []


async def test_a_refused_frame_gives_its_buffer_back(log_broker: Broker, topic: Topic) -> None:
    pool = ReceivePool(1 << 20)
    chunks = leased(pool, [damaged(65)], topic=topic(), event_count=2, format=1, log_sequence=0)
    await refused(log_broker, chunks)
    assert chunks.lease is not None
    chunks.lease.release()
    assert pool.received_bytes == 0


async def test_events_and_records_must_be_as_many(log_broker: Broker, topic: Topic) -> None:
    chunks = frame(
        [batch([b"one", b"two"])],
        topic=topic(),
        event_count=3,
        log_sequence=0,
        format=ChunkFormat.RECORD_BATCH,
    )
    verdict = await refused(log_broker, chunks)
    assert not verdict.retryable
    assert "3 events has 2 records" in verdict.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "not-there"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 1}, "has partitions 0 to 0"),
        ({"partition": -1}, "name both"),
        ({"topic": ""}, "name both"),
        ({"producer_id": -1, "log_sequence": 0}, "cannot be idempotent"),
        ({"producer_epoch": 2**15, "log_sequence": 0}, "cannot be idempotent"),
        ({"producer_epoch": -1, "log_sequence": 0}, "cannot be idempotent"),
    ],
)
async def test_a_frame_without_a_destination_is_refused_permanently(
    fields: dict[str, Any], reason: str, log_broker: Broker, topic: Topic
) -> None:
    verdict = await refused(log_broker, frame([b"x"], **{"topic": topic(), **fields}))
    assert not verdict.retryable
    assert reason in verdict.reason


@pytest.mark.parametrize("records", [False, True], ids=["opaque", "record batch"])
async def test_too_large_frames_are_refused_permanently(
    records: bool, log_broker: Broker, topic: Topic
) -> None:
    value = bytes(1_048_588)
    narrow = topic(max_message_bytes="1000")
    cases = [(value, topic(), "the limit is 1048588"), (bytes(2000), narrow, "MESSAGE_TOO_LARGE")]
    for content, name, reason in cases:
        chunk = batch([content], max_batch_bytes=2 << 20) if records else content
        chunks = frame(
            [chunk], topic=name, producer_id=909, log_sequence=0, format=ChunkFormat(records)
        )
        verdict = await refused(log_broker, chunks)
        assert not verdict.retryable
        assert reason in verdict.reason


async def test_introduces_producers_with_ids_of_the_broker_and_counts_partitions(
    log_broker: Broker, topic: Topic
) -> None:
    names = [topic(3), topic(1)]
    async with log_sink(log_broker.bootstrap) as sink:
        first, second = [await sink.introduce(-1, [*names, names[0]]) for _ in range(2)]
        assert first.producer_id != second.producer_id
        assert first.partitions == {names[0]: 3, names[1]: 1}
        with pytest.raises(UnknownTopic):
            await sink.introduce(-1, ["not-there"])


async def test_two_hundred_producers_on_several_partitions_each_in_order(
    log_broker: Broker, topic: Topic
) -> None:
    name, producers, partitions, rounds, records = topic(4), 200, 4, 3, 4

    def chunks(producer_id: int, partition: int, turn: int) -> Chunks:
        values = [b"%d:%d" % (producer_id, turn * records + at) for at in range(records)]
        fields: dict[str, Any] = {"producer_id": producer_id, "log_sequence": turn * records}
        if turn % 2:
            return batches([values], topic=name, partition=partition, **fields)
        return frame(values, topic=name, partition=partition, **fields)

    async with log_sink(log_broker.bootstrap) as sink:
        verdicts = await fates(
            sink,
            [
                chunks(producer_id, partition, turn)
                for turn in range(rounds)
                for producer_id in range(1000, 1000 + producers)
                for partition in range(partitions)
            ],
        )
        assert set(verdicts) == {ACCEPTED}
        assert sink.counts.accepted_events == producers * partitions * rounds * records
    for partition in range(partitions):
        by_producer: dict[bytes, list[int]] = {}
        for value in stored(log_broker.bootstrap, name, partition):
            who, _, number = value.partition(b":")
            by_producer.setdefault(who, []).append(int(number))
        assert len(by_producer) == producers
        wanted = list(range(rounds * records))
        assert all(numbers == wanted for numbers in by_producer.values())


async def test_a_full_queue_sends_frames_back_and_takes_them_later(
    log_broker: Broker, topic: Topic
) -> None:
    name, size = topic(), 400_000
    options = {"retained_bytes_max": 1_100_000, "retry_after_ms": 70}
    async with log_sink(log_broker.bootstrap, **options) as sink:
        handed = [
            Fate(sink, frame([bytes(size)], topic=name, producer_id=910, log_sequence=at))
            for at in range(4)
        ]
        assert [fate.pending for fate in handed] == [True, True, False, False]
        assert sink.retained_bytes == 2 * size
        verdicts = [await fate.of() for fate in handed]
        assert verdicts[:2] == [ACCEPTED, ACCEPTED]
        for verdict in verdicts[2:]:
            assert isinstance(verdict, Failed)
            assert (verdict.retryable, verdict.retry_after_ms) == (True, 70)
        again = [
            frame([bytes(size)], topic=name, producer_id=910, log_sequence=at) for at in (2, 3)
        ]
        assert await fates(sink, again) == [ACCEPTED, ACCEPTED]


async def test_many_small_frames_are_bounded_too(log_broker: Broker, topic: Topic) -> None:
    name = topic()
    async with log_sink(log_broker.bootstrap, retained_frames_max=10) as sink:
        handed = [
            Fate(sink, frame([b"x"], topic=name, producer_id=911, log_sequence=at))
            for at in range(12)
        ]
        assert sum(fate.pending for fate in handed) == 10
        assert [await fate.of() for fate in handed[:10]] == [ACCEPTED] * 10


async def test_stopping_drains_and_then_sends_frames_back(log_broker: Broker, topic: Topic) -> None:
    name = topic()
    async with log_sink(log_broker.bootstrap) as sink:
        handed = [
            Fate(sink, frame([b"%d" % at], topic=name, producer_id=912, log_sequence=at))
            for at in range(40)
        ]
        await sink.stop(60)
        assert [await fate.of() for fate in handed] == [ACCEPTED] * 40
        late = await Fate(sink, frame([b"late"], topic=name)).of()
        assert isinstance(late, Failed)
        assert late.retryable
    assert len(stored(log_broker.bootstrap, name)) == 40


async def test_without_a_broker_it_does_not_start() -> None:
    sink = LogSink(LogSinkOptions(bootstrap="127.0.0.1:1", api_timeout_ms=200))
    with pytest.raises(PenstockError):
        await sink.start()


def test_the_queue_has_room_for_the_largest_frame() -> None:
    with pytest.raises(InvalidSetting, match="retained_bytes_max"):
        LogSink(LogSinkOptions(bootstrap="127.0.0.1:1", retained_bytes_max=1000))


async def test_payload_bytes_may_change_after_the_verdict(log_broker: Broker, topic: Topic) -> None:
    name, count = topic(), 30
    payload = bytearray(batch([b"x" * 50_000]))
    async with log_sink(log_broker.bootstrap) as sink:
        for at in range(count):
            struct.pack_into(">q", payload, 27, 1_700_000_000_000 + at)  # base timestamp
            struct.pack_into(">q", payload, 35, 1_700_000_000_000 + at)
            seal(payload)
            chunks = frame(
                [memoryview(payload)], payload=memoryview(payload), topic=name, producer_id=913,
                log_sequence=at, format=ChunkFormat.RECORD_BATCH,
            )  # fmt: skip
            assert await fates(sink, [chunks]) == [ACCEPTED]
            payload[:] = bytes(len(payload))
            payload[:] = batch([b"x" * 50_000])
    found = [header.base_timestamp for header in headers(log_broker, name)]
    assert found == [1_700_000_000_000 + at for at in range(count)]


async def accepted(sink: LogSink, frames: list[Chunks]) -> None:
    """Hand frames over as a producer does: those that come back again, in order, until none does.

    With so short a time for delivery they come back also from a broker that is only slow.
    """
    async with asyncio.timeout(WAIT_SECONDS):
        while frames:
            verdicts = await fates(sink, frames)
            assert all(v == ACCEPTED or (isinstance(v, Failed) and v.retryable) for v in verdicts)
            frames = [f for f, v in zip(frames, verdicts, strict=True) if v != ACCEPTED]


async def test_a_frame_that_ran_out_of_time_can_be_sent_again() -> None:
    with Broker(admin=False) as broker:
        await asyncio.to_thread(broker.create_topic, "orders", 1)
        async with log_sink(broker.bootstrap, delivery_timeout_ms=400) as sink:
            frames = [frame([b"%d" % at], producer_id=914, log_sequence=at) for at in range(3)]
            await accepted(sink, frames[:1])
            await asyncio.to_thread(broker.stop)
            late, after = await fates(sink, frames[1:])
            assert isinstance(late, Failed)
            assert isinstance(after, Failed)
            assert late.retryable
            assert after.retryable
            assert "failed after" in late.reason
            assert sink.retained_bytes == 0
            await asyncio.to_thread(broker.start)
            # The later one alone is not taken: the earlier one would be lost behind it.
            (alone,) = await fates(sink, frames[2:])
            assert isinstance(alone, Failed)
            assert alone.retryable
            await accepted(sink, frames[1:])
        assert await asyncio.to_thread(stored, broker.bootstrap, "orders") == [b"0", b"1", b"2"]
