"""Object stores: their interface, its implementations, the block cache, and the fetch paths."""

from penstock.objects.directory import DirectoryStore, MemoryStore
from penstock.objects.fetch_paths import FetchPaths, ObjectRange
from penstock.objects.opening import is_local, open_store, place_of
from penstock.objects.port import (
    Buffer,
    InvalidKey,
    InvalidRange,
    LaggingConsumerRejected,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectReader,
    ObjectStore,
    ObjectTruncated,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from penstock.objects.settings import FetchSettings
from penstock.objects.signing import UrlSigner, signer_of

__all__ = [
    "Buffer",
    "DirectoryStore",
    "FetchPaths",
    "FetchSettings",
    "InvalidKey",
    "InvalidRange",
    "LaggingConsumerRejected",
    "MemoryStore",
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectRange",
    "ObjectReader",
    "ObjectStore",
    "ObjectTruncated",
    "StoreClosed",
    "StoreFailed",
    "StoreFull",
    "StoreRefused",
    "StoreThrottled",
    "StoreUnavailable",
    "UrlSigner",
    "is_local",
    "open_store",
    "place_of",
    "signer_of",
]
