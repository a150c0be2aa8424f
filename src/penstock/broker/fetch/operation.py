"""Fetch request: reads available records, or waits until there are enough.

A request that finds less than `min_bytes`, and no error, waits in the `FetchHub`. When high
watermarks rise, the hub wakes all requests that wait for these partitions at once, after the
producers' responses. Equal reads are shared. The response is sent when there are enough bytes, when
a partition fails, or after `max_wait`, at most `FETCH_WAIT_SECONDS_MAX`. Permissions are checked
again before each response, so records written after a revocation are not returned.

An error ends the wait only if it is new: the previous response for this position did not have it,
in the session or, without sessions, on the connection. Later responses repeat the error, as in
Kafka, but after the usual wait.

Partitions share the budget of a response (`max_bytes`) fairly. A request without a session begins
at another partition than the request before, unless it repeats that. A session puts partitions that
returned records at the end of its order. The first batch of a response is returned whole even if it
exceeds every limit, so a consumer always progresses. The budget is used up when the next batch
exceeds its rest; later partitions are read for another request.

Missing bytes of diskless partitions are loaded together, within the request's budget, while the
request waits. If that takes longer than `max_wait`, the next request returns them.

If a client sends the leader epoch of the record before its offset and the logs diverge, it gets the
point of divergence instead of records.

A consumer with a rack is directed to a replica in that rack (KIP-392), and reads up to the high
watermark of this replica. Others read from leaders. Readers with `read_committed` get records up to
the last stable offset, with the list of aborted transactions.

A client above its quota gets an empty response before anything is read, as in Kafka
(`broker/quotas/`).

Source: KIP-74 (limits), KIP-98 (transactions), KIP-227, KIP-320 and KIP-595 (epochs); Kafka's
`DelayedFetch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.fetch.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPartition,
    FetchSessions,
    Plan,
    WatchedSources,
    errors_reported,
)
from penstock.broker.metadata.leaders import check_epoch, parts_from, preferred, serving_epoch
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import (
    FencedLeaderEpoch,
    NotLeader,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_number,
    error_of,
)
from penstock.broker.net.listeners import endpoints_of
from penstock.broker.requests.access import RequestAudit, forbidden_topic
from penstock.partitions import ReplicatedPartition
from penstock.records.extents import READ_COMMITTED
from penstock.security import EVERYTHING
from penstock.storage.files.values import Later
from penstock.wire.kafka.fetch import (
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    Buffer,
    FetchRequest,
    PartitionAnswer,
    ResponseWriter,
    decode_request,
    throttled,
)
from penstock.wire.kafka.framing import Endpoint, response_prefix

if TYPE_CHECKING:
    import asyncio

    from penstock.base.buffers import Lease
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.broker.requests.tracing import BrokerTraces, TracedBatch
    from penstock.partitions import Partition
    from penstock.security import AuthorisationFailed
    from penstock.security.audit import Audit
    from penstock.storage import Read

FETCH_WAIT_SECONDS_MAX: Final = 300.0
"""Longest wait of Fetch and ShareFetch, even if `max_wait` is longer. It equals the maximum of
librdkafka's `fetch.wait.max.ms`."""
READS_SHARED_MAX: Final = 64
"""Largest number of reads whose results the requests of one wake-up share."""
COPIED_BYTES_MAX: Final = 1 << 20
"""Bytes that one response copies from the object cache in one turn of the event loop."""

logger = logging.getLogger(__name__)

SharedReads = dict[tuple[int, int, int, int], "Read"]


class Waiter(Protocol):
    """Request that waits in the `FetchHub` until one of its partitions has more records."""

    def look_again(self, reads: SharedReads) -> None:
        """Read again, because a partition has more records or the metadata image has changed."""
        ...

    def expire(self) -> None:
        """Respond now, because the wait is over or the broker is stopping."""
        ...


