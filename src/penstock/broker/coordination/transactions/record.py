"""Stored rows of a transactional id: one for the id, and one per partition or group of its
transaction.

The id's own row has the empty member. It is JSON:

    {"format": 1, "state": text, "producer": [id, epoch], "last": [id, epoch],
     "next_producer_id": int, "marker_version": int, "timeout_ms": int, "start_ms": int,
     "updated_ms": int}

The row of a partition has the member `partition/<topic>/<partition>` and an empty value. The row of
a group has the member `group/<id>`; its value is the producer, by which the control plane checks
staged offsets (`penstock.control.OpenTransaction`). Adding a partition writes two small rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from penstock.base.errors import CorruptError
from penstock.base.ids import TopicPartition
from penstock.broker.coordination.transactions.metadata import (
    ProducerIdentity,
    TransactionMetadata,
)
from penstock.broker.coordination.transactions.states import TransactionState
from penstock.control import GROUP_MEMBER, KEY_ROW, OpenTransaction

FORMAT: Final = 1
PARTITION_MEMBER: Final = "partition/"


class CorruptTransaction(CorruptError):
    code: ClassVar[str] = "coordinator_not_available"


def encode_transaction(transactional_id: str, metadata: TransactionMetadata) -> dict[str, bytes]:
    """Return the rows of an id by member; a dead id has none."""
    if metadata.state is TransactionState.DEAD:
        return {}
    own = {
        "format": FORMAT,
        "state": metadata.state.value,
        "producer": metadata.producer,
        "last": metadata.last,
        "next_producer_id": metadata.next_producer_id,
        "marker_version": metadata.marker_version,
        "timeout_ms": metadata.timeout_ms,
        "start_ms": metadata.start_ms,
        "updated_ms": metadata.updated_ms,
    }
    rows = {KEY_ROW: json.dumps(own, separators=(",", ":")).encode()}
    for where in metadata.partitions:
        rows[f"{PARTITION_MEMBER}{where.topic}/{where.partition}"] = b""
    if metadata.groups:
        group_row = OpenTransaction(
            transactional_id=transactional_id,
            producer_id=metadata.producer.producer_id,
            producer_epoch=metadata.producer.producer_epoch,
        ).group_row
        rows.update((f"{GROUP_MEMBER}{group}", group_row) for group in metadata.groups)
    return rows


def decode_transaction(transactional_id: str, rows: Mapping[str, bytes]) -> TransactionMetadata:
    """Decode the metadata of an id.

    Raises:
        CorruptTransaction: the rows do not have the format above.
    """
    try:
        own = json.loads(rows[KEY_ROW])
        if own["format"] != FORMAT:
            raise ValueError(f"format {own['format']!r} is not {FORMAT}")
        members = [member for member in rows if member != KEY_ROW]
        metadata = TransactionMetadata(
            producer=_identity(own["producer"]),
            last=_identity(own["last"]),
            next_producer_id=int(own["next_producer_id"]),
            state=TransactionState(own["state"]),
            marker_version=int(own["marker_version"]),
            timeout_ms=int(own["timeout_ms"]),
            start_ms=int(own["start_ms"]),
            updated_ms=int(own["updated_ms"]),
            partitions=frozenset(
                _partition(member.removeprefix(PARTITION_MEMBER))
                for member in members
                if member.startswith(PARTITION_MEMBER)
            ),
            groups=frozenset(
                member.removeprefix(GROUP_MEMBER)
                for member in members
                if member.startswith(GROUP_MEMBER)
            ),
        )
        if len(metadata.partitions) + len(metadata.groups) != len(members):
            raise ValueError("there are rows that are neither partitions nor groups")
        if metadata.state.idle and members:
            raise ValueError(f"state {metadata.state.value} must not have partitions or groups")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTransaction(
            f"the saved transaction {transactional_id!r} cannot be read: {error}"
        ) from None
    return metadata


def _identity(saved: Sequence[int]) -> ProducerIdentity:
    producer_id, producer_epoch = saved
    return ProducerIdentity(int(producer_id), int(producer_epoch))


def _partition(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("/")
    return TopicPartition(topic, int(partition))
