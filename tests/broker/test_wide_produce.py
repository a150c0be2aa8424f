"""Produce requests for many partitions, whose ordinary batches are appended together."""

from __future__ import annotations

from typing import Any

from penstock.broker.handlers.produce import WIDE_PARTITIONS_MIN
from penstock.broker.server import BrokerServer
from tests.broker.wire_client import WireClient, batch, fetch_request

PARTITIONS = 2 * WIDE_PARTITIONS_MIN


async def test_each_batch_of_a_wide_request_is_appended_or_rejected(
    client: WireClient, broker: BrokerServer, monkeypatch: Any
) -> None:
    """Ordinary batches share one append; the others get the result that they get alone."""
    store: Any = broker.store
    wide: list[int] = []
    append_each = store.append_each

    def counted(logs: Any, batches: Any, **rest: Any) -> Any:
        results = append_each(logs, batches, **rest)
        wide.append(len([result for result in results if result is not None]))
        return results

    monkeypatch.setattr(store, "append_each", counted)
    await client.create("t", partitions=PARTITIONS)
    torn = bytearray(batch(b"torn"))
    torn[-1] ^= 1
    rows = [{"index": index, "records": batch(b"%d" % index)} for index in range(PARTITIONS)]
    rows[3]["records"] = bytes(torn)
    rows[5]["records"] = batch(b"a", b"b")
    rows[7]["records"] = b""
    rows.append({"index": PARTITIONS, "records": batch(b"nowhere")})
    for round_ in range(2):
        request = {
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": "t", "partition_data": rows}],
        }
        answer = await client.call("Produce", 9, request)
        found = {row.index: row for row in answer.responses[0].partition_responses}
        assert sorted(found) == list(range(PARTITIONS + 1))
        errors = {index: row.error_code.name for index, row in found.items() if row.error_code}
        assert errors == {
            3: "corrupt_message",
            7: "invalid_record",
            PARTITIONS: "unknown_topic_or_partition",
        }
        offsets = {index: row.base_offset for index, row in found.items() if not row.error_code}
        assert offsets == {index: round_ * (2 if index == 5 else 1) for index in offsets}
    assert wide == [0, PARTITIONS - 2]  # the logs are loaded by their first appends
    reading = fetch_request({("t", index): 0 for index in range(PARTITIONS)})
    fetched = (await client.call("Fetch", 12, reading)).responses[0].partitions
    ends = {row.partition_index: row.high_watermark for row in fetched}
    assert ends == {
        index: 0 if index in (3, 7) else 4 if index == 5 else 2 for index in range(PARTITIONS)
    }
