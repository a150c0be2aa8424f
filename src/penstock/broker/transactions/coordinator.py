"""Coordinator of this broker's transactional ids, and of the markers of their transactions.

Source: Kafka's `TransactionCoordinator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metrics, Sample, gauge, gauges
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.broker.groups.runtime.core import Act
from penstock.broker.groups.runtime.runtime import Coordinator
from penstock.broker.groups.runtime.saving import FoundKey
from penstock.broker.net.peers import PeerBatches, Peers
from penstock.broker.transactions import (
    EndTransaction,
    InitProducerId,
    LeaveMarkers,
    ListTransactions,
    MarkersWritten,
    ProducerIdNeeded,
    TransactionLimits,
    TransactionRequest,
    Transactions,
    TransactionState,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.client.errors import broker_error
from penstock.control import TRANSACTION, CoordinationRecord
from penstock.records.transactions import Marker

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.control import ControlPlane
    from penstock.records.appends import Outcome


# Writer of transaction markers: sends each marker to the partition leader until it is written.
#
#     decided ──▶ own partitions: a call ─────────────────────────┐ written, now or before
#        │  └───▶ other partitions: WriteTxnMarkers to the leader ┤──▶ reported to the core
#        └──◀── retry after a pause and a refreshed image ◀───────┘ any other outcome
#
# A partition whose topic was deleted needs no marker, once the newest metadata image confirms that.
# A partition with a newer epoch of the producer needs none either: its transaction has ended there.
# A new coordinator writes all markers that are left.
#
# Markers of one event-loop turn for the same broker share a request. Markers of one transaction
# that were written in one turn share a report.
#
# Source: Kafka's `TransactionMarkerChannelManager`; KIP-98, KIP-1228 (versions of markers).


logger = logging.getLogger(__name__)

MARKERS_PER_REQUEST_MAX: Final = 2_000
"""Maximum number of markers in one request; the next request contains the others."""
BACKOFF: Final = Backoff(first_ms=20, ceiling_ms=1_000)
NEWER_EPOCH: Final = "invalid_producer_epoch"


class _End:
    def __init__(self, request: WriteMarkers) -> None:
        self.request = request
        self.left = set(request.partitions)
        self.failures = 0

    def marker(self, coordinator_epoch: int) -> Marker:
        producer_id, producer_epoch = self.request.producer
        return Marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            self.request.commit,
            self.request.version,
        )


_Due = tuple[_End, TopicPartition]


class Markers:
    """Writer of the markers of decided transactions. Belongs to the event loop."""

    def __init__(
        self,
        peers: Peers,
        *,
        node_id: int,
        clock: Clock,
        cluster: ClusterMetadata,
        partitions: PartitionRegistry,
        coordinator_epoch: Callable[[], int],
        written: Callable[[WriteMarkers, Sequence[TopicPartition]], None],
    ) -> None:
        """Create the writer; `written` is called with partitions whose marker is written."""
        self._node_id = node_id
        self._clock = clock
        self._cluster = cluster
        self._partitions = partitions
        self._peers = peers
        self._coordinator_epoch = coordinator_epoch
        self._written = written
        self._ends: dict[str, _End] = {}
        self._acknowledged: dict[_End, list[TopicPartition]] = {}
        self._again: list[_Due] = []
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Task[None] | None = None
        self._batches: PeerBatches[_Due] = PeerBatches(self._take, self._send)
        self._stopped = False

    @property
    def ends(self) -> int:
        """Number of decided transactions that still lack markers."""
        return len(self._ends)

    def write(self, request: WriteMarkers) -> None:
        """Write markers; a later call for the same id replaces an earlier one."""
        end = self._ends[request.transactional_id] = _End(request)
        for partition in request.partitions:
            self._route(end, partition)

    def leave(self, transactional_id: str) -> None:
        self._ends.pop(transactional_id, None)

    async def stop(self) -> None:
        """Stop writing; the next coordinator writes the markers that are left. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        await self._batches.stop()

    # Routing

    def _route(self, end: _End, where: TopicPartition) -> None:
        topic = self._partitions.topics.get(where.topic)
        if topic is None or where.partition >= len(topic.topic.partitions):
            self._failed(end, where, None)  # deleted, if the newest image confirms it
            return
        leader = topic.topic.partitions[where.partition].leader
        if topic.diskless or leader == self._node_id:
            self._write_here(end, where)
        elif leader < 0:
            self._failed(end, where, None)
        else:
            self._batches.put(leader, (end, where))

    def _write_here(self, end: _End, where: TopicPartition) -> None:
        try:
            partition = self._partitions.partition(where.topic, where.partition)
            partition.write_marker(
                end.marker(self._coordinator_epoch()),
                now_ms=self._clock.now_ms(),
                done=partial(self._outcome, end, where),
            )
        except PenstockError as error:
            self._failed(end, where, error)

    def _outcome(self, end: _End, where: TopicPartition, outcome: Outcome) -> None:
        if isinstance(outcome, PenstockError):
            self._failed(end, where, outcome)
        else:
            self._done(end, where)

    def _take(self, waiting: list[_Due]) -> tuple[list[_Due], list[_Due]]:
        current = [due for due in waiting if self._is_current(due[0])]
        return current[:MARKERS_PER_REQUEST_MAX], current[MARKERS_PER_REQUEST_MAX:]

    async def _send(self, broker_id: int, batch: list[_Due]) -> None:
        if not batch:
            return
        body = {"markers": _requested(batch, self._coordinator_epoch())}
        try:
            answer = await self._peers.call(broker_id, "WriteTxnMarkers", body)
        except PenstockError as error:
            for end, where in batch:
                self._failed(end, where, error)
            return
        found = _answered(answer)
        for end, where in batch:
            code = found.get((end.request.producer.producer_id, where))
            if code == 0:
                self._done(end, where)
            else:
                subject = f"marker of {where} at broker {broker_id}"
                self._failed(end, where, None if code is None else broker_error(code, subject))

    # Outcomes

    def _is_current(self, end: _End) -> bool:
        return self._ends.get(end.request.transactional_id) is end

    def _done(self, end: _End, where: TopicPartition) -> None:
        if not self._is_current(end) or self._stopped:
            return
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self._report)
        self._acknowledged.setdefault(end, []).append(where)

    def _report(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        for end, partitions in acknowledged.items():
            if not self._is_current(end):
                continue
            end.left.difference_update(partitions)
            if not end.left:
                del self._ends[end.request.transactional_id]
            self._written(end.request, partitions)

    def _failed(self, end: _End, where: TopicPartition, error: PenstockError | None) -> None:
        if not self._is_current(end) or self._stopped:
            return
        if error is not None and error.code == NEWER_EPOCH:
            logger.warning("%s needs no marker, its transaction has ended there: %s", where, error)
            self._done(end, where)
            return
        if error is not None:
            logger.info("marker of %r for %s: %s", end.request.transactional_id, where, error)
        end.failures += 1
        self._again.append((end, where))
        if self._timer is None:
            seconds = BACKOFF.pause_seconds(end.failures)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._retry)

    def _retry(self) -> None:
        self._look = asyncio.get_running_loop().create_task(self._look_and_retry())

    async def _look_and_retry(self) -> None:
        try:
            await self._cluster.refresh()
            known = True
        except PenstockError as error:
            logger.warning("cannot refresh the image to find leaders for markers: %s", error)
            known = False
        self._timer = None
        again, self._again = self._again, []
        for end, where in again:
            if not self._is_current(end):
                continue
            topic = self._partitions.topics.get(where.topic)
            gone = topic is None or where.partition >= len(topic.topic.partitions)
            if gone and known:
                self._done(end, where)
            else:
                self._route(end, where)


