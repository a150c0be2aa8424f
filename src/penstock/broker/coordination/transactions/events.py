"""Events of the core of transactions: requests, and reports of its shell.

Requests are already decoded and authorised. The core answers a request with a `Reply` effect, which
contains the token that was passed with the request.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from penstock.base.ids import TopicPartition
from penstock.broker.coordination.core import Saved, SaveFailed, Tick
from penstock.broker.coordination.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
)

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
