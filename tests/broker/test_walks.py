"""Numbers of files that a request goes through, from the socket and back to it."""

from __future__ import annotations

from tests.broker.test_transactions import add, begin, completed, end
from tests.broker.walks import walk_of
from tests.broker.wire_client import WireClient, batch

PRODUCE_FILES_MAX = 21
FETCH_FILES_MAX = 14
END_TXN_FILES_MAX = 39


async def test_a_produce_request_goes_through_few_files(client: WireClient) -> None:
    await client.create("t")
    walk = await walk_of(lambda: client.produce("t", batch(b"v")))
    assert {"broker/handlers/produce.py", "storage/files/journal.py"} <= {*walk}
    assert len(walk) <= PRODUCE_FILES_MAX, walk


async def test_a_fetch_request_goes_through_few_files(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"v"))
    walk = await walk_of(lambda: client.fetch("t"))
    assert "broker/fetch/operation.py" in walk
    assert len(walk) <= FETCH_FILES_MAX, walk


async def test_the_end_of_a_transaction_goes_through_few_files(client: WireClient) -> None:
    await client.create("t")
    producer = await begin(client, "id")

    async def open_transaction() -> None:
        nonlocal producer
        await completed(client, "id")
        producer = await begin(client, "id")
        assert await add(client, "id", producer, [0]) == {"none"}

    walk = await walk_of(lambda: end(client, "id", producer, commit=True), open_transaction)
    assert "broker/transactions/core.py" in walk
    assert len(walk) <= END_TXN_FILES_MAX, walk