def _requested(batch: Iterable[_Due], coordinator_epoch: int) -> list[dict[str, Any]]:
    by_end: dict[_End, dict[str, list[int]]] = {}
    for end, where in batch:
        by_end.setdefault(end, {}).setdefault(where.topic, []).append(where.partition)
    return [
        {
            "producer_id": end.request.producer.producer_id,
            "producer_epoch": end.request.producer.producer_epoch,
            "transaction_result": end.request.commit,
            "topics": [
                {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
            ],
            "coordinator_epoch": coordinator_epoch,
            "transaction_version": end.request.version,
        }
        for end, topics in by_end.items()
    ]


def _answered(answer: Any) -> Mapping[tuple[int, TopicPartition], int]:
    return {
        (int(marker.producer_id), TopicPartition(topic.name, int(row.partition_index))): int(
            row.error_code
        )
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    }


PRODUCER_ID_TRIES_MAX: Final = 3


class TransactionMetrics(Metrics, prefix="penstock_"):
    ids: dict[str, int] = gauges(
        "transactional_ids",
        "Transactional ids that this broker coordinates, by the state of their transaction.",
        "state",
    )
    unmarked = gauge(
        "transactions_unmarked",
        "Committed or aborted transactions whose markers are not yet written to all partitions.",
    )


class TransactionSource:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def keys(self) -> Collection[str]:
        return await self._control.record_keys(TRANSACTION)

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        found: dict[str, list[CoordinationRecord]] = {}
        for row in await self._control.records(TRANSACTION, keys):
            found.setdefault(row.key, []).append(row)
        return {key: FoundKey(rows=rows) for key, rows in found.items()}


class TransactionCoordinator(Coordinator):
    """Transaction coordinator of one broker; belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: ClusterMetadata,
        partitions: PartitionRegistry,
        producer_ids: ProducerIds,
        peers: Peers,
    ) -> None:
        """Create the coordinator. Only WriteTxnMarkers requests use the connections of `peers`."""
        self._settings = settings
        self._producer_ids = producer_ids
        self._transactions: Transactions | None = None
        super().__init__(
            TRANSACTION,
            self._core,
            node_id=settings.node_id,
            cluster=cluster,
            control=control,
            source=TransactionSource(control),
            clock=clock,
            loaded=_nothing,
            act=self._act,
        )
        self.markers = Markers(
            peers,
            node_id=settings.node_id,
            clock=clock,
            cluster=cluster,
            partitions=partitions,
            coordinator_epoch=lambda: self.ownership.cluster_epoch,
            written=self._written,
        )

    def _core(self) -> Transactions:
        settings = self._settings
        interval_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
        timed_out_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._transactions = Transactions(
            TransactionLimits(
                transactional_ids_max=settings.transactional_ids_max,
                transaction_partitions_max=settings.transaction_partitions_max,
                transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
                transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
                transaction_abort_timed_out_transaction_cleanup_interval_ms=timed_out_ms,
                transaction_remove_expired_transaction_cleanup_interval_ms=interval_ms,
            )
        )
        return self._transactions

    async def stop(self) -> None:
        await self.markers.stop()
        await super().stop()

    # Requests

    async def call(self, request: TransactionRequest) -> Any:
        """Return the core's response to a request; allocate a producer id if it needs one.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: another broker coordinates the id, or none.
            PenstockError: the id cannot be loaded, or no producer id can be allocated.
        """
        for _ in range(PRODUCER_ID_TRIES_MAX):
            self.check_owner(request.transactional_id)
            response = await self.runtime.call(request, request.transactional_id)
            if not isinstance(response, ProducerIdNeeded):
                break
            if isinstance(request, (InitProducerId, EndTransaction)):
                request = replace(request, fresh_producer_id=await self._producer_ids.next())
        return response

    def verify(self, request: VerifyPartitions) -> Any | None:
        """Return the immediate response; None if the id is not loaded, or not of this broker."""
        if not self.ownership.owns(request.transactional_id):
            return None
        return self.runtime.ask(request, request.transactional_id)

    async def list(self, request: ListTransactions) -> Any:
        return await self.runtime.call(request, None)

    def samples(self) -> Iterator[Sample]:
        counts = {} if self._transactions is None else self._transactions.counts()
        metrics = TransactionMetrics()
        metrics.ids = {
            state.value: count
            for state, count in counts.items()
            if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        }
        metrics.unmarked = self.markers.ends
        return metrics.samples()

    # Markers

    def _act(self, act: Act) -> None:
        if isinstance(act, WriteMarkers):
            self.markers.write(act)
        elif isinstance(act, LeaveMarkers):
            self.markers.leave(act.transactional_id)

    def _written(self, request: WriteMarkers, partitions: Sequence[TopicPartition]) -> None:
        self.runtime.handle(
            MarkersWritten(
                transactional_id=request.transactional_id,
                producer=request.producer,
                partitions=partitions,
            )
        )


def _nothing() -> None:
    return


# Producer ids, allocated from the control plane in blocks.
#
# No id is returned twice. The remaining ids of a block are lost when the process ends. The next
# block is reserved before the current one is used up, so that producers can start while the control
# plane is unavailable (KIP-98).


PRODUCER_ID_BLOCK: Final = 1000
"""Ids allocated from the control plane at a time, as in Kafka."""

_RETRY_SECONDS: Final = 1.0


LOW_PRODUCER_IDS: Final = 1 << 40
"""Producer ids below which clusters without links stay."""
_GAP_BITS: Final = 56
"""Bits of a gap. Over 100 brokers may skip one at the same time before the ids are used up."""


class ProducerIds:
    """Allocator of producer ids from reserved blocks. Belongs to the event loop."""

    __slots__ = ("_ahead", "_block", "_control", "_gap", "_reserving", "_taking")

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._gap = 0
        """Number of ids to skip if the next ones are low; 0 if low ids are allowed."""
        self._block: Iterator[int] = iter(())
        self._ahead: range | None = None
        self._taking = asyncio.Lock()
        self._reserving: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Return an unused producer id; raises PenstockError if none can be allocated."""
        while True:
            for producer_id in self._block:
                return producer_id
            if self._ahead is None:
                await self._take()
            else:
                self._block, self._ahead = iter(self._ahead), None
                self.reserve()

    def reserve(self) -> None:
        """Reserve the next block in the background, with retries."""
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.get_running_loop().create_task(self._reserve())

    def leave_low(self, randomness: Randomness) -> None:
        """Continue with ids from `LOW_PRODUCER_IDS` on, after a random gap.

        Logs of linked topics have producers of other clusters. Their ids must differ from those
        that this cluster allocates; otherwise a new producer would get the sequences of another.
        """
        self._gap = LOW_PRODUCER_IDS + randomness.bits(_GAP_BITS)
        self._block, self._ahead = iter(()), None
        self.reserve()

    async def stop(self) -> None:
        if self._reserving is not None:
            self._reserving.cancel()
            await asyncio.wait([self._reserving])

    async def _take(self) -> None:
        async with self._taking:
            if self._ahead is None:
                block = await self._control.allocate_producer_ids(PRODUCER_ID_BLOCK)
                if self._gap and block.start < LOW_PRODUCER_IDS:
                    await self._control.skip_producer_ids(self._gap)
                    block = await self._control.allocate_producer_ids(PRODUCER_ID_BLOCK)
                self._ahead = block

    async def _reserve(self) -> None:
        failed = False
        while True:
            try:
                await self._take()
                return
            except PenstockError as error:
                if not failed:
                    logger.warning(
                        "could not reserve the next block of producer ids, retrying: %s", error
                    )
                failed = True
            await pause(_RETRY_SECONDS)
