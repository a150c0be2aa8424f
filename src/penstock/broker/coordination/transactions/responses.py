"""Responses and additional effects of the core of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.ids import TopicPartition
from penstock.broker.coordination.core import Act, Refused
from penstock.broker.coordination.transactions.metadata import (
    ProducerIdentity,
    TransactionMetadata,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdNeeded:
    """The request must be repeated with an unused producer id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """Identity of the producer; earlier producers of the id are fenced."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Every given part belongs to the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The transaction is open; `missing` partitions do not belong to it."""

    missing: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The transaction is decided; the producer's next one has this identity."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """Stored metadata; `unmarked` partitions are open or lack a marker."""

    transactional_id: str
    metadata: TransactionMetadata
    unmarked: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransactions:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers(Act):
    """Write the marker to each partition, with retries, and report `MarkersWritten`.

    Reports may cover some of the partitions. The markers have the identity of `producer`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    version: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMarkers(Act):
    """Stop writing markers of an id that another broker coordinates."""

    transactional_id: str
