"""One port for a partition of any kind: what its topic promises is the partition's own affair."""

from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.partitions.look_up import look_up_watermarks
from penstock.partitions.port import Partition
from penstock.partitions.replicated import ReplicatedPartition

__all__ = [
    "GroupCommits",
    "LocalPartition",
    "Partition",
    "ReplicatedPartition",
    "look_up_watermarks",
]
