"""Statements for the tables of replicated partitions, and conversion of their rows.

`replicated_partitions` has the highest reserved epochs, `partition_epochs` the opened ones. The
constraints of the second table enforce safety: quorums, ends not below starts, and one open epoch
per partition.
"""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import Each, rows, uuid_of
from penstock.control.epochs.values import AssignedEpoch, PartitionEpoch, PartitionLoss, Reservation
from penstock.control.metadata.statements import broker_ids

_RESERVATION: Final = (
    "r.reserved, r.claimant, r.incarnation, (SELECT max(e.epoch) FROM partition_epochs e"
    " WHERE e.topic_id = r.topic_id AND e.number = r.number)"
)
_OF_KEY: Final = (
    f"SELECT $3, {_RESERVATION} FROM replicated_partitions r"  # noqa: S608  (fixed, as all)
    " WHERE r.topic_id = $1 AND r.number = $2"
)
_OF_KEYS: Final = (
    f"SELECT k.place, {_RESERVATION} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place)"
    " JOIN replicated_partitions r ON r.topic_id = k.topic_id AND r.number = k.number"
)
_EPOCH: Final = (
    "e.epoch, e.start_offset, e.end_offset, e.replicas, e.ack_quorum, e.leader, e.incarnation"
)

read = Each("rows", _OF_KEYS, sqlite=_OF_KEY)
"""Takes rows of (topic id, partition, number); returns (number, reservation)."""
lock = Each("rows", f"{_OF_KEYS} ORDER BY r.topic_id, r.number FOR UPDATE OF r", sqlite=_OF_KEY)
reserve = Each(
    "changed",
    "UPDATE replicated_partitions r SET reserved = n.reserved, claimant = $4, incarnation = $5"
    " FROM unnest($1::uuid[], $2::int[], $3::int[]) AS n (topic_id, number, reserved)"
    " WHERE r.topic_id = n.topic_id AND r.number = n.number AND r.reserved < n.reserved",
    sqlite="UPDATE replicated_partitions SET reserved = $3, claimant = $4, incarnation = $5"
    " WHERE topic_id = $1 AND number = $2 AND reserved < $3",
)
add_partitions = Each(
    "changed",
    "INSERT INTO replicated_partitions"
    " SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::uuid[])",
    sqlite="INSERT INTO replicated_partitions VALUES ($1, $2, $3, $4, $5)",
)
newest_epochs = Each(
    "rows",
    f"SELECT k.place, {_EPOCH} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place) CROSS JOIN LATERAL (SELECT * FROM partition_epochs o"
    " WHERE o.topic_id = k.topic_id AND o.number = k.number AND o.epoch < $4"
    " ORDER BY o.epoch DESC LIMIT $5) e",
    sqlite=f"SELECT $3, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE e.topic_id = $1 AND e.number = $2 AND e.epoch < $4 ORDER BY e.epoch DESC LIMIT $5",
)
"""Takes rows of (topic id, partition, number), a bound, and a limit per partition.

Returns rows of (number, epoch) with epochs below the bound.
"""
seal = Each(
    "changed",
    "UPDATE partition_epochs e SET end_offset = n.end_offset"
    " FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[])"
    " AS n (topic_id, number, epoch, end_offset) WHERE e.topic_id = n.topic_id"
    " AND e.number = n.number AND e.epoch = n.epoch AND e.end_offset IS NULL",
    sqlite="UPDATE partition_epochs SET end_offset = $4"
    " WHERE topic_id = $1 AND number = $2 AND epoch = $3 AND end_offset IS NULL",
)
add_epochs = Each(
    "changed",
    "INSERT INTO partition_epochs (topic_id, number, epoch, start_offset, replicas, ack_quorum,"
    " leader, incarnation) SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[],"
    " $5::text[], $6::int[], $7::int[], $8::uuid[])",
    sqlite="INSERT INTO partition_epochs (topic_id, number, epoch, start_offset, replicas,"
    " ack_quorum, leader, incarnation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
)

