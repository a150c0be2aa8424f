"""Rules of transactions: pure functions that decide a request from the metadata of its id.

Each function takes the metadata (None for an unknown id) and the request, and returns one of these:

    Change            metadata to be saved before the response is sent
    a response        without a change; it may be a refusal
    WAIT              the request waits until the change under way has ended
    ProducerIdNeeded  the request must be repeated with an unused producer id

The result of EndTxn, where X is Commit or Abort:

| state     | from the present identity                | from the previous identity           |
|-----------|------------------------------------------|--------------------------------------|
| Ongoing   | commits or aborts                        | fenced                               |
| Empty     | aborts in version 2; otherwise refused   | fenced                               |
| PrepareX  | waits: it is for the next transaction    | same response if it requests X again |
| CompleteX | as Empty                                 | same response if it requests X again |

In version 1 of the transaction protocol the identity does not change. In PrepareX and CompleteX a
request from the present identity is then a retry, as in the right column.

Source: Kafka's `TransactionCoordinator`; KIP-98, KIP-360, KIP-890. Three differences: a producer
that restarts during an open transaction must send the present identity or none; a retry in PrepareX
is answered at once; and an abort by the coordinator raises the epoch by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.core import Refused, Timer
from penstock.broker.transactions.events import (
    Added,
    AddToTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    ProducerIdNeeded,
    Response,
    Verified,
    VerifyPartitions,
)
from penstock.broker.transactions.metadata import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from penstock.control import OffsetsEnd

COMPLETION_LINGER_MS: Final = 100
"""Delay of the save which records that all markers are written.

