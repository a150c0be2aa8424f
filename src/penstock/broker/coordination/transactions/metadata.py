"""Metadata of a transactional id: an immutable value, and transitions that return the next one.

A producer is identified by its id and epoch, its `ProducerIdentity`. `last` is the identity that
the present producer had before: a request under it is a retry, and gets the same response again. It
is empty if another producer may have had an identity in between; that producer is fenced.

In version 2 of the protocol (KIP-890) the epoch rises with every end of a transaction: the markers
carry the new epoch, and the producer receives it. It also rises when the coordinator aborts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import BugError
from penstock.base.ids import TopicPartition
from penstock.broker.coordination.transactions.states import PREVIOUS, TransactionState
from penstock.records.transactions import EPOCH_VERSION

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
PRODUCER_EPOCH_MAX: Final = 32_766
"""Highest epoch given to a producer; the coordinator fences it with the next one."""
FIRST_VERSION: Final = 1


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int

    @property
    def exhausted(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX

    @property
    def raised(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch + 1)


NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionMetadata(Struct, frozen=True, kw_only=True):
    """Stored state of a transactional id. Times are wall-clock milliseconds.

    `next_producer_id` replaces the producer id when the prepared end is complete, because the
    epochs of the present one are used up. `marker_version` of the prepared end is 2 if its markers
    have a higher epoch than the records. `start_ms` is the begin of the newest transaction, -1
    before the first. `groups` have offsets in the transaction.
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
        """Identity of the producer after the prepared end is complete."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return ProducerIdentity(self.next_producer_id, 0)

    # Transitions

    def began(
        self, producer: ProducerIdentity, *, last: ProducerIdentity, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return self._to(
            TransactionMetadata(
                producer=producer, last=last, timeout_ms=timeout_ms, updated_ms=now_ms
            )
        )

    def with_parts(
        self, partitions: frozenset[TopicPartition], groups: frozenset[str], now_ms: int
    ) -> TransactionMetadata:
        """Return the metadata with these parts; the first part begins a transaction."""
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
        """Return the metadata after the producer's commit or abort; complete without partitions."""
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

    def fenced(self, *, by_producer: bool, now_ms: int) -> TransactionMetadata:
        """Return the metadata after the coordinator aborted and fenced the producer.

        `by_producer`: the producer restarts and receives its next identity.
        """
        return self._ended(
            replace(
                self,
                state=TransactionState.PREPARE_ABORT,
                producer=self.producer.raised,
                last=self.producer if by_producer else NO_PRODUCER,
                marker_version=EPOCH_VERSION,
                updated_ms=now_ms,
                groups=frozenset(),
            ),
        )

    def complete(self, now_ms: int) -> TransactionMetadata:
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
        return self._to(replace(self, state=TransactionState.DEAD))

    def _ended(self, prepared: TransactionMetadata) -> TransactionMetadata:
        after = prepared if self.partitions else prepared.complete(prepared.updated_ms)
        return self._to(after)

    def _to(self, after: TransactionMetadata) -> TransactionMetadata:
        if self.state not in PREVIOUS[after.state]:
            raise BugError(f"a transaction cannot go from {self.state} to {after.state}")
        return after