assigned = rows(
    f"SELECT e.topic_id, e.number, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE (e.topic_id, e.number, e.epoch) > ($1, $2, $3)"
    " AND e.replicas::jsonb @> to_jsonb($4::int) ORDER BY e.topic_id, e.number, e.epoch LIMIT $5",
    f"SELECT e.topic_id, e.number, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE (e.topic_id, e.number, e.epoch) > ($1, $2, $3)"
    " AND EXISTS (SELECT 1 FROM json_each(e.replicas) WHERE value = $4)"
    " ORDER BY e.topic_id, e.number, e.epoch LIMIT $5",
)
shorten = Each(
    "changed",
    "UPDATE partition_epochs e SET start_offset = least(e.start_offset, n.until),"
    " end_offset = CASE WHEN e.end_offset > n.until THEN n.until ELSE e.end_offset END"
    " FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS n (topic_id, number, until)"
    " WHERE e.topic_id = n.topic_id AND e.number = n.number"
    " AND (e.start_offset > n.until OR e.end_offset > n.until)",
    sqlite="UPDATE partition_epochs SET start_offset = min(start_offset, $3),"
    " end_offset = min(end_offset, $3)"
    " WHERE topic_id = $1 AND number = $2 AND (start_offset > $3 OR end_offset > $3)",
)
"""Ends earlier epochs at an offset after an unclean election.

Takes rows of (topic id, partition, offset).
"""
add_losses = Each(
    "changed",
    "INSERT INTO partition_losses SELECT n.*, penstock_now_ms() FROM unnest($1::uuid[], $2::int[],"
    " $3::int[], $4::int[], $5::bigint[], $6::int[], $7::text[]) AS n",
    sqlite="INSERT INTO partition_losses VALUES ($1, $2, $3, $4, $5, $6, $7, penstock_now_ms())",
)
"""Takes rows of (topic id, partition, epoch, sealed epoch, offset, broker, missing replicas)."""
read_losses = rows(
    "SELECT topic_id, number, epoch, sealed, from_offset, broker, missing, at_ms"
    " FROM partition_losses ORDER BY at_ms DESC, topic_id, number LIMIT $1"
)
delete_losses = Each("changed", "DELETE FROM partition_losses WHERE topic_id = ANY($1::uuid[])")
delete_epochs = Each("changed", "DELETE FROM partition_epochs WHERE topic_id = ANY($1::uuid[])")
delete_partitions = Each(
    "changed", "DELETE FROM replicated_partitions WHERE topic_id = ANY($1::uuid[])"
)


def reservation_of(found: Any) -> Reservation:
    _, reserved, claimant, incarnation, opened = found
    return Reservation(reserved, claimant, _process(incarnation), opened)


def epoch_of(found: Any) -> PartitionEpoch:
    epoch, start, end, replicas, quorum, leader, incarnation = found[-7:]
    placement, process = broker_ids(replicas), _process(incarnation)
    return PartitionEpoch(epoch, start, end, placement, quorum, leader, process)


def _process(incarnation: Any) -> UUID | None:
    return None if incarnation is None else uuid_of(incarnation)


def loss_of(found: Any) -> PartitionLoss:
    topic_id, number, epoch, sealed, offset, broker, missing, at_ms = found
    replicas = broker_ids(missing)
    return PartitionLoss(uuid_of(topic_id), number, epoch, sealed, offset, broker, replicas, at_ms)


def assigned_of(found: Any) -> AssignedEpoch:
    return AssignedEpoch(uuid_of(found[0]), found[1], epoch_of(found))


def epoch_row(key: PartitionKey, one: PartitionEpoch) -> tuple[Any, ...]:
    replicas = json.dumps(one.replicas)
    return *key, one.epoch, one.start_offset, replicas, one.ack_quorum, one.leader, one.incarnation
