"""Before the first batch of a transaction is taken, its coordinator is asked.

Partitions whose transaction goes on are not asked about; of the others, all of a request are asked
about together. Later requests of the connection wait meanwhile, so that a producer's batches are
taken in their order.

A partition that several brokers append to never knows that a transaction goes on. In version 1,
where epochs do not tell one transaction from the next, it is looked up before it is asked about: a
marker that comes behind where it ended then is one that the batch must not come behind.

From Produce version 12 on the coordinator adds the partitions (KIP-890, transaction version 2): if
it has not ended the producer's last transaction quite yet, it is asked again a few times. So it is
where a marker has come meanwhile, which makes its answer worth nothing: that of the producer's last
transaction often comes while the coordinator is asked.

| the coordinator says                              | the producer is told                        |
|---------------------------------------------------|---------------------------------------------|
| NOT_COORDINATOR, COORDINATOR_…, NETWORK_EXCEPTION | NOT_ENOUGH_REPLICAS: it tries again         |
| CONCURRENT_TRANSACTIONS                           | that from version 12, else the one above    |
| TRANSACTION_ABORTABLE                             | that from version 11, else INVALID_TXN_STATE|
| PRODUCER_FENCED                                   | INVALID_PRODUCER_EPOCH                      |
| anything else                                     | that                                        |

Source: KIP-890; Kafka's `ReplicaManager` and `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.limits import VERIFICATION_RETRY_MS, VERIFICATION_TRIES_MAX
from penstock.partitions import look_up_watermarks
from penstock.partitions.errors import NotEnoughReplicas
from penstock.records import InvalidProducerEpoch, decode_header
from penstock.records.errors import InvalidTxnState
from penstock.records.transactions import ONGOING, Guard
from penstock.wire.kafka.produce import TOPIC_IDS_FROM, ProduceRequest

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.verifier import Verifier
    from penstock.partitions import Partition

ADDS_FROM: Final = 12
ABORTABLE_FROM: Final = 11
_CONCURRENT: Final = "concurrent_transactions"
_AGAIN: Final = frozenset({
    "not_coordinator", "coordinator_not_available", "coordinator_load_in_progress",
    "network_exception", "request_timed_out",
})  # fmt: skip

Place = tuple[bytes, int]
"""A topic as the request names it, and a partition."""

Guards = Mapping[Place, Guard | PenstockError]
"""What the batch of each partition comes with, or why it is refused."""


class Unverified(NamedTuple):
    """A batch that may begin a transaction of its partition."""

    place: Place
    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int
    guard: Guard

    def renewed(self, now_ms: int) -> Unverified:
        """With another guard if a marker has made this one void; raises as `begin_verification`.

        Of a partition that several brokers append to, only the append can tell.
        """
        partition, epoch = self.partition, self.producer_epoch
        if partition.everywhere:
            return self
        found = partition.begin_verification(self.producer_id, epoch, self.sequence, now_ms=now_ms)
        return self if found is None or found is self.guard else self._replace(guard=found)


def look_at(
    partitions: PartitionRegistry, request: ProduceRequest, version: int, now_ms: int
) -> tuple[dict[Place, Guard | PenstockError], list[Unverified]]:
    """What the batches of a request come with, as far as it is known, and which are unverified."""
    topics = partitions.topics_by_id if version >= TOPIC_IDS_FROM else partitions.topics_by_name
    guards: dict[Place, Guard | PenstockError] = {}
    wanted: list[Unverified] = []
    for key, batches in request.topics:
        topic = topics.get(key)
        for index, records in batches:
            place = key, index
            guards[place] = ONGOING
            try:
                if topic is not None and records:  # else the append says what is wrong
                    partition = partitions.partition_of(topic, index)
                    found = _unverified(partition, place, records, now_ms)
                    wanted += [] if found is None else [found]
            except PenstockError as error:
                guards[place] = error
    return guards, wanted


def _unverified(
    partition: Partition, place: Place, records: memoryview, now_ms: int
) -> Unverified | None:
    """What is to be verified of a partition's batch."""
    header = decode_header(records)
    producer_id, epoch = header.producer_id, header.producer_epoch
    if not header.is_transactional or producer_id < 0:
        return None  # the append refuses it, and says why
    guard = partition.begin_verification(producer_id, epoch, header.base_sequence, now_ms=now_ms)
    if guard is None:
        return None
    return Unverified(place, partition, producer_id, epoch, header.base_sequence, guard)


