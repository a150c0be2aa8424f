"""The segmented log: partitions in Kafka's file formats behind one shared journal."""

from penstock.storage.config import LogConfig
from penstock.storage.settings import StorageSettings

__all__ = ["LogConfig", "StorageSettings"]
