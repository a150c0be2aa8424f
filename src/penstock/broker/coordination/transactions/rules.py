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

from typing import Final

from msgspec import Struct

from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.transactions.events import (
    AddToTransaction,
    EndTransaction,
    InitProducerId,
    VerifyPartitions,
)
from penstock.broker.coordination.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    TransactionMetadata,
)
from penstock.broker.coordination.transactions.responses import (
    Added,
    Ended,
    Initialised,
    ProducerIdNeeded,
    Response,
    Verified,
)
from penstock.broker.coordination.transactions.states import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TransactionState,
)
from penstock.broker.coordination.transactions.transaction import TransactionLimits


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
    if retried and known.producer.producer_epoch <= PRODUCER_EPOCH_MAX:
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
            if state.commits == request.commit:
                return Ended(producer=known.next_producer)
            return _not_now(request, known)
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
