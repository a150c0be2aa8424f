"""ListOffsets and OffsetForLeaderEpoch: positions in a log by time and by epoch.

| timestamp | asks for                                                       |
|----------:|----------------------------------------------------------------|
| -1        | the end: high watermark, or last stable offset if committed     |
| -2, -4    | the first offset (all of a partition is local)                  |
| -3        | the record of the highest timestamp                             |
| -5, -6    | the highest tiered offset, the next to be tiered: none here     |
| >= 0      | the first record at or after that time                          |

Each of -3 to -6 belongs to the versions from the one in `SPECIAL_FROM` on; below it, and with any
other negative number, a partition is answered UNSUPPORTED_VERSION, as by Kafka.

Diskless partitions are answered by the control plane, so a request that names one is answered
later, those of other brokers' newest commits included.

Source: `ListOffsetsRequest.json`; KIP-79, KIP-101, KIP-207, KIP-320, KIP-405, KIP-734.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.broker.context import RequestContext
from penstock.broker.errors import error_of
from penstock.broker.leader_epochs import check_epoch
from penstock.broker.state import BrokerState
from penstock.diskless.partition import DisklessPartition
from penstock.wire.kafka.errors import UnsupportedVersion

if TYPE_CHECKING:
    from penstock.diskless.service import DisklessService
    from penstock.storage import PartitionLog

logger = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
READ_COMMITTED: Final = 1

SPECIAL_FROM: Final[Mapping[int, int]] = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
"""The first version that knows each special timestamp."""

_Position = tuple[int, int, int]
"""(offset, timestamp, leader epoch); -1 where there is none."""
NOWHERE: Final[_Position] = (-1, -1, -1)


def list_offsets(
    state: BrokerState, context: RequestContext, request: Any
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Answer each partition with an offset, its timestamp and leader epoch, or an error."""
    remote = _diskless(state, (topic.name for topic in request.topics))
    if remote is None:
        return _listed(state, context, request, {})
    return _list_later(state, context, remote, request)


def _diskless(state: BrokerState, names: Iterable[str]) -> DisklessService | None:
    """The service of diskless topics, if one of the topics named is one."""
    for name in names:
        topic = state.topics.get(name)
        if topic is not None and topic.diskless:
            return state.diskless
    return None


async def _list_later(
    state: BrokerState, context: RequestContext, service: DisklessService, request: Any
) -> dict[str, Any]:
    remote: list[tuple[DisklessPartition, Any]] = []
    for topic in request.topics:
        found = state.topics.get(topic.name)
        if found is not None and found.diskless:
            indexes = range(len(found.partitions))
            remote += [
                (partition, item)
                for item in topic.partitions
                if item.partition_index in indexes and _known(item.timestamp, context.version)
                if isinstance(
                    partition := found.partitions[item.partition_index], DisklessPartition
                )
            ]
    answers = await service.positions([(one, item.timestamp) for one, item in remote])
    return _listed(
        state,
        context,
        request,
        {id(item): answer for (_, item), answer in zip(remote, answers, strict=True)},
    )


def _known(timestamp: int, version: int) -> bool:
    """Whether a timestamp has a meaning in a version."""
    return timestamp >= 0 or version >= SPECIAL_FROM.get(timestamp, version + 1)


def _listed(
    state: BrokerState,
    context: RequestContext,
    request: Any,
    known: Mapping[int, _Position | PenstockError],
) -> dict[str, Any]:
    """The answer; `known` has the positions in diskless partitions, by identity of the question."""
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            answer = {"partition_index": item.partition_index}
            try:
                if not _known(item.timestamp, context.version):
                    raise UnsupportedVersion(
                        f"timestamp {item.timestamp} in version {context.version} of ListOffsets"
                    )
                partition = state.partition(topic.name, item.partition_index)
                check_epoch(partition, getattr(item, "current_leader_epoch", -1))
                found = known.get(id(item))
                if isinstance(found, PenstockError):
                    raise found
                if found is None:
                    log = state.local_log(topic.name, item.partition_index, "ListOffsets")
                    found = _position(log, item.timestamp, committed=committed)
                offset, timestamp, epoch = found
                answer |= {"offset": offset, "timestamp": timestamp, "leader_epoch": epoch}
            except Exception as error:
                answer["error_code"] = _error(error)
            partitions.append(answer)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _error(error: Exception) -> int:
    if not isinstance(error, PenstockError):
        logger.error("looking up an offset failed", exc_info=error)
    return error_of(error)[0]


def _position(log: PartitionLog, timestamp: int, *, committed: bool) -> _Position:
    end = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return end, -1, log.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        epoch = log.latest_epoch_at(start)
        return start, -1, epoch if epoch >= 0 else log.leader_epoch
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOWHERE
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp()
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return NOWHERE
    return found.offset, found.timestamp, found.leader_epoch


def offset_for_leader_epoch(
    state: BrokerState, context: RequestContext, request: Any
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Answer each partition with the end offset of an epoch, for truncation checks."""
    remote = _diskless(state, (topic.topic for topic in request.topics))
    if remote is None:
        return _epoch_ends(state, request)
    return _end_later(state, request)


async def _end_later(state: BrokerState, request: Any) -> dict[str, Any]:
    """As `_epoch_ends`, after a look at where diskless partitions end."""
    names = {topic.topic for topic in request.topics}
    await state.look_up_marks(state.topics[name] for name in names if name in state.topics)
    return _epoch_ends(state, request)


def _epoch_ends(state: BrokerState, request: Any) -> dict[str, Any]:
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            answer = {"partition": item.partition}
            try:
                partition = state.partition(topic.topic, item.partition)
                check_epoch(partition, getattr(item, "current_leader_epoch", -1))
                epoch, end_offset = partition.end_offset_for_epoch(item.leader_epoch)
                answer |= {"leader_epoch": epoch, "end_offset": end_offset}
            except Exception as error:
                answer["error_code"] = _error(error)
            partitions.append(answer)
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}
