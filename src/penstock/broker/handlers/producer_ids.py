"""InitProducerId: identities of idempotent and of transactional producers.

Ids come from the control plane in blocks and are never used twice, also when a block is lost
with the process. A producer without a transactional id that comes back with its producer id simply
gets a new one: nothing refers to the old one. Of transactional ones their coordinator decides.

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
"""PRODUCER_FENCED is known from this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    producer_ids: ProducerIds
    transactions: TransactionCoordinator


def _ask(context: RequestContext, transactional_id: str | None) -> None:
    """A producer without a transactional id may be idempotent if it may write to any topic."""
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
    """Answer with a fresh producer id and epoch 0, or those of a transactional id."""
    _ask(context, request.transactional_id)
    if request.transactional_id is None:
        return {"producer_id": await parts.producer_ids.next(), "producer_epoch": 0}
    if not request.transactional_id:
        raise BadRequest("transactional.id is empty: leave it out, or name the producer")
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
