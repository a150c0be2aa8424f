"""How long a death takes to be known, and what the gossip costs, by members and loss.

One broker of a cluster without other faults dies at any time. Times are in virtual milliseconds
with the default terms. Datagrams, their bytes, and how often a member that runs counts as dead, are
of the minute before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import fmean, quantiles
from typing import Final, NamedTuple

from penstock.replication.gossip_format import State
from sim.membership.world import World

SIZES: Final = (3, 10, 50)
LOSSES: Final = (0.0, 0.1, 0.4)
START_MS: Final = 3_000.0
MEASURED_MS: Final = 60_000.0
_HOUR_MS: Final = 3_600_000


class Figures(NamedTuple):
    """Of one death."""

    suspected_ms: float
    known_by_all_ms: float
    bound_ms: float
    datagrams: float
    """By member and period."""
    datagram_bytes: float
    false_deaths: float
    """By member and hour."""


def measure(seed: int, members: int, loss: float) -> Figures:
    """Kill the last of some members, and wait until all know."""
    world = World(seed, members=members)
    world.images_late_ms = 10.0
    for broker_id in range(1, members + 1):
        world.after(1_000 * world.random.random(), partial(world.start, broker_id))
    world.run(START_MS)
    network = world.network
    network.loss, network.sent, network.bytes_sent, world.trace[:] = loss, 0, 0, []
    world.run(START_MS + MEASURED_MS + world.terms.probe_interval_ms * world.random.random())
    died_ms = world.now_ms
    periods = (died_ms - START_MS) / world.terms.probe_interval_ms
    datagrams = network.sent / members / periods
    datagram_bytes = network.bytes_sent / network.sent
    wrong = {(one[2], one[4]) for one in world.trace if one[3] == State.DEAD.name}
    world.running.pop(members).over = True

    def states() -> list[State]:
        return [one.views[members].state for one in world.running.values()]

    bound_ms = world.running[1].core.death_bound_ms
    end_ms = died_ms + 2 * bound_ms
    world.run(end_ms, lambda: any(state is not State.ALIVE for state in states()))
    suspected_ms = world.now_ms - died_ms
    if not world.run(end_ms, lambda: all(state is State.DEAD for state in states())):
        raise AssertionError(f"seed {seed}: {members} members, {loss} lost: {states()}")
    return Figures(
        suspected_ms,
        world.now_ms - died_ms,
        bound_ms,
        datagrams,
        datagram_bytes,
        len(wrong) / members * _HOUR_MS / (died_ms - START_MS),
    )


def figures(count: int) -> Iterator[str]:
    """A table of `count` deaths among three members, and of less among more."""
    yield (
        "members loss | suspected ms p50 p99 | known by all ms p50 p99 max | bound ms"
        " | datagrams/member/period, bytes | false deaths/member/h"
    )
    for members in SIZES:
        for loss in LOSSES:
            deaths = max(2, count * SIZES[0] // members)
            found = [measure(seed, members, loss) for seed in range(deaths)]
            first = quantiles([one.suspected_ms for one in found], n=100, method="inclusive")
            known = quantiles([one.known_by_all_ms for one in found], n=100, method="inclusive")
            yield (
                f"{members:7} {loss:4.0%} | {first[49]:6.0f} {first[98]:6.0f}"
                f" | {known[49]:6.0f} {known[98]:6.0f} {max(one[1] for one in found):6.0f}"
                f" | {found[0].bound_ms:7.0f} | {fmean(one.datagrams for one in found):5.2f}"
                f" {fmean(one.datagram_bytes for one in found):5.0f}"
                f" | {fmean(one.false_deaths for one in found):6.2f}"
            )
