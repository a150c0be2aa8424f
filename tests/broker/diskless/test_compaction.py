"""Compacted diskless topics on two brokers: consumers before, during and after."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from penstock.records import split_batches
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_records import _creation
from tests.broker.wire_client import WireClient
from tests.records.reference import Batch, Record, encode, read

KEYS = 5
COMPACTING: dict[str, Any] = {
    "diskless_compaction_interval_ms": 20,
    "diskless_consolidation_min_age_ms": 0,
    "diskless_sweep_interval_ms": 20,
    "diskless_sweep_unreferenced_grace_ms": 2_000,
}


async def consumed(client: WireClient) -> list[Record]:
    """Read all records from the first offset to the high watermark."""
    data, offset = b"", 0
    while True:
        row = await client.fetch("t", offset)
        assert row.error_code.name == "none", row
        if row.records:
            headers = split_batches(row.records)
            assert headers[0].base_offset <= offset
            for header, other in itertools.pairwise(headers):
                assert header.next_offset == other.base_offset
            data += bytes(row.records)
            offset = headers[-1].next_offset
        if offset >= row.high_watermark:
            return read(data)


async def test_consumers_see_the_newest_record_of_every_key(cluster: Cluster) -> None:
    brokers = [await cluster.start(**COMPACTING) for _ in range(2)]
    clients = [await cluster.connect(broker) for broker in brokers]
    creation = _creation("t")
    creation["topics"][0]["configs"] += [
        {"name": "cleanup.policy", "value": "compact"},
        {"name": "min.cleanable.dirty.ratio", "value": "0"},
    ]
    answer = await clients[0].call("CreateTopics", 7, creation)
    assert answer.topics[0].error_code.name == "none", answer.topics[0].error_message
    await brokers[1].cluster.refresh()
    refused = await clients[0].produce("t", encode(Batch(0, (Record(0, 1, None, b"v"),))))
    assert refused.error_code.name == "invalid_record"
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    now_ms = brokers[0].clock.now_ms()
    for number in range(60):
        key, value = b"k%d" % (number % KEYS), None if number == 57 else b"%d" % number
        sent = encode(Batch(0, (Record(0, now_ms - 1000 + number, key, value),)))
        row = await clients[number % 2].produce("t", sent)
        assert row.error_code.name == "none", row
        newest[key] = int(row.base_offset), value
        if number % 7 == 0:
            there = await consumed(clients[0])
            assert {record.key: (record.offset, record.value) for record in there} == newest
    topic_id = brokers[0].cluster.image.topics["t"].topic_id
    async with asyncio.timeout(60):
        while await cluster.control.clean_offset(topic_id, 0) < 60:
            await asyncio.sleep(0.01)
    # Those who have read it may go on for a while by what they know.
    there = await consumed(await cluster.connect(await cluster.start()))
    assert {record.key or b"": (record.offset, record.value) for record in there} == newest
    assert [record.offset for record in there] == list(range(55, 60))
