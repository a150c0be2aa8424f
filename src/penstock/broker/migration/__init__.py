"""Migrations of topics in use: from local to diskless, and from diskless to replicated.

| state    | producers             | consumers      | after a crash                        |
|----------|-----------------------|----------------|--------------------------------------|
| copying  | append to the log     | read the log   | a local topic; copies are swept      |
| fenced   | NOT_LEADER, and retry | read the log   | as above                             |
| commit: objects, index, producers, configs and leader epochs in one transaction                |
| diskless | submit to objects     | read objects   | a diskless topic; the log is deleted |

From local to diskless, logs are copied in passes. Each pass begins where the previous one ended,
until a pass is short. Then the topic is fenced: appends and deletions are rejected, the last
appends become durable and are copied, and everything is committed. If the migration fails before
the commit, the fence is lifted and the topic is unchanged; the request may be repeated.

If the outcome of the commit is unknown, the topic remains fenced, and the commit is repeated until
the outcome is known: appends after an effective commit would be lost. A commit that arrives after
this process has failed is rejected, because another incarnation owns the broker id by then.

From diskless to replicated, each broker of the replica set fills its own log from the object store.
The control plane fences the topic until the request ends:

| state      | producers                  | consumers    | after a crash                          |
|------------|----------------------------|--------------|----------------------------------------|
| copying    | submit to objects          | read objects | a diskless topic; logs are deleted     |
| fenced     | NOT_LEADER, and retry      | read objects | as above; any broker lifts the fence   |
| commit: configs, replicas and their first epoch; the index is dropped                            |
| replicated | NOT_LEADER, then to a log  | read the log | replicas with all records              |

`migrations.py` starts the migrations of this broker. In `participant.py`, `LocalParticipant` copies
and fences local partitions that this broker leads, and `FillingParticipant` fills logs from the
object store. In `leader.py`, `MigrationLeader` coordinates the brokers of a migration, and
`MigrationFollower` runs on the other brokers.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs); Inkless has no such migration.
"""

from penstock.broker.migration.migrations import TopicMigrations
from penstock.broker.migration.participant import MigrationContext

__all__ = ["MigrationContext", "TopicMigrations"]
