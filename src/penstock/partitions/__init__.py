"""Partitions behind one interface, which is independent of the storage of their topic."""

from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.partitions.port import Partition, look_up_watermarks
from penstock.partitions.replicated import ReplicatedPartition

__all__ = [
    "GroupCommits",
    "LocalPartition",
    "Partition",
    "ReplicatedPartition",
    "look_up_watermarks",
]