async def verified(
    verifier: Verifier,
    transactional_id: str,
    wanted: Sequence[Unverified],
    version: int,
    clock: Clock,
) -> dict[Place, Guard | PenstockError]:
    """Ask about batches, as a request of this version; each one's guard, or why it is refused."""
    guards: dict[Place, Guard | PenstockError] = {}
    if version < ADDS_FROM:
        wanted, guards = await _looked_up(wanted)
    by_producer: dict[tuple[int, int], list[Unverified]] = {}
    for one in wanted:
        by_producer.setdefault((one.producer_id, one.producer_epoch), []).append(one)
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
                for one, error in zip(batches, answers, strict=True)
                if (again := _judged(one, error, guards, version, clock.now_ms())) is not None
            ]
            if not batches:
                break
    return guards


def verified_now(
    verifier: Verifier,
    transactional_id: str,
    wanted: Sequence[Unverified],
    version: int,
    now_ms: int,
) -> dict[Place, Guard | PenstockError] | None:
    """As `verified`, where nobody has to be waited for; None where it is otherwise."""
    first = wanted[0]
    producer = first.producer_id, first.producer_epoch
    if version >= ADDS_FROM or any(
        [
            one.partition.look_up is not None or (one.producer_id, one.producer_epoch) != producer
            for one in wanted
        ]
    ):
        return None
    answers = verifier.verify_now(
        transactional_id, *producer, [one.partition.topic_partition for one in wanted]
    )
    if answers is None:
        return None
    guards: dict[Place, Guard | PenstockError] = {}
    for one, error in zip(wanted, answers, strict=True):
        _judged(one, error, guards, version, now_ms)
    return guards


async def _looked_up(
    wanted: Sequence[Unverified],
) -> tuple[Sequence[Unverified], dict[Place, Guard | PenstockError]]:
    """Have guards say where partitions end that others append to; why those are refused, too."""
    shared = [one for one in wanted if one.partition.look_up is not None]
    try:
        await look_up_watermarks([one.partition for one in shared])
    except PenstockError as error:
        refused = NotEnoughReplicas(f"where the partition ends is not known: {error}")
        left = [one for one in wanted if one.partition.look_up is None]
        return left, {one.place: refused for one in shared}
    for one in shared:
        one.guard.verified_from = one.partition.high_watermark
    return wanted, {}


def _judged(
    one: Unverified,
    error: PenstockError | None,
    guards: dict[Place, Guard | PenstockError],
    version: int,
    now_ms: int,
) -> Unverified | None:
    """Note what became of a batch; returns what is to be asked again, if it can be."""
    guards[one.place] = one.guard if error is None else told(error, version)
    concurrent = version >= ADDS_FROM and _is_concurrent(error)
    if error is not None and not concurrent:
        return None
    try:
        again = one.renewed(now_ms)
    except PenstockError as refusal:
        guards[one.place] = refusal
        return None
    if concurrent:
        return again
    if again is one:
        return None
    guards[one.place] = NotEnoughReplicas("a marker came while the transaction was verified")
    return again


def _is_concurrent(error: PenstockError | None) -> bool:
    return error is not None and error.code == _CONCURRENT


def told(error: PenstockError, version: int) -> PenstockError:
    """What the producer is told of a coordinator's error; see the table."""
    code = error.code
    if code in _AGAIN or (code == _CONCURRENT and version < ADDS_FROM):
        return NotEnoughReplicas(
            f"it could not be verified that the partition is part of the transaction: {error}"
        )
    if code == "transaction_abortable" and version < ABORTABLE_FROM:
        return InvalidTxnState(str(error))
    if code == "producer_fenced":
        return InvalidProducerEpoch(str(error))
    return error


def guard_of(guards: Guards, place: Place) -> Guard:
    """The guard of a partition's batch; raises PenstockError, why it is refused."""
    found = guards[place]
    if isinstance(found, PenstockError):
        raise found
    return found
