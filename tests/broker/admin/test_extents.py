"""Extents of what this broker has not heard of yet: it asks before it says that there is none."""

from __future__ import annotations

from uuid import UUID

from penstock.broker.admin import AdminServer
from penstock.broker.server import BrokerServer
from tests.broker.admin.test_admin import fetch


async def test_what_another_broker_has_just_made_is_known(
    broker: BrokerServer, admin: AdminServer
) -> None:
    await broker.control.create_topic(
        name="orders", topic_id=UUID(int=5), partitions=[[1]], configs={}
    )
    assert "orders" not in broker.partitions.topics
    status, answer = await fetch(admin, "/v1/topics/orders/partitions/0/extents")
    assert (status, answer["topic_id"]) == (200, str(UUID(int=5)))
    await broker.control.create_partitions(topic_id=UUID(int=5), expected_count=1, new=[[1]])
    status, answer = await fetch(admin, "/v1/topics/orders/partitions/1/extents")
    assert (status, answer["partition"]) == (200, 1)
