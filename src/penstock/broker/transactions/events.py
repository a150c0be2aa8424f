"""Events of the core of transactions, its responses, and the stored rows of a transactional id.

Requests are already decoded and authorised. The core answers a request with a `Reply` effect, which
contains the token that was passed with the request.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.base.errors import CorruptError
from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import Act, Refused, Saved, SaveFailed, Tick
from penstock.broker.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from penstock.control import GROUP_MEMBER, KEY_ROW, OpenTransaction

WAIT_MS: Final = 500
"""Maximum time that a request waits for a change under way; then its client must retry.

Clients retry after 20 to 100 ms. A waiting request delays all later requests of its connection.
"""
PEER_WAIT_MS: Final = 20
"""Maximum time that a request of another broker waits; it delays that broker's other requests."""


class InitProducerId(Struct, frozen=True, kw_only=True):
    """InitProducerId request of a producer that starts or restarts.

    A restarted producer may send its former identity in `producer` (KIP-360). `fresh_producer_id`
    is an unused producer id; without one, the response may be `ProducerIdNeeded`.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerIdentity = NO_PRODUCER
    fresh_producer_id: int = NO_PRODUCER_ID


class AddToTransaction(Struct, frozen=True, kw_only=True):
    """Request to add partitions, or groups with offsets, to a transaction.

    `wait_ms` is the maximum time that it waits for a change under way.
    """

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    wait_ms: int = WAIT_MS


class VerifyPartitions(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition]


class EndTransaction(Struct, frozen=True, kw_only=True):
    """EndTxn request: commit or abort a transaction.

    `raises_epoch` is true in version 2 of the transaction protocol. `fresh_producer_id` is as in
    `InitProducerId`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    raises_epoch: bool
    fresh_producer_id: int = NO_PRODUCER_ID


class DescribeTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str


class ListTransactions(Struct, frozen=True, kw_only=True):
    """Request to list transactional ids. Empty filters and a negative `running_ms` match all ids.

    `running_ms` matches ids whose newest transaction began more than this time ago.
    """

    states: tuple[str, ...] = ()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1


class MarkersWritten(Struct, frozen=True, kw_only=True):
    """Report that partitions have the marker of a transaction, or need none.

    `producer` is the identity in the markers, which identifies the transaction.
    """

    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[TopicPartition]


TransactionRequest = (
    InitProducerId | AddToTransaction | VerifyPartitions | EndTransaction | DescribeTransaction
)
Event = TransactionRequest | ListTransactions | MarkersWritten | Saved | SaveFailed | Tick


class ProducerIdNeeded(Struct, frozen=True, kw_only=True):
    """Response that asks the caller to repeat the request with an unused producer id."""


class Initialised(Struct, frozen=True, kw_only=True):
    """Response to InitProducerId: the identity of the producer, which fences earlier ones."""

    producer: ProducerIdentity


class Added(Struct, frozen=True, kw_only=True):
    """Response that all given partitions and groups belong to the transaction."""


class Verified(Struct, frozen=True, kw_only=True):
    """Response to a verification: `missing` partitions do not belong to the open transaction."""

    missing: frozenset[TopicPartition]


class Ended(Struct, frozen=True, kw_only=True):
    """Response to EndTxn: the outcome is stored. `producer` is the identity from now on."""

    producer: ProducerIdentity


class DescribedTransaction(Struct, frozen=True, kw_only=True):
    """Description of an id; `unmarked` are the partitions that do not have a marker yet."""

    transactional_id: str
    metadata: TransactionMetadata
    unmarked: frozenset[TopicPartition]


class ListedTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    state: str


class ListedTransactions(Struct, frozen=True, kw_only=True):
    """Ids that match the filters; `unknown_states` are state filters that do not exist."""

    transactions: tuple[ListedTransaction, ...]
    unknown_states: tuple[str, ...] = ()


Response = (
    Refused
    | ProducerIdNeeded
    | Initialised
    | Added
    | Verified
    | Ended
    | DescribedTransaction
    | ListedTransactions
)


class WriteMarkers(Act, frozen=True, kw_only=True):
    """Effect: write a marker to each partition, with retries, and report `MarkersWritten`.

    A report may be for some of the partitions. The markers contain the identity `producer`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    version: int
    partitions: frozenset[TopicPartition]


class LeaveMarkers(Act, frozen=True, kw_only=True):
    """Effect: stop writing markers of an id that another broker coordinates now."""

    transactional_id: str


# Stored rows of a transactional id: one for the id, and one per partition or group of its
# transaction.
#
# The id's own row has the empty member. It is JSON:
#
#     {"format": 1, "state": text, "producer": [id, epoch], "last": [id, epoch],
#      "next_producer_id": int, "marker_version": int, "timeout_ms": int, "start_ms": int,
#      "updated_ms": int}
#
# The row of a partition has the member `partition/<topic>/<partition>` and an empty value. The row
# of a group has the member `group/<id>`; its value is the producer, by which the control plane
# checks staged offsets (`penstock.control.OpenTransaction`). Adding a partition writes two small
# rows.


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
    rows = {KEY_ROW: msgspec.json.encode(own)}
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
