"""One run of one broker: the core, its timer, its socket's buffer, and what it is stopped by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.replication.members import View
from penstock.replication.membership import Send

if TYPE_CHECKING:
    from sim.membership.world import World

CLUSTER: Final = "this"
SOCKET_DATAGRAMS: Final = 40
"""What a stopped process finds when it goes on; the rest is lost."""


class Process:
    """A broker from its registration to its end."""

    def __init__(self, world: World, broker_id: int, epoch: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.epoch = epoch
        self.over = False
        self.left = False
        self.stopped = False
        self.resumed_ms = -1.0
        self.core = world.kind(
            cluster_id=CLUSTER,
            broker_id=broker_id,
            registration_epoch=epoch,
            terms=world.terms,
            randomness=world.dice,
            now_ms=world.now_ms,
        )
        self.views: dict[int, View] = {}
        self._waiting: list[bytes] = []
        self._wakes_ms = float("inf")
        self.learn_registrations()
        self._set_timer()

    @property
    def runs(self) -> bool:
        return not (self.over or self.stopped)

    @property
    def incarnation(self) -> int:
        return self.core.views()[self.broker_id].incarnation

    @property
    def has_news(self) -> bool:
        return any(row.sends_left for row in self.core._members.rows.values())

    def learn_registrations(self) -> None:
        """Hear from the control plane; who is stopped does when it goes on."""
        if not self.over:
            self.core.registered(dict(self.world.registry), self.world.now_ms)
            self._done([], answers=False)

    def receive(self, data: bytes) -> None:
        if self.over:
            return
        if self.stopped:
            if len(self._waiting) < SOCKET_DATAGRAMS:
                self._waiting.append(data)
            return
        self._done(self.core.receive(data, self.world.now_ms), answers=True)

    def stop(self) -> None:
        self.stopped = True

    def registered_anew(self, epoch: int) -> None:
        """The same process goes on, in another registration."""
        self.epoch = epoch
        self.learn_registrations()

    def resume(self) -> None:
        if self.over or not self.stopped:
            return
        self.stopped = False
        self.resumed_ms = self.world.now_ms
        waiting, self._waiting = self._waiting, []
        if self.world.random.random() < 0.5:
            self._tick()
        for data in waiting:
            self.receive(data)
        self.learn_registrations()

    def leave(self) -> None:
        sends = self.core.leave(self.world.now_ms)
        self.left = True
        self._done(sends, answers=False)
        self.over = True

    def _set_timer(self) -> None:
        due_ms = self.core.due_ms
        if due_ms < self._wakes_ms:
            self._wakes_ms = due_ms
            self.world.at(due_ms, lambda: self._wake(due_ms))

    def _wake(self, planned_ms: float) -> None:
        if planned_ms != self._wakes_ms:
            return  # an earlier one has taken its place
        self._wakes_ms = float("inf")
        if self.runs and self.core.due_ms <= self.world.now_ms:
            self._tick()
        elif self.runs:
            self._set_timer()

    def _tick(self) -> None:
        self._done(self.core.tick(self.world.now_ms), answers=False)

    def _done(self, sends: list[Send], *, answers: bool) -> None:
        """Look at what an event came to, and send what it asks for."""
        self.world.watch.looked_at(self, sends, answers=answers)
        for send in sends:
            self.world.network.send(self.broker_id, send)
        if self.runs:
            self._set_timer()
