"""Compaction of diskless topics: of each key the newest record stays, and tombstones for a while.

`choosing` decides what of a partition a pass takes, `rewriting` notes keys and makes batches anew,
`compactor` is the job.
"""

from penstock.diskless.compaction.choosing import Cleanable, CompactionTarget, cleanable, groups
from penstock.diskless.compaction.compactor import Compactor

__all__ = ["Cleanable", "CompactionTarget", "Compactor", "cleanable", "groups"]
