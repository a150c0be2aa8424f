"""Rows of the SQLite form: reading and writing values, nothing else.

The tables are in `migrations/sqlite/`. Every function runs inside a transaction of the
writer.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    Partition,
    Topic,
)


def read_fact(connection: sqlite3.Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def write_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute(
        "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def read_image(connection: sqlite3.Connection) -> MetadataImage:
    """The whole image; done once, at start."""
    partitions: dict[bytes, list[Partition]] = {}
    for topic_id, number, leader, epoch, replicas, isr in connection.execute(
        "SELECT topic_id, number, leader, leader_epoch, replicas, isr FROM partitions"
        " ORDER BY topic_id, number"
    ):
        partition = Partition(
            index=number,
            leader=leader,
            leader_epoch=epoch,
            replicas=tuple(json.loads(replicas)),
            isr=tuple(json.loads(isr)),
        )
        partitions.setdefault(topic_id, []).append(partition)
    topics = {
        name: Topic(
            topic_id=UUID(bytes=topic_id),
            name=name,
            configs=json.loads(configs),
            partitions=tuple(partitions.get(topic_id, ())),
            internal=bool(internal),
        )
        for topic_id, name, configs, internal in connection.execute(
            "SELECT topic_id, name, configs, internal FROM topics ORDER BY name"
        )
    }
    brokers = tuple(
        Broker(
            broker_id=broker_id,
            host=host,
            port=port,
            rack=rack,
            incarnation=UUID(bytes=incarnation),
            epoch=epoch,
        )
        for broker_id, host, port, rack, incarnation, epoch in connection.execute(
            "SELECT broker_id, host, port, rack, incarnation, epoch FROM brokers"
            " WHERE registered = 1 ORDER BY broker_id"
        )
    )
    configs = {
        broker: json.loads(text)
        for broker, text in connection.execute("SELECT broker, configs FROM broker_configs")
    }
    return MetadataImage(
        version=int(read_fact(connection, "image_version") or 0),
        cluster_id=read_fact(connection, "cluster_id") or "",
        brokers=brokers,
        topics=topics,
        broker_configs=configs,
        membership=int(read_fact(connection, "membership") or 0),
    )


def read_broker_epoch(connection: sqlite3.Connection, broker_id: int) -> int:
    row = connection.execute(
        "SELECT epoch FROM brokers WHERE broker_id = ?", (broker_id,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def forget_all_brokers(connection: sqlite3.Connection) -> None:
    """Unregister all brokers; their epochs stay."""
    connection.execute("UPDATE brokers SET registered = 0 WHERE registered = 1")


def forget_brokers(connection: sqlite3.Connection, broker_ids: Iterable[int]) -> None:
    """Unregister brokers; their epochs stay."""
    connection.executemany(
        "UPDATE brokers SET registered = 0 WHERE broker_id = ?", [(one,) for one in broker_ids]
    )


def write_broker(connection: sqlite3.Connection, broker: Broker) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO brokers VALUES (?, ?, ?, ?, ?, ?, 1)",
        (
            broker.broker_id,
            broker.host,
            broker.port,
            broker.rack,
            broker.incarnation.bytes,
            broker.epoch,
        ),
    )


def write_epochs(connection: sqlite3.Connection, topic: Topic) -> None:
    """Store the leader epochs of a topic's partitions."""
    connection.executemany(
        "UPDATE partitions SET leader_epoch = ? WHERE topic_id = ? AND number = ?",
        [(one.leader_epoch, topic.topic_id.bytes, one.index) for one in topic.partitions],
    )


def write_topic(connection: sqlite3.Connection, topic: Topic) -> None:
    """Store a topic and those of its partitions that are not stored yet."""
    connection.execute(
        "INSERT INTO topics VALUES (?, ?, ?, ?)"
        " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs",
        (topic.topic_id.bytes, topic.name, json.dumps(dict(topic.configs)), topic.internal),
    )
    connection.executemany(
        "INSERT OR IGNORE INTO partitions VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                topic.topic_id.bytes,
                partition.index,
                partition.leader,
                partition.leader_epoch,
                json.dumps(partition.replicas),
                json.dumps(partition.isr),
            )
            for partition in topic.partitions
        ],
    )


