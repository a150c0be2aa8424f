"""WriteTxnMarkers: writes the transaction markers of a coordinator to partitions of this broker.

The response is sent when the markers are durable.

Source: KIP-98, KIP-1228 (version 2: transaction version of a marker).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.errors import error_of
from penstock.records.transactions import Marker

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.connection import RequestContext
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.records.appends import Outcome

Entry = dict[str, Any]


class Markers(Struct, frozen=True, kw_only=True):
    clock: Clock
    partitions: PartitionRegistry

    async def write_txn_markers(self, context: RequestContext, request: Any) -> Entry:
        written = [
            (
                int(marker.producer_id),
                [
                    (topic.name, [(i, self._write(marker, topic.name, i)) for i in _indexes(topic)])
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
        return {
            "markers": [
                {
                    "producer_id": producer_id,
                    "topics": [
                        {
                            "name": name,
                            "partitions": [
                                {"partition_index": index, "error_code": _code(await outcome)}
                                for index, outcome in partitions
                            ],
                        }
                        for name, partitions in topics
                    ],
                }
                for producer_id, topics in written
            ]
        }

    def _write(self, request: Any, topic: str, index: int) -> asyncio.Future[Outcome]:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        marker = Marker(
            int(request.producer_id),
            int(request.producer_epoch),
            int(request.coordinator_epoch),
            bool(request.transaction_result),
            max(1, int(getattr(request, "transaction_version", 1))),
        )
        try:
            self.partitions.partition(topic, index).write_marker(
                marker, now_ms=self.clock.now_ms(), done=partial(_complete, outcome)
            )
        except PenstockError as error:
            outcome.set_result(error)
        return outcome


def _indexes(topic: Any) -> list[int]:
    return [int(index) for index in topic.partition_indexes]


def _complete(outcome: asyncio.Future[Outcome], result: Outcome) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _code(outcome: Outcome) -> int:
    return error_of(outcome)[0] if isinstance(outcome, PenstockError) else 0
