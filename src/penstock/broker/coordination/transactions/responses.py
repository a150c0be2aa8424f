"""What requests to the core of transactions are answered with, and what it has its shell do."""

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
    """Nothing is decided: the request must bring a producer id that nobody had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """The producer has this identity; whoever had the id before is fenced."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """All of it is part of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The transaction is open; `missing` are not part of it."""

    missing: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The transaction is decided, as asked; the producer's next one has this identity."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """An id as it is stored; `unmarked` are the partitions that are open, or lack a marker."""

    transactional_id: str
    metadata: TransactionMetadata
    unmarked: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransactions:
    """What the filters let through, by id; `unknown_states` are filters that name no state."""

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
    """Have each of these partitions write the marker, again and again until it has; report
    `MarkersWritten`, of some of them or of all. The markers have the identity of `producer`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    version: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMarkers(Act):
    """Write no more markers of this id: another broker coordinates it."""

    transactional_id: str
