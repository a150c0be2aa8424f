"""Produce: appends the batch of each partition and responds when all are acknowledged.

All batches of a request are appended in one turn of the event loop. The response leaves when the
callback of each partition has reported that its batch is durable or replicated. Errors are per
partition.

A partition of a request has one whole batch with offsets from 0 on, as in Kafka since RecordBatch
v2. A batch that must be decompressed is first decompressed and validated by a thread
(`broker/requests/opening.py`). For a batch with unknown schema ids, the newest schemas are read
(`broker/requests/schema_ids.py`). Later requests of the connection wait meanwhile, so that the
batches of a producer keep their order.

Versions 0 to 2 are advertised, but rejected in their own response format (`wire/kafka/apis.py`).
In requests with a transactional id, batches that may begin a transaction are first verified with
the transaction coordinator.

Source: KIP-98 (idempotence, in the storage), KIP-467 (record errors), Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.net.connection import Expiring, RequestContext
from penstock.broker.net.errors import (
    InternalTopic,
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotLeader,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_number,
    error_of,
)
from penstock.broker.net.listeners import endpoints_of
from penstock.broker.partitions.registry import PartitionRegistry, ServedTopic
from penstock.broker.requests.access import forbidden_topic
from penstock.broker.requests.opening import Opener, OpenResult, Sealed
from penstock.broker.requests.schema_ids import Candidate, SchemaChecks, TopicIds, UnknownSchema
from penstock.partitions import LocalPartition, look_up_watermarks
from penstock.records import InvalidProducerEpoch, InvalidRecord, decode_header, says_transactional
from penstock.records.appends import AppendResult, Done, IdReader, NeedsOpening, Opening, Outcome
from penstock.records.errors import InvalidTxnState
from penstock.records.transactions import ONGOING, UNGUARDED, Guard
from penstock.security import EVERYTHING
from penstock.security.authoriser import PEER
from penstock.wire.kafka.framing import UnsupportedVersion, response_prefix
from penstock.wire.kafka.produce import (
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    PartitionResult,
    ProduceRequest,
    TopicResult,
    decode_request,
    encode_response,
    encode_single_frame,
)
from penstock.wire.kafka.produce import Partition as PartitionBatch

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.broker.requests.tracing import BrokerTraces
    from penstock.broker.transactions.link import Verifier
    from penstock.partitions import GroupCommits, Partition


# Verification of transactional batches with the transaction coordinator before the append.
#
# Partitions in which the producer has an open transaction need no verification. The other
# partitions of a request are verified together. Later requests of the connection wait, so that a
# producer's batches keep their order.
#
# A broker does not know whether a transaction is open in a diskless partition, because several
# brokers append. In transaction version 1, epochs do not distinguish successive transactions. The
# end offset of such a partition is therefore looked up before the verification. The append fails if
# a marker of the producer follows at or above that offset.
#
# From Produce version 12 on (KIP-890, transaction version 2) the request to the coordinator also
# adds the partitions to the transaction. The request is repeated a few times if the coordinator has
# not finished the producer's last transaction, or if a marker was appended meanwhile.
#
# | error of the coordinator                          | error of the producer                      |
# |---------------------------------------------------|--------------------------------------------|
# | NOT_COORDINATOR, COORDINATOR_…, NETWORK_EXCEPTION | NOT_ENOUGH_REPLICAS (it retries)           |
# | CONCURRENT_TRANSACTIONS                           | the same from Produce version 12 on,       |
# |                                                   | NOT_ENOUGH_REPLICAS in older versions      |
# | TRANSACTION_ABORTABLE                             | the same from Produce version 11 on,       |
# |                                                   | INVALID_TXN_STATE in older versions        |
# | PRODUCER_FENCED                                   | INVALID_PRODUCER_EPOCH                     |
# | any other                                         | the same                                   |
#
# Source: KIP-890; Kafka's `ReplicaManager` and `AddPartitionsToTxnManager`.


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


logger = logging.getLogger(__name__)

_ALL: Final = -1
WIDE_PARTITIONS_MIN: Final = 32
"""Minimum number of batches for a topic that are appended together, which costs at least 0.1 ms."""


class Produce(Struct, frozen=True, kw_only=True):
    clock: Clock
    cluster: ClusterMetadata
    opener: Opener
    partitions: PartitionRegistry
    commits: GroupCommits
    metrics: RequestMetrics
    quotas: Quotas
    schema_checks: SchemaChecks
    settings: BrokerSettings
    verifier: Verifier
    produce_waiting: dict[Expiring, None]
    traces: BrokerTraces | None

    def produce(
        self,
        context: RequestContext,
        frame: memoryview,
        offset: int,
        lease: Lease | None,
    ) -> None:
        """Handle one Produce request; call `context.reply` once all batches are acknowledged."""
        request = decode_request(frame, offset, context.version)
        problem = _problem(context, request)
        if problem is not None:
            self.refuse(context, request, problem)
            return
        if self.quotas.active:
            self.quotas.producing(context, len(frame))
        refused: list[TopicResult] = []
        if context.rights is not EVERYTHING:
            refused = self._take_refused(context, request)
        context.no_answer = request.acks == 0
        if request.transactional_id is None:
            _continue(context, self._append(context, request, lease, None, refused))
        else:
            self._begin(context, request, lease, request.transactional_id, refused)

    def _take_refused(self, context: RequestContext, request: ProduceRequest) -> list[TopicResult]:
        refused, kept = [], []
        topics = self.partitions.topics_by_id if context.version >= TOPIC_IDS_FROM else None
        for topic in request.topics:
            key, rows = topic
            name = forbidden_topic(context.rights, "write", key, topics)
            if name is None:
                kept.append(topic)
                continue
            number, message = error_of(context.refusal("write", "topic", name))
            results = [PartitionResult(index, number, message=message) for index, _ in rows]
            refused.append((key, results))
        request.topics = kept
        return refused

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        lease: Lease | None,
        guards: Guards | None,
        results: list[TopicResult],
    ) -> Coroutine[Any, Any, None] | None:
        """Append the batches of a request; return a coroutine for those to decompress first.

        `guards` are the verified transactions of batches; `results` has the rejected partitions.
        """
        now_ms, acks, traces = self.clock.now_ms(), request.acks, self.traces
        by_id = context.version >= TOPIC_IDS_FROM
        topics = self.partitions.topics_by_id if by_id else self.partitions.topics_by_name
        deadline = context.started + request.timeout_ms / 1000
        pending = _Pending(self, context, request, results, deadline)
        sealed: list[_Sealed] = []
        for key, batches in request.topics:
            topic = topics.get(key)
            of_topic: list[PartitionResult] = []
            results.append((key, of_topic))
            wide = len(batches) >= WIDE_PARTITIONS_MIN and guards is None
            left = self._append_wide(pending, topic, batches, of_topic, now_ms) if wide else batches
            for index, records in left:
                result = _Appended(index, pending=pending)
                of_topic.append(result)
                try:
                    if topic is None:
                        raise _unknown(key, by_id=by_id)
                    partition = self._writable(context, topic, index)
                    if not records:
                        raise _empty(topic, index)
                    guard = None if guards is None else guard_of(guards, (key, index))
                    ids = self._id_reader(context, topic, partition)
                    done: Done = result if traces is None else traces.producing(
                        result, context, self.metrics, records, partition
                    )  # fmt: skip
                    try:
                        partition.append(
                            records, now_ms=now_ms, acks=acks, lease=lease, done=done,
                            guard=guard, opening=Opening.BESIDE, ids=ids,
                        )  # fmt: skip
                        result.takes = partition.append_takes
                    except (NeedsOpening, UnknownSchema):
                        item = Sealed(records, partition.config, guard is not None, ids is not None)
                        sealed.append(_Sealed(result, done, topic, partition, item, guard))
                    pending.outstanding += 1
                except Exception as error:
                    _fail(result, topic, error)
        if not pending.outstanding:
            pending.answer()
            return None
        self.produce_waiting[pending] = None
        self.commits.flush()
        if not sealed:
            return None
        if lease is not None:
            lease.retain()
        return self._append_opened(context, pending, sealed, lease)

    def _append_wide(
        self,
        pending: _Pending,
        topic: ServedTopic | None,
        batches: list[PartitionBatch],
        results: list[PartitionResult],
        now_ms: int,
    ) -> list[PartitionBatch]:
        """Append the ordinary batches for local partitions of a topic together.

        Add their results to `results`, and return the batches that must be appended one by one.
        """
        if topic is None or topic.topic.internal or self.traces is not None:
            return batches
        served = topic.partitions
        local = [
            (batch, partition, batch[1])
            for batch in batches
            if batch[1] and 0 <= batch[0] < len(served)
            and type(partition := served[batch[0]]) is LocalPartition
        ]  # fmt: skip
        if len(local) < WIDE_PARTITIONS_MIN:
            return batches
        _, partitions, records = zip(*local, strict=True)
        appended = self.commits.append_each(partitions, records, now_ms)
        done = set()
        for (batch, _, _), outcome in zip(local, appended, strict=True):
            if outcome is not None:
                done.add(id(batch))
                result = _Appended(batch[0], pending=pending, takes=LocalPartition.append_takes)
                results.append(result)
                self.commits.appends.append((result, outcome))
        pending.outstanding += len(done)
        return [batch for batch in batches if id(batch) not in done]

    def _writable(self, context: RequestContext, topic: ServedTopic, index: int) -> Partition:
        """Return a partition that this client may write to; raises PenstockError."""
        if topic.topic.internal and context.connection.principal != PEER:
            raise InternalTopic(topic.topic.name)
        served = topic.partitions
        partition = served[index] if 0 <= index < len(served) else None
        return self.partitions.partition_of(topic, index) if partition is None else partition

    def _id_reader(
        self, context: RequestContext, topic: ServedTopic, partition: Partition
    ) -> IdReader | None:
        """Return the reader of the schema ids that the topic demands; None if it demands none.

        Records that brokers write are not checked: dead letters, and commits of sinks, whose ids
        were checked before they began.
        """
        config = partition.config
        if not (config.schema_validation_value or config.schema_validation_key):
            return None
        if context.connection.principal == PEER:
            return None
        return TopicIds(self.schema_checks, topic.topic.name, config)

    async def _append_opened(
        self,
        context: RequestContext,
        pending: _Pending,
        sealed: list[_Sealed],
        lease: Lease | None,
    ) -> None:
        connection = context.connection
        client = (connection.principal, connection.client_host)
        now_ms = self.clock.now_ms()
        try:
            found = await self.opener.opened(client, [waiting.batch for waiting in sealed], now_ms)
            if any(waiting.batch.with_ids for waiting in sealed):
                found = await self.schema_checks.checked([
                    Candidate(waiting.topic.topic.name, waiting.batch.config, opened)
                    for waiting, opened in zip(sealed, found, strict=True)
                ])  # fmt: skip
            for batch, ready in zip(sealed, found, strict=True):
                pending.append_opened(batch, ready, self.clock.now_ms(), lease)
        finally:
            if lease is not None:
                lease.release()
        if pending.outstanding:
            self.commits.flush()
        else:
            pending.answer()

    def _begin(
        self,
        context: RequestContext,
        request: ProduceRequest,
        lease: Lease | None,
        transactional_id: str,
        refused: list[TopicResult],
    ) -> None:
        """Append the batches of a transaction, after verifying those that may begin it."""
        verifier, version = self.verifier, context.version
        now_ms = self.clock.now_ms()
        guards, unverified = look_at(self.partitions, request, version, now_ms)
        if version < ADDS_FROM and not self.settings.transaction_partition_verification_enable:
            guards.update({batch.place: UNGUARDED for batch in unverified})
        elif unverified:
            known = verified_now(verifier, transactional_id, unverified, version, now_ms)
            if known is not None:
                guards.update(known)
                _continue(context, self._append(context, request, lease, guards, refused))
                return
            if lease is not None:
                lease.retain()
            work = verified(verifier, transactional_id, unverified, version, self.clock)
            task = asyncio.get_running_loop().create_task(
                self._append_verified(context, request, lease, guards, work, refused)
            )
            context.connection.waits_for(task)
            return
        _continue(context, self._append(context, request, lease, guards, refused))

    async def _append_verified(
        self,
        context: RequestContext,
        request: ProduceRequest,
        lease: Lease | None,
        guards: dict[Place, Guard | PenstockError],
        work: Awaitable[dict[Place, Guard | PenstockError]],
        refused: list[TopicResult],
    ) -> None:
        try:
            async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
                guards.update(await work)
            rest = self._append(context, request, lease, guards, refused)
            if rest is not None:
                await rest
        except TimeoutError:
            self.refuse(context, request, NotEnoughReplicas(
                f"the transaction's coordinator did not respond within {request.timeout_ms} ms"
            ))  # fmt: skip
        except asyncio.CancelledError:
            self.refuse(context, request, NotEnoughReplicas("the broker is stopping; retry"))
        except Exception as error:
            logger.error("verifying a transaction failed", exc_info=error)
            self.refuse(
                context,
                request,
                NotEnoughReplicas(f"the transaction could not be verified: {error!r}"),
            )
        finally:
            if lease is not None:
                lease.release()

    def refuse(
        self, context: RequestContext, request: ProduceRequest, error: PenstockError
    ) -> None:
        """Append nothing, and respond with `error` for every partition of the request."""
        context.no_answer = request.acks == 0
        _Pending(self, context, request, _refused(request, error), 0.0).answer()

    def refuse_old(
        self, context: RequestContext, frame: memoryview, offset: int, message: str
    ) -> None:
        """Reject a request of version 0 to 2, in that version.

        Its format is that of version 3 without the transactional id.
        """
        request = decode_request(memoryview(b"\xff\xff" + frame[offset:]), 0, 3)
        self.refuse(context, request, UnsupportedVersion(message))


def _continue(context: RequestContext, rest: Coroutine[Any, Any, None] | None) -> None:
    if rest is not None:
        context.connection.waits_for(asyncio.get_running_loop().create_task(rest))


class _Sealed(NamedTuple):
    result: _Appended
    done: Done
    topic: ServedTopic
    partition: Partition
    batch: Sealed
    guard: Guard | None


def _unknown(key: bytes, *, by_id: bool) -> PenstockError:
    if by_id:
        return UnknownTopicId(f"topic id {key.hex()} does not exist")
    return UnknownTopicOrPartition(f"topic {key.decode(errors='replace')!r} does not exist")


def _empty(topic: ServedTopic, index: int) -> PenstockError:
    return InvalidRecord(f"records of {topic.topic.name}-{index} are null or empty")


def _fail(result: PartitionResult, topic: ServedTopic | None, error: Exception) -> None:
    if not isinstance(error, PenstockError):
        name = "?" if topic is None else topic.topic.name
        logger.error("producing to %s-%d failed", name, result.index, exc_info=error)
    result.error, result.message = error_of(error)
    result.leader = error.leader if isinstance(error, NotLeader) else None
    records = error.records if isinstance(error, InvalidRecord) else ()
    result.record_errors = [(record, result.message) for record in records]


def _problem(context: RequestContext, request: ProduceRequest) -> PenstockError | None:
    if request.acks not in (0, 1, _ALL):
        return InvalidRequiredAcks(f"acks = {request.acks}: must be 0, 1 or -1 (all)")
    rights = context.rights
    if rights is EVERYTHING or not has_transactions(request):
        return None
    name = request.transactional_id
    if name is None or not rights.allows("write", "transactional_id", name):
        return context.refusal("write", "transactional_id", name or "")
    return None


def has_transactions(request: ProduceRequest) -> bool:
    return any(
        records is not None and says_transactional(records)
        for _, partitions in request.topics
        for _, records in partitions
    )


def _refused(request: ProduceRequest, error: PenstockError) -> list[TopicResult]:
    number, message = error_of(error)
    return [
        (key, [PartitionResult(index, number, message=message) for index, _ in partitions])
        for key, partitions in request.topics
    ]


class _Appended(PartitionResult, eq=False, gc=False, kw_only=True):
    """Response element of a partition, and the callback that fills it after the append.

    `takes` names the step that the append waits for, for the error message of a timeout. The
    garbage collector does not track instances: `_Pending.answer` breaks their only cycle.
    """

    pending: _Pending
    takes: str = "the batch's validation"

    def __call__(self, outcome: Outcome) -> None:
        if not isinstance(outcome, AppendResult):
            self.error, self.message = error_of(outcome)
        elif outcome.error is not None:
            self.error, self.message = error_number(outcome.error), outcome.message
        else:
            self.base_offset, self.log_append_time_ms, self.log_start_offset, _, _, _ = outcome
        pending = self.pending
        pending.outstanding -= 1
        if not pending.outstanding:
            pending.answer()


class _Pending(Struct, eq=False):
    """Request that waits until all of its appends are acknowledged."""

    _produce: Produce
    _context: RequestContext
    _request: ProduceRequest
    _results: list[TopicResult] | None
    deadline: float
    outstanding: int = 0

    def append_opened(
        self, sealed: _Sealed, ready: OpenResult, now_ms: int, lease: Lease | None
    ) -> None:
        """Append a batch that was decompressed; if `ready` is an error, record it."""
        result = sealed.result
        if self._results is not None and not isinstance(ready, Exception):
            try:
                sealed.partition.append(
                    ready.records, now_ms=now_ms, acks=self._request.acks, lease=lease,
                    done=sealed.done, guard=sealed.guard, opening=Opening.DONE,
                )  # fmt: skip
                result.takes = sealed.partition.append_takes
                return
            except Exception as error:
                ready = error
        if isinstance(ready, Exception):
            _fail(result, sealed.topic, ready)
        self.outstanding -= 1

    def expire(self) -> None:
        """Respond with REQUEST_TIMED_OUT for pending appends, which may still become durable."""
        number = error_number("request_timed_out")
        for result in [result for _, results in self._results or () for result in results]:
            if isinstance(result, _Appended) and result.error == 0 and result.base_offset < 0:
                result.error = number
                result.message = f"{result.takes} took longer than the timeout"
        self.answer()

    def answer(self) -> None:
        """Send the response unless it was sent. With acks=0, close the connection on an error."""
        self._produce.produce_waiting.pop(self, None)
        results = self._results
        if results is None:
            return
        self._results = None
        context = self._context
        quotas = self._produce.quotas
        throttle_ms = quotas.produced(context) if quotas.active else 0
        single = len(results) == 1 and len(results[0][1]) == 1
        if single and not context.no_answer and not throttle_ms:
            key, (result,) = results[0]
            frame = encode_single_frame(context.version, context.correlation_id, key, result)
            if frame is not None:
                context.reply((frame,))
                self._produce.metrics.answered(context, self._produce.clock.monotonic())
                return
        failed = [result for _, of_topic in results for result in of_topic if result.error]
        for result in failed:
            self._produce.metrics.failed(context, result.error)
        if context.no_answer:
            if failed:
                context.connection.close(f"append with acks=0 failed: {failed[0].message}")
            self._produce.metrics.answered(context, self._produce.clock.monotonic())
            return
        version = context.version
        leaders = [result.leader[0] for result in failed if result.leader is not None]
        image, listener = self._produce.cluster.image, context.connection.listener
        endpoints = endpoints_of(image, leaders, listener) if leaders else ()
        body = encode_response(version, results, endpoints, throttle_ms)
        header_version = 1 if version >= FLEXIBLE_FROM else 0
        context.reply((response_prefix(context.correlation_id, header_version, len(body)), body))
        self._produce.metrics.answered(context, self._produce.clock.monotonic())
