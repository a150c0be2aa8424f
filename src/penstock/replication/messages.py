"""Messages between the leader of a partition and its replicas.

Every message states a fact about its sender, and may arrive late, twice, out of order, or never.
`authority` is the epoch that a process has claimed and acts for. `epoch` is the newest epoch of the
chain that the process uses: the epoch that it recovers until its own epoch is open, then its own
epoch. `incarnation` numbers the restarts of a replica, in rising order.

Ranges of a log have no bytes here; shells read the bytes from the log and write them to the log.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """Log end offset that the leader had after it knew this incarnation of the replica."""

    authority: int
    epoch: int
    incarnation: int
    end: int
