"""Metadata of a transactional id: an immutable value with methods for the next one; its states.

A `ProducerIdentity` consists of a producer id and an epoch. `last` is the previous identity of the
present producer: a request with it is a retry, and gets the same response again. `last` is
`NO_PRODUCER` if the previous identity belonged to another producer, which is now fenced.

In version 2 of the transaction protocol (KIP-890), the epoch rises with every commit and abort. The
markers contain the new epoch, and the producer receives it. The epoch also rises when the
coordinator aborts a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import BugError
from penstock.base.ids import TopicPartition
from penstock.records.transactions import EPOCH_VERSION

# States of a transactional id, as a table, and the errors of its requests.
#
#     ──▶ Empty ──add──▶ Ongoing ──commit─▶ PrepareCommit ──all markers──▶ CompleteCommit ──add──▶ …
#                           │
#                           └─abort, ──▶ PrepareAbort ──all markers──▶ CompleteAbort ──add──▶ …
#                             timeout, another producer
#
# A transaction without partitions needs no markers: its commit or abort is complete at once. When a
# producer restarts, CompleteCommit and CompleteAbort change to Empty. An id that was not used for
# `transactional.id.expiration.ms` changes to Dead until its rows are deleted.
#
# Apache Kafka uses PrepareEpochFence before it decides the abort that fences a producer. Here both
# are one step. Filters may contain the name, but no id enters the state.
#
# Source: Kafka's `TransactionState`; KIP-98, KIP-890.


CONCURRENT_TRANSACTIONS: Final = "concurrent_transactions"
COORDINATOR_NOT_AVAILABLE: Final = "coordinator_not_available"
INVALID_PRODUCER_ID_MAPPING: Final = "invalid_producer_id_mapping"
INVALID_REQUEST: Final = "invalid_request"
INVALID_TRANSACTION_TIMEOUT: Final = "invalid_transaction_timeout"
INVALID_TXN_STATE: Final = "invalid_txn_state"
NOT_COORDINATOR: Final = "not_coordinator"
PRODUCER_FENCED: Final = "producer_fenced"
TRANSACTION_ABORTABLE: Final = "transaction_abortable"
TRANSACTIONAL_ID_NOT_FOUND: Final = "transactional_id_not_found"


class TransactionState(Enum):
    """State of a transactional id, by its name in DescribeTransactions and ListTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    @property
    def prepared(self) -> bool:
        """Whether the commit or abort is decided, but partitions may lack its marker."""
        return self in (_PREPARE_COMMIT, _PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open or ending: the next may begin, or the id may expire."""
        return self in (_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT)

    @property
    def commits(self) -> bool:
        return self in (_PREPARE_COMMIT, _COMPLETE_COMMIT)


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING
_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
_PREPARE_ABORT = TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
_COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
_DEAD = TransactionState.DEAD
_IDLE = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})

PREVIOUS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _EMPTY: _IDLE,
    _ONGOING: _IDLE | {_ONGOING},
    _PREPARE_COMMIT: frozenset({_ONGOING}),
    _PREPARE_ABORT: frozenset({_ONGOING}),
    _COMPLETE_COMMIT: frozenset({_PREPARE_COMMIT, _ONGOING}),  # from Ongoing without partitions
    _COMPLETE_ABORT: _IDLE
    | {_PREPARE_ABORT, _ONGOING},  # from idle: an abort without a transaction
    _DEAD: _IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
}
"""Allowed predecessors of each state."""


NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
PRODUCER_EPOCH_MAX: Final = 32_766
"""Highest epoch that a producer receives; the next epoch is reserved for fencing it."""
FIRST_VERSION: Final = 1


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int

    @property
    def exhausted(self) -> bool:
        """Whether the epochs are used up, so that the next identity needs a new producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX

    @property
    def reserved(self) -> bool:
        """Whether the epoch only fences: no producer may receive this identity."""
        return self.producer_epoch > PRODUCER_EPOCH_MAX

    @property
    def raised(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch + 1)


NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionMetadata(Struct, frozen=True, kw_only=True):
    """Stored state of a transactional id. Times are wall-clock milliseconds.

    A transaction is prepared when its commit or abort is stored, and complete when all markers are
    written. `next_producer_id` replaces the producer id at completion, if the epochs of the present
    one are used up. `marker_version` is 2 if the markers have a higher epoch than the records.
    `start_ms` is the begin of the newest transaction, -1 before the first. `groups` are the groups
    with offsets in the transaction.
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
        """Identity of the producer once the prepared transaction is complete."""
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
        """Return the metadata with added partitions and groups, which may begin a transaction."""
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
        """Return the metadata after a commit or abort.

        A transaction without partitions is complete at once.
        """
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
        """Return the metadata after the coordinator aborted a transaction and fenced its producer.

        `by_producer` is true if the same producer restarts, and will receive the next identity.
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
