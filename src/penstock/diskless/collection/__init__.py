"""What clears away: the sweeper, retention, orphans, and the marks that tell a set-back database.

`Collection` has all of it as jobs for a broker's timers.
"""

from penstock.diskless.collection.jobs import Collection, Job
from penstock.diskless.collection.marks import ObjectMarks
from penstock.diskless.collection.retention import RetentionTarget

__all__ = ["Collection", "Job", "ObjectMarks", "RetentionTarget"]
