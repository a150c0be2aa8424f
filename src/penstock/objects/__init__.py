"""Objects in a store: the port, its forms, the range cache, hot and cold fetch paths."""

from penstock.objects.directory import DirectoryStore
from penstock.objects.errors import (
    InvalidKey,
    InvalidRange,
    LaggingConsumerRejected,
    ObjectExists,
    ObjectNotFound,
    ObjectTruncated,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from penstock.objects.memory import MemoryStore
from penstock.objects.port import Buffer, ObjectInfo, ObjectStore

__all__ = [
    "Buffer",
    "DirectoryStore",
    "InvalidKey",
    "InvalidRange",
    "LaggingConsumerRejected",
    "MemoryStore",
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "ObjectTruncated",
    "StoreClosed",
    "StoreFailed",
    "StoreFull",
    "StoreRefused",
    "StoreThrottled",
    "StoreUnavailable",
]
