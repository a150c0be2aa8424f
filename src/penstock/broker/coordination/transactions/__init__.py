"""Core of transactions: decides about transactional ids, their producers and transactions.

Source: KIP-98, KIP-360 (fencing), KIP-890 (version 2).
"""

from penstock.broker.coordination.transactions.core import Transactions
from penstock.broker.coordination.transactions.events import (
    PEER_WAIT_MS,
    WAIT_MS,
    AddToTransaction,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    TransactionRequest,
    VerifyPartitions,
)
from penstock.broker.coordination.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    TransactionMetadata,
)
from penstock.broker.coordination.transactions.record import CorruptTransaction
from penstock.broker.coordination.transactions.responses import (
    Added,
    DescribedTransaction,
    Ended,
    Initialised,
    LeaveMarkers,
    ListedTransaction,
    ListedTransactions,
    ProducerIdNeeded,
    Response,
    Verified,
    WriteMarkers,
)
from penstock.broker.coordination.transactions.states import TransactionState
from penstock.broker.coordination.transactions.transaction import TransactionLimits

__all__ = [
    "NO_PRODUCER",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "PEER_WAIT_MS",
    "PRODUCER_EPOCH_MAX",
    "WAIT_MS",
    "AddToTransaction",
    "Added",
    "CorruptTransaction",
    "DescribeTransaction",
    "DescribedTransaction",
    "EndTransaction",
    "Ended",
    "InitProducerId",
    "Initialised",
    "LeaveMarkers",
    "ListTransactions",
    "ListedTransaction",
    "ListedTransactions",
    "MarkersWritten",
    "ProducerIdNeeded",
    "ProducerIdentity",
    "Response",
    "TransactionLimits",
    "TransactionMetadata",
    "TransactionRequest",
    "TransactionState",
    "Transactions",
    "Verified",
    "VerifyPartitions",
    "WriteMarkers",
]
