"""What clears away: the sweeper, retention, orphans, and the marks that tell a set-back database.

`Collection` has all of it as jobs for a broker's timers.
"""

from penstock.diskless.gc.jobs import Collection, Job
from penstock.diskless.gc.marks import ObjectMarks
from penstock.diskless.gc.retention import RetentionTarget

__all__ = ["Collection", "Job", "ObjectMarks", "RetentionTarget"]
