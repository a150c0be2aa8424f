"""States of a transactional id, as a table, and the errors of its requests.

    ──▶ Empty ──add──▶ Ongoing ──commit─▶ PrepareCommit ──all markers──▶ CompleteCommit ──add──▶ …
                          │
                          └─abort, ──▶ PrepareAbort ──all markers──▶ CompleteAbort ──add──▶ …
                            timeout, another producer

A transaction without partitions needs no markers: its commit or abort is complete at once. When a
producer restarts, CompleteCommit and CompleteAbort change to Empty. An id that was not used for
`transactional.id.expiration.ms` changes to Dead until its rows are deleted.

Apache Kafka uses PrepareEpochFence before it decides the abort that fences a producer. Here both
are one step. Filters may contain the name, but no id enters the state.

Source: Kafka's `TransactionState`; KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

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