A busy producer begins its next transaction within this time; one save then stores both changes.
After a crash before the save, the markers are written again.
"""


class TransactionLimits(Struct, frozen=True, kw_only=True):
    """Limits of transactional ids and transactions; times in milliseconds."""

    transactional_ids_max: int = 100_000
    transaction_partitions_max: int = 10_000
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


NEVER_MS = 1 << 62


class Request(NamedTuple):
    event: Any
    token: int
    until_ms: int


class Pending:
    """Change to be saved, and the responses that depend on its save.

    `sent` is true once the save has begun; a failed save is retried at `retry_ms`. Before that,
    other requests of the same event-loop turn may add changes to the same save.
    """

    __slots__ = ("after", "answers", "completes_offsets", "retry_ms", "sent")

    def __init__(self, before: TransactionMetadata | None, after: TransactionMetadata) -> None:
        self.after = after
        self.answers: list[tuple[int, Response]] = []
        self.sent = False
        self.retry_ms: int | None = None
        self.completes_offsets = ends_offsets(before, after)

    @property
    def joinable(self) -> bool:
        """Whether another change may share this save; a commit or abort needs its own save.

        Nor may a commit or abort of a group's offsets share the save that adds the group: its
        client would receive success, and the stored rows would never contain the group.
        """
        return not self.sent and self.completes_offsets is None and not self.after.state.prepared

    def becomes(self, after: TransactionMetadata) -> None:
        self.completes_offsets = ends_offsets(self.after, after)
        self.after = after


def ends_offsets(
    before: TransactionMetadata | None, after: TransactionMetadata
) -> OffsetsEnd | None:
    """Return whether a change commits or aborts offsets that groups staged; None if neither."""
    if before is None or not before.groups or after.groups:
        return None
    return "commit" if after.state.commits else "abort"


class Transaction:
    """State of one transactional id.

    `metadata` is durable, with one exception: a completed transaction is also in `unsaved`, until
    it is saved with the next change or at `save_at_ms`. `unmarked` partitions lack the marker of
    the prepared transaction.
    """

    __slots__ = (
        "metadata",
        "pending",
        "save_at_ms",
        "timer",
        "transactional_id",
        "unmarked",
        "unsaved",
        "waiting",
    )

    def __init__(self, transactional_id: str, due: Callable[[Transaction], None]) -> None:
        self.transactional_id = transactional_id
        self.metadata: TransactionMetadata | None = None
        self.unsaved: TransactionMetadata | None = None
        self.save_at_ms = NEVER_MS
        self.pending: Pending | None = None
        self.waiting: list[Request] = []
        self.unmarked: set[TopicPartition] = set()
        self.timer = Timer(partial(due, self))

    def completed(self, metadata: TransactionMetadata, now_ms: int) -> None:
        self.metadata = self.unsaved = metadata
        self.save_at_ms = now_ms + COMPLETION_LINGER_MS

    def over_ms(self, limits: TransactionLimits) -> int:
        """Return the time in ms at which the open transaction times out, or the idle id expires."""
        metadata = self.metadata
        if metadata is None or metadata.state.prepared:
            return NEVER_MS
        if metadata.state is TransactionState.ONGOING:
            interval_ms = limits.transaction_abort_timed_out_transaction_cleanup_interval_ms
            return _next(metadata.start_ms + metadata.timeout_ms, interval_ms)
        interval_ms = limits.transaction_remove_expired_transaction_cleanup_interval_ms
        return _next(metadata.updated_ms + limits.transactional_id_expiration_ms, interval_ms)

    def deadline_ms(self, limits: TransactionLimits) -> int | None:
        """Return the time in ms of the next timeout, retry or delayed save; None without one."""
        deadline_ms = min((request.until_ms for request in self.waiting), default=NEVER_MS)
        if self.pending is None:
            deadline_ms = min(deadline_ms, self.over_ms(limits))
            if self.unsaved is not None:
                deadline_ms = min(deadline_ms, self.save_at_ms)
        elif self.pending.retry_ms is not None:
            deadline_ms = min(deadline_ms, self.pending.retry_ms)
        return None if deadline_ms == NEVER_MS else deadline_ms

    def overdue(self, now_ms: int) -> list[Request]:
        """Remove and return the requests whose time limit has passed."""
        overdue = [request for request in self.waiting if request.until_ms <= now_ms]
        if overdue:
            self.waiting = [request for request in self.waiting if request.until_ms > now_ms]
        return overdue


def _next(time_ms: int, interval_ms: int) -> int:
    """Return the first multiple of the interval that is not before a time."""
    return -(-time_ms // interval_ms) * interval_ms


class Change(Struct, frozen=True, kw_only=True):
    """Metadata to save, and the response to send then; None means to decide the request again."""

    after: TransactionMetadata
    answer: Response | None


class Wait:
    """Decision to decide the request again when the change under way has ended."""


WAIT: Final = Wait()

Decision = Change | Wait | Response


def initialise(
    known: TransactionMetadata | None,
    request: InitProducerId,
    *,
    limits: TransactionLimits,
    now_ms: int,
) -> Decision:
    limit_ms = limits.transaction_max_timeout_ms
    if not 0 < request.timeout_ms <= limit_ms:
        return Refused(
            error=INVALID_TRANSACTION_TIMEOUT,
            message=f"transaction.timeout.ms = {request.timeout_ms} of {request.transactional_id!r}"
            f" is not between 1 and transaction.max.timeout.ms = {limit_ms}",
        )
    if (request.producer.producer_id < 0) != (request.producer.producer_epoch < 0):
        return Refused(
            error=INVALID_REQUEST,
            message=f"InitProducerId of {request.transactional_id!r} has producer id"
            f" {request.producer.producer_id} and epoch {request.producer.producer_epoch};"
            " set both, or neither",
        )
    if known is None:
        if request.fresh_producer_id == NO_PRODUCER_ID:
            return ProducerIdNeeded()
        producer = ProducerIdentity(request.fresh_producer_id, 0)
        return _initialised(
            TransactionMetadata(producer=producer, timeout_ms=request.timeout_ms, updated_ms=now_ms)
        )
    if known.state is TransactionState.ONGOING:
        if request.producer not in (NO_PRODUCER, known.producer):
            return _fenced(request.transactional_id, request.producer, known)
        by_producer = request.producer == known.producer
        return Change(after=known.fenced(by_producer=by_producer, now_ms=now_ms), answer=None)
    if known.state.prepared:
        if request.producer in (NO_PRODUCER, known.last, known.producer, known.next_producer):
            return WAIT
        return _fenced(request.transactional_id, request.producer, known)
    return _restart(known, request, now_ms=now_ms)


def _restart(known: TransactionMetadata, request: InitProducerId, *, now_ms: int) -> Decision:
    if request.producer not in (NO_PRODUCER, known.producer, known.last):
        return _fenced(request.transactional_id, request.producer, known)
    retried = request.producer == known.last != NO_PRODUCER
    if retried and not known.producer.reserved:
        producer = known.producer
    elif not known.producer.exhausted:
        producer = known.producer.raised
    elif request.fresh_producer_id == NO_PRODUCER_ID:
        return ProducerIdNeeded()
    else:
        producer = ProducerIdentity(request.fresh_producer_id, 0)
    return _initialised(
        known.began(producer, last=request.producer, timeout_ms=request.timeout_ms, now_ms=now_ms)
    )


def _initialised(after: TransactionMetadata) -> Change:
    return Change(after=after, answer=Initialised(producer=after.producer))


def add(
    known: TransactionMetadata | None,
    request: AddToTransaction,
    *,
    limits: TransactionLimits,
    now_ms: int,
) -> Decision:
    """Add partitions and groups to a transaction; the first ones begin it."""
    if known is None:
        return _unknown(request.transactional_id, request.producer)
    if known.state.prepared and request.producer == known.next_producer:
        return WAIT
    if request.producer != known.producer:
        return _other(request.transactional_id, request.producer, known)
    if known.state is TransactionState.ONGOING and (
        request.partitions <= known.partitions and request.groups <= known.groups
    ):
        return Added()
    after = known.with_parts(request.partitions, request.groups, now_ms)
    count, limit = len(after.partitions) + len(after.groups), limits.transaction_partitions_max
    if count > limit:
        return Refused(
            error=TRANSACTION_ABORTABLE,
            message=f"the transaction of {request.transactional_id!r} would have {count} partitions"
            f" and groups: more than transaction.partitions.max = {limit}",
        )
    return Change(after=after, answer=Added())


def verify(known: TransactionMetadata | None, request: VerifyPartitions) -> Response:
    """Return which partitions do not belong to the open transaction."""
    if known is None:
        return _unknown(request.transactional_id, request.producer)
    if request.producer != known.producer:
        return _other(request.transactional_id, request.producer, known)
    if known.state.prepared:
        return Refused(
            error=CONCURRENT_TRANSACTIONS,
            message=f"the transaction of {request.transactional_id!r} is ending",
        )
    return Verified(missing=request.partitions - known.partitions)


def end(known: TransactionMetadata | None, request: EndTransaction, *, now_ms: int) -> Decision:
    if known is None:
        return _unknown(request.transactional_id, request.producer)
    state, raises = known.state, request.raises_epoch
    present = known.next_producer if raises else known.producer
    retried = known.last if raises else known.producer
    if not (state is TransactionState.ONGOING or state is TransactionState.EMPTY):
        if request.producer == retried != NO_PRODUCER:
            return _repeated(known, request)
        if state.prepared and request.producer == present:
            return WAIT
    if request.producer != known.producer:
        return _other(request.transactional_id, request.producer, known)
    if state is not TransactionState.ONGOING and (request.commit or not raises):
        return _not_now(request, known)
    next_producer_id = NO_PRODUCER_ID
    if raises and known.producer.exhausted:
        if request.fresh_producer_id == NO_PRODUCER_ID:
            return ProducerIdNeeded()
        next_producer_id = request.fresh_producer_id
    after = known.decided(
        commit=request.commit,
        raises_epoch=raises,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
    )
    return Change(after=after, answer=Ended(producer=after.next_producer))


def _repeated(known: TransactionMetadata, request: EndTransaction) -> Response:
    """Answer a request from the identity that has ended the transaction."""
    if known.state.commits != request.commit:
        return _not_now(request, known)
    if known.next_producer.reserved:
        return _fenced(request.transactional_id, request.producer, known)
    return Ended(producer=known.next_producer)


def _unknown(transactional_id: str, producer: ProducerIdentity) -> Refused:
    return Refused(
        error=INVALID_PRODUCER_ID_MAPPING,
        message=f"transactional id {transactional_id!r} with producer id"
        f" {producer.producer_id} is not known",
    )


def _other(
    transactional_id: str, producer: ProducerIdentity, known: TransactionMetadata
) -> Refused:
    if producer.producer_id in (known.producer.producer_id, known.next_producer.producer_id):
        return _fenced(transactional_id, producer, known)
    return Refused(
        error=INVALID_PRODUCER_ID_MAPPING,
        message=f"transactional id {transactional_id!r} has producer id"
        f" {known.producer.producer_id}, not {producer.producer_id}",
    )


def _fenced(
    transactional_id: str, producer: ProducerIdentity, known: TransactionMetadata
) -> Refused:
    return Refused(
        error=PRODUCER_FENCED,
        message=f"transactional id {transactional_id!r} has producer id"
        f" {known.producer.producer_id} in epoch {known.producer.producer_epoch},"
        f" not {producer.producer_id} in epoch {producer.producer_epoch}",
    )


def _not_now(request: EndTransaction, known: TransactionMetadata) -> Refused:
    end = "commit" if request.commit else "abort"
    return Refused(
        error=INVALID_TXN_STATE,
        message=f"transactional id {request.transactional_id!r} is in state {known.state.value}:"
        f" there is nothing to {end}",
    )
