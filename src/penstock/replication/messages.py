"""Messages between the leader of a partition and its replicas.

Every message is a fact about its sender: it may arrive late, twice, out of order, or never.
`authority` is the epoch that a process has claimed and acts for; `epoch` is the newest epoch of the
chain that it uses: the one that it recovers until its own is open, then its own. `incarnation`
numbers the lives of a replica, in rising order.

Ranges of a log travel without their bytes here; shells read and write them in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.replication.chain import Chain


class Fence(NamedTuple):
    """Reject every lower authority from now on, and report what you hold of epoch `target`."""

    authority: int
    target: int


class FenceAnswer(NamedTuple):
    """Report that the promise, and everything in this answer, is durable.

    `end`: the log end offset within the target epoch, or the log start offset if that is above; 0
    if the log has nothing of it. `mark`: a known high watermark. `limbo`: records of epochs up to
    this one may have been lost; 0 for none. Epoch 0, with which a topic is created, has no leader
    and no records.
    """

    authority: int
    incarnation: int
    end: int
    mark: int
    limbo: int


class Fenced(NamedTuple):
    """Report a higher promise: another process has replaced the one that acts for `authority`."""

    authority: int
    promised: int


class Join(NamedTuple):
    """Begin a stream: truncate where the log departs from the chain, then report the log end
    offset.

    The chain may omit its oldest epochs. A replica with an older log asks for them first.
    """

    authority: int
    chain: Chain

    @property
    def epoch(self) -> int:
        return self.chain[-1].epoch


class Position(NamedTuple):
    """Offset at which the stream continues; it does not say that anything is durable.

    `asks_end`: this replica is in limbo and needs the leader's log end offset.
    """

    authority: int
    epoch: int
    incarnation: int
    end: int
    asks_end: bool


class JoinFirst(NamedTuple):
    """The replica takes no part in this stream: it has restarted, or the join was lost."""

    authority: int
    epoch: int
    incarnation: int


class AskChain(NamedTuple):
    """Report that the log is older than the received chain: `newest` is its last epoch."""

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
    """Everything of the leader's log below `durable` is durable here, except what this replica
    deleted."""

    authority: int
    epoch: int
    incarnation: int
    durable: int


class LogEnd(NamedTuple):
    """Log end offset of the leader after it had learned of this incarnation."""

    authority: int
    epoch: int
    incarnation: int
    end: int