def delete_topic(connection: sqlite3.Connection, topic: Topic) -> None:
    connection.execute("DELETE FROM topics WHERE topic_id = ?", (topic.topic_id.bytes,))
    delete_offsets_of_topic(connection, topic.name)


def delete_offsets_of_topic(connection: sqlite3.Connection, topic: str) -> None:
    connection.execute("DELETE FROM group_offsets WHERE topic = ?", (topic,))


def write_broker_configs(
    connection: sqlite3.Connection, broker: str, configs: Mapping[str, str]
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO broker_configs VALUES (?, ?)", (broker, json.dumps(dict(configs)))
    )


def write_offsets(
    connection: sqlite3.Connection, group_id: str, offsets: Sequence[CommittedOffset]
) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO group_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                group_id,
                one.topic,
                one.partition,
                one.topic_id.bytes,
                one.offset,
                one.leader_epoch,
                one.metadata,
                one.commit_timestamp_ms,
                one.expire_timestamp_ms,
            )
            for one in offsets
        ],
    )


def read_offsets(
    connection: sqlite3.Connection, group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> list[CommittedOffset]:
    rows = connection.execute(
        "SELECT * FROM group_offsets WHERE group_id = ? ORDER BY topic, number",
        (group_id,),
    )
    wanted = None if partitions is None else set(partitions)
    return [
        CommittedOffset(
            topic_id=UUID(bytes=topic_id),
            topic=topic,
            partition=number,
            offset=offset,
            leader_epoch=epoch,
            metadata=metadata,
            commit_timestamp_ms=committed,
            expire_timestamp_ms=expires,
        )
        for _, topic, number, topic_id, offset, epoch, metadata, committed, expires in rows
        if wanted is None or (topic, number) in wanted
    ]


def delete_offsets(
    connection: sqlite3.Connection, group_id: str, partitions: Sequence[tuple[str, int]]
) -> None:
    connection.executemany(
        "DELETE FROM group_offsets WHERE group_id = ? AND topic = ? AND number = ?",
        [(group_id, topic, number) for topic, number in partitions],
    )


def expire_offsets(connection: sqlite3.Connection, now_ms: int, limit: int) -> int:
    expired = connection.execute(
        "SELECT group_id, topic, number FROM group_offsets WHERE expire_timestamp_ms <= ? LIMIT ?",
        (now_ms, limit),
    ).fetchall()
    connection.executemany(
        "DELETE FROM group_offsets WHERE group_id = ? AND topic = ? AND number = ?", expired
    )
    return len(expired)


def read_groups(connection: sqlite3.Connection) -> list[GroupRecord]:
    return [
        GroupRecord(
            group_id=group_id,
            version=version,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
            state=bytes(state),
        )
        for group_id, version, generation, protocol_type, protocol, state in connection.execute(
            "SELECT * FROM group_records ORDER BY group_id"
        )
    ]


def read_group_version(connection: sqlite3.Connection, group_id: str) -> int:
    row = connection.execute(
        "SELECT version FROM group_records WHERE group_id = ?", (group_id,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def write_group(connection: sqlite3.Connection, record: GroupRecord, version: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO group_records VALUES (?, ?, ?, ?, ?, ?)",
        (
            record.group_id,
            version,
            record.generation,
            record.protocol_type,
            record.protocol,
            record.state,
        ),
    )


def delete_group(connection: sqlite3.Connection, group_id: str) -> None:
    connection.execute("DELETE FROM group_records WHERE group_id = ?", (group_id,))
    connection.execute("DELETE FROM group_offsets WHERE group_id = ?", (group_id,))
