"""What happens to transactions: requests to them, and what the coordinator's shell reports.

Requests are already decoded and authorised; nothing here knows the wire. A request's answer is a
`Reply` effect that carries the token given with the event.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.base.ids import TopicPartition
from penstock.broker.coordination.core import Saved, SaveFailed, Tick
from penstock.broker.coordination.transactions.limits import WAIT_MS
from penstock.broker.coordination.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """A producer begins, or begins anew as `producer`, the identity that it had (KIP-360).

    `fresh_producer_id` is an id that nobody had; without one, `ProducerIdNeeded` may be answered.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerIdentity = NO_PRODUCER
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AddToTransaction:
    """Partitions that are written to, and groups whose offsets are, become part of it.

    `wait_ms` is how long it may wait for the end of what is under way.
    """

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    wait_ms: int = WAIT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Which of these are part of the producer's open transaction?"""

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The producer commits or aborts; `raises_epoch` in version 2 of transactions.

    `fresh_producer_id` as of `InitProducerId`.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    raises_epoch: bool
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransaction:
    """What is the state of this id?"""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """Which ids are there? Empty filters, and a negative time, let everything through.

    `running_ms`: only those whose newest transaction began longer ago.
    """

    states: tuple[str, ...] = ()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """These partitions have the marker of the end that `producer` names, or need none any more."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[TopicPartition]


TransactionRequest = (
    InitProducerId | AddToTransaction | VerifyPartitions | EndTransaction | DescribeTransaction
)
"""Requests to one transactional id."""

Event = TransactionRequest | ListTransactions | MarkersWritten | Saved | SaveFailed | Tick
