"""Someone who speaks no protocol, or half of it. An agent gets rid of him, and serves the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.frames import ACCEPTED, DATA, HELLO, PING, Header, encode
from sim.host.link import Link

if TYPE_CHECKING:
    from sim.host.world import World

STAYS_MS = 400


def visit(world: World) -> None:
    """Connect to the agent, be rude, and go after a while."""
    agent = world.listening
    if agent is None or agent.dead:
        return
    random = world.random
    hello = encode(Header(type=HELLO, version_min=1, version_max=random.randint(0, 3)))
    data = encode(Header(type=DATA, first_sequence=2**64 - 1, event_count=1), (b"x",)) + b"x"
    texts = (
        random.randbytes(40),
        hello[: random.randrange(len(hello))],
        data,
        hello + data,
        hello + hello,
        encode(Header(type=PING, token=7)) + encode(Header(type=ACCEPTED, ranges=[0, 1])),
        b"\xff\xff\xff\xff" + bytes(12),
    )
    link = Link(world, None)
    agent.accept(link, honest=False)
    world.note("rude", agent.number)
    link.to_agent.send(random.choice(texts))
    world.after(STAYS_MS * random.random(), link.leave_producer)
