"""Contents of databases of release 0.1, and a reader of all of them through the port.

`sqlite.sql` and `postgres.sql` were dumped after `fill` by the Penstock of version 17 of SQLite's
schema, 16 of PostgreSQL's: the last ones of release 0.1.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.control import (
    GROUP_MEMBER,
    TRANSACTION,
    CommittedOffset,
    EpochClaim,
    FindRequest,
    ObjectLease,
    OpenTransaction,
    RecordChange,
    SinkCommit,
    SinkState,
    SinkTarget,
    StoreIdentity,
)
from tests.control import test_tiers as tiers
from tests.control.diskless import (
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    entry,
    furnish,
    lease,
    put,
    written,
)
from tests.control.replicated import opening
from tests.control.test_diskless_transactions import data, marker
from tests.control.test_topic_participants import PROCESSES, REQUEST, SECOND, participant, spread

Contents = dict[str, Any]
GONE = UUID(int=50)
WIDE = UUID(int=40)
TIERED = (UUID(int=60), 0)
GROUP_OF_ONE_RECORD = (
    b'{"generation":3,"protocol_type":"consumer","protocol":"range",'
    b'"format":1,"epoch":2,"leader":"m-1","members":[{"id":"m-1","instance":null,"client":"c",'
    b'"host":"/h","session_timeout_ms":45000,"rebalance_timeout_ms":60000,'
    b'"protocols":[["range","AAE="]],"assignment":"AAI="}]}'
)
"""The record of a group that builds before 0.1 saved; 0.1 reads it, and saves rows."""

GROUP = RecordChange(
    kind="group",
    key="g",
    expected_version=0,
    rows={"": GROUP_OF_ONE_RECORD, "m-1": b"a member\0"},
)

OPEN = OpenTransaction(transactional_id="tx", producer_id=7, producer_epoch=0)
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
        name="wide", topic_id=WIDE, partitions=[[1, 2], [2, 1]], configs={"a": "ü"}
    )
    await plane.create_partitions(topic_id=WIDE, expected_count=2, new=[[2]])
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
    await fill_brokers(plane)
    await fill_transactions(plane)
    [newest] = await plane.extents(TOPIC, 1, start=0, end=5, limit=1)
    await plane.note_clean(TOPIC, 1, 5, newest=newest)
    await plane.create_topic(
        name="tiered", topic_id=TIERED[0], partitions=[[1]], configs=tiers.TIERED
    )
    key = await plane.lease_tier(TIERED, base_offset=0, leader_epoch=0)
    archived = tiers.segment(key, 0, 10, aborted_bytes=34)
    await plane.commit_tier(TIERED, archived, log_start_offset=0, leader_epoch=0)


async def fill_transactions(plane: Any) -> None:
    """Leave transactions open, with pending offsets and with records, and abort one."""
    begun = RecordChange(
        kind=TRANSACTION,
        key="tx",
        expected_version=0,
        rows={"": b"begun", f"{GROUP_MEMBER}g": OPEN.group_row},
    )
    await plane.save_records([GROUP, begun])
    staged = CommittedOffset(topic_id=UUID(int=9), topic="local", partition=1, offset=8)
    await plane.stage_offsets(transaction=OPEN, group_id="g", offsets=[staged])
    await put(plane, data(9, 0), marker(9, 1, commit=False), data(8, 0))


async def fill_brokers(plane: Any) -> None:
    """Register a broker with all that it may have, and lose records by an unclean election."""
    await plane.register_broker(
        broker_id=4, host="h", port=9, rack="r", incarnation=UUID(int=14),
        endpoints=[("inside", "i", 8)], roles=["persistence"],
    )  # fmt: skip
    await plane.set_entity_configs(
        kind="quota", changes={"user=ü": {"consumer_byte_rate": "1"}}, expected={}
    )
    for number, end, replicas, quorum in ((1, 10, (1, 2), 2), (2, 5, (2,), 1)):
        process = PROCESSES[SECOND]
        await plane.claim_epochs([EpochClaim(WIDE, 0, 0)], broker_id=SECOND, incarnation=process)
        refused = await plane.open_epochs(
            [
                opening(
                    (WIDE, 0), number, end,
                    replicas=replicas, ack_quorum=quorum, unclean=quorum == 1,
                )
            ],
            broker_id=SECOND,
            incarnation=process,
        )  # fmt: skip
        assert not refused


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
        "entity configs": image.entity_configs,
        "chains": await plane.partition_chains([(WIDE, 0), (WIDE, 1)]),
        "losses": [loss._replace(at_ms=0) for loss in await plane.partition_losses()],
        "records": {
            kind: await plane.records(kind, await plane.record_keys(kind))
            for kind in ("group", TRANSACTION)
        },
        "stable": await plane.stable_offsets("g", None),
        "tiers": (await plane.tier_bounds([TIERED]), await plane.tier_segments(TIERED, 0)),
        "aborted": await plane.aborted(TOPIC, 0, offset=0, limit=9),
        "clean": [await plane.clean_offset(*key) for key in keys],
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
