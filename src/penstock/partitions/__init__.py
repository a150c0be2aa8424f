"""One port for a partition of any kind: what its topic promises is the partition's own affair."""

from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.partitions.marks import look_up_marks
from penstock.partitions.port import Partition

__all__ = ["GroupCommits", "LocalPartition", "Partition", "look_up_marks"]
