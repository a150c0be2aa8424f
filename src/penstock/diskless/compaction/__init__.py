"""Compaction of diskless topics: keeps the newest record of each key, and tombstones for a while.

`choosing` selects extents, `rewriting` collects keys and rewrites batches, `compactor` is the job.
"""

from penstock.diskless.compaction.choosing import Cleanable, CompactionTarget, cleanable, groups
from penstock.diskless.compaction.compactor import Compactor

__all__ = ["Cleanable", "CompactionTarget", "Compactor", "cleanable", "groups"]
