"""Rows of the PostgreSQL form: reading and writing values, nothing else.

The tables are in `migrations/postgres/`. Functions that write run inside a transaction that holds
the locks which the text of the caller names. A topic's row carries the stamp of its last change:
who knows the image of some time reads only the topics whose stamps are new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.control.drivers.postgres_connections import Connection
from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    Partition,
    Topic,
)

_TOPIC_COLUMNS: Final = "topic_id, name, configs, internal, partitions, stamp"
_OFFSET_COLUMNS: Final = (
    "group_id, topic, number, topic_id, committed_offset, leader_epoch, metadata,"
    " commit_timestamp_ms, expire_timestamp_ms"
)


class StampedImage(NamedTuple):
    """An image, the stamp of its row, and those of its topics."""

    image: MetadataImage
    stamp: UUID
    topics: Mapping[UUID, tuple[UUID, Topic]]
    """By topic id: the stamp of the topic's row, and what was in it."""

    def followed_by(self, image: MetadataImage, stamp: UUID) -> StampedImage:
        """The next image, of which topics that this one does not have were written with a stamp."""
        topics = {
            topic.topic_id: (
                known
                if (known := self.topics.get(topic.topic_id)) and known[1] is topic
                else (stamp, topic)
            )
            for topic in image.topics.values()
        }
        return StampedImage(image, stamp, topics)


async def read_stamp(connection: Connection, *, lock: bool = False) -> tuple[int, UUID]:
    """The image's version and stamp; its row is locked until the transaction ends if asked."""
    row = await connection.fetchrow(
        "SELECT version, stamp FROM image_version FOR UPDATE"
        if lock
        else "SELECT version, stamp FROM image_version"
    )
    return row[0], uuid_of(row[1])


async def read_image(connection: Connection, known: StampedImage | None) -> StampedImage:
    """The whole image, in a transaction that sees one state; what is known is not read again."""
    version, membership, cluster_id, stamp = await connection.fetchrow(
        "SELECT version, membership, cluster_id, stamp FROM image_version"
    )
    topics = await _read_topics(connection, {} if known is None else known.topics)
    brokers = await connection.fetch(
        "SELECT broker_id, host, port, rack, incarnation, epoch FROM brokers"
        " WHERE registered ORDER BY broker_id"
    )
    configs = await connection.fetch("SELECT broker, configs FROM broker_configs")
    named = sorted((topic.name, topic.topic_id) for _, topic in topics.values())
    image = MetadataImage(
        version=version,
        cluster_id=cluster_id,
        brokers=tuple(_broker(row) for row in brokers),
        topics={name: topics[topic_id][1] for name, topic_id in named},
        broker_configs={broker: json.loads(text) for broker, text in configs},
        membership=membership,
    )
    return StampedImage(image, uuid_of(stamp), topics)


async def _read_topics(
    connection: Connection, known: Mapping[UUID, tuple[UUID, Topic]]
) -> dict[UUID, tuple[UUID, Topic]]:
    if not known:
        rows = await connection.fetch(f"SELECT {_TOPIC_COLUMNS} FROM topics")  # noqa: S608  (fixed)
        return dict(_topic(row) for row in rows)
    stamps = {
        uuid_of(topic_id): uuid_of(stamp)
        for topic_id, stamp in await connection.fetch("SELECT topic_id, stamp FROM topics")
    }
    topics = {
        topic_id: known[topic_id]
        for topic_id, stamp in stamps.items()
        if topic_id in known and known[topic_id][0] == stamp
    }
    changed = [topic_id for topic_id in stamps if topic_id not in topics]
    if changed:
        rows = await connection.fetch(
            f"SELECT {_TOPIC_COLUMNS} FROM topics WHERE topic_id = ANY($1)",  # noqa: S608  (fixed)
            changed,
        )
        topics.update(_topic(row) for row in rows)
    return topics


async def write_image_version(
    connection: Connection, image: MetadataImage, stamp: UUID, channel: str, notice: str
) -> None:
    """Store an image's version and tell who listens, when the transaction commits."""
    await connection.execute(
        "WITH changed AS (UPDATE image_version SET version = $1, membership = $2, stamp = $3"
        " RETURNING 1) SELECT pg_notify($4, $5) FROM changed",
        image.version,
        image.membership,
        stamp,
        channel,
        notice,
    )


async def write_topic(connection: Connection, topic: Topic, stamp: UUID) -> None:
    """Store a topic and its partitions."""
    partitions = [[p.leader, p.leader_epoch, p.replicas, p.isr] for p in topic.partitions]
    await connection.execute(
        "INSERT INTO topics VALUES ($1, $2, $3, $4, $5, $6, $7)"
        " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs,"
        " partition_count = excluded.partition_count, partitions = excluded.partitions,"
        " stamp = excluded.stamp",
        topic.topic_id,
        topic.name,
        json.dumps(dict(topic.configs)),
        topic.internal,
        len(partitions),
        json.dumps(partitions, separators=(",", ":")),
        stamp,
    )


