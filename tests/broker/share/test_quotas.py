"""Quotas of consumers apply to members of share groups."""

from __future__ import annotations

from tests.broker.share.conftest import Join, Member
from tests.broker.test_quotas import limit
from tests.broker.wire_client import WireClient, batch


async def test_a_member_above_its_quota_acquires_nothing_until_it_has_waited(
    client: WireClient, join: Join
) -> None:
    await client.create("t")
    for _ in range(2):
        await client.produce("t", batch(b"x" * 3000))
    place = (await Member(client, "g", "m").topic("t"), 0)
    member, other = await join("one"), await join("two")
    await limit(client, "consumer_byte_rate", 300)
    answer = await member.fetch(place)
    assert answer.responses[0].partitions[0].acquired_records
    assert answer.throttle_time.total_seconds() > 0
    answer = await other.fetch(place)
    acquired = [row.acquired_records for topic in answer.responses for row in topic.partitions]
    assert not any(acquired)
    assert answer.throttle_time.total_seconds() > 0
