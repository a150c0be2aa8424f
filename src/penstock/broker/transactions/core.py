"""Core of transactional ids; `broker/transactions/rules.py` decides each request from the stored
metadata of its id.

An id has at most one change under way. Once the change is saved durably, it becomes the metadata of
the id, its responses are sent, and its markers are written. Requests that arrive meanwhile wait, as
do requests of a producer whose transaction is ending. After a time limit they get
CONCURRENT_TRANSACTIONS.

    request ──▶ rules ──▶ change ──save──▶ metadata ──▶ responses; markers of a commit or abort
       ▲          │                           │
       └─ waits ◀─┘◀── all markers: complete ─┘

A save that fails or has an unknown outcome is retried until it is durable. No other change replaces
it, because the outcome of a transaction must not change after it may have been stored. The requests
that caused the change get COORDINATOR_NOT_AVAILABLE.

The completion of a transaction is not saved at once, but with the start of the next transaction, or
after a delay. If a crash loses it, the markers are written again, which is harmless.

Source: Kafka's `TransactionCoordinator` and `TransactionStateManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from penstock.broker.groups.runtime.core import (
    NO_TOKEN,
    Effect,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
    Timers,
)
from penstock.broker.transactions import rules
from penstock.broker.transactions.events import (
    WAIT_MS,
    AddToTransaction,
    DescribedTransaction,
    DescribeTransaction,
    EndTransaction,
    Event,
    InitProducerId,
    LeaveMarkers,
    ListedTransaction,
    ListedTransactions,
    ListTransactions,
    MarkersWritten,
    Response,
    VerifyPartitions,
    WriteMarkers,
    decode_transaction,
    encode_transaction,
)
from penstock.broker.transactions.metadata import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    TRANSACTIONAL_ID_NOT_FOUND,
    TransactionMetadata,
    TransactionState,
)
from penstock.broker.transactions.rules import (
    Change,
    Decision,
    Pending,
    Request,
    Transaction,
    TransactionLimits,
    Wait,
)

_STATES = frozenset(state.value for state in TransactionState)


def listed(
    known: Mapping[str, TransactionMetadata], request: ListTransactions, now_ms: int
) -> ListedTransactions:
    """Return the ids that match the filters of a request, sorted.

    The filter by duration (KIP-994) excludes ids that never had a transaction.
    """

    def shown(metadata: TransactionMetadata) -> bool:
        if request.producer_ids and metadata.producer.producer_id not in request.producer_ids:
            return False
        if request.states and metadata.state.value not in request.states:
            return False
        if request.running_ms < 0:
            return True
        return metadata.start_ms >= 0 and now_ms - metadata.start_ms > request.running_ms

    return ListedTransactions(
        transactions=tuple(
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=metadata.producer.producer_id,
                state=metadata.state.value,
            )
            for transactional_id, metadata in sorted(known.items())
            if shown(metadata)
        ),
        unknown_states=tuple(state for state in request.states if state not in _STATES),
    )


SAVE_RETRY_MS: Final = 1_000
WAITING_MAX: Final = 1_000


class Transactions:
    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits()
        self.now_ms = 0
        self._transactions: dict[str, Transaction] = {}
        self._timers = Timers()
        self._effects: list[Effect] = []
        self._touched: dict[str, Transaction] = {}

    # Port of a core

    def handle(self, event: Event, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        effects = self._begin(now_ms)
        _HANDLERS[type(event)](self, event, token)
        self._finish()
        return effects

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        """Add an id from its stored rows; write the markers if its transaction is ending.

        Raises:
            CorruptTransaction: the rows cannot be decoded.
        """
        effects = self._begin(now_ms)
        if stored.rows is not None:
            metadata = decode_transaction(stored.key, stored.rows) if stored.rows else None
            self._hand_over(stored.key, "another broker has coordinated it meanwhile")
            if metadata is not None:
                transaction = self._touch(stored.key)
                transaction.metadata = metadata
                self._write_markers(transaction, metadata)
        self._finish()
        return effects

    def forget(self, key: str) -> list[Effect]:
        effects = self._begin(self.now_ms)
        self._hand_over(key, "another broker coordinates it now")
        return effects

    def keys(self) -> Collection[str]:
        return self._transactions.keys()

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def counts(self) -> dict[TransactionState, int]:
        counts = dict.fromkeys(TransactionState, 0)
        for transaction in self._transactions.values():
            if transaction.metadata is not None:
                counts[transaction.metadata.state] += 1
        return counts

    # Around every event

    def _begin(self, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        self._effects = []
        return self._effects

    def _finish(self) -> None:
        touched, self._touched = self._touched, {}
        for transaction in touched.values():
            if self._transactions.get(transaction.transactional_id) is not transaction:
                continue
            if transaction.pending is not None and not transaction.pending.sent:
                self._save(transaction, transaction.pending)
            if transaction.metadata is None and transaction.pending is None:
                self._drop(transaction)
                continue
            deadline_ms = transaction.deadline_ms(self.limits)
            if deadline_ms is None:
                self._timers.stop(transaction.timer)
            else:
                self._timers.start(transaction.timer, deadline_ms)

    def _touch(self, transactional_id: str) -> Transaction:
        """Return the state of an id, creating it if needed.

        `_finish` saves its changes and sets its timer at the end of the event.
        """
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = self._transactions[transactional_id] = Transaction(
                transactional_id, self._due
            )
        self._touched[transactional_id] = transaction
        return transaction

    def _drop(self, transaction: Transaction) -> None:
        self._timers.stop(transaction.timer)
        del self._transactions[transaction.transactional_id]

    def _reply(self, token: int, response: Response) -> None:
        if token != NO_TOKEN:
            self._effects.append(Reply(token, response))

    def _refuse(self, token: int, error: str, message: str) -> None:
        self._reply(token, Refused(error=error, message=message))

    # Requests

    def _request(self, event: Any, token: int) -> None:
        wait_ms = event.wait_ms if isinstance(event, AddToTransaction) else WAIT_MS
        self._consider(
            self._touch(event.transactional_id), Request(event, token, self.now_ms + wait_ms)
        )

    def _consider(self, transaction: Transaction, request: Request) -> None:
        pending = transaction.pending
        if pending is not None and not pending.joinable:
            self._wait(transaction, request)
            return
        known = transaction.metadata if pending is None else pending.after
        decision = self._decide(known, request.event)
        if isinstance(decision, Wait):
            self._wait(transaction, request)
        elif isinstance(decision, Change):
            if pending is not None and rules.ends_offsets(pending.after, decision.after):
                self._wait(transaction, request)
            else:
                self._change(transaction, decision, request)
        elif pending is None:
            self._reply(request.token, decision)
        else:
            pending.answers.append((request.token, decision))

    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        now_ms, limits = self.now_ms, self.limits
        if isinstance(event, AddToTransaction):
            return rules.add(known, event, limits=limits, now_ms=now_ms)
        if isinstance(event, EndTransaction):
            return rules.end(known, event, now_ms=now_ms)
        if known is None and len(self._transactions) > limits.transactional_ids_max:
            return Refused(
                error=COORDINATOR_NOT_AVAILABLE,
                message=f"transactional id {event.transactional_id!r} would exceed"
                f" transactional.ids.max = {limits.transactional_ids_max}",
            )
        return rules.initialise(known, event, limits=limits, now_ms=now_ms)

    def _change(self, transaction: Transaction, change: Change, request: Request) -> None:
        """Record a change to be saved, together with an earlier change whose save has not begun."""
        pending = transaction.pending
        if pending is None:
            pending = transaction.pending = Pending(transaction.metadata, change.after)
        else:
            pending.becomes(change.after)
        if change.answer is None:
            self._wait(transaction, request)
        else:
            pending.answers.append((request.token, change.answer))

    def _wait(self, transaction: Transaction, request: Request) -> None:
        if len(transaction.waiting) >= WAITING_MAX:
            self._refuse(
                request.token,
                CONCURRENT_TRANSACTIONS,
                f"{WAITING_MAX} requests of {transaction.transactional_id!r} wait; no more may",
            )
        else:
            transaction.waiting.append(request)

    def _look_again(self, transaction: Transaction) -> None:
        waiting, transaction.waiting = transaction.waiting, []
        for request in waiting:
            self._consider(transaction, request)

    # Saves

    def _save(self, transaction: Transaction, pending: Pending) -> None:
        pending.sent, pending.retry_ms = True, None
        self._effects.append(
            Save(
                key=transaction.transactional_id,
                rows=encode_transaction(transaction.transactional_id, pending.after),
                completes_offsets=pending.completes_offsets,
            )
        )

    def _saved(self, event: Saved, token: int) -> None:
        transaction = self._transactions.get(event.key)
        if transaction is None or transaction.pending is None:
            return
        self._touch(event.key)
        pending, transaction.pending = transaction.pending, None
        transaction.metadata, transaction.unsaved = pending.after, None
        for waiting, response in pending.answers:
            self._reply(waiting, response)
        if pending.after.state is TransactionState.DEAD:
            transaction.metadata = None
        else:
            self._write_markers(transaction, pending.after)
        self._look_again(transaction)

    def _save_failed(self, event: SaveFailed, token: int) -> None:
        """Refuse the requests that wait for a save; retry the save, because it may be durable."""
        transaction = self._transactions.get(event.key)
        if transaction is None or transaction.pending is None:
            return
        self._touch(event.key)
        pending = transaction.pending
        pending.retry_ms = self.now_ms + SAVE_RETRY_MS
        answers, pending.answers = pending.answers, []
        for waiting, _ in answers:
            self._refuse(waiting, COORDINATOR_NOT_AVAILABLE, event.reason)

    # Markers

    def _write_markers(self, transaction: Transaction, metadata: TransactionMetadata) -> None:
        if not metadata.state.prepared:
            transaction.unmarked = set()
            return
        transaction.unmarked = set(metadata.partitions)
        self._effects.append(
            WriteMarkers(
                transactional_id=transaction.transactional_id,
                producer=metadata.producer,
                commit=metadata.state.commits,
                version=metadata.marker_version,
                partitions=metadata.partitions,
            )
        )

    def _marked(self, event: MarkersWritten, token: int) -> None:
        transaction = self._transactions.get(event.transactional_id)
        metadata = None if transaction is None else transaction.metadata
        if transaction is None or metadata is None or not metadata.state.prepared:
            return
        if metadata.producer != event.producer:
            return
        transaction.unmarked.difference_update(event.partitions)
        if not transaction.unmarked:
            self._touch(event.transactional_id)
            transaction.completed(metadata.complete(self.now_ms), self.now_ms)
            self._look_again(transaction)

    # Time

    def _tick(self, event: Tick, token: int) -> None:
        for timer in self._timers.due(self.now_ms):
            timer.fire()

    def _due(self, transaction: Transaction) -> None:
        self._touch(transaction.transactional_id)
        pending, metadata = transaction.pending, transaction.metadata
        if pending is not None:
            if pending.retry_ms is not None and pending.retry_ms <= self.now_ms:
                pending.sent = False
        elif transaction.unsaved is not None and transaction.save_at_ms <= self.now_ms:
            transaction.pending = Pending(None, transaction.unsaved)
        elif metadata is not None and transaction.over_ms(self.limits) <= self.now_ms:
            if metadata.state is TransactionState.ONGOING:
                after = metadata.fenced(by_producer=False, now_ms=self.now_ms)
            else:
                after = metadata.dead()
            transaction.pending = Pending(metadata, after)
        for request in transaction.overdue(self.now_ms):
            self._refuse(
                request.token,
                CONCURRENT_TRANSACTIONS,
                f"the transaction of {transaction.transactional_id!r} is being changed or ended",
            )

    # Administration

    def _verify(self, event: VerifyPartitions, token: int) -> None:
        self._reply(token, rules.verify(self._metadata(event.transactional_id), event))

    def _describe(self, event: DescribeTransaction, token: int) -> None:
        transaction = self._transactions.get(event.transactional_id)
        if transaction is None or transaction.metadata is None:
            message = f"transactional id {event.transactional_id!r} is not known"
            self._refuse(token, TRANSACTIONAL_ID_NOT_FOUND, message)
            return
        prepared = transaction.metadata.state.prepared
        self._reply(
            token,
            DescribedTransaction(
                transactional_id=event.transactional_id,
                metadata=transaction.metadata,
                unmarked=frozenset(transaction.unmarked)
                if prepared
                else transaction.metadata.partitions,
            ),
        )

    def _list(self, event: ListTransactions, token: int) -> None:
        known = {
            transaction.transactional_id: transaction.metadata
            for transaction in self._transactions.values()
            if transaction.metadata is not None
        }
        self._reply(token, listed(known, event, self.now_ms))

    def _metadata(self, transactional_id: str) -> TransactionMetadata | None:
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.metadata

    def _hand_over(self, transactional_id: str, reason: str) -> None:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return
        self._drop(transaction)
        message = f"transactional id {transactional_id!r}: {reason}"
        pending = transaction.pending
        tokens = [request.token for request in transaction.waiting]
        tokens += [] if pending is None else [token for token, _ in pending.answers]
        for token in tokens:
            self._refuse(token, NOT_COORDINATOR, message)
        if transaction.unmarked:
            self._effects.append(LeaveMarkers(transactional_id=transactional_id))


_Handler = Callable[[Transactions, Any, int], None]

_HANDLERS: Final[Mapping[type, _Handler]] = {
    InitProducerId: lambda core, event, token: core._request(event, token),
    AddToTransaction: lambda core, event, token: core._request(event, token),
    EndTransaction: lambda core, event, token: core._request(event, token),
    VerifyPartitions: lambda core, event, token: core._verify(event, token),
    DescribeTransaction: lambda core, event, token: core._describe(event, token),
    ListTransactions: lambda core, event, token: core._list(event, token),
    MarkersWritten: lambda core, event, token: core._marked(event, token),
    Saved: lambda core, event, token: core._saved(event, token),
    SaveFailed: lambda core, event, token: core._save_failed(event, token),
    Tick: lambda core, event, token: core._tick(event, token),
}
