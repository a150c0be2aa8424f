"""Core of transactions: decides about transactional ids, their producers and transactions.

Source: KIP-98, KIP-360 (fencing), KIP-890 (version 2).
"""

from penstock.broker.transactions.core import Transactions
from penstock.broker.transactions.events import (
    PEER_WAIT_MS,
    WAIT_MS,
    Added,
    AddToTransaction,
    CorruptTransaction,
    DescribedTransaction,
    DescribeTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    LeaveMarkers,
    ListedTransaction,
    ListedTransactions,
    ListTransactions,
    MarkersWritten,
    ProducerIdNeeded,
    Response,
    TransactionRequest,
    Verified,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.broker.transactions.metadata import (
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from penstock.broker.transactions.rules import TransactionLimits

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
