"""What the leader's side of a partition and its replicas tell each other.

Every message is a fact about what its sender did: it may come late, twice, after a later one, or
never. `authority` is the epoch that a process has claimed and on whose behalf it speaks; `epoch`
is the newest epoch of the chain that it goes by: the one that it recovers until its own is open,
then its own. `incarnation` numbers the lives of a replica, in rising order.

A range of a log travels without its bytes here: shells read and write them where they lie.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.replication.chain import Chain


class Fence(NamedTuple):
    """Refuse every lower authority from now on, and tell what you hold of epoch `target`."""

    authority: int
    target: int


class FenceAnswer(NamedTuple):
    """The promise is durable, and so is all that the answer tells of.

    `end`: where the log ends within the target epoch, or begins if that is above; 0 if it has
    nothing of it. `mark`: a known commit mark. `limbo`: of epochs up to this one, what is missing
    may have been lost; 0: nothing is. The epoch 0 with which a topic is made has no leader, so
    nothing of it can be lost.
    """

    authority: int
    incarnation: int
    end: int
    mark: int
    limbo: int


class Fenced(NamedTuple):
    """The replica has promised more: whoever speaks for `authority` has been replaced."""

    authority: int
    promised: int


class Join(NamedTuple):
    """Begin a stream: cut your log where it parts from the chain, then tell where it ends.

    The chain may leave out its oldest epochs. A replica whose log is older than what is left asks
    for them, and takes no part before.
    """

    authority: int
    chain: Chain

    @property
    def epoch(self) -> int:
        return self.chain[-1].epoch


class Position(NamedTuple):
    """Where the stream goes on; it says nothing about what is durable.

    `asks_end`: this replica is in limbo, and must know where the leader's log ends.
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
    """The replica's log is older than the chain that it was told: `newest` is its last epoch."""

    authority: int
    epoch: int
    incarnation: int
    newest: int


class Append(NamedTuple):
    """The batches with the offsets [base, next) of the leader's log, and its commit mark.

    Nothing lies in it where base = next: it tells the mark alone.
    """

    authority: int
    epoch: int
    base: int
    next: int
    mark: int


class LogStart(NamedTuple):
    """All below `base` was committed, and is deleted: the leader's log begins there.

    A log that ends below is of no use: it begins there anew.
    """

    authority: int
    epoch: int
    base: int


class Ack(NamedTuple):
    """All of the leader's log below `durable` is durable here, but for what it has deleted."""

    authority: int
    epoch: int
    incarnation: int
    durable: int


class LogEnd(NamedTuple):
    """Where the leader's log ended after it had heard of this incarnation."""

    authority: int
    epoch: int
    incarnation: int
    end: int
