"""Coordinator of this broker's transactional ids, and of the markers of their transactions.

Source: Kafka's `TransactionCoordinator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metrics, Sample, gauge, gauges
from penstock.broker.coordination.coordinator import Coordinator
from penstock.broker.coordination.core import Act
from penstock.broker.coordination.loading import FoundKey
from penstock.broker.coordination.markers import Markers
from penstock.broker.coordination.transactions import (
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
from penstock.broker.peers import Peers
from penstock.control import TRANSACTION, CoordinationRecord

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.producer_ids import ProducerIds
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane

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
        """Return the immediate response to a verification; None if the id is not loaded.

        Raises as `call`.
        """
        self.check_owner(request.transactional_id)
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
