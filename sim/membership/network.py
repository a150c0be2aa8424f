"""Datagrams on their way: lost, late, doubled, overtaken, cut off in one direction, or hostile."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.replication.gossip_format import (
    DATAGRAM_BYTES_MAX,
    Datagram,
    Kind,
    Rumour,
    State,
    cluster_key,
    encode,
)
from penstock.replication.membership import Send

if TYPE_CHECKING:
    from sim.membership.process import Process
    from sim.membership.world import World

LATEST_MS: Final = 430.0
"""No datagram is on its way for longer."""


@dataclass
class Network:
    """Between all brokers; `cuts` are the pairs (from, to) that nothing passes."""

    world: World
    loss: float = 0.0
    doubled: float = 0.0
    late: bool = False
    cuts: set[tuple[int, int]] = field(default_factory=set)
    sent: int = 0
    bytes_sent: int = 0
    last: bytes = b""

    def heal(self) -> None:
        self.loss = self.doubled = 0.0
        self.late = False
        self.cuts.clear()

    def send(self, sender: int, send: Send) -> None:
        world = self.world
        self.sent += 1
        self.bytes_sent += len(send.data)
        self.last = send.data
        for _ in range(2 if world.random.random() < self.doubled else 1):
            if (sender, send.broker_id) not in self.cuts and world.random.random() >= self.loss:
                world.after(self._delay_ms(), lambda: self._arrive(send))

    def _arrive(self, send: Send) -> None:
        process = self.world.running.get(send.broker_id)
        if process is not None:
            process.receive(send.data)

    def _delay_ms(self) -> float:
        draw = self.world.random.random()
        if self.late and draw < 0.06:
            return 20 + (LATEST_MS - 30) * self.world.random.random()
        return 0.1 + 6 * draw


def hostile(world: World, process: Process) -> bytes:
    """Bytes that must change nothing: noise, damage, another cluster, another version, too many."""
    random = world.random
    real = bytearray(world.network.last or _lie(b"this", process))
    kind = random.randrange(5)
    if kind == 0:
        return _noise(random, random.randrange(200))
    if kind == 1:
        bit = random.randrange(8 * len(real))
        real[bit // 8] ^= 1 << bit % 8
    elif kind == 2:
        return bytes(real[: random.randrange(len(real))])
    elif kind == 3:
        return _lie(cluster_key("another"), process)
    else:
        return bytes(real) + _noise(random, 1 + random.randrange(2 * DATAGRAM_BYTES_MAX))
    return bytes(real)


def _noise(random: Random, count: int) -> bytes:
    return random.getrandbits(8 * count).to_bytes(count, "big") if count else b""


def _lie(cluster: bytes, process: Process) -> bytes:
    """All are dead, says somebody."""
    views = process.core.views()
    sender = max(views)
    rumours = tuple([Rumour(one, view.incarnation + 9, State.DEAD) for one, view in views.items()])
    own = views[sender].incarnation
    lie = Datagram(Kind.PING, 1, sender, own, process.broker_id, sender, rumours[:50])
    return encode(cluster, lie)
