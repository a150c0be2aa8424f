"""Kafka client that reads and writes Arrow columns, with the administrative calls.

Its names are imported on first use, because PyArrow and NumPy are slow to import.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.admin import ConfigEntry
    from penstock.client.client import Client, RawFetch
    from penstock.client.decoding import RegistryReader
    from penstock.client.encoding import ValueSchema
    from penstock.client.errors import (
        BrokersUnreachable,
        InvalidArgument,
        LogTruncated,
        MessageTooLarge,
        OffsetOutOfRange,
        TopicExists,
        UnknownTopic,
        UnreadableBatch,
    )
    from penstock.client.fetch import ReadPosition
    from penstock.client.groups import Committed, GroupDescription, GroupListing, GroupMember
    from penstock.client.protocol import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
    from penstock.client.queue import Queue
    from penstock.client.reader import Subscription
    from penstock.client.schemas import SchemaClient
    from penstock.client.share_member import LocksLost, Record, Taken
    from penstock.client.transactions import TransactionalProducer
    from penstock.client.writer import WriteReport

_HOMES = {
    "BrokersUnreachable": "errors",
    "Client": "client",
    "ClusterMetadata": "protocol",
    "Committed": "groups",
    "ConfigEntry": "admin",
    "GroupDescription": "groups",
    "GroupListing": "groups",
    "GroupMember": "groups",
    "InvalidArgument": "errors",
    "LocksLost": "share_member",
    "LogTruncated": "errors",
    "MessageTooLarge": "errors",
    "Node": "protocol",
    "OffsetOutOfRange": "errors",
    "PartitionMetadata": "protocol",
    "Queue": "queue",
    "RawFetch": "client",
    "ReadPosition": "fetch",
    "Record": "share_member",
    "RegistryReader": "decoding",
    "SchemaClient": "schemas",
    "Subscription": "reader",
    "Taken": "share_member",
    "TopicExists": "errors",
    "TopicMetadata": "protocol",
    "TransactionalProducer": "transactions",
    "UnknownTopic": "errors",
    "UnreadableBatch": "errors",
    "ValueSchema": "encoding",
    "WriteReport": "writer",
}

__all__ = [
    "BrokersUnreachable",
    "Client",
    "ClusterMetadata",
    "Committed",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "InvalidArgument",
    "LocksLost",
    "LogTruncated",
    "MessageTooLarge",
    "Node",
    "OffsetOutOfRange",
    "PartitionMetadata",
    "Queue",
    "RawFetch",
    "ReadPosition",
    "Record",
    "RegistryReader",
    "SchemaClient",
    "Subscription",
    "Taken",
    "TopicExists",
    "TopicMetadata",
    "TransactionalProducer",
    "UnknownTopic",
    "UnreadableBatch",
    "ValueSchema",
    "WriteReport",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.base.extras import required

    return getattr(required(f"penstock.client.{home}", "client"), name)
