"""Requests to a wrong broker return the leader and its address (KIP-951)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient, batch, fetch_request, produce_request

TOPIC_ID = UUID(int=77)
FAR: dict[str, Any] = {
    "host": "far.example",
    "port": 9,
    "rack": "r2",
    "endpoints": [("INSIDE", "near", 10)],
}


def asked(api: str) -> dict[str, Any]:
    if api == "Produce":
        return produce_request("t", batch(b"x"))
    request = fetch_request({("t", 0): 0})
    del request["replica_id"]
    request["topics"][0] = {**request["topics"][0], "topic_id": TOPIC_ID}
    return request


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(("api", "version"), [("Produce", 9), ("Produce", 12), ("Fetch", 17)])
async def test_the_leader_is_named_with_its_address(
    start_broker: StartBroker, api: str, version: int, registered: bool
) -> None:
    broker = await start_broker(
        {
            "listeners": "OUTSIDE://127.0.0.1:0,INSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
        }
    )
    if registered:
        await broker.control.register_broker(broker_id=7, incarnation=UUID(int=1), **FAR)
    await broker.control.create_topic(name="t", topic_id=TOPIC_ID, partitions=[[7]], configs={})
    await broker.cluster.refresh()
    client = await WireClient.connect(broker.bound["INSIDE"])
    answer = await client.call(api, version, asked(api))
    await client.close()
    (topic,) = answer.responses
    (row,) = topic.partition_responses if api == "Produce" else topic.partitions
    assert row.error_code.name == "not_leader_or_follower"
    if version < 10:
        assert not hasattr(row, "current_leader")
        return
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (7, 0)
    found = [
        (node_endpoint.node_id, node_endpoint.host, node_endpoint.port, node_endpoint.rack)
        for node_endpoint in answer.node_endpoints
    ]
    assert found == ([(7, "near", 10, "r2")] if registered else [])