async def delete_topic(connection: Connection, topic_id: UUID) -> None:
    await connection.execute("DELETE FROM topics WHERE topic_id = $1", topic_id)


async def delete_offsets_of_topic(connection: Connection, topic: str) -> None:
    await connection.execute("DELETE FROM group_offsets WHERE topic = $1", topic)


async def write_broker_configs(
    connection: Connection, broker: str, configs: Mapping[str, str]
) -> None:
    await connection.execute(
        "INSERT INTO broker_configs VALUES ($1, $2)"
        " ON CONFLICT (broker) DO UPDATE SET configs = excluded.configs",
        broker,
        json.dumps(dict(configs)),
    )


async def read_broker_epoch(connection: Connection, broker_id: int) -> int:
    found: int | None = await connection.fetchval(
        "SELECT epoch FROM brokers WHERE broker_id = $1", broker_id
    )
    return found or 0


async def write_broker(connection: Connection, broker: Broker) -> None:
    """Store a registration, renewed now."""
    await connection.execute(
        "INSERT INTO brokers VALUES ($1, $2, $3, $4, $5, $6, true, penstock_now_ms())"
        " ON CONFLICT (broker_id) DO UPDATE SET host = excluded.host, port = excluded.port,"
        " rack = excluded.rack, incarnation = excluded.incarnation, epoch = excluded.epoch,"
        " registered = true, renewed_ms = excluded.renewed_ms",
        broker.broker_id,
        broker.host,
        broker.port,
        broker.rack,
        broker.incarnation,
        broker.epoch,
    )


async def renew_broker(connection: Connection, broker_id: int, incarnation: UUID) -> bool:
    """Whether the incarnation is registered; its renewal is now."""
    done = await connection.execute(
        "UPDATE brokers SET renewed_ms = penstock_now_ms()"
        " WHERE broker_id = $1 AND incarnation = $2 AND registered",
        broker_id,
        incarnation,
    )
    return done == "UPDATE 1"


async def read_overdue(connection: Connection, timeout_ms: int) -> list[int]:
    """The brokers whose renewal is longer ago than that."""
    rows = await connection.fetch(
        "SELECT broker_id FROM brokers WHERE registered"
        " AND renewed_ms < penstock_now_ms() - $1 ORDER BY broker_id",
        timeout_ms,
    )
    return [broker_id for (broker_id,) in rows]


async def forget_overdue(connection: Connection, timeout_ms: int) -> list[int]:
    """Unregister those whose renewal is longer ago than that, and say which."""
    rows = await connection.fetch(
        "UPDATE brokers SET registered = false WHERE registered"
        " AND renewed_ms < penstock_now_ms() - $1 RETURNING broker_id",
        timeout_ms,
    )
    return sorted(broker_id for (broker_id,) in rows)


async def forget_brokers(connection: Connection, broker_ids: Iterable[int]) -> None:
    """Unregister brokers; their epochs stay."""
    await connection.execute(
        "UPDATE brokers SET registered = false WHERE broker_id = ANY($1)", list(broker_ids)
    )


async def allocate_producer_ids(connection: Connection, count: int) -> int:
    """The first id after those that were handed out and these."""
    found: int = await connection.fetchval(
        "UPDATE counters SET value = value + $1 WHERE name = 'next_producer_id' RETURNING value",
        count,
    )
    return found


async def write_offsets(
    connection: Connection, group_id: str, offsets: Sequence[CommittedOffset]
) -> None:
    """Store offsets, without those of an earlier topic of the same name."""
    newest = {(one.topic, one.partition): one for one in offsets}
    ordered = [one for _, one in sorted(newest.items(), key=lambda item: item[0])]
    columns = [list(column) for column in zip(*map(_offset_row, ordered), strict=True)]
    if not columns:
        return
    await connection.execute(
        f"INSERT INTO group_offsets ({_OFFSET_COLUMNS})"  # noqa: S608  (fixed)
        " SELECT $1, new.* FROM unnest($2::text[], $3::int[], $4::uuid[], $5::bigint[], $6::int[],"
        " $7::bytea[], $8::bigint[], $9::bigint[]) AS new (topic, number, topic_id)"
        " WHERE NOT EXISTS (SELECT 1 FROM topics"
        "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)"
        " ON CONFLICT (group_id, topic, number) DO UPDATE SET topic_id = excluded.topic_id,"
        " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
        " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms,"
        " expire_timestamp_ms = excluded.expire_timestamp_ms",
        group_id,
        *columns,
    )


def _offset_row(one: CommittedOffset) -> tuple[Any, ...]:
    return (
        one.topic,
        one.partition,
        one.topic_id,
        one.offset,
        one.leader_epoch,
        one.metadata.encode(),
        one.commit_timestamp_ms,
        one.expire_timestamp_ms,
    )


