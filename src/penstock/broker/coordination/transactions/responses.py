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
