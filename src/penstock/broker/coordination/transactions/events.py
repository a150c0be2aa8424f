"""Events of the core of transactions: requests, and reports of its shell.

Requests are decoded and authorised. A `Reply` effect answers a request by the token given with it.
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
"""Time that a request waits for changes under way before its client must retry.

Clients retry after 20 to 100 ms; a waiting request delays all later ones of its connection.
"""
PEER_WAIT_MS: Final = 20
"""Such a time for requests of other brokers: it delays their other requests as well."""


class InitProducerId(Struct, frozen=True, kw_only=True):
    """A producer starts, or restarts with its former identity `producer` (KIP-360).

    `fresh_producer_id` is an unused id; without it, the response may be `ProducerIdNeeded`.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerIdentity = NO_PRODUCER
    fresh_producer_id: int = NO_PRODUCER_ID


class AddToTransaction(Struct, frozen=True, kw_only=True):
    """Add partitions, or groups with offsets, to a transaction.

    `wait_ms` limits the wait for changes under way.
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
    """Commit or abort; `raises_epoch` in version 2 of transactions.

    `fresh_producer_id` as in `InitProducerId`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    raises_epoch: bool
    fresh_producer_id: int = NO_PRODUCER_ID


class DescribeTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str


class ListTransactions(Struct, frozen=True, kw_only=True):
    """List ids; empty filters and a negative time match all.

    `running_ms` matches ids whose newest transaction began longer ago.
    """

    states: tuple[str, ...] = ()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1


class MarkersWritten(Struct, frozen=True, kw_only=True):
    """These partitions have, or do not need, the marker of the end that `producer` names."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[TopicPartition]


TransactionRequest = (
    InitProducerId | AddToTransaction | VerifyPartitions | EndTransaction | DescribeTransaction
)
Event = TransactionRequest | ListTransactions | MarkersWritten | Saved | SaveFailed | Tick
