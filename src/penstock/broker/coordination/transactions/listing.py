"""Filters of ListTransactions.

Source: KIP-664, KIP-994 (duration).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.coordination.transactions.events import ListTransactions
from penstock.broker.coordination.transactions.metadata import TransactionMetadata
from penstock.broker.coordination.transactions.responses import (
    ListedTransaction,
    ListedTransactions,
)
from penstock.broker.coordination.transactions.states import TransactionState

_STATES = frozenset(state.value for state in TransactionState)


def listed(
    known: Mapping[str, TransactionMetadata], request: ListTransactions, now_ms: int
) -> ListedTransactions:
    """Return the ids that match the filters, in order.

    The filter by duration excludes ids that have had no transaction.
    """

    def shown(metadata: TransactionMetadata) -> bool:
        if request.producer_ids and metadata.producer.producer_id not in request.producer_ids:
            return False
        if request.states and metadata.state.value not in request.states:
            return False
        if request.running_ms < 0:
            return True
        return metadata.start_ms >= 0 and now_ms - metadata.start_ms > request.running_ms

    return ListedTransactions(
        transactions=tuple(
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=metadata.producer.producer_id,
                state=metadata.state.value,
            )
            for transactional_id, metadata in sorted(known.items())
            if shown(metadata)
        ),
        unknown_states=tuple(state for state in request.states if state not in _STATES),
    )
