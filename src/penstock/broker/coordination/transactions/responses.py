"""Responses and additional effects of the core of transactions."""

from __future__ import annotations

from msgspec import Struct

from penstock.base.ids import TopicPartition
from penstock.broker.coordination.core import Act, Refused
from penstock.broker.coordination.transactions.metadata import (
    ProducerIdentity,
    TransactionMetadata,
)


class ProducerIdNeeded(Struct, frozen=True, kw_only=True):
    """The request must be repeated with an unused producer id."""


class Initialised(Struct, frozen=True, kw_only=True):
    """Identity of the producer; earlier producers of the id are fenced."""

    producer: ProducerIdentity


class Added(Struct, frozen=True, kw_only=True):
    """Every given part belongs to the transaction."""


class Verified(Struct, frozen=True, kw_only=True):
    """The transaction is open; `missing` partitions do not belong to it."""

    missing: frozenset[TopicPartition]


class Ended(Struct, frozen=True, kw_only=True):
    """The transaction is decided; the producer's next one has this identity."""

    producer: ProducerIdentity


class DescribedTransaction(Struct, frozen=True, kw_only=True):
    """Stored metadata; `unmarked` partitions are open or lack a marker."""

    transactional_id: str
    metadata: TransactionMetadata
    unmarked: frozenset[TopicPartition]


class ListedTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    state: str


class ListedTransactions(Struct, frozen=True, kw_only=True):
    """Ids that match the filters; `unknown_states` are filters that name no state."""

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
    """Write the marker to each partition, with retries, and report `MarkersWritten`.

    Reports may cover some of the partitions. The markers have the identity of `producer`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    version: int
    partitions: frozenset[TopicPartition]


class LeaveMarkers(Act, frozen=True, kw_only=True):
    """Stop writing markers of an id that another broker coordinates."""

    transactional_id: str
