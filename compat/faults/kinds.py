"""The faults, each a context: the fault is there while it holds, and gone or mended after it.

`goes_on` says whether clients must get on while this fault, and no other, is there: a majority of
brokers can be reached, or a leader needs none of what is missing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.postgres import PostgresServer

from compat.drivers import eventually
from compat.faults.machine import Machine
from compat.faults.network import DATABASE, Network, address, hub
from compat.servers import PenstockProcess

RECOVER_SECONDS = 45


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What faults are done to; without a `network`, nothing is cut."""

    brokers: Sequence[PenstockProcess]
    postgres: PostgresServer
    machine: Machine
    network: Network | None
    dice: random.Random

    def number(self, broker: PenstockProcess) -> int:
        """A broker's id."""
        return self.brokers.index(broker) + 1

    def await_that(self, holds: Callable[[], bool], says: Callable[[], object]) -> None:
        """Wait as long as recovery may take."""
        eventually(holds, says, seconds=RECOVER_SECONDS, clock=self.clock)

    def clock(self) -> float:
        """By which things get on in time, or do not."""
        return self.machine.seconds

    def others(self, broker: PenstockProcess) -> list[int]:
        """The ids of all but one."""
        return [self.number(other) for other in self.brokers if other is not broker]


Make = Callable[[World, PenstockProcess], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault; `weight` is how often it is drawn, beside the others' weights."""

    name: str
    make: Make
    weight: int = 2
    goes_on: bool = True
    needs_network: bool = False
    of: str = "a broker"
    alone: bool = False
    """Whether all copies must be whole before, and no other fault comes with it."""


@contextmanager
def killed(_: World, broker: PenstockProcess) -> Iterator[None]:
    """kill -9."""
    broker.kill()
    yield
    broker.start()


@contextmanager
def all_killed(world: World, _: PenstockProcess) -> Iterator[None]:
    """kill -9 of all brokers; they come back in any order."""
    for broker in world.brokers:
        broker.kill()
    yield
    for broker in world.dice.sample(list(world.brokers), len(world.brokers)):
        broker.start()


@contextmanager
def wiped(_: World, broker: PenstockProcess) -> Iterator[None]:
    """kill -9, and an empty disk afterwards."""
    broker.kill()
    shutil.rmtree(broker.directory / "data")
    yield
    broker.start()


@contextmanager
def restarted(_: World, broker: PenstockProcess) -> Iterator[None]:
    """Stopped in good order."""
    assert broker.stop() == 0, broker.log[-4000:]
    yield
    broker.start()


@contextmanager
def paused(_: World, broker: PenstockProcess) -> Iterator[None]:
    """SIGSTOP."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def failed_sync(world: World, broker: PenstockProcess) -> Iterator[None]:
    """The disk fails one sync; the broker is killed and started anew, as somebody would."""
    mark = fail_mark(broker.directory)
    mark.touch()
    world.await_that(lambda: not mark.exists(), lambda: "nothing is synced")
    yield
    broker.kill()
    broker.start()


def fail_mark(directory: Path) -> Path:
    """The file whose existence makes a broker's next sync fail."""
    return directory / "fail-sync"


@contextmanager
def _cut(world: World, *pairs: tuple[str, str]) -> Iterator[None]:
    assert world.network is not None
    for source, target in pairs:
        world.network.cut(source, target)
    try:
        yield
    finally:
        world.network.heal(*pairs)


def cut_one_way(world: World, broker: PenstockProcess) -> AbstractContextManager[None]:
    """Another broker receives nothing from this one."""
    other = world.dice.choice(world.others(broker))
    return _cut(world, (address(world.number(broker)), address(other)))


def mute(world: World, broker: PenstockProcess) -> AbstractContextManager[None]:
    """No other broker receives anything from this one."""
    own = address(world.number(broker))
    return _cut(world, *((own, address(other)) for other in world.others(broker)))


def deaf(world: World, broker: PenstockProcess) -> AbstractContextManager[None]:
    """This broker receives nothing from any other."""
    own = address(world.number(broker))
    return _cut(world, *((address(other), own) for other in world.others(broker)))


@contextmanager
def isolated(world: World, broker: PenstockProcess) -> Iterator[None]:
    """Neither the other brokers nor the database receive anything from this one, nor it of them."""
    own = address(world.number(broker))
    with (
        mute(world, broker),
        deaf(world, broker),
        _cut(world, (own, DATABASE), (DATABASE, own)),
    ):
        yield


@contextmanager
def without_power(world: World, broker: PenstockProcess) -> Iterator[None]:
    """The machine is gone: nobody is told that its connections are, no client either."""
    node = world.number(broker)
    with (
        isolated(world, broker),
        _cut(world, (address(node), hub(node)), (hub(node), address(node))),
    ):
        broker.kill()
        yield
    broker.start()


def without_database(world: World, broker: PenstockProcess) -> AbstractContextManager[None]:
    """The database receives nothing from this broker."""
    return _cut(world, (address(world.number(broker)), DATABASE))


@contextmanager
def database_stopped(world: World, _: PenstockProcess) -> Iterator[None]:
    """PostgreSQL is stopped, or crashes, and is started again."""
    world.postgres.stop(crash=world.dice.random() < 0.5)
    try:
        yield
    finally:
        world.postgres.start()


@contextmanager
def database_frozen(world: World, _: PenstockProcess) -> Iterator[None]:
    """PostgreSQL answers nothing."""
    world.postgres.freeze()
    try:
        yield
    finally:
        world.postgres.freeze(thaw=True)


KINDS = (
    Kind(name="killed", make=killed, weight=4),
    Kind(name="restarted", make=restarted, weight=3),
    Kind(name="all brokers killed", make=all_killed, of="all", weight=1, goes_on=False, alone=True),
    Kind(name="wiped", make=wiped, weight=1, alone=True),
    Kind(name="paused", make=paused, weight=3),
    Kind(name="fails a sync", make=failed_sync),
    Kind(name="without power", make=without_power, needs_network=True),
    Kind(name="cut off from one, one way", make=cut_one_way, needs_network=True),
    Kind(name="mute", make=mute, needs_network=True),
    Kind(name="deaf", make=deaf, needs_network=True),
    Kind(name="isolated", make=isolated, needs_network=True),
    Kind(name="without the database", make=without_database, needs_network=True),
    Kind(name="database stopped", make=database_stopped, of="the database"),
    Kind(name="database frozen", make=database_frozen, weight=1, of="the database"),
)
