"""Statements for the tables of metadata, and conversion of their rows.

Lists and maps (`configs`, `replicas`, `isr`) are JSON texts, which are read whole. The time of a
broker's last renewal shows whether it is alive. SQLite has these times in a table of its own, in
memory or in an unsynced file, so that a heartbeat waits for no disk. The first process that opens a
SQLite database unregisters all brokers.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from penstock.control.drivers.statements import Each, changed, row, rows, uuid_of, value
from penstock.control.values import Broker, Partition, Topic

# The image

read_version = row("SELECT version, membership, cluster_id, stamp, entity_stamp FROM image_version")
read_stamp = value("SELECT stamp FROM image_version")
lock_stamp = value("SELECT stamp FROM image_version FOR UPDATE")
write_version = changed(
    "WITH changed AS (UPDATE image_version SET version = $1, membership = $2, stamp = $3"
    " RETURNING 1) SELECT pg_notify($4, $5) FROM changed",
    "UPDATE image_version SET version = $1, membership = $2, stamp = $3",
)
make_version = changed(
    "INSERT INTO image_version (only_row, cluster_id, version, membership, stamp)"
    " SELECT true, $1, 0, 0, $2"
    " WHERE NOT EXISTS (SELECT 1 FROM image_version)"
)
read_cluster_id = value("SELECT cluster_id FROM image_version")

# Topics and partitions

read_stamps = rows("SELECT topic_id, stamp FROM topics")
read_topics = Each(
    "rows",
    "SELECT topic_id, name, configs, internal, stamp FROM topics WHERE topic_id = ANY($1::uuid[])",
    sqlite="SELECT topic_id, name, configs, internal, stamp FROM topics WHERE topic_id = $1",
)
_PARTITIONS: Final = (
    "SELECT topic_id, number, leader, leader_epoch, replicas, isr, target, move FROM partitions"
)
read_partitions = Each(
    "rows",
    f"{_PARTITIONS} WHERE topic_id = ANY($1::uuid[])",
    sqlite=f"{_PARTITIONS} WHERE topic_id = $1",
)
write_topics = Each(
    "changed",
    "INSERT INTO topics SELECT n.*, $5"
    " FROM unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[]) AS n"
    " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs, stamp = excluded.stamp",
    sqlite="INSERT INTO topics VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs, stamp = excluded.stamp",
)
write_partitions = Each(
    "changed",
    "INSERT INTO partitions SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[],"
    " $5::text[], $6::text[], $7::text[], $8::bigint[]) ON CONFLICT (topic_id, number) DO UPDATE"
    " SET leader = excluded.leader, leader_epoch = excluded.leader_epoch,"
    " replicas = excluded.replicas, isr = excluded.isr,"
    " target = excluded.target, move = excluded.move",
    sqlite="INSERT OR REPLACE INTO partitions VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
)
delete_partitions = Each(
    "changed",
    "DELETE FROM partitions WHERE topic_id = ANY($1::uuid[])",
    sqlite="DELETE FROM partitions WHERE topic_id = $1",
)
delete_topics = Each(
    "changed",
    "DELETE FROM topics WHERE topic_id = ANY($1::uuid[])",
    sqlite="DELETE FROM topics WHERE topic_id = $1",
)
delete_offsets = Each(
    "changed",
    "DELETE FROM group_offsets WHERE topic = ANY($1::text[])",
    sqlite="DELETE FROM group_offsets WHERE topic = $1",
)
delete_pending_offsets = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE topic = ANY($1::text[])",
    sqlite="DELETE FROM pending_offsets WHERE topic = $1",
)

# Brokers

_OVERDUE: Final = (
    "SELECT broker_id FROM brokers WHERE registered AND renewed_ms <"
    " (SELECT renewed_ms FROM brokers WHERE broker_id = $2 AND registered) - $1 ORDER BY broker_id"
)
_OVERDUE_SQLITE: Final = (
    "SELECT broker_id FROM renewals JOIN brokers USING (broker_id) WHERE registered AND"
    " renewed_ms < (SELECT renewed_ms FROM renewals WHERE broker_id = $2) - $1 ORDER BY broker_id"
)
RENEWALS_SQLITE: Final = (
    "CREATE TABLE IF NOT EXISTS {place}.renewals"
    " (broker_id INTEGER PRIMARY KEY, renewed_ms INTEGER NOT NULL)"
)

read_brokers = rows(
    "SELECT broker_id, host, port, rack, incarnation, epoch, endpoints, roles FROM brokers"
    " WHERE registered ORDER BY broker_id"
)
read_incarnation = value("SELECT incarnation FROM brokers WHERE broker_id = $1 AND registered")
read_epoch = value("SELECT epoch FROM brokers WHERE broker_id = $1")
write_broker = changed(
    "INSERT INTO brokers VALUES ($1, $2, $3, $4, $5, $6, true, penstock_now_ms(), $7, $8)"
    " ON CONFLICT (broker_id) DO UPDATE SET host = excluded.host, port = excluded.port,"
    " rack = excluded.rack, incarnation = excluded.incarnation, epoch = excluded.epoch,"
    " registered = true, renewed_ms = excluded.renewed_ms, endpoints = excluded.endpoints,"
    " roles = excluded.roles",
    (
        "INSERT OR REPLACE INTO brokers VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8)",
        "INSERT OR REPLACE INTO renewals VALUES ($1, penstock_now_ms())",
    ),
)
renew_broker = changed(
    "UPDATE brokers SET renewed_ms = penstock_now_ms()"
    " WHERE broker_id = $1 AND incarnation = $2 AND registered",
    "UPDATE renewals SET renewed_ms = penstock_now_ms() WHERE broker_id = $1 AND EXISTS"
    " (SELECT 1 FROM brokers WHERE broker_id = $1 AND incarnation = $2 AND registered)",
)
read_overdue = rows(_OVERDUE, _OVERDUE_SQLITE)
lock_overdue = rows(f"{_OVERDUE} FOR UPDATE", _OVERDUE_SQLITE)
unregister = Each(
    "changed",
    "UPDATE brokers SET registered = false WHERE broker_id = ANY($1::int[])",
    sqlite="UPDATE brokers SET registered = 0 WHERE broker_id = $1",
)
unregister_all = changed("UPDATE brokers SET registered = false WHERE registered")

# Configs of brokers and entities, and producer ids

read_configs = rows("SELECT broker, configs FROM broker_configs")
write_configs = changed(
    "INSERT INTO broker_configs VALUES ($1, $2)"
    " ON CONFLICT (broker) DO UPDATE SET configs = excluded.configs"
)
read_entity_configs = rows("SELECT kind, name, configs FROM entity_configs ORDER BY kind, name")
stamp_entity_configs = changed("UPDATE image_version SET entity_stamp = $1")
write_entity_configs = Each(
    "changed",
    "INSERT INTO entity_configs SELECT * FROM unnest($1::text[], $2::text[], $3::text[])"
    " ON CONFLICT (kind, name) DO UPDATE SET configs = excluded.configs",
    sqlite="INSERT OR REPLACE INTO entity_configs VALUES ($1, $2, $3)",
)
delete_entity_configs = Each(
    "changed",
    "DELETE FROM entity_configs WHERE (kind, name) IN"
    " (SELECT * FROM unnest($1::text[], $2::text[]))",
    sqlite="DELETE FROM entity_configs WHERE kind = $1 AND name = $2",
)
_ADD_PRODUCER_IDS: Final = "UPDATE counters SET value = value + $1 WHERE name = 'next_producer_id'"
allocate_producer_ids = value(
    f"{_ADD_PRODUCER_IDS} RETURNING value",
    (_ADD_PRODUCER_IDS, "SELECT value FROM counters WHERE name = 'next_producer_id'"),
)


def broker_of(found: Any) -> Broker:
    broker_id, host, port, rack, incarnation, epoch, endpoints, roles = found
    return Broker(
        broker_id=broker_id,
        host=host,
        port=port,
        rack=rack,
        incarnation=uuid_of(incarnation),
        epoch=epoch,
        endpoints=tuple((name, host, port) for name, host, port in json.loads(endpoints)),
        roles=tuple(json.loads(roles)),
    )


def topic_of(found: Any, partitions: list[Partition]) -> Topic:
    topic_id, name, configs, internal, _ = found
    return Topic(
        topic_id=uuid_of(topic_id),
        name=name,
        configs=json.loads(configs),
        partitions=tuple(partitions),
        internal=bool(internal),
    )


def partition_of(found: Any) -> Partition:
    _, number, leader, leader_epoch, replicas, isr, target, move = found
    return Partition(
        index=number,
        leader=leader,
        leader_epoch=leader_epoch,
        replicas=broker_ids(replicas),
        isr=broker_ids(isr),
        target=broker_ids(target),
        move=move,
    )


@lru_cache(maxsize=1024)
def broker_ids(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


def topic_values(topic: Topic) -> tuple[Any, ...]:
    return topic.topic_id, topic.name, json.dumps(dict(topic.configs)), topic.internal


def partition_values(topic: Topic, one: Partition) -> tuple[Any, ...]:
    return (
        topic.topic_id,
        one.index,
        one.leader,
        one.leader_epoch,
        json.dumps(one.replicas),
        json.dumps(one.isr),
        json.dumps(one.target),
        one.move,
    )
