"""A process that is a member of the group, as clients are: it gives up before it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.consumer import ConsumerHeartbeat
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import NOTHING, Partitions, both, fewer
from penstock.broker.groups.runtime.core import Refused

if TYPE_CHECKING:
    from sim.consumer_groups.world import World

HEARTBEAT_MS: Final = 500
REQUEST_TIMEOUT_MS: Final = 2_000
REBALANCE_TIMEOUT_MS: Final = 4_000

ABANDONING: Final = {"fenced_member_epoch", "unknown_member_id", "group_id_not_found"}
RETRIED: Final = {"coordinator_not_available", "unreleased_instance_id"}


class Process:
    """One process; `owned` is what it reads, whatever the coordinator thinks."""

    def __init__(self, world: World, number: int, instance: str | None, topics: frozenset[str]):
        self.world = world
        self.name = self.member_id = f"p{number}"
        self.instance = instance
        self.topics = topics
        self.regex = ""
        self.alive = True
        self.leaving = 0
        self.epoch = 0
        self.owned: Partitions = NOTHING
        self.target: Partitions | None = None
        self.full = True
        self.sent: Partitions | None = None
        self.request = 0
        self.revoking = False

    # -- heartbeats -------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat, which takes the place of one that is not answered."""
        if not self.alive:
            return
        self.request += 1
        request = self.request
        tells = self.full or self.sent != self.owned
        owned = self.owned
        event = self.heartbeat(owned if tells else None)
        self.world.send(self, request, event, lambda answer: self._answered(request, owned, answer))
        self.world.after(REQUEST_TIMEOUT_MS, lambda: self._timed_out(request))

    def heartbeat(self, owned: Partitions | None) -> ConsumerHeartbeat:
        """Return the heartbeat to be sent; `owned` is None if it has not changed."""
        return ConsumerHeartbeat(
            group_id="g",
            member_id=self.member_id,
            epoch=self.leaving or self.epoch,
            client_id=self.member_id,
            client_host="/sim",
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if self.full else -1,
            topics=self.topics if self.full else None,
            regex=self.regex if self.full and self.regex else None,
            owned=owned,
        )

    def _timed_out(self, request: int) -> None:
        if self.request == request:
            self.full = True
            self.beat()

    def _answered(self, request: int, owned: Partitions, answer: Any) -> None:
        if self.request != request or not self.alive:
            return
        if self.leaving:
            self.alive = False
            return
        if isinstance(answer, Refused):
            self._refused(answer.error)
            return
        self.request += 1  # the answer is here: no time-out any more
        self._take(owned, answer)

    def _take(self, owned: Partitions, answer: HeartbeatResponse) -> None:
        self.full, self.sent = False, owned
        self.epoch = answer.epoch
        self.world.revealed(self, answer)
        if answer.assigned is not None:
            self.target = answer.assigned
        self._reconcile()
        number = self.request
        self.world.after(HEARTBEAT_MS, lambda: self._again(number))

    def _again(self, number: int) -> None:
        if self.request == number:
            self.beat()

    def _refused(self, error: str) -> None:
        self.request += 1
        self.full = True
        if error in ABANDONING:
            self.owned, self.target, self.epoch = NOTHING, None, 0
        elif error == "fenced_instance_id":
            self.alive = False
        elif error not in RETRIED:
            self.world.violated(f"{self.member_id} got {error}")
        number = self.request
        self.world.after(self.world.random.randint(1, 400), lambda: self._again(number))

    # -- partitions -------------------------------------------------------------------------

    def _reconcile(self) -> None:
        target = self.target
        if target is None or self.revoking or self.leaving:
            return
        if fewer(self.owned, target):
            self.revoking = True
            self.world.after(self.world.random.choice([1, 50, 300, 1_000]), self._revoked)
        elif target != self.owned:
            self._own(target)

    def _revoked(self) -> None:
        """What was read is committed: give up, then take."""
        self.revoking = False
        if not self.alive or self.leaving or self.target is None:
            return
        kept = both(self.owned, self.target)
        self.owned = kept
        if kept != self.target and self.world.random.random() < 0.5:
            self._own(self.target)
        self.beat()

    def _own(self, target: Partitions) -> None:
        self.world.takes(self, fewer(target, self.owned))
        self.owned = target
        number = self.request
        self.world.after(1, lambda: self._again(number))

    # -- the end ----------------------------------------------------------------------------

    def leave(self, epoch: int) -> None:
        """Close: give up all, and say so, once."""
        self.owned, self.leaving = NOTHING, epoch
        self.beat()

    def die(self) -> None:
        self.alive = False
        self.owned = NOTHING
