"""Verification of transactional batches with the transaction coordinator before the append.

Partitions in which the producer has an open transaction need no verification. The other
partitions of a request are verified together. Later requests of the connection wait, so that a
producer's batches keep their order.

A broker does not know whether a transaction is open in a diskless partition, because several
brokers append. In transaction version 1, epochs do not distinguish successive transactions. The
end offset of such a partition is therefore looked up before the verification. The append fails if
a marker of the producer follows at or above that offset.

From Produce version 12 on (KIP-890, transaction version 2) the request to the coordinator also
adds the partitions to the transaction. The request is repeated a few times if the coordinator has
not finished the producer's last transaction, or if a marker was appended meanwhile.

| error of the coordinator                          | error of the producer                      |
|---------------------------------------------------|--------------------------------------------|
| NOT_COORDINATOR, COORDINATOR_…, NETWORK_EXCEPTION | NOT_ENOUGH_REPLICAS (it retries)           |
| CONCURRENT_TRANSACTIONS                           | the same from Produce version 12 on,       |
|                                                   | NOT_ENOUGH_REPLICAS in older versions      |
| TRANSACTION_ABORTABLE                             | the same from Produce version 11 on,       |
|                                                   | INVALID_TXN_STATE in older versions        |
| PRODUCER_FENCED                                   | INVALID_PRODUCER_EPOCH                     |
| any other                                         | the same                                   |

Source: KIP-890; Kafka's `ReplicaManager` and `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.net.errors import NotEnoughReplicas
from penstock.partitions import look_up_watermarks
from penstock.records import InvalidProducerEpoch, decode_header
from penstock.records.errors import InvalidTxnState
from penstock.records.transactions import ONGOING, Guard
from penstock.wire.kafka.produce import TOPIC_IDS_FROM, ProduceRequest

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.transactions.link import Verifier
    from penstock.partitions import Partition

VERIFICATION_TRIES_MAX: Final = 6
"""Largest number of attempts while the coordinator is ending the producer's last transaction."""
VERIFICATION_RETRY_MS: Final = 20
"""Pause between two attempts; Kafka's `add.partitions.to.txn.retry.backoff.ms`."""

ADDS_FROM: Final = 12
ABORTABLE_FROM: Final = 11
_CONCURRENT: Final = "concurrent_transactions"
_AGAIN: Final = frozenset({
    "not_coordinator", "coordinator_not_available", "coordinator_load_in_progress",
    "network_exception", "request_timed_out",
})  # fmt: skip

Place = tuple[bytes, int]
"""Topic name or id as in the request, and partition."""

Guards = Mapping[Place, Guard | PenstockError]
"""Guard (`records/transactions.py`) with which each batch is appended, or the batch's error."""


class Unverified(NamedTuple):
    """Batch that may be the first one of a transaction in its partition."""

    place: Place
    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int
    guard: Guard

    def renewed(self, now_ms: int) -> Unverified:
        """Return this batch; with a new guard if a marker has ended the verified transaction.

        Raises:
            PenstockError: as `begin_verification`.
        """
        partition, epoch = self.partition, self.producer_epoch
        if partition.everywhere:
            return self
        found = partition.begin_verification(self.producer_id, epoch, self.sequence, now_ms=now_ms)
        return self if found is None or found is self.guard else self._replace(guard=found)


def look_at(
    partitions: PartitionRegistry, request: ProduceRequest, version: int, now_ms: int
) -> tuple[dict[Place, Guard | PenstockError], list[Unverified]]:
    """Find the batches of a request that the transaction coordinator must verify.

    Return the guards or errors of all batches, and the batches to verify. The guards of the latter
    are preliminary; the caller replaces them after the verification.
    """
    topics = partitions.topics_by_id if version >= TOPIC_IDS_FROM else partitions.topics_by_name
    guards: dict[Place, Guard | PenstockError] = {}
    unverified: list[Unverified] = []
    for key, batches in request.topics:
        topic = topics.get(key)
        for index, records in batches:
            place = key, index
            guards[place] = ONGOING
            try:
                if topic is not None and records:  # else the append rejects it
                    partition = partitions.partition_of(topic, index)
                    found = _unverified(partition, place, records, now_ms)
                    unverified += [] if found is None else [found]
            except PenstockError as error:
                guards[place] = error
    return guards, unverified


def _unverified(
    partition: Partition, place: Place, records: memoryview, now_ms: int
) -> Unverified | None:
    """Return the batch if it may be the first of a transaction here, else None."""
    header = decode_header(records)
    producer_id, epoch = header.producer_id, header.producer_epoch
    if not header.is_transactional or producer_id < 0:
        return None  # the append rejects it
    guard = partition.begin_verification(producer_id, epoch, header.base_sequence, now_ms=now_ms)
    if guard is None:
        return None
    return Unverified(place, partition, producer_id, epoch, header.base_sequence, guard)


