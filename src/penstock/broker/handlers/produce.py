"""Produce: append each partition's batches, sync once, answer.

All partitions of a request are appended in the event loop's turn; one `store.flush` covers them,
and `state.commit_soon()` makes the requests of one loop iteration share one journal write and
one sync. The answer leaves from the flush's callback. Errors are per partition; a partition that
fails does not keep the others from being stored.

Batches for diskless topics go to the writer of objects instead, and their results come when the
object is committed; a request that has both kinds is answered when all of it is done.

A partition of a request holds one whole batch from offset 0 on, as in Kafka since RecordBatch v2.

Versions 0 to 2 are advertised but refused, each partition with an error in the version's own
shape (see `wire/kafka/apis.py`). Transactions are refused until they are there.

Source: KIP-98 (idempotence, in the storage), KIP-467 (record errors), Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.broker.context import RequestContext
from penstock.broker.errors import (
    InvalidRequiredAcks,
    NotEnoughReplicas,
    TransactionsUnsupported,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_number,
    error_of,
)
from penstock.broker.state import BrokerState, TopicState
from penstock.records import InvalidRecord, check_single
from penstock.wire.kafka.errors import UnsupportedVersion
from penstock.wire.kafka.framing import response_prefix
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

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.diskless.partition import DisklessPartition
    from penstock.records.appends import AppendResult

    _Remote = tuple[PartitionResult, DisklessPartition, memoryview | None]
logger = logging.getLogger(__name__)

_ALL: Final = -1


def produce(
    state: BrokerState,
    context: RequestContext,
    frame: memoryview,
    offset: int,
    lease: Lease | None,
) -> None:
    """Handle one Produce request; answers by `context.reply` once it is durable."""
    request = decode_request(frame, offset, context.version)
    context.no_answer = request.acks == 0
    refusal = _refusal(request)
    if refusal is not None:
        _Pending(state, context, request, _refused(request, refusal)).answer()
        return
    now_ms = state.clock.now_ms()
    by_id = context.version >= TOPIC_IDS_FROM
    topics = state.topics_by_id if by_id else state.topics_by_name
    results: list[TopicResult] = []
    remote: list[_Remote] = []
    appended = False
    for key, partitions in request.topics:
        topic = topics.get(key)
        topic_results: list[PartitionResult] = []
        for index, records in partitions:
            try:
                if topic is None:
                    raise _unknown(key, by_id=by_id)
                if topic.diskless:
                    result = PartitionResult(index)
                    remote.append((result, state.remote_of(topic, index), records))
                    topic_results.append(result)
                    continue
                result = _append(state, topic, index, records, now_ms, lease, request.acks)
                appended = True
            except Exception as error:
                result = _failed(index, topic, error)
            topic_results.append(result)
        results.append((key, topic_results))
    pending = _Pending(state, context, request, results)
    if remote:
        pending.submit(remote, now_ms, lease, appended=appended)
    if not appended:
        if not pending.outstanding:
            pending.answer()
        return
    state.produce_waiting[pending] = None
    state.store.flush(pending.durable)
    state.commit_soon()


def refuse_old(
    state: BrokerState, context: RequestContext, frame: memoryview, offset: int, message: str
) -> None:
    """Answer versions 0 to 2, which are advertised but not served, in their own shape.

    They are version 3 without its transactional id.
    """
    request = decode_request(memoryview(b"\xff\xff" + frame[offset:]), 0, 3)
    context.no_answer = request.acks == 0
    pending = _Pending(state, context, request, _refused(request, UnsupportedVersion(message)))
    pending.answer()


def _append(
    state: BrokerState,
    topic: TopicState,
    index: int,
    records: memoryview | None,
    now_ms: int,
    lease: Lease | None,
    acks: int,
) -> PartitionResult:
    logs = topic.logs
    log = logs[index] if 0 <= index < len(logs) else None
    if log is None:
        log = state.local_log_of(topic, index, "Produce")
    if acks == _ALL and log.config.min_insync_replicas > 1:
        _check_in_sync(topic, index, log.config.min_insync_replicas)
    if not records:
        raise InvalidRecord(f"the records of {topic.topic.name}-{index} are null or empty")
    check_single(records)
    done = log.append(records, now_ms=now_ms, lease=lease)
    return PartitionResult(
        index, 0, done.base_offset, done.log_append_time_ms, done.log_start_offset
    )


def _check_in_sync(topic: TopicState, index: int, needed: int) -> None:
    in_sync = len(topic.topic.partitions[index].isr)
    if in_sync < needed:
        raise NotEnoughReplicas(
            f"{topic.topic.name}-{index} has {in_sync} replicas in sync,"
            f" min.insync.replicas = {needed}"
        )


def _unknown(key: bytes, *, by_id: bool) -> PenstockError:
    if by_id:
        return UnknownTopicId(f"there is no topic of id {key.hex()}")
    return UnknownTopicOrPartition(f"there is no topic {key.decode(errors='replace')!r}")


def _failed(index: int, topic: TopicState | None, error: Exception) -> PartitionResult:
    if not isinstance(error, PenstockError):
        name = "?" if topic is None else topic.topic.name
        logger.error("producing to %s-%d failed", name, index, exc_info=error)
    number, message = error_of(error)
    records = error.records if isinstance(error, InvalidRecord) else ()
    record_errors = [(record, message) for record in records]
    return PartitionResult(index, number, message=message, record_errors=record_errors)


def _refusal(request: ProduceRequest) -> PenstockError | None:
    if request.acks not in (0, 1, _ALL):
        return InvalidRequiredAcks(f"acks = {request.acks} is none of 0, 1 and -1 (all)")
    if request.transactional_id is not None:
        return TransactionsUnsupported(
            f"transactional.id = {request.transactional_id!r}: transactions are not supported yet"
        )
    return None


def _refused(request: ProduceRequest, error: PenstockError) -> list[TopicResult]:
    number, message = error_of(error)
    return [
        (key, [PartitionResult(index, number, message=message) for index, _ in partitions])
        for key, partitions in request.topics
    ]


class _Pending:
    """A request whose batches are appended and wait for their sync, or for their objects.

    `outstanding` has the results of diskless partitions that are not known yet, by identity;
    `_remote` the identities of all of them.
    """

    __slots__ = (
        "_answered", "_context", "_remote", "_request", "_results", "_state", "_syncing",
        "deadline", "outstanding",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        context: RequestContext,
        request: ProduceRequest,
        results: list[TopicResult],
    ) -> None:
        self._state = state
        self._context = context
        self._request = request
        self._results = results
        self._answered = False
        self._syncing = True
        self._remote: Collection[int] = ()
        self.outstanding: dict[int, PartitionResult] = {}
        self.deadline = context.started + request.timeout_ms / 1000

    def submit(
        self, remote: Sequence[_Remote], now_ms: int, lease: Lease | None, *, appended: bool
    ) -> None:
        """Hand over what goes into objects; with `appended`, a sync is waited for as well."""
        self._syncing = appended
        self.outstanding = outstanding = {id(result): result for result, _, _ in remote}
        self._remote = frozenset(outstanding)
        self._state.produce_waiting[self] = None
        for result, partition, records in remote:
            try:
                if not records:
                    where = partition.topic_partition
                    raise InvalidRecord(f"the records of {where} are null or empty")
                check_single(records)
                partition.submit(
                    records, now_ms=now_ms, lease=lease, done=partial(self._placed, result)
                )
            except Exception as error:
                del outstanding[id(result)]
                failed = _failed(result.index, None, error)
                result.error, result.message = failed.error, failed.message
                result.record_errors = failed.record_errors

    def _placed(self, result: PartitionResult, outcome: AppendResult | PenstockError) -> None:
        """The object of one partition's batches is committed, or it is not."""
        if self._answered or id(result) not in self.outstanding:
            return
        del self.outstanding[id(result)]
        if isinstance(outcome, PenstockError):
            result.error, result.message = error_of(outcome)
        elif outcome.error is not None:
            result.error, result.message = error_number(outcome.error), outcome.message
        else:
            result.base_offset = outcome.base_offset
            result.log_append_time_ms = outcome.log_append_time_ms
            result.log_start_offset = outcome.log_start_offset
        if not self.outstanding and not self._syncing:
            self.answer()

    def durable(self, error: PenstockError | None) -> None:
        """The sync is done, or failed for good."""
        self._syncing = False
        if error is not None:
            self._fail(*error_of(error))
        if not self.outstanding:
            self.answer()

    def expire(self) -> None:
        """The client's timeout passed before the end; the records may yet become durable."""
        number = error_number("request_timed_out")
        for result in self.outstanding.values():
            result.error = number
            result.message = "writing and committing the object took longer than the timeout"
        if self._syncing:
            self._fail(number, "the sync took longer than the timeout")
        self.answer()

    def _fail(self, number: int, message: str) -> None:
        """Fail what the sync was for."""
        for _, results in self._results:
            for result in results:
                if result.error == 0 and id(result) not in self._remote:
                    result.error, result.message = number, message
                    result.base_offset = -1

    def answer(self) -> None:
        """Send the response, once; with acks=0 an error closes the connection instead."""
        self._state.produce_waiting.pop(self, None)
        if self._answered:
            return
        self._answered = True
        context = self._context
        if len(self._results) == 1 and len(self._results[0][1]) == 1 and not context.no_answer:
            key, (result,) = self._results[0]
            frame = encode_single_frame(context.version, context.correlation_id, key, result)
            if frame is not None:
                context.reply((frame,))
                self._state.metrics.answered(context, self._state.clock.monotonic())
                return
        failed = [result for _, results in self._results for result in results if result.error]
        for result in failed:
            self._state.metrics.failed(context, result.error)
        if context.no_answer:
            if failed:
                context.connection.close(f"acks=0 and an append failed: {failed[0].message}")
            self._state.metrics.answered(context, self._state.clock.monotonic())
            return
        version = context.version
        body = encode_response(version, self._results)
        header_version = 1 if version >= FLEXIBLE_FROM else 0
        context.reply((response_prefix(context.correlation_id, header_version, len(body)), body))
        self._state.metrics.answered(context, self._state.clock.monotonic())
