"""One port for a partition of any kind: what its topic promises is the partition's own affair."""

from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.partitions.look_up import look_up_watermarks
from penstock.partitions.port import Partition

__all__ = ["GroupCommits", "LocalPartition", "Partition", "look_up_watermarks"]