async def read_offsets(
    connection: Connection, group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> list[CommittedOffset]:
    rows = await connection.fetch(
        f"SELECT {_OFFSET_COLUMNS} FROM group_offsets WHERE group_id = $1"  # noqa: S608  (fixed)
        + ("" if partitions is None else f" AND {_AMONG}")
        + " ORDER BY topic, number",
        group_id,
        *([] if partitions is None else _pairs(partitions)),
    )
    return [
        CommittedOffset(
            topic_id=uuid_of(topic_id),
            topic=topic,
            partition=number,
            offset=offset,
            leader_epoch=epoch,
            metadata=metadata.decode(),
            commit_timestamp_ms=committed,
            expire_timestamp_ms=expires,
        )
        for _, topic, number, topic_id, offset, epoch, metadata, committed, expires in rows
    ]


_AMONG: Final = "(topic, number) IN (SELECT * FROM unnest($2::text[], $3::int[]))"


def _pairs(partitions: Sequence[tuple[str, int]]) -> list[list[Any]]:
    return [[topic for topic, _ in partitions], [number for _, number in partitions]]


async def read_offset_group_ids(connection: Connection) -> list[str]:
    rows = await connection.fetch("SELECT DISTINCT group_id FROM group_offsets ORDER BY group_id")
    return [group_id for (group_id,) in rows]


async def delete_offsets(
    connection: Connection, group_id: str, partitions: Sequence[tuple[str, int]]
) -> None:
    await connection.execute(
        f"DELETE FROM group_offsets WHERE group_id = $1 AND {_AMONG}",  # noqa: S608  (fixed)
        group_id,
        *_pairs(partitions),
    )


async def expire_offsets(connection: Connection, now_ms: int, limit: int) -> int:
    """Delete expired offsets that nobody is just changing; how many."""
    done = await connection.execute(
        "DELETE FROM group_offsets WHERE ctid IN (SELECT ctid FROM group_offsets"
        " WHERE expire_timestamp_ms <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)",
        now_ms,
        limit,
    )
    return int(done.split()[-1])


async def read_groups(connection: Connection) -> list[GroupRecord]:
    rows = await connection.fetch(
        "SELECT group_id, version, generation, protocol_type, protocol, state"
        " FROM group_records ORDER BY group_id"
    )
    return [
        GroupRecord(
            group_id=group_id,
            version=version,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
            state=state,
        )
        for group_id, version, generation, protocol_type, protocol, state in rows
    ]


async def read_group_version(connection: Connection, group_id: str) -> int:
    """The version of a group's record, 0 for none; its row is locked."""
    found: int | None = await connection.fetchval(
        "SELECT version FROM group_records WHERE group_id = $1 FOR UPDATE", group_id
    )
    return found or 0


async def write_group(connection: Connection, record: GroupRecord, *, new: bool) -> int | None:
    """Store a group's record under the next version; None if a new one is there already."""
    if new:
        statement = (
            "INSERT INTO group_records VALUES ($1, nextval('group_versions'), $2, $3, $4, $5)"
            " ON CONFLICT (group_id) DO NOTHING RETURNING version"
        )
    else:
        statement = (
            "UPDATE group_records SET version = nextval('group_versions'), generation = $2,"
            " protocol_type = $3, protocol = $4, state = $5 WHERE group_id = $1 RETURNING version"
        )
    found: int | None = await connection.fetchval(
        statement,
        record.group_id,
        record.generation,
        record.protocol_type,
        record.protocol,
        record.state,
    )
    return found


async def delete_group(connection: Connection, group_id: str) -> None:
    await connection.execute("DELETE FROM group_offsets WHERE group_id = $1", group_id)
    await connection.execute("DELETE FROM group_records WHERE group_id = $1", group_id)


def uuid_of(value: UUID) -> UUID:
    """A plain UUID; the driver's own class prints and pickles in another way."""
    return UUID(bytes=value.bytes)


def _broker(row: Any) -> Broker:
    broker_id, host, port, rack, incarnation, epoch = row
    return Broker(
        broker_id=broker_id,
        host=host,
        port=port,
        rack=rack,
        incarnation=uuid_of(incarnation),
        epoch=epoch,
    )


def _topic(row: Any) -> tuple[UUID, tuple[UUID, Topic]]:
    topic_id, name, configs, internal, partitions, stamp = row
    topic = Topic(
        topic_id=uuid_of(topic_id),
        name=name,
        configs=json.loads(configs),
        partitions=tuple(
            Partition(
                index=index,
                leader=leader,
                leader_epoch=epoch,
                replicas=tuple(replicas),
                isr=tuple(isr),
            )
            for index, (leader, epoch, replicas, isr) in enumerate(json.loads(partitions))
        ),
        internal=internal,
    )
    return topic.topic_id, (uuid_of(stamp), topic)
