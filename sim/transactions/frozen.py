"""The core as a value, and back: what a state holds of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.base.ids import TopicPartition
from penstock.broker.transactions import TransactionLimits, Transactions
from penstock.broker.transactions.metadata import TransactionMetadata
from penstock.broker.transactions.rules import Pending, Request

KEY = "id"
TIMEOUT_MS = 60_000
LIMITS = TransactionLimits(
    transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
    transaction_remove_expired_transaction_cleanup_interval_ms=1,
)


class FrozenPending(NamedTuple):
    """As `Pending`."""

    after: TransactionMetadata
    answers: tuple[Any, ...]
    retry_ms: int | None
    completes_offsets: Any


class FrozenCore(NamedTuple):
    """All that a core knows of the one id; it is at rest, so what is pending was sent."""

    metadata: TransactionMetadata | None = None
    unsaved: TransactionMetadata | None = None
    pending: FrozenPending | None = None
    waiting: tuple[Request, ...] = ()
    unmarked: frozenset[TopicPartition] = frozenset()


NOTHING = FrozenCore()


def freeze(core: Transactions) -> FrozenCore:
    transaction = core._transactions.get(KEY)
    if transaction is None:
        return NOTHING
    pending = transaction.pending
    return FrozenCore(
        transaction.metadata,
        transaction.unsaved,
        None
        if pending is None
        else FrozenPending(
            pending.after, tuple(pending.answers), pending.retry_ms, pending.completes_offsets
        ),
        tuple(transaction.waiting),
        frozenset(transaction.unmarked),
    )


def thaw(kind: type[Transactions], frozen: FrozenCore, now_ms: int) -> Transactions:
    core = kind(LIMITS)
    core.now_ms = now_ms
    if frozen != NOTHING:
        transaction = core._touch(KEY)
        transaction.metadata, transaction.unsaved = frozen.metadata, frozen.unsaved
        transaction.waiting, transaction.unmarked = list(frozen.waiting), set(frozen.unmarked)
        if frozen.pending is not None:
            pending = transaction.pending = Pending(None, frozen.pending.after)
            pending.answers, pending.sent = list(frozen.pending.answers), True
            pending.retry_ms = frozen.pending.retry_ms
            pending.completes_offsets = frozen.pending.completes_offsets
        core._finish()
    return core