async def verified(
    verifier: Verifier,
    transactional_id: str,
    unverified: Sequence[Unverified],
    version: int,
    clock: Clock,
) -> dict[Place, Guard | PenstockError]:
    """Verify with the coordinator that the batches' transactions are open.

    Return for each batch the guard to append it with, or its error.
    """
    guards: dict[Place, Guard | PenstockError] = {}
    if version < ADDS_FROM:
        unverified, guards = await _looked_up(unverified)
    by_producer: dict[tuple[int, int], list[Unverified]] = {}
    for pending in unverified:
        by_producer.setdefault((pending.producer_id, pending.producer_epoch), []).append(pending)
    for (producer_id, epoch), batches in by_producer.items():
        for tried in range(1, VERIFICATION_TRIES_MAX + 1):
            answers = await verifier.verify(
                transactional_id,
                producer_id,
                epoch,
                [batch.partition.topic_partition for batch in batches],
                add=version >= ADDS_FROM,
            )
            ending = version >= ADDS_FROM and any([_is_concurrent(error) for error in answers])
            if ending and tried < VERIFICATION_TRIES_MAX:
                await pause(VERIFICATION_RETRY_MS / 1000)
            batches = [
                again
                for pending, error in zip(batches, answers, strict=True)
                if (again := _judged(pending, error, guards, version, clock.now_ms())) is not None
            ]
            if not batches:
                break
    return guards


def verified_now(
    verifier: Verifier,
    transactional_id: str,
    unverified: Sequence[Unverified],
    version: int,
    now_ms: int,
) -> dict[Place, Guard | PenstockError] | None:
    """Verify as `verified`, if this is possible without waiting; return None if it is not."""
    first = unverified[0]
    producer = first.producer_id, first.producer_epoch
    if version >= ADDS_FROM or any(
        [
            batch.partition.look_up is not None
            or (batch.producer_id, batch.producer_epoch) != producer
            for batch in unverified
        ]
    ):
        return None
    answers = verifier.verify_now(
        transactional_id, *producer, [batch.partition.topic_partition for batch in unverified]
    )
    if answers is None:
        return None
    guards: dict[Place, Guard | PenstockError] = {}
    for batch, error in zip(unverified, answers, strict=True):
        _judged(batch, error, guards, version, now_ms)
    return guards


async def _looked_up(
    unverified: Sequence[Unverified],
) -> tuple[Sequence[Unverified], dict[Place, Guard | PenstockError]]:
    """Look up the end offsets of diskless partitions, and store them in their batches' guards.

    Return the batches that can be verified. If the look-up failed, also return the errors of the
    batches for diskless partitions.
    """
    shared = [batch for batch in unverified if batch.partition.look_up is not None]
    try:
        await look_up_watermarks([batch.partition for batch in shared])
    except PenstockError as error:
        refused = NotEnoughReplicas(f"the partition's end offset could not be looked up: {error}")
        left = [batch for batch in unverified if batch.partition.look_up is None]
        return left, {batch.place: refused for batch in shared}
    for batch in shared:
        batch.guard.verified_from = batch.partition.high_watermark
    return unverified, {}


def _judged(
    batch: Unverified,
    error: PenstockError | None,
    guards: dict[Place, Guard | PenstockError],
    version: int,
    now_ms: int,
) -> Unverified | None:
    """Add the batch's guard or error to `guards`; return the batch if it must be verified again."""
    guards[batch.place] = batch.guard if error is None else producer_error(error, version)
    concurrent = version >= ADDS_FROM and _is_concurrent(error)
    if error is not None and not concurrent:
        return None
    try:
        again = batch.renewed(now_ms)
    except PenstockError as refusal:
        guards[batch.place] = refusal
        return None
    if concurrent:
        return again
    if again is batch:
        return None
    guards[batch.place] = NotEnoughReplicas("a transaction marker was appended during verification")
    return again


def _is_concurrent(error: PenstockError | None) -> bool:
    return error is not None and error.code == _CONCURRENT


def producer_error(error: PenstockError, version: int) -> PenstockError:
    """Return the error that a producer gets when the verification of its batch failed.

    The table in the comment above maps errors of the coordinator to errors of the producer.
    """
    code = error.code
    if code in _AGAIN or (code == _CONCURRENT and version < ADDS_FROM):
        return NotEnoughReplicas(
            f"the coordinator did not confirm that the transaction includes the partition: {error}"
        )
    if code == "transaction_abortable" and version < ABORTABLE_FROM:
        return InvalidTxnState(str(error))
    if code == "producer_fenced":
        return InvalidProducerEpoch(str(error))
    return error


def guard_of(guards: Guards, place: Place) -> Guard:
    found = guards[place]
    if isinstance(found, PenstockError):
        raise found
    return found
