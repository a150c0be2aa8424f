"""InitProducerId: identities of idempotent and transactional producers.

A producer without a transactional id gets a new id even if it sends its old one; the transaction
coordinator decides for others.

Source: KIP-98, KIP-360, KIP-588 (PRODUCER_FENCED), KIP-679 (who may be idempotent).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.transactions import InitProducerId, ProducerIdentity
from penstock.broker.handlers.transactions import identity_answer
from penstock.security import CLUSTER
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.broker.coordination.transaction_coordinator import TransactionCoordinator
    from penstock.broker.producer_ids import ProducerIds

logger = logging.getLogger(__name__)

FENCED_FROM: Final = 4
"""First version with PRODUCER_FENCED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    producer_ids: ProducerIds
    transactions: TransactionCoordinator


def _authorise(context: RequestContext, transactional_id: str | None) -> None:
    """Check permissions. Producers without a transactional id need write on any topic."""
    rights = context.rights
    if transactional_id is None:
        if not (
            rights.allows("idempotent_write", "cluster", CLUSTER)
            or rights.allows_some("write", "topic")
        ):
            raise context.refusal("idempotent_write", "cluster", CLUSTER)
    elif not rights.allows("write", "transactional_id", transactional_id):
        raise context.refusal("write", "transactional_id", transactional_id)


async def init_producer_id(parts: Parts, context: RequestContext, request: Any) -> dict[str, Any]:
    """Return a new producer id and epoch 0, or those of a transactional id."""
    _authorise(context, request.transactional_id)
    if request.transactional_id is None:
        return {"producer_id": await parts.producer_ids.next(), "producer_epoch": 0}
    if not request.transactional_id:
        raise BadRequest(
            "transactional.id must not be empty; omit it for a producer without transactions"
        )
    response = await parts.transactions.call(
        InitProducerId(
            transactional_id=request.transactional_id,
            timeout_ms=milliseconds(request.transaction_timeout),
            producer=ProducerIdentity(
                int(getattr(request, "producer_id", -1)),
                int(getattr(request, "producer_epoch", -1)),
            ),
        )
    )
    if isinstance(response, Refused):
        logger.info("%s", response.message)
    return identity_answer(response, context.version, FENCED_FROM)
