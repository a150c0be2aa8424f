"""A member of a share group by raw requests, on a real broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.server import BrokerServer
from penstock.broker.share.values import Acknowledge
from tests.broker.wire_client import WireClient

GROUP_RESOURCE = 32
Connect = Callable[[BrokerServer], Awaitable[WireClient]]


class Member:
    """One member of a group, with its session at one broker."""

    def __init__(self, client: WireClient, group: str, member: str) -> None:
        self.client = client
        self.group = group
        self.member = member
        self.epoch = 0
        self.topics: dict[str, UUID] = {}

    async def topic(self, name: str) -> UUID:
        wanted = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        answer = await self.client.call("Metadata", 12, wanted)
        topic_id: UUID = answer.topics[0].topic_id
        return topic_id

    async def fetch(
        self,
        *places: tuple[UUID, int],
        said: dict[tuple[UUID, int], Sequence[tuple[int, int, Iterable[int]]]] | None = None,
        **changes: Any,
    ) -> Any:
        """One ShareFetch; `said` is first, last and types by partition."""
        said = said or {}
        topics = [
            {
                "topic_id": place[0],
                "partitions": [
                    {"partition_index": place[1], "acknowledgement_batches": batches(said, place)}
                ],
            }
            for place in dict.fromkeys([*places, *said])
        ]
        request = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
            "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500,
            "batch_size": 500, "topics": topics, "forgotten_topics_data": [], **changes,
        }  # fmt: skip
        answer = await self.client.call("ShareFetch", 2, request)
        if not answer.error_code:
            self.epoch = request["share_session_epoch"] + 1
        return answer

    async def acquire(
        self, *places: tuple[UUID, int], **changes: Any
    ) -> list[tuple[int, int, int]]:
        """What one ShareFetch acquires of the first partition that has anything."""
        answer = await self.fetch(*places, **changes)
        assert not answer.error_code, answer
        for topic in answer.responses:
            for partition in topic.partitions:
                assert not partition.error_code, partition
                if partition.acquired_records:
                    return [
                        (got.first_offset, got.last_offset, got.delivery_count)
                        for got in partition.acquired_records
                    ]
        return []

    async def say(
        self, place: tuple[UUID, int], first: int, last: int, *types: Acknowledge, **changes: Any
    ) -> int:
        """One ShareAcknowledge; the error of its partition."""
        request = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch,
            "topics": [
                {
                    "topic_id": place[0],
                    "partitions": [
                        {
                            "partition_index": place[1],
                            "acknowledgement_batches": batches(
                                {place: [(first, last, types)]}, place
                            ),
                        }
                    ],
                }
            ],
            **changes,
        }
        answer = await self.client.call("ShareAcknowledge", 2, request)
        assert not answer.error_code, answer
        self.epoch += 1
        return int(answer.responses[0].partitions[0].error_code)


def batches(said: Any, place: tuple[UUID, int]) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": tuple(map(int, types))}
        for first, last, types in said.get(place, ())
    ]


async def set_group(client: WireClient, group: str, **configs: object) -> None:
    """Set configs of a group; dots are underscores."""
    refused = await changed(client, group, **configs)
    assert not refused


async def changed(client: WireClient, group: str, **configs: object) -> str:
    """As `set_group`; returns why not."""
    changes = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": str(value)}
        for name, value in configs.items()
    ]
    answer = await client.call(
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": changes}
            ],
            "validate_only": False,
        },
    )
    return answer.responses[0].error_message or ""


Join = Callable[..., Awaitable[Member]]


@pytest.fixture
def join(broker: BrokerServer, connect: Connect) -> Join:
    """Makes members of group `g`, which begins with the first record, each on its connection."""

    async def join(member: str, group: str = "g", **configs: object) -> Member:
        client = await connect(broker)
        await set_group(client, group, **{"share_auto_offset_reset": "earliest", **configs})
        return Member(client, group, member)

    return join
