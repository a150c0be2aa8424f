"""A local topic becomes diskless: copied while it is used, fenced for a moment, and committed.

| state    | producers             | consumers      | after a crash                       |
|----------|-----------------------|----------------|-------------------------------------|
| copying  | append to the log     | read the log   | a local topic; what was copied is   |
|          |                       |                | swept                               |
| fenced   | NOT_LEADER, and retry | read the log   | as above                            |
| the control plane commits: objects, index, producers, configs, leader epochs, at once           |
| diskless | submit to objects     | read objects   | a diskless topic; the log is deleted|

The logs are copied in passes, each of which begins where the one before ended, until a pass was
short. Then appends and deletions are refused, what was appended becomes durable and is copied, and
all of it is committed. If anything fails before the commit, the fence goes and the topic is as it
was: the request may be made again.

The outcome of the commit may be unknown. Then the fence stays, and the commit is made again, until
it is known: records appended behind a commit that took effect would be lost. A commit that comes
after this process has died is refused, as another incarnation owns the broker's id by then.

**The other way round** a diskless topic gets replicas. Every broker that is to have a log fills its
own from the store; the fence is the control plane's, and goes when the request does:

| state      | producers                  | consumers    | after a crash                           |
|------------|----------------------------|--------------|-----------------------------------------|
| copying    | submit to objects          | read objects | a diskless topic; logs are thrown away  |
| fenced     | NOT_LEADER, and retry      | read objects | as above; who sees it lifts the fence   |
| the control plane commits: configs, replicas and their first epoch; the index is dropped         |
| replicated | NOT_LEADER, then to a log  | read the log | replicas, all of which have all of it   |

`migrations.py` has the migrations of this broker, `participant.py` the copy and the fence of what
it leads, `filler.py` the logs that it fills, `leader.py` and `follower.py` what passes between
several brokers.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs); Inkless has no such migration.
"""

from penstock.broker.migration.migrations import TopicMigrations
from penstock.broker.migration.participant import MigrationParts

__all__ = ["MigrationParts", "TopicMigrations"]
