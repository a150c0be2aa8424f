"""Migrations of topics from local to diskless and from diskless to replicated, during use.

| state    | producers             | consumers      | after a crash                        |
|----------|-----------------------|----------------|--------------------------------------|
| copying  | append to the log     | read the log   | a local topic; copies are swept      |
| fenced   | NOT_LEADER, and retry | read the log   | as above                             |
| commit: objects, index, producers, configs and leader epochs in one transaction                |
| diskless | submit to objects     | read objects   | a diskless topic; the log is deleted |

Logs are copied in passes, each from the end of the one before, until a pass is short. Then appends
and deletions are refused, remaining appends become durable and are copied, and all of it is
committed. A failure before the commit lifts the fence and leaves the topic unchanged; the request
may be repeated.

If the outcome of the commit is unknown, the fence stays and the commit is repeated until the
outcome is known: appends after a commit that took effect would be lost. A commit that arrives after
this process has died is refused, because another incarnation owns the broker id by then.

From diskless to replicated, every broker of the replica set fills its own log from the store. The
control plane fences the topic, until the request ends:

| state      | producers                  | consumers    | after a crash                          |
|------------|----------------------------|--------------|----------------------------------------|
| copying    | submit to objects          | read objects | a diskless topic; logs are deleted     |
| fenced     | NOT_LEADER, and retry      | read objects | as above; any broker lifts the fence   |
| commit: configs, replicas and their first epoch; the index is dropped                            |
| replicated | NOT_LEADER, then to a log  | read the log | replicas with all records              |

`migrations.py` has the migrations of this broker, `participant.py` the copy and the fence of
partitions that it leads, `filler.py` the logs that it fills, `leader.py` and `follower.py` the
coordination of several brokers.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs); Inkless has no such migration.
"""

from penstock.broker.migration.migrations import TopicMigrations
from penstock.broker.migration.participant import MigrationContext

__all__ = ["MigrationContext", "TopicMigrations"]
