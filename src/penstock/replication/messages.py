"""Messages between the leader of a partition and its replicas.

Every message states a fact about its sender, and may arrive late, twice, out of order, or never.
`authority` is the epoch that a process has claimed and acts for. `epoch` is the newest epoch of the
chain that the process uses: the epoch that it recovers until its own epoch is open, then its own
epoch. `incarnation` numbers the restarts of a replica, in rising order.

Ranges of a log have no bytes here; shells read the bytes from the log and write them to the log.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.base.ids import TopicPartition
from penstock.replication.chain import Chain


class Fence(NamedTuple):
    """Request to reject all lower authorities, and to report the records of epoch `target`."""

    authority: int
    target: int


class FenceAnswer(NamedTuple):
    """Answer to a fence: the promise, and everything in this answer, is durable.

    `end`: the log end offset within the target epoch, or the log start offset if that is above; 0
    if the log has no record of the epoch. `mark`: a known high watermark. `limbo`: records of
    epochs up to this one may have been lost; 0 for none. Epoch 0, with which a topic is created,
    has no leader and no records.
    """

    authority: int
    incarnation: int
    end: int
    mark: int
    limbo: int


class Fenced(NamedTuple):
    """Rejection: the replica has promised the higher epoch `promised` to another process."""

    authority: int
    promised: int


class Join(NamedTuple):
    """Beginning of a stream: the replica truncates its log where it diverges from the chain, and
    reports its log end offset.

    The chain may omit its oldest epochs. A replica with an older log asks for them first.
    """

    authority: int
    chain: Chain

    @property
    def epoch(self) -> int:
        return self.chain[-1].epoch


class Position(NamedTuple):
    """Offset at which the stream continues; records below it may not be durable.

    `asks_end`: this replica is in limbo and needs the leader's log end offset.
    """

    authority: int
    epoch: int
    incarnation: int
    end: int
    asks_end: bool


class JoinFirst(NamedTuple):
    """Report that the replica has not joined this stream: it has restarted, or missed the join."""

    authority: int
    epoch: int
    incarnation: int


class AskChain(NamedTuple):
    """Request for older epochs of the chain, because the log ends with epoch `newest`."""

    authority: int
    epoch: int
    incarnation: int
    newest: int


class Append(NamedTuple):
    """Batches with the offsets [base, next) of the leader's log, and its high watermark.

    Without batches, if base = next, only the high watermark counts.
    """

    authority: int
    epoch: int
    base: int
    next: int
    mark: int


class LogStart(NamedTuple):
    """Start of the leader's log: everything below `base` was committed and is deleted.

    A log that ends below `base` begins there, empty.
    """

    authority: int
    epoch: int
    base: int


class Ack(NamedTuple):
    """Acknowledgement: everything of the leader's log below `durable` is durable on the replica,
    except deleted records."""

    authority: int
    epoch: int
    incarnation: int
    durable: int


class LogEnd(NamedTuple):
    """Answer to `Position.asks_end`: a log end offset of the leader, for a replica in limbo.

    The leader had it after it knew this incarnation of the replica. Limbo ends when the replica
    has everything below it durably.
    """

    authority: int
    epoch: int
    incarnation: int
    end: int


# Effects that shells perform for the cores, in order.
#
# Writes of a replica (`PersistPromise`, `PersistLimbo`, `TruncateTo`, `StartAt`, `Write`) go into
# the journal in the order in which the core returns them. A sync covers all writes before it.


class PersistPromise(NamedTuple):
    """Effect: store durably that the replica rejects all epochs below `promised`."""

    promised: int


class PersistLimbo(NamedTuple):
    """Effect: store durably up to which epoch the replica may lack acknowledged records; 0 for
    none."""

    limbo: int


class TruncateTo(NamedTuple):
    """Effect: truncate the log to `end`; rebuild producer state and last stable offset."""

    end: int


class StartAt(NamedTuple):
    """Effect: discard the whole log, and restart it at `base`, where the leader's log begins."""

    base: int


class MoveStart(NamedTuple):
    """Effect: delete the records below `base`, without a sync: a crash may restore the records."""

    base: int


class Write(NamedTuple):
    """Effect: append the batches [base, next) of the received message to the log, unchanged."""

    base: int
    next: int


class Compare(NamedTuple):
    """Effect: compare the received batches of [base, next) with those that the log already has.

    If they differ, the shell calls `Replica.differs`.
    """

    base: int
    next: int


class MarkMoved(NamedTuple):
    """Effect: let consumers read this replica up to its new high watermark, `mark`."""

    mark: int


class Halt(NamedTuple):
    """Effect: report that this replica is offline, because its log contradicts its leader's log.

    Below `offset`, the two logs have different batches with the same epoch and offset.
    """

    offset: int


class EndFound(NamedTuple):
    """Effect: note the end offset of the epoch to be sealed, and a replica that has its records.

    `holder` is that replica; None if the epoch has no records.

    The shell needs these records before it can write them back to other replicas.
    """

    end: int
    holder: int | None


class SealAndOpen(NamedTuple):
    """Effect: a compare-and-set in the control plane, which makes this broker the leader.

    It seals epoch `target` at `end`, and opens `epoch` there with the terms of the claim.

    It succeeds only if `epoch` is still the highest reserved epoch. The shell then calls `opened`
    or `lost`. `target` is 0 if there was no epoch before.
    """

    epoch: int
    target: int
    end: int


class Committed(NamedTuple):
    """Effect: answer the producers whose records are below the new high watermark, `mark`."""

    mark: int


class Stopped(NamedTuple):
    """Effect: end the leadership; it is unknown whether a later epoch keeps the offsets
    [mark, end)."""

    mark: int
    end: int


class LeadershipOver(FencedError):
    """This broker no longer leads the partition; the outcome of appends in flight is unknown."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, where: TopicPartition, epoch: int) -> None:
        super().__init__(
            f"{where}: the leadership in epoch {epoch} has ended; appends in flight may or may not"
            " be committed"
        )


class NotLeading(FencedError):
    """This broker does not lead the partition, or its log is still incomplete."""

    code: ClassVar[str] = "not_leader_or_follower"

    @classmethod
    def of(cls, partition: TopicPartition) -> NotLeading:
        return cls(f"this broker does not lead {partition}, or its log is still incomplete")


class TooFewReplicas(RetriableError):
    """Fewer replicas can be reached than must acknowledge an append."""

    code: ClassVar[str] = "not_enough_replicas"


class NotAsAnnounced(InvalidError):
    """Another broker sent other batches than it announced."""

    code: ClassVar[str] = "corrupt_message"


class BeingMended(UnavailableError):
    """Records are damaged here, and are requested from another replica."""

    code: ClassVar[str] = "kafka_storage_error"
