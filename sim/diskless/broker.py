"""A broker: the core of the writer with its shell, and what it knows of where batches lie.

Whatever it waits for may come when it is dead, and is nothing to it then; what it has sent goes
on. A broker that stalls does everything later, and does not know it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.base.errors import PenstockError
from penstock.control import Broker as Registration
from penstock.control import CommitAnswer, ObjectCommit, ObjectLease
from penstock.diskless.reading.reader import Coordinates
from penstock.diskless.writing.accumulator import (
    Answer,
    CommitObject,
    Effect,
    Finished,
    LeaseKeys,
    PutObject,
)
from penstock.diskless.writing.objects import Submission
from sim.diskless.plane import SkewedClock

if TYPE_CHECKING:
    from sim.diskless.world import World

_HOUR_MS = 3_600_000


class Broker:
    """One incarnation of a broker's id."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.incarnation = world.dice.uuid()
        self.clock = SkewedClock(world)
        self.clock.skew_ms = world.random.choice((0, 0, _HOUR_MS, -_HOUR_MS))
        self.core = world.new_core(broker_id)
        self.coordinates = Coordinates(
            max_bytes=1 << 20, age_seconds=world.coordinates_age_ms / 1000
        )
        self.dead = False
        self.ready = False
        """Whether it is registered, and takes requests."""
        self.stalled_ms = 0.0
        self._armed_ms = inf
        self._register()

    def here(self, action: Callable[..., None]) -> Callable[..., None]:
        """An action of this broker: not when it is dead, and later when it stalls."""

        def guarded(*arguments: Any) -> None:
            if self.dead:
                return
            if self.world.now_ms < self.stalled_ms:
                self.world.at(self.stalled_ms, lambda: guarded(*arguments))
                return
            action(*arguments)
            self._perform()

        return guarded

    def _register(self) -> None:
        def registered(_: Registration) -> None:
            self.ready = True

        def again(_: PenstockError) -> None:
            self.world.after(30, self.here(self._register))

        world = self.world
        world.line.call(
            lambda: world.plane.register_broker(
                broker_id=self.broker_id, host="h", port=1, rack=None, incarnation=self.incarnation
            ),
            self.here(registered),
            self.here(again),
        )

    def submit(self, submission: Submission) -> None:
        """Take batches in; raises as the core does."""
        self.core.submit(submission, self.world.now_ms)
        self._perform()

    # Effects

    def _perform(self) -> None:
        while effects := self.core.take():
            for effect in effects:
                self._do(effect)
        if self.core.stopped is not None and not self.dead:
            self.dead = True
            self.world.fenced(self)
        wake_ms = self.core.wake_ms
        if wake_ms != self._armed_ms:
            self._armed_ms = wake_ms
            if wake_ms != inf:
                self.world.at(wake_ms, self.here(lambda: self._tick(wake_ms)))

    def _tick(self, wake_ms: float) -> None:
        if wake_ms == self._armed_ms:
            self._armed_ms = inf
            self.core.tick(self.world.now_ms, self.world.random.random())

    def _do(self, effect: Effect) -> None:
        match effect:
            case Answer(outcomes):
                for submission, outcome in outcomes:
                    submission.done(outcome)
            case PutObject(number, lease, pieces):
                self._put(number, lease, pieces)
            case CommitObject():
                self._commit(effect)
            case Finished(answer=answer):
                if answer is not None:
                    self.learn(answer)
            case LeaseKeys(count):
                self._lease(count)

    def _put(self, number: int, lease: ObjectLease, pieces: list[Any]) -> None:
        world, core, object_id = self.world, self.core, lease.object_id
        world.store.put(
            world.plants.put_key(lease.key),
            pieces,
            self.here(lambda: core.put_done(number, object_id, world.now_ms)),
            self.here(
                lambda error: core.put_failed(
                    number, object_id, error, world.now_ms, world.random.random()
                )
            ),
        )

    def _commit(self, effect: CommitObject) -> None:
        world, core, number = self.world, self.core, effect.number
        commit = ObjectCommit(
            object_id=effect.lease.object_id,
            size_bytes=effect.size_bytes,
            entries=effect.entries,
            now_ms=self.clock.now_ms(),
        )
        world.line.call(
            lambda: world.ledger.commit_object(effect.lease.key, commit),
            self.here(lambda answer: core.committed(number, answer, world.now_ms)),
            self.here(
                lambda error: core.commit_failed(number, error, world.now_ms, world.random.random())
            ),
        )

    def _lease(self, count: int) -> None:
        world, core = self.world, self.core
        world.line.call(
            lambda: world.plane.lease_objects(
                broker_id=self.broker_id, incarnation=self.incarnation, count=count
            ),
            self.here(lambda leases: core.leased(leases, world.now_ms)),
            self.here(lambda error: core.lease_failed(error, world.now_ms, world.random.random())),
        )

    def learn(self, answer: CommitAnswer) -> None:
        for key, extents in answer.extents.items():
            self.coordinates.add(key, extents, self.world.now_ms / 1000)
