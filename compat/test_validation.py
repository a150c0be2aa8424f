"""Handmade batches that no client sends, over a plain connection: both servers refuse the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.records.nonsense import GOOD, KEYLESS, SPOILED, sealed

from compat.drivers import Driver, eventually
from compat.servers import Server, topics
from compat.wire import Following, served

INVALID_RECORD = 87
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
ZSTD = 4
# What Apache Kafka 4.3.1 answers instead: it stores some of these, and fails on others. Its reader
# of compressed records does not compare lengths, that of plain ones not offsets.
APACHE = {
    ("a length too long", ZSTD): 0,
    ("a length too short", ZSTD): 0,
    ("a negative length", ZSTD): 0,
    ("a key length below -1", 0): 0,
    ("a key length below -1", ZSTD): 0,
    ("the same offset twice", 0): 0,
    ("the same offset twice", ZSTD): -1,
    ("offsets with a gap", 0): 0,
    ("offsets with a gap", ZSTD): -1,
}


def created(server: Server, helper: Driver, name: str, configs: dict[str, str]) -> str:
    if server.name == "penstock":
        configs = {"record.validation": "full", **configs}
    helper.create_topic(name, 1, configs)
    eventually(lambda: served(server.bootstrap, name, 1), lambda: f"{name} has no leader yet")
    return name


async def produced(server: Server, topic: str, data: bytes) -> Any:
    client = await Following.connect_to(server.bootstrap)
    try:
        return await client.produce(topic, data)
    finally:
        await client.close()


async def test_nonsense_among_the_records(server: Server, helper: Driver, name: str) -> None:
    topic = created(server, helper, name, {})
    answers = {
        (case, codec): int(
            (await produced(server, topic, sealed(section, count, codec=codec))).error_code
        )
        for case, (section, count, _, _) in SPOILED.items()
        for codec in (0, ZSTD)
    }
    expected = dict.fromkeys(answers, INVALID_RECORD)
    assert answers == (expected if server.name == "penstock" else expected | APACHE)
    assert (await produced(server, topic, sealed(b"".join(GOOD), 3))).error_code == 0


@pytest.mark.skipif(topics() == "diskless", reason="they are not compacted")
@pytest.mark.parametrize("codec", [0, ZSTD])
async def test_no_key_in_a_compacted_topic(
    server: Server, helper: Driver, name: str, codec: int
) -> None:
    topic = created(server, helper, name, {"cleanup.policy": "compact"})
    keyless = sealed(GOOD[0] + KEYLESS + GOOD[2], 3, codec=codec)
    answer = await produced(server, topic, keyless)
    assert answer.error_code == INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert (await produced(server, topic, sealed(b"".join(GOOD), 3, codec=codec))).error_code == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"attributes": 0x10}, TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (
            {"attributes": 0x10, "producer_id": 5, "producer_epoch": 0, "base_sequence": 0},
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ({"attributes": 0x30}, TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"attributes": 0x20}, INVALID_RECORD),
    ],
)
async def test_transactions_that_were_not_begun(
    server: Server, helper: Driver, name: str, changes: dict[str, int], error: int
) -> None:
    topic = created(server, helper, name, {})
    assert (await produced(server, topic, sealed(GOOD[0], 1, **changes))).error_code == error
