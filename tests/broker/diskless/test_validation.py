"""Diskless topics validate batches as local ones do, before an object contains them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.broker.wire_client import WireClient
from tests.records.nonsense import GOOD, SPOILED, sealed

Create = Callable[..., Awaitable[Any]]
INVALID_RECORD = 87


@pytest.mark.parametrize("name", SPOILED)
async def test_nonsense_is_refused_and_nothing_of_it_is_stored(
    client: WireClient, create: Create, name: str
) -> None:
    await create("t", record_validation="full")
    section, count, record, reason = SPOILED[name]
    for codec in (0, 4):
        done = await client.produce("t", sealed(section, count, codec=codec))
        assert (done.error_code, done.base_offset) == (INVALID_RECORD, -1)
        assert reason in done.error_message
        assert [error.batch_index for error in done.record_errors] == [record]
    assert (await client.produce("t", sealed(b"".join(GOOD), 3))).base_offset == 0


async def test_a_codec_of_the_topic_opens_what_is_looked_at(
    client: WireClient, create: Create
) -> None:
    await create("t", record_validation="chain", compression_type="lz4")
    section, count, _, _ = SPOILED["a key beyond its record"]
    for codec in (0, 4):
        done = await client.produce("t", sealed(section, count, codec=codec))
        assert done.error_code == INVALID_RECORD
    assert (await client.produce("t", sealed(b"".join(GOOD), 3, codec=4))).base_offset == 0


async def test_a_transaction_that_was_not_begun_refuses_records(
    client: WireClient, create: Create
) -> None:
    await create("t")
    assert (await client.produce("t", sealed(GOOD[0], 1, attributes=0x10))).error_code == 53
    assert (await client.produce("t", sealed(GOOD[0], 1, attributes=0x20))).error_code == 87
    assert (await client.produce("t", sealed(GOOD[0], 1))).base_offset == 0