class FetchHub:
    """Fetch requests of a broker that wait for records, by the partitions that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[object, dict[Waiter, None]] = {}
        self._operations: dict[Waiter, None] = {}
        self._woken: dict[Waiter, None] = {}
        self._turn = 0
        self.watched: WatchedSources = {}
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._call_later: Callable[[float, Callable[[], None]], Any] | None = None

    def attach(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        """Set the scheduling functions of the event loop that owns the hub."""
        self._call_soon, self._call_later = call_soon, call_later

    def __len__(self) -> int:
        return len(self._operations)

    def turn(self) -> int:
        """Return a number that grows with every call.

        Requests without a session derive from it the partition at which they begin to read.
        """
        self._turn += 1
        return self._turn

    def advanced(self, sources: Iterable[object]) -> None:
        """Wake requests that wait for these sources, after pending responses have been sent."""
        if not self._waiting and not self.watched:
            return
        for source in sources:
            waiting = self._waiting.get(source)
            if waiting:
                self._wake_soon(waiting)
            for session in self.watched.pop(source, ()):
                session.wake(source)
                if session.waiting:
                    self._wake_soon(session.waiting)

    def awaited(self) -> Iterable[object]:
        """Yield the sources whose records waiting requests wait for."""
        yield from self._waiting
        for source, sessions in self.watched.items():
            if source not in self._waiting and any(session.waiting for session in sessions):
                yield source

    def image_changed(self) -> None:
        if self._operations:
            self._wake_soon(self._operations)

    def _wake_soon(self, operations: Iterable[Waiter]) -> None:
        if not self._woken and self._call_soon is not None:
            self._call_soon(self._wake)
        self._woken.update(dict.fromkeys(operations))

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        reads: SharedReads = {}
        for operation in woken:
            if operation in self._operations:
                operation.look_again(reads)

    def add(self, operation: Waiter, sources: Iterable[object], seconds: float) -> Any:
        """Add a request that waits for `sources`; return the handle of its timeout."""
        self._operations[operation] = None
        self.wait(operation, sources)
        if self._call_later is None:
            return None
        return self._call_later(seconds, operation.expire)

    def wait(self, operation: Waiter, sources: Iterable[object]) -> None:
        """Wake an added request when `sources` have more records."""
        for source in sources:
            self._waiting.setdefault(source, {})[operation] = None

    def remove(self, operation: Waiter, sources: Iterable[object]) -> None:
        self._operations.pop(operation, None)
        for source in sources:
            waiting = self._waiting.get(source)
            if waiting is not None:
                waiting.pop(operation, None)
                if not waiting:
                    del self._waiting[source]

    def finish_all(self) -> None:
        """Complete all waiting requests, because the broker is stopping."""
        for operation in list(self._operations):
            operation.expire()


class Fetch(Struct, frozen=True, kw_only=True):
    """Handler of Fetch. Each request is a `FetchOperation`, which uses the handler's fields."""

    fetch_hub: FetchHub
    fetch_sessions: FetchSessions
    settings: BrokerSettings
    node_id: int
    clock: Clock
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    metrics: RequestMetrics
    quotas: Quotas
    stopping: asyncio.Event
    audit: Audit
    traces: BrokerTraces | None

    def fetch(
        self, context: RequestContext, frame: memoryview, offset: int, lease: Lease | None
    ) -> None:
        """Handle one Fetch request; respond by `context.reply`, now or when records arrive."""
        sessions, connection, version = self.fetch_sessions, context.connection, context.version
        throttle_ms = self.quotas.before_fetch(context) if self.quotas.active else 0
        repeated = sessions.repeated(
            connection,
            frame,
            offset,
            version=version,
            now=context.started,
            reported=connection.fetch_errors,
        )
        if repeated is not None:
            request, plan = repeated
        else:
            request = decode_request(frame, offset, version)
            if throttle_ms and request.session_epoch == INITIAL_EPOCH:
                self.throttled(context, throttle_ms)
                return
            plan = sessions.plan(
                request,
                owner=connection.principal,
                by_id=version >= TOPIC_IDS_FROM,
                now=context.started,
                reported=connection.fetch_errors,
            )
            if request.session_epoch == FINAL_EPOCH and not request.session_id:
                sessions.remember(connection, request, frame, offset, version)
        operation = FetchOperation(self, context, request, plan)
        if throttle_ms and not plan.error:
            self.throttled(context, throttle_ms, plan.session_id)
        else:
            operation.start()

    def throttled(self, context: RequestContext, throttle_ms: int, session_id: int = 0) -> None:
        """Respond with the throttle time and without partitions."""
        writer = ResponseWriter(context.version)
        pieces = writer.write((), session_id=session_id)
        throttled(pieces, throttle_ms)
        self.reply(context, pieces, writer.size_bytes)

    def reply(self, context: RequestContext, pieces: Sequence[Buffer], size_bytes: int) -> None:
        header_version = 1 if context.version >= FLEXIBLE_FROM else 0
        prefix = response_prefix(context.correlation_id, header_version, size_bytes)
        context.reply((prefix, *pieces))
        self.metrics.answered(context, self.clock.monotonic())


