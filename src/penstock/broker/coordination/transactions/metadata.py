"""What is stored of a transactional id, as one value: each transition makes another.

An epoch belongs to a producer id, so whoever produces is known by both, its `ProducerIdentity`.
`last` is the identity that the present producer had before: what comes under it is a retry of the
request that was answered with the present one, and is answered with it again. It is empty once
another producer may have had an identity in between, who is then fenced.

With version 2 of the protocol (KIP-890) the epoch rises with every end of a transaction: the
markers have the new one, which the producer is told. It rises as well where the coordinator aborts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.base.errors import BugError
from penstock.base.ids import TopicPartition
from penstock.broker.coordination.transactions.states import PREVIOUS, TransactionState
from penstock.records.transactions import EPOCH_VERSION

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
PRODUCER_EPOCH_MAX: Final = 32_766
"""The last epoch that a producer may be given: the coordinator can fence it with one more."""
FIRST_VERSION: Final = 1


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int

    @property
    def exhausted(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX

    @property
    def raised(self) -> ProducerIdentity:
        """The same producer id in its next epoch."""
        return ProducerIdentity(self.producer_id, self.producer_epoch + 1)


NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """See the module's text. Times are in milliseconds of the wall clock.

    `next_producer_id` takes over when the end that is prepared is complete, because the epochs of
    the present one are used up. `marker_version` is that of the end that is prepared: 2 if its
    markers have a higher epoch than what they end. `start_ms` is when the newest transaction
    began, -1 before the first one. `groups` are those whose offsets belong to the transaction.
    """

    producer: ProducerIdentity
    last: ProducerIdentity = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    marker_version: int = FIRST_VERSION
    timeout_ms: int
    start_ms: int = -1
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def next_producer(self) -> ProducerIdentity:
        """Who the producer is once what is prepared is complete."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return ProducerIdentity(self.next_producer_id, 0)

    # Transitions

    def began(
        self, producer: ProducerIdentity, *, last: ProducerIdentity, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """A producer has begun, with this identity."""
        return self._to(
            TransactionMetadata(
                producer=producer, last=last, timeout_ms=timeout_ms, updated_ms=now_ms
            )
        )

    def with_parts(
        self, partitions: frozenset[TopicPartition], groups: frozenset[str], now_ms: int
    ) -> TransactionMetadata:
        """These are part of the transaction, the first of them of a new one."""
        ongoing = self.state is TransactionState.ONGOING
        return self._to(
            replace(
                self,
                state=TransactionState.ONGOING,
                start_ms=self.start_ms if ongoing else now_ms,
                updated_ms=now_ms,
                partitions=self.partitions | partitions,
                groups=self.groups | groups,
            )
        )

    def decided(
        self, *, commit: bool, raises_epoch: bool, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """The producer has ended the transaction; complete, where nothing has to be marked."""
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return self._ended(
            replace(
                self,
                producer=self.producer.raised if raises_epoch else self.producer,
                last=self.producer if raises_epoch else self.last,
                state=state,
                next_producer_id=next_producer_id,
                marker_version=EPOCH_VERSION if raises_epoch else FIRST_VERSION,
                updated_ms=now_ms,
                groups=frozenset(),
            ),
        )

    def fenced(self, *, asked_by_itself: bool, now_ms: int) -> TransactionMetadata:
        """The coordinator aborts the transaction, and its producer with it.

        `asked_by_itself`: the producer begins anew, and is told its next identity.
        """
        return self._ended(
            replace(
                self,
                state=TransactionState.PREPARE_ABORT,
                producer=self.producer.raised,
                last=self.producer if asked_by_itself else NO_PRODUCER,
                marker_version=EPOCH_VERSION,
                updated_ms=now_ms,
                groups=frozenset(),
            ),
        )

    def complete(self, now_ms: int) -> TransactionMetadata:
        """All partitions of a prepared end have its marker."""
        commits = self.state is TransactionState.PREPARE_COMMIT
        return self._to(
            replace(
                self,
                state=TransactionState.COMPLETE_COMMIT
                if commits
                else TransactionState.COMPLETE_ABORT,
                producer=self.next_producer,
                next_producer_id=NO_PRODUCER_ID,
                updated_ms=now_ms,
                partitions=frozenset(),
            )
        )

    def dead(self) -> TransactionMetadata:
        """The id has expired."""
        return self._to(replace(self, state=TransactionState.DEAD))

    def _ended(self, prepared: TransactionMetadata) -> TransactionMetadata:
        after = prepared if self.partitions else prepared.complete(prepared.updated_ms)
        return self._to(after)

    def _to(self, after: TransactionMetadata) -> TransactionMetadata:
        if self.state not in PREVIOUS[after.state]:
            raise BugError(f"a transaction cannot go from {self.state} to {after.state}")
        return after
