"""kill -9 of a broker that appends small requests at once, under `log.flush.policy = os`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from compat.servers import PenstockProcess

from penstock.client import Client
from tests.broker.wire_client import WireClient, batch, produce_request

PARTITIONS, CLIENTS = 3, 6
Acknowledged = dict[tuple[int, int], bytes]


async def produce(client: WireClient, number: int, acknowledged: Acknowledged, round_: int) -> None:
    """Send requests, some of them together, until the broker is gone."""
    count = 0
    try:
        while True:
            partition, together = (number + count // 50) % PARTITIONS, 3 if count % 100 > 90 else 1
            values = [b"%d %d %d" % (round_, number, count + place) for place in range(together)]
            frames = [
                client.frame("Produce", 9, produce_request("t", batch(value), partition=partition))
                for value in values
            ]
            client.writer.write(b"".join(frames))
            for value in values:
                answer = await client.response("Produce", 9)
                (row,) = answer.responses[0].partition_responses
                assert row.error_code.name == "none"
                acknowledged[partition, row.base_offset] = value
            count += together
    except (asyncio.IncompleteReadError, ConnectionError):
        return


@pytest.mark.timeout(120)
async def test_acknowledged_records_survive_kills(tmp_path: Path) -> None:
    server = PenstockProcess(tmp_path, configs={"log.flush.policy": "os"})
    acknowledged: Acknowledged = {}
    for round_ in range(3):
        with server:
            host, _, port = server.bootstrap.rpartition(":")
            clients = [await WireClient.connect((host, int(port))) for _ in range(CLIENTS)]
            if not round_:
                await clients[0].create("t", partitions=PARTITIONS)
            aim = len(acknowledged) + 1_500
            work = [
                asyncio.ensure_future(produce(client, number, acknowledged, round_))
                for number, client in enumerate(clients)
            ]
            while len(acknowledged) < aim:
                done, _ = await asyncio.wait(work, timeout=0.01)
                assert not done
        await asyncio.gather(*work)
        for client in clients:
            await client.close()
    with server, Client(server.bootstrap) as reader:
        table = reader.read_arrow("t")
    places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    found = dict(zip(places, table["value"].to_pylist(), strict=True))
    assert {place: found.get(place) for place in acknowledged} == acknowledged
    assert len(set(found.values())) == len(found)
