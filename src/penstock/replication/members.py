"""What is thought of every registered broker, and what of it is told on.

What is said of a member is ordered by (incarnation, state), and everybody keeps the highest rumour
that was heard: whatever is lost, doubled or late, all who hear the same end with the same. The
upper 32 bits of an incarnation are the registration that the control plane gave to the process;
rumours about another registration than the one that is known are not taken. The lower 32 bits
are raised by the member alone, which so refutes that it is suspected or dead.

New rumours are carried by a number of datagrams that grows with the logarithm of the members, those
first that were sent least often.

Source: sections 4.1 and 4.2 of SWIM (Das, Gupta and Motivala, 2002).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log10
from typing import Final, NamedTuple

from penstock.base.errors import InvalidSetting
from penstock.replication.gossip_format import RUMOURS_MAX, Rumour, State

MEMBERS_MAX: Final = 1_024
"""More registered brokers than these are not watched."""

REFUTATIONS: Final = 2**32
"""Incarnations of one registration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipTerms:
    """How often members are probed, and how soon they are given up; the same on all brokers."""

    probe_interval_ms: float = 500
    """Length of a period."""
    probe_timeout_ms: float = 150
    """How long a ping is waited for before others are asked."""
    indirect_probes: int = 3
    """How many others are asked."""
    suspicion_multiplier: float = 4
    """Periods from a suspicion to death in a cluster of up to ten; they grow with log10(n)."""
    retransmit_multiplier: int = 4
    """Datagrams of each member that carry a rumour, times ceil(log2(n + 1))."""
    health_max: int = 3
    """How many times their length are added to periods and timeouts of a slow member."""

    def __post_init__(self) -> None:
        if not 0 < self.probe_timeout_ms < self.probe_interval_ms:
            raise InvalidSetting(
                "probe_timeout_ms", self.probe_timeout_ms, "must be below probe_interval_ms"
            )


class View(NamedTuple):
    """What is thought of a member, and since when, in the caller's milliseconds."""

    state: State
    since_ms: float
    incarnation: int


@dataclass(slots=True)
class Member:
    """The highest rumour about a member, and how many datagrams still carry it."""

    rumour: Rumour
    since_ms: float
    sends_left: int = 0
    dead_at_ms: float = inf
    """When a suspicion ends."""


class Members:
    """The table of one broker; `me` is its own row."""

    def __init__(self, own: Rumour, terms: GossipTerms, now_ms: float) -> None:
        self.terms = terms
        self.me = Member(own, now_ms)
        self.rows = {own.broker_id: self.me}

    @property
    def suspicion_ms(self) -> float:
        """How long a member is suspected before it counts as dead."""
        terms = self.terms
        growth = max(1.0, log10(len(self.rows)))
        return terms.suspicion_multiplier * growth * terms.probe_interval_ms

    @property
    def sends(self) -> int:
        """How many datagrams carry a rumour."""
        return self.terms.retransmit_multiplier * len(self.rows).bit_length()

    def others(self) -> list[int]:
        """All members but this one."""
        return [broker_id for broker_id, row in self.rows.items() if row is not self.me]

    def able(self, but: int) -> list[int]:
        """The others that may be alive, without one of them."""
        rows = self.rows
        return [
            one for one in self.others() if one != but and rows[one].rumour.state is not State.DEAD
        ]

    def registered(self, epochs: Mapping[int, int], now_ms: float) -> None:
        """Take registrations; a new one is alive until it is found not to be."""
        own = self.me.rumour.broker_id
        known = {*sorted(epochs.keys() - {own})[: MEMBERS_MAX - 1], own}
        for gone in self.rows.keys() - known:
            del self.rows[gone]
        for broker_id in sorted(known & epochs.keys()):
            first = Rumour(broker_id, epochs[broker_id] * REFUTATIONS, State.ALIVE)
            row = self.rows.setdefault(broker_id, Member(first, now_ms))
            if row.rumour.incarnation < first.incarnation:
                row.rumour, row.since_ms, row.sends_left, row.dead_at_ms = first, now_ms, 0, inf

    def hear(self, rumour: Rumour, now_ms: float) -> bool:
        """Take what somebody says; whether it was about this member, and had to be refuted."""
        row = self.rows.get(rumour.broker_id)
        if (
            row is None
            or rumour.incarnation // REFUTATIONS != row.rumour.incarnation // REFUTATIONS
        ):
            return False
        if row is self.me:
            return self.refute(rumour, now_ms)
        if rumour[1:] > row.rumour[1:]:
            self.believe(row, rumour, now_ms)
        return False

    def believe(self, row: Member, rumour: Rumour, now_ms: float) -> None:
        """Take a rumour, and tell it on."""
        if rumour.state is not row.rumour.state:
            row.since_ms = now_ms
        row.rumour = rumour
        row.sends_left = self.sends
        row.dead_at_ms = now_ms + self.suspicion_ms if rumour.state is State.SUSPECT else inf

    def refute(self, rumour: Rumour, now_ms: float) -> bool:
        """Outdo a rumour that this member is not alive, as long as there are incarnations."""
        next_one = rumour.incarnation + 1
        if rumour[1:] <= self.me.rumour[1:] or rumour.state is State.ALIVE:
            return False
        if next_one % REFUTATIONS:
            self.believe(self.me, Rumour(rumour.broker_id, next_one, State.ALIVE), now_ms)
        return True

    def end_suspicions(self, now_ms: float) -> None:
        """Who has been suspected for too long is dead."""
        for row in self.rows.values():
            if row.dead_at_ms <= now_ms:
                self.believe(row, row.rumour._replace(state=State.DEAD), now_ms)

    def extend_suspicions(self, by_ms: float) -> None:
        """Give those who are suspected more time."""
        for row in self.rows.values():
            row.dead_at_ms += by_ms

    def rumours_for(self, receiver: int) -> tuple[Rumour, ...]:
        """What a datagram to a member carries; first, if it is not thought alive, just that."""
        about_it = self.rows[receiver].rumour
        rumours = [] if about_it.state is State.ALIVE else [about_it]
        news = [one for one in self.rows.values() if one.sends_left and one.rumour[0] != receiver]
        news.sort(key=lambda one: -one.sends_left)
        for one in news[: RUMOURS_MAX - len(rumours)]:
            one.sends_left -= 1
            rumours.append(one.rumour)
        return tuple(rumours)
