"""Contents of databases of earlier versions, and a reader of all of them through the port.

`sqlite.sql` and `postgres.sql` were dumped after `fill` by the Penstock of version 5 of SQLite's
schema, 4 of PostgreSQL's; `GROUP` had been saved, too.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.control import (
    CommittedOffset,
    CoordinationRecord,
    FindRequest,
    ObjectLease,
    SinkCommit,
    SinkState,
    SinkTarget,
    StoreIdentity,
)
from tests.control.diskless import OTHER, TOPIC, Plane, Sequenced, entry, furnish, lease, written
from tests.control.test_topic_participants import REQUEST, SECOND, participant, spread

Contents = dict[str, Any]
GONE = UUID(int=50)
GROUP = CoordinationRecord(
    key="g",
    member="",
    version=1,
    value=(
        b'{"generation":3,"protocol_type":"consumer","protocol":"range",'
        b'"format":1,"epoch":2,"leader":"m-1","members":[{"id":"m-1","instance":null,"client":"c",'
        b'"host":"/h","session_timeout_ms":45000,"rebalance_timeout_ms":60000,'
        b'"protocols":[["range","AAE="]],"assignment":"AAI="}]}'
    ),
)
"""The record of a group that is in the dumps beside what `fill` puts there, as it is kept now."""

LANE = SinkTarget(
    topic="local", topic_id=UUID(int=9), partition=1, producer_id=8, base_sequence=0, records=3
)
ENTRIES = (entry(0, by=Sequenced(5, 0)), entry(1, (50, 2), (70, 3), timestamp=900))


class Dice:
    """Shows the same side always."""

    def uuid(self) -> UUID:
        return UUID(int=77)

    def bits(self, count: int) -> int:
        return 6

    def uniform(self) -> float:
        return 0.5


async def fill(plane: Any) -> None:
    """Put something into every table; `plane` is of the Penstock of then, or of now."""
    await furnish(plane)
    await spread(plane)
    await plane.unregister_broker(broker_id=3, incarnation=UUID(int=13))
    await plane.create_topic(
        name="wide", topic_id=UUID(int=40), partitions=[[1, 2], [2, 1]], configs={"a": "ü"}
    )
    await plane.create_partitions(topic_id=UUID(int=40), expected_count=2, new=[[2]])
    await plane.create_topic(
        name="__own", topic_id=UUID(int=41), partitions=[[1]], configs={}, internal=True
    )
    await plane.create_topic(name="gone", topic_id=GONE, partitions=[[1]], configs={})
    await plane.delete_topic(GONE)
    for broker in ("", "1"):
        await plane.set_broker_configs(broker=broker, configs={"x": broker}, expected=None)
    await plane.allocate_producer_ids(10)
    for group_id, metadata in (("g", "größer"), ("h", "")):
        await plane.commit_offsets(
            group_id=group_id,
            offsets=[
                CommittedOffset(
                    topic_id=UUID(int=9), topic="local", partition=number, offset=4 + number,
                    leader_epoch=3, metadata=metadata, commit_timestamp_ms=7,
                    expire_timestamp_ms=None if number else 900,
                )
                for number in range(2)
            ],
        )  # fmt: skip
    states: dict[str, SinkState] = {"q": "intent", "r": "done"}
    for query_id, state in states.items():
        await plane.save_sink_commit(
            SinkCommit(
                query_id=query_id, owner="o", batch_id=4, state=state, targets=(LANE,),
                manifest=b"m\0", updated_ms=6,
            ),
            expected_version=0,
        )  # fmt: skip
    await plane.adopt_store(StoreIdentity(UUID(int=3), "s3://somewhere"))
    await plane.commit_object(written((await lease(plane))[0], ENTRIES))
    await plane.commit_object(written((await lease(plane))[0], [entry(0, by=Sequenced(5, 5))]))
    await plane.delete_records(TOPIC, 0, 2)
    await plane.open_migration(REQUEST)
    await plane.join_migration(REQUEST, await participant(plane, SECOND))


async def contents(plane: Plane) -> Contents:
    """Return everything that the control plane's read methods return."""
    keys = [(topic_id, partition) for topic_id in (TOPIC, OTHER) for partition in range(3)]
    image = await plane.image()
    groups = await plane.offset_group_ids()
    first = ObjectLease(1, "its key is not looked at")
    return {
        "topics": image.topics,
        "version": (image.version, image.cluster_epoch, image.cluster_id),
        "broker configs": image.broker_configs,
        "offsets": {group: await plane.committed_offsets(group, None) for group in groups},
        "offset": await plane.committed_offsets("g", [("local", 1), ("local", 2)]),
        "sinks": [
            await plane.sink_commit(commit.query_id) for commit in await plane.sink_commits()
        ],
        "store": await plane.store_identity(),
        "marks": await plane.watermarks(keys),
        "extents": {key: await plane.extents(*key, start=0, end=100, limit=100) for key in keys},
        "found": await plane.find([FindRequest(TOPIC, 0, 3, 1000)]),
        "producers": [
            diskless_producer._replace(last_timestamp=0)
            for diskless_producer in await plane.diskless_producers(TOPIC, 0)
        ],
        "objects": await plane.object_totals(),
        "keys": await plane.referenced_keys(after="", limit=100),
        "switches": await plane.running_migrations(),
        "first answer": await plane.commit_object(written(first, ENTRIES)),
        "new object": await plane.highest_object_id(),
        "new producer": await plane.allocate_producer_ids(1),
    }