class FetchOperation:
    __slots__ = (
        "_committed", "_context", "_fetch", "_found", "_full", "_hub", "_later", "_max_bytes",
        "_plan", "_refused", "_request",
        "_size", "_sources", "_timer", "_traced",
    )  # fmt: skip

    def __init__(
        self,
        fetch: Fetch,
        context: RequestContext,
        request: FetchRequest,
        plan: Plan,
    ) -> None:
        self._fetch = fetch
        self._hub = fetch.fetch_hub
        self._context = context
        self._request = request
        self._plan = plan
        self._committed = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, fetch.settings.fetch_max_bytes)
        if fetch.quotas.active:
            quota_bytes = fetch.quotas.fetch_bytes_max(context)
            if quota_bytes is not None:
                self._max_bytes = min(self._max_bytes, quota_bytes)
        self._refused: dict[bytes, AuthorisationFailed] = {}
        self._authorise()
        self._found: dict[FetchPartition, PartitionAnswer] = {}
        self._size = 0
        self._full = False
        """Whether the rest of the budget was too small for a batch, so that it counts as used."""
        self._sources: dict[object, None] = {}
        self._timer: Any = None
        self._later: list[Later] = []
        self._traced: Sequence[TracedBatch] = ()

    def _authorise(self) -> None:
        """Record the topics that the caller may not read; `_source` raises their errors."""
        before, context = self._refused, self._context
        if context.rights is EVERYTHING:
            return
        refused: dict[bytes, AuthorisationFailed] = {}
        known = self._fetch.partitions.topics_by_id
        topics = known if context.version >= TOPIC_IDS_FROM else None
        for key in self._plan.topics:
            name = forbidden_topic(context.rights, "read", key, topics)
            if name is not None:
                refused[key] = before.get(key) or context.refusal("read", "topic", name)
        for partition in self._plan.partitions if refused else ():
            if partition.key in refused:
                partition.source = None
        self._refused = refused
        if refused and self._plan.session is not None:
            self._plan.session.look_at_all()

    def start(self) -> None:
        """Respond immediately if there is enough, else wait."""
        seconds = min(self._request.max_wait_ms / 1000, FETCH_WAIT_SECONDS_MAX)
        if (
            self._plan.error
            or self._satisfied(None)
            or seconds <= 0
            or self._fetch.stopping.is_set()
        ):
            self._answer()
            return
        self._timer = self._hub.add(self, self._sources, seconds)
        self._context.abandon = self._leave
        if self._plan.session is not None:
            self._plan.session.waiting[self] = None

    def look_again(self, reads: SharedReads) -> None:
        """Read again, and respond if there is enough; called by the hub."""
        quotas, context = self._fetch.quotas, self._context
        began = context.started if not quotas.timing else self._fetch.clock.monotonic()
        if context.connection.closing:
            self._leave()
        elif quotas.active and (throttle_ms := quotas.before_fetch(context)):
            self._leave()
            self._fetch.throttled(context, throttle_ms, self._plan.session_id)
        else:
            self._authorise()
            if self._satisfied(reads):
                self._leave()
                self._answer()
            else:
                self._hub.wait(self, self._sources)
        if quotas.timing:
            quotas.charge(context, self._fetch.clock.monotonic() - began)

    def expire(self) -> None:
        """Respond with the available records: `max_wait` has passed, or the broker is stopping."""
        self._authorise()
        self._satisfied(None)
        self._leave()
        self._answer()

    def _leave(self) -> None:
        self._hub.remove(self, self._sources)
        if self._plan.session is not None:
            self._plan.session.waiting.pop(self, None)
        self._context.abandon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _satisfied(self, reads: SharedReads | None) -> bool:
        """Read within the budget; return whether the response must be sent now.

        It must if there are enough bytes, or if an error is new or no longer present.
        """
        found = self._found = {}
        self._size, self._full = 0, False
        self._traced = ()
        news = False
        budget = self._max_bytes
        generation, committed = self._fetch.partitions.generation, self._committed
        rack, sources = self._request.rack, self._sources
        sure = not self._fetch.partitions.may_be_gone()
        idle: list[FetchPartition] = []
        for partition in self._in_turn(look_at_all=bool(rack) or not sure):
            try:
                source = partition.source
                if source is None or partition.generation != generation:
                    source = self._source(partition)
                sources[source] = None
                end = source.last_stable_offset if committed else source.high_watermark
                if (
                    partition.offset == end
                    and sure
                    and not partition.sent_error
                    and not rack
                    and (
                        partition.leader_epoch == -1
                        or partition.leader_epoch == source.leader_epoch
                    )
                    and (partition.last_epoch == -1 or partition.last_epoch == source.leader_epoch)
                ):
                    idle.append(partition)
                    continue
                answer = self._read(
                    source, partition, end, 0 if self._full else budget - self._size, reads
                )
            except Exception as error:
                answer = self._error_answer(partition, error)
            if answer is None:
                news = news or partition.sent_error != 0
                continue
            if (
                answer.error != partition.sent_error
                or answer.preferred_replica >= 0
                or answer.parts is not None
            ):
                news = True
            found[partition] = answer
            self._size += answer.size_bytes
        self._rest(idle)
        if self._later:
            self._load(budget - self._size)
            if not self._size:
                return news
        return (
            news or self._full or not self._plan.partitions or self._size >= self._request.min_bytes
        )

    def _rest(self, idle: list[FetchPartition]) -> None:
        """Let partitions of a session rest if its client knows their offsets.

        A complete response has the offsets of all partitions, so that each idle one may rest.
        """
        session = self._plan.session
        if session is None or session.closed or not (self._plan.incremental or session.complete):
            return
        for partition in idle:
            if session.complete or self._without_records(partition) is None:
                session.rest(partition, partition.source)
        if idle:
            session.compact()

    def _in_turn(self, *, look_at_all: bool) -> Iterable[FetchPartition]:
        session, read_as = self._plan.session, (self._fetch.partitions.generation, self._committed)
        if session is not None:
            if look_at_all or session.read_as != read_as:
                session.read_as = read_as
                session.look_at_all()
            return list(session.active)
        partitions = list(self._plan.partitions)
        if len(partitions) < 2:
            return partitions
        start = self._hub.turn() % len(partitions)
        return partitions[start:] + partitions[:start]

    def _source(self, partition: FetchPartition) -> Partition:
        partitions, key = self._fetch.partitions, partition.key
        partition.source = None
        if key in self._refused:
            raise self._refused[key]
        if self._context.version >= TOPIC_IDS_FROM:
            topic = partitions.topics_by_id.get(key)
            if topic is None:
                raise UnknownTopicId(f"topic id {key.hex()} does not exist")
        else:
            topic = partitions.topics_by_name.get(key)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {key!r} does not exist")
        index, served = partition.index, topic.partitions
        source = served[index] if 0 <= index < len(served) else None
        if source is None and self._request.rack and 0 <= index < len(served):
            source = topic.followed[index]
        if source is None:
            source = partitions.partition_of(topic, index)
        partition.source, partition.generation = source, partitions.generation
        return source

    def _read(
        self,
        source: Partition,
        partition: FetchPartition,
        end: int,
        budget: int,
        reads: SharedReads | None,
    ) -> PartitionAnswer | None:
        """Return a partition's response element; None if no records can be returned now.

        It is None if the offset has no records yet, if the budget is used up, or if records must be
        loaded first. An element without records directs the client to another replica, or has the
        point of divergence.
        """
        check_epoch(source, partition.leader_epoch)
        offset = partition.offset
        nearer = self._nearer(source, partition) if self._request.rack else -1
        parts = parts_from(source, partition.last_epoch, offset)
        if nearer >= 0 or parts is not None:
            answer = self._headers(source, partition)
            answer.preferred_replica, answer.parts = nearer, parts
            return answer
        limit = min(partition.max_bytes, budget)
        if offset == end:
            source.check_end()
            return None
        if limit <= 0 and self._size:
            return None
        read = self._found_at(source, offset, end, limit, reads)
        if read is None:
            return None
        if not read.size_bytes:
            self._full = self._size > 0 and limit < partition.max_bytes
            return None
        answer = self._headers(source, partition)
        answer.buffers, answer.size_bytes = read.buffers, read.size_bytes
        if self._committed:
            aborted = source.aborted(offset, read.next_offset)
            if isinstance(aborted, Later):
                self._later.append(aborted)
                return None
            answer.aborted = [transaction[:2] for transaction in aborted]
        traces = self._fetch.traces
        if traces is not None and traces.kept:
            batches = traces.within(source.topic_partition, offset, read.next_offset)
            self._traced = (*self._traced, *batches)
        return answer

    def _found_at(
        self, source: Partition, offset: int, end: int, limit: int, reads: SharedReads | None
    ) -> Read | None:
        """Return the batches at an offset; None if they must be loaded first."""
        first = self._size == 0
        place, read = (0, 0, 0, 0), None
        if reads is not None:
            place = (id(source), offset, max(limit, 0) if first else -limit, end)
            read = reads.get(place)
        if read is None:
            found = source.read(
                offset,
                max_bytes=max(limit, 0),
                end_offset=end,
                at_least_one=first,
                instantly=self._size < COPIED_BYTES_MAX,
            )
            if isinstance(found, Later):
                self._later.append(found)
                return None
            read = found
            if reads is not None and len(reads) < READS_SHARED_MAX:
                reads[place] = read
        return read

    def _nearer(self, source: Partition, partition: FetchPartition) -> int:
        """Return the broker in the consumer's rack to read from; -1 for this broker."""
        fetch, rack = self._fetch, self._request.rack
        image, own = fetch.cluster.image, fetch.node_id
        if source.everywhere:
            return preferred(image, rack, own, (source.topic_id, partition.index))
        if not isinstance(source, ReplicatedPartition):
            return -1
        near = {broker.broker_id for broker in image.brokers if broker.rack == rack}
        return -1 if own in near else source.nearer(near, partition.offset)

    def _load(self, max_bytes: int) -> None:
        """Load the missing batches, with one call for all from the same store."""
        requests: dict[Callable[[Sequence[Any], int], None], list[Any]] = {}
        for load, request in self._later:
            requests.setdefault(load, []).append(request)
        self._later = []
        for load, missing in requests.items():
            load(missing, max_bytes)

    def _headers(self, source: Partition, partition: FetchPartition) -> PartitionAnswer:
        return PartitionAnswer(
            partition.index,
            0,
            source.high_watermark,
            source.last_stable_offset,
            source.log_start_offset,
            aborted=() if self._committed else None,
        )

    def _answer(self) -> None:
        context, session = self._context, self._plan.session
        if context.refused:
            RequestAudit(self._fetch.audit).refused(context)
        if session is None or not session.complete or session.active or self._found:
            pieces, size_bytes = self._encoded()
        else:
            if session.response is None:
                session.response = self._encoded()
            pieces, size_bytes = session.response
            context.connection.fetch_errors = {}
        if self._fetch.quotas.active:
            pieces = list(pieces)
            throttled(pieces, self._fetch.quotas.fetched(context, size_bytes))
        self._fetch.reply(context, pieces, size_bytes)
        if self._traced:
            self._trace()

    def _encoded(self) -> tuple[Sequence[Buffer], int]:
        """Return the body of the response in pieces, and its size."""
        context, plan = self._context, self._plan
        topics: dict[bytes, list[PartitionAnswer]] = {}
        found, failed = self._found, False
        key, answers = None, []
        session = plan.session if plan.incremental else None
        for partition in list(plan.partitions if session is None else session.active):
            answer = (found.get(partition) if found else None) or self._without_records(partition)
            if answer is None:
                continue
            failed = failed or answer.error != 0
            self._remember(partition, answer)
            if partition.key is not key:
                key = partition.key
                answers = topics.setdefault(key, [])
            answers.append(answer)
        if not plan.incremental:
            context.connection.fetch_errors = errors_reported(plan.partitions) if failed else {}
        error = error_number(plan.error) if plan.error else 0
        writer = ResponseWriter(context.version)
        pieces = writer.write(
            list(topics.items()),
            error=error,
            session_id=plan.session_id,
            endpoints=self._leaders(topics) if failed else (),
        )
        return pieces, writer.size_bytes

    def _trace(self) -> None:
        """Record a span for each traced batch of the response."""
        context, traces = self._context, self._fetch.traces
        if traces is not None:
            started = context.started
            traces.fetched(self._traced, started=started, client_id=context.client_id or "")
            exemplar = traces.exemplar(self._traced[-1].context, started, traces.monotonic())
            self._fetch.metrics.traced(context, exemplar)

    def _leaders(self, topics: dict[bytes, list[PartitionAnswer]]) -> list[Endpoint]:
        named = [answer.leader for answers in topics.values() for answer in answers]
        leaders = [leader[0] for leader in named if leader is not None]
        return endpoints_of(self._fetch.cluster.image, leaders, self._context.connection.listener)

    def _without_records(self, partition: FetchPartition) -> PartitionAnswer | None:
        """Return a partition's response element without records, but with its offsets or error.

        Return None if the client of a session already has the current offsets.
        """
        source = partition.source
        if source is None or partition.generation != self._fetch.partitions.generation:
            try:
                source = self._source(partition)
            except PenstockError as error:
                return self._error_answer(partition, error)
        if (
            self._plan.incremental
            and partition.sent_high_watermark == source.high_watermark
            and partition.sent_log_start_offset == source.log_start_offset
        ):
            return None
        return self._headers(source, partition)

    def _remember(self, partition: FetchPartition, answer: PartitionAnswer) -> None:
        if answer.error:
            self._fetch.metrics.failed(self._context, answer.error)
        partition.sent_error = answer.error
        partition.sent_high_watermark = answer.high_watermark
        partition.sent_log_start_offset = answer.log_start_offset
        if answer.size_bytes and self._plan.session is not None:
            self._plan.session.move_to_end(partition)

    def _error_answer(self, partition: FetchPartition, error: Exception) -> PartitionAnswer:
        if not isinstance(error, PenstockError):
            logger.error("reading partition %d failed", partition.index, exc_info=error)
        leader = error.leader if isinstance(error, NotLeader) else None
        if isinstance(error, FencedLeaderEpoch):
            leader = self._leader_of(partition)
        return PartitionAnswer(partition.index, error_of(error)[0], leader=leader)

    def _leader_of(self, partition: FetchPartition) -> tuple[int, int] | None:
        """Return the leader and leader epoch that the image has for an existing partition."""
        partitions = self._fetch.partitions
        by_id = self._context.version >= TOPIC_IDS_FROM
        served = (partitions.topics_by_id if by_id else partitions.topics_by_name)[partition.key]
        row = served.topic.partitions[partition.index]
        leader = row.leader, serving_epoch(served.topic, row)
        return leader if row.leader >= 0 and not served.diskless else None
