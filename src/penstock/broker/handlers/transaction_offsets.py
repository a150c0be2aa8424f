"""TxnOffsetCommit: offsets that a transaction commits.

The offsets are staged beside the committed ones, and applied or discarded when the transaction is
decided (`control/groups/operations.py`). From version 5 on this request adds the group to the
transaction; before, AddOffsetsToTxn does.

The member is checked again once the offsets are staged. Its successor in a newer generation looks
for stable offsets after that, and finds these; a member that was replaced before is rejected, and
its producer aborts.

Source: Kafka's `GroupCoordinatorService.commitTransactionalOffsets`; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import CommitCheck
from penstock.broker.coordination.ownership import CoordinatorNotAvailable
from penstock.broker.errors import error_number, error_of
from penstock.broker.handlers.offsets import ILLEGAL_GENERATION, accept
from penstock.client.errors import is_retriable
from penstock.control import CommittedOffset, NotInTransaction, OpenTransaction

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.coordination.transaction_link import TransactionLink
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.settings import BrokerSettings

INVALID_GROUP_ID: Final = "invalid_group_id"
CONCURRENT: Final = "concurrent_transactions"
FENCED: Final = "producer_fenced"
OLD_EPOCH: Final = "invalid_producer_epoch"
STALE_MEMBER_EPOCH: Final = "stale_member_epoch"
ABORTABLE: Final = "transaction_abortable"
ABORTABLE_VERSION: Final = 4
"""First version with TRANSACTION_ABORTABLE."""
ADDS_GROUP_VERSION: Final = 5
"""First version that adds the group to the transaction."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    settings: BrokerSettings
    clock: Clock
    partitions: PartitionRegistry
    coordinator: GroupCoordinator
    transaction_link: TransactionLink


async def txn_offset_commit(parts: Parts, context: RequestContext, request: Any) -> Entry:
    accepted: list[CommittedOffset] = []
    now_ms = parts.clock.now_ms()
    topics = [
        {"name": asked.name, "partitions": accept(parts, asked, accepted, now_ms=now_ms)}
        for asked in request.topics
    ]
    if accepted:
        number = await _stage(parts, context.version, request, accepted)
        for partition in (partition for topic in topics for partition in topic["partitions"]):
            partition["error_code"] = partition["error_code"] or number
    return {"topics": topics}


async def _stage(parts: Parts, version: int, request: Any, offsets: list[CommittedOffset]) -> int:
    """Stage offsets in the transaction; return the error's number, or 0."""
    group_id = request.group_id
    if not group_id:
        return error_number(INVALID_GROUP_ID)
    check = CommitCheck(
        group_id=group_id,
        member_id=getattr(request, "member_id", ""),
        group_instance_id=getattr(request, "group_instance_id", None),
        generation=getattr(request, "generation_id", -1),
        transactional=True,
    )
    transaction = OpenTransaction(
        transactional_id=request.transactional_id,
        producer_id=int(request.producer_id),
        producer_epoch=int(request.producer_epoch),
    )
    coordinator = parts.coordinator
    try:
        refused = await coordinator.check_commit(check)
        if refused is None:
            if version >= ADDS_GROUP_VERSION:
                await _add_group(parts, transaction, group_id)
            await coordinator.commit(group_id, offsets, transaction)
            refused = await coordinator.check_commit(check)
    except NotInTransaction as error:
        return error_number(ABORTABLE if version >= ABORTABLE_VERSION else error.code)
    except PenstockError as error:
        return error_number(OLD_EPOCH if error.code == FENCED else error.code)
    return 0 if refused is None else _member_error(refused)


async def _add_group(parts: Parts, transaction: OpenTransaction, group_id: str) -> None:
    """Add the group; an unavailable coordinator becomes a retriable error."""
    try:
        await parts.transaction_link.add_group(transaction, group_id)
    except PenstockError as error:
        number, _ = error_of(error)
        if number != error_number(CONCURRENT) and is_retriable(number):
            raise CoordinatorNotAvailable(str(error)) from error
        raise


def _member_error(refused: Refused) -> int:
    """Return the error's number, without errors that only members with epochs have."""
    stale = refused.error == STALE_MEMBER_EPOCH
    return error_number(ILLEGAL_GENERATION if stale else refused.error)
