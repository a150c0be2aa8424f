"""Diskless topics accept records with ids of registered schemas only, if they demand them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.server import BrokerServer
from penstock.records import Codec
from tests.broker.registered import Registered, framed, give
from tests.broker.wire_client import WireClient, batch
from tests.records.reference import Batch, Record, encode

INVALID_RECORD = 87


async def test_ids_are_checked_before_a_batch_is_collected(
    broker: BrokerServer, client: WireClient, create: Callable[..., Awaitable[Any]]
) -> None:
    registered = Registered(5)
    give(broker, registered)
    await create("t", schema_validation_value="true")
    registered.later = {7}
    offset = 0
    for codec in Codec:
        packed = encode(Batch(0, (Record(0, 1_000, None, framed(7)),), codec=codec))
        assert (await client.produce("t", packed)).base_offset == offset
        offset += 1
        unknown = encode(Batch(0, (Record(0, 1_000, None, framed(9)),), codec=codec))
        for data in (batch(b"plain"), unknown):
            row = await client.produce("t", data)
            assert (row.error_code, row.base_offset) == (INVALID_RECORD, -1)
            assert [error.batch_index for error in row.record_errors] == [0]
    assert (await client.fetch("t")).high_watermark == offset
