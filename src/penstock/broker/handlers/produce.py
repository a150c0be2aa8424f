"""Produce: appends the batch of each partition and responds when all are acknowledged.

All batches of a request are appended in one turn of the event loop. The response leaves when the
callback of each partition has reported that its batch is durable or replicated. Errors are per
partition. The most frequent request, one ordinary batch for a local partition, has a shorter path
(`Produce._append_single`).

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
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import PenstockError
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
from penstock.broker.requests.verification import (
    ADDS_FROM,
    Guards,
    Place,
    guard_of,
    look_at,
    verified,
    verified_now,
)
from penstock.partitions import LocalPartition
from penstock.records import InvalidRecord, says_transactional
from penstock.records.appends import (
    NO_APPEND,
    AppendResult,
    Done,
    IdReader,
    NeedsOpening,
    Opening,
    Outcome,
)
from penstock.records.header import FLAGS_AT
from penstock.records.transactions import UNGUARDED, Guard
from penstock.security import EVERYTHING
from penstock.security.authoriser import PEER
from penstock.wire.kafka.framing import UnsupportedVersion, response_prefix
from penstock.wire.kafka.produce import (
    FLEXIBLE_FROM,
    SINGLE_KEY_BYTES_MAX,
    TOPIC_IDS_FROM,
    PartitionResult,
    ProduceRequest,
    TopicResult,
    decode_request,
    decode_single,
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
    from penstock.broker.requests.joining import Joining
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.broker.requests.tracing import BrokerTraces
    from penstock.broker.transactions.link import Verifier
    from penstock.partitions import GroupCommits, Partition
    from penstock.storage import StorageError

logger = logging.getLogger(__name__)

_ALL: Final = -1
_WAITING: Final = (_ALL, 1)
"""Values of acks with which the client waits for a response."""
WIDE_PARTITIONS_MIN: Final = 32
"""Minimum number of batches for a topic that are appended together, which costs at least 0.1 ms."""


class Produce(Struct, frozen=True, kw_only=True):
    clock: Clock
    cluster: ClusterMetadata
    opener: Opener
    partitions: PartitionRegistry
    commits: GroupCommits
    joining: Joining
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
        if self._append_single(context, frame, offset, lease):
            return
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

    def _append_single(
        self, context: RequestContext, frame: memoryview, offset: int, lease: Lease | None
    ) -> bool:
        """Append the batch of a request with one ordinary batch for a local partition.

        Return False, without an effect, for all other requests.
        """
        single = decode_single(frame, offset, context.version)
        if single is None or self.traces is not None:
            return False
        acks, timeout_ms, key, index, records = single
        by_id = context.version >= TOPIC_IDS_FROM
        topic = (self.partitions.topics_by_id if by_id else self.partitions.topics_by_name).get(key)
        rights = context.rights
        if (
            topic is None
            or topic.topic.internal
            or not records
            or acks not in _WAITING
            or (
                rights is not EVERYTHING
                and (
                    says_transactional(records)
                    or not rights.allows("write", "topic", topic.topic.name)
                )
            )
        ):
            return False
        served = topic.partitions
        partition = served[index] if 0 <= index < len(served) else None
        if type(partition) is not LocalPartition:
            return False
        log = partition.log
        config = log.state.config
        if config.schema_validation_value or config.schema_validation_key:
            return False
        deadline = context.started + timeout_ms / 1000
        pending, result = _Single(self, context, key, index, deadline), None
        try:
            pending.appended = log.append(
                records, now_ms=self.clock.now_ms(), lease=lease, config=config, single=True,
                opening=Opening.BESIDE, through=True,
            )  # fmt: skip
        except NeedsOpening:
            return False
        except Exception as error:
            result = PartitionResult(index)
            _fail(result, topic, error)
        if self.quotas.active:
            self.quotas.producing(context, len(frame))
        if result is not None:
            pending.answer(result)
        else:
            self.produce_waiting[pending] = None
            durable = log.durable_offset > pending.appended.base_offset
            self.commits.flush_then(pending, durable=durable)
            if self.commits.repeats and not records[FLAGS_AT]:
                place = key, index, timeout_ms / 1000
                self.joining.remember(context, frame, offset, len(records), topic, partition, place)
        return True

    def answer_single(self, context: RequestContext, key: bytes, result: PartitionResult) -> None:
        """Send the response to a request with one batch."""
        _Pending(self, context, _ALL, [(key, [result])], 0.0).answer()

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
        pending = _Pending(self, context, request.acks, results, deadline)
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
        _Pending(self, context, request.acks, _refused(request, error), 0.0).answer()

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
    _acks: int
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
                    ready.records, now_ms=now_ms, acks=self._acks, lease=lease,
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
        if not throttle_ms and self._answered_single(results):
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

    def _answered_single(self, results: list[TopicResult]) -> bool:
        """Send the response of one successful append, if these are its results."""
        context, produce = self._context, self._produce
        if len(results) != 1 or len(results[0][1]) != 1 or context.no_answer:
            return False
        key, (result,) = results[0]
        if len(key) > SINGLE_KEY_BYTES_MAX or result.error:
            return False
        appended = result.base_offset, result.log_append_time_ms, result.log_start_offset
        _answer_single(produce, context, key, result.index, appended)
        return True


def _answer_single(
    produce: Produce, context: RequestContext, key: bytes, index: int, result: tuple[int, int, int]
) -> None:
    base_offset, time_ms, start_offset = result
    frame = encode_single_frame(
        context.version, context.correlation_id, key, index, base_offset, time_ms, start_offset
    )
    context.reply((frame,))
    produce.metrics.answered(context, produce.clock.monotonic())


class _Single(Struct, eq=False):
    """Request with one batch, which waits until the batch is durable; called by the store."""

    produce: Produce
    context: RequestContext
    key: bytes
    index: int
    deadline: float
    appended: AppendResult = NO_APPEND

    def __call__(self, error: StorageError | None) -> None:
        produce, context = self.produce, self.context
        if produce.produce_waiting.pop(self, self) is self:
            return  # it has timed out
        if error is not None:
            number, message = error_of(error)
            self.answer(PartitionResult(self.index, number, message=message))
            return
        appended = self.appended[:3]
        if produce.quotas.active:
            self.answer(PartitionResult(self.index, 0, *appended))
            return
        _answer_single(produce, context, self.key, self.index, appended)

    def expire(self) -> None:
        """Respond with REQUEST_TIMED_OUT; the batch may still become durable."""
        self.produce.produce_waiting.pop(self, None)
        message = f"{LocalPartition.append_takes} took longer than the timeout"
        number = error_number("request_timed_out")
        self.answer(PartitionResult(self.index, number, message=message))

    def answer(self, result: PartitionResult) -> None:
        self.produce.answer_single(self.context, self.key, result)
