"""Who of the registered brokers seems to be alive: SWIM, as a core without I/O.

**A hint.** Who is a member, and where it listens, is said by the control plane (`registered`); this
only says of each whether it answers. Nothing may be unsafe if that is wrong: claims to lead are
fenced by epochs. It is for choosing who should claim, whom to send readers to, and what to show.

**Probes.** In every period one member is pinged, each once in a round, in an order that is drawn
anew for every round. If it does not acknowledge in time, some others are asked to ping it, too; if
nobody has heard of it by the end of the period it is suspected. Who is suspected for too long is
dead. Dead members are pinged in their turn like all others, so that two halves of a cluster find
each other again, and a process that was stopped comes back. Who is asked to ping keeps nothing:
pings and acknowledgements name the one that wants to know.

**Rumours.** What is thought of members, and told on, is in `members.py`. Every datagram says that
its sender is alive, and one that goes to a member that is not thought alive tells it so.

**Local health.** Who misses acknowledgements, or is suspected although it runs, is perhaps slow
itself: its periods and timeouts become longer, up to a factor. And who finds that its timer is late
by a period was stopped: what it awaits and whom it suspects get that time, too.

**Bound.** While it runs, every member finds by its own probes that another has died within
`death_bound_ms`, whatever is lost: 2 (n - 1) periods and the time of a suspicion, by the factor of
its health. With dissemination it takes some periods.

It has no clock and no dice of its own. It belongs to one thread.

Source: Das, Gupta and Motivala, "SWIM" (2002); Dadgar, Phillips and Currey, "Lifeguard" (2017).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.replication.gossip_format import (
    Datagram,
    Kind,
    Refusal,
    RefusedDatagram,
    Rumour,
    State,
    cluster_key,
    decode,
    encode,
)
from penstock.replication.members import REFUTATIONS, GossipTerms, Members, View

if TYPE_CHECKING:
    from penstock.base.system import Randomness

_SEQUENCES: Final = 2**32


class Send(NamedTuple):
    """Send these bytes to a member, at the address that it is registered with."""

    broker_id: int
    data: bytes


@dataclass(slots=True)
class _Probe:
    """The probe of a period; `rumour` is what was thought of its target when it began."""

    sequence: int
    rumour: Rumour
    others_at_ms: float
    acked: bool = False


class Membership:
    """One broker's part in the gossip; `tick` is due at `due_ms`, and may come earlier."""

    members_type = Members

    def __init__(
        self,
        *,
        cluster_id: str,
        broker_id: int,
        registration_epoch: int,
        terms: GossipTerms,
        randomness: Randomness,
        now_ms: float,
    ) -> None:
        """`registration_epoch` is that of this process of the broker, below 2^32."""
        own = Rumour(broker_id, registration_epoch * REFUTATIONS, State.ALIVE)
        self.broker_id = broker_id
        self.terms = terms
        self.refused: Counter[Refusal] = Counter()
        self._members = self.members_type(own, terms, now_ms)
        self._cluster = cluster_key(cluster_id)
        self._randomness = randomness
        self._round: list[int] = []
        self._probe: _Probe | None = None
        self._sequence = randomness.bits(32)
        self._period_ends_ms = now_ms + terms.probe_interval_ms  # till others know of this one
        self._health = 0
        self._left = False

    # -- what others ask ---------------------------------------------------------------------

    def views(self) -> dict[int, View]:
        """What is thought of every registered broker, this one included."""
        return {
            broker_id: View(row.rumour.state, row.since_ms, row.rumour.incarnation)
            for broker_id, row in self._members.rows.items()
        }

    @property
    def due_ms(self) -> float:
        """When `tick` is to be called; infinite after `leave`."""
        if self._left:
            return inf
        due = min([row.dead_at_ms for row in self._members.rows.values()])
        probe = self._probe
        return min(due, self._period_ends_ms, inf if probe is None else probe.others_at_ms)

    @property
    def death_bound_ms(self) -> float:
        """How long after its last sign of life another member counts as dead, at the latest."""
        periods = 2 * len(self._members.others()) * self.terms.probe_interval_ms
        return periods * (1 + self.terms.health_max) + self._members.suspicion_ms

    # -- events ------------------------------------------------------------------------------

    def registered(self, epochs: Mapping[int, int], now_ms: float) -> None:
        """Take the brokers that the control plane knows, with the epochs of their registrations.

        Others are forgotten. This broker is a member whether it is named or not; if it registered
        anew, as it does when its session has expired, it goes on in that registration.
        """
        self._members.registered(epochs, now_ms)

    def receive(self, data: bytes, now_ms: float) -> list[Send]:
        """Take a datagram, whatever its bytes are; what is none of a member is counted."""
        if self._left:
            return []
        try:
            datagram = decode(self._cluster, data)
            if datagram.sender not in self._members.rows or datagram.sender == self.broker_id:
                raise RefusedDatagram(Refusal.STRANGER, f"broker {datagram.sender}")
        except RefusedDatagram as refused:
            self.refused[refused.reason] += 1
            return []
        self._catch_up(now_ms)
        sender = Rumour(datagram.sender, datagram.incarnation, State.ALIVE)
        for rumour in (sender, *datagram.rumours):
            if self._members.hear(rumour, now_ms):
                self._health = min(self.terms.health_max, self._health + 1)
        return self._answer(datagram)

    def tick(self, now_ms: float) -> list[Send]:
        """Do what is due."""
        if self._left:
            return []
        self._catch_up(now_ms)
        self._members.end_suspicions(now_ms)
        if now_ms >= self._period_ends_ms:
            self._conclude(now_ms)
            return self._begin_period(now_ms)
        probe = self._probe
        if probe is not None and now_ms >= probe.others_at_ms:
            probe.others_at_ms = inf
            return self._ask_others(probe)
        return []

    def leave(self, now_ms: float) -> list[Send]:
        """Tell some others that this broker ends; nothing is done after it."""
        if self._left:
            return []
        members = self._members
        members.believe(members.me, members.me.rumour._replace(state=State.DEAD), now_ms)
        told = self._drawn(members.others())[: members.sends]
        sends = [self._send(one, Kind.PING, self._sequence, one, self.broker_id) for one in told]
        self._left = True
        return sends

    # -- probes ------------------------------------------------------------------------------

    def _answer(self, datagram: Datagram) -> list[Send]:
        kind, sequence, sender, _, target, origin, _ = datagram
        others = self._members.rows.keys() - {self.broker_id}
        if kind is Kind.PING:
            if target == self.broker_id:
                return [self._send(sender, Kind.ACK, sequence, target, origin)]
        elif kind is Kind.PING_REQUEST:
            if target in others:
                return [self._send(target, Kind.PING, sequence, target, sender)]
        elif origin == self.broker_id:
            self._acknowledged(sequence, target)
        elif sender == target and origin in others:
            return [self._send(origin, Kind.ACK, sequence, target, origin)]
        return []

    def _acknowledged(self, sequence: int, target: int) -> None:
        probe = self._probe
        if probe is not None and (sequence, target) == (probe.sequence, probe.rumour.broker_id):
            if not probe.acked:
                self._health = max(0, self._health - 1)
            probe.acked = True
            probe.others_at_ms = inf

    def _begin_period(self, now_ms: float) -> list[Send]:
        stretch = 1 + self._health
        self._period_ends_ms = now_ms + self.terms.probe_interval_ms * stretch
        target = self._next_target()
        if target is None:
            self._probe = None
            return []
        self._sequence = (self._sequence + 1) % _SEQUENCES
        self._probe = _Probe(
            self._sequence,
            self._members.rows[target].rumour,
            now_ms + self.terms.probe_timeout_ms * stretch,
        )
        return [self._send(target, Kind.PING, self._sequence, target, self.broker_id)]

    def _next_target(self) -> int | None:
        """The next member of the round, or the first of another one; None for nobody."""
        for _ in range(2):
            while self._round:
                target = self._round.pop()
                if target in self._members.rows:
                    return target
            self._round = self._drawn(self._members.others())
        return None

    def _ask_others(self, probe: _Probe) -> list[Send]:
        if probe.rumour.state is State.DEAD:
            return []  # nobody has to make sure of it
        target = probe.rumour.broker_id
        return [
            self._send(other, Kind.PING_REQUEST, probe.sequence, target, self.broker_id)
            for other in self._drawn(self._members.able(target))[: self.terms.indirect_probes]
        ]

    def _conclude(self, now_ms: float) -> None:
        """At the end of a period, suspect who did not answer and of whom nothing else was heard."""
        probe = self._probe
        if probe is None or probe.acked or probe.rumour.state is not State.ALIVE:
            return
        row = self._members.rows.get(probe.rumour.broker_id)
        if row is not None and row.rumour == probe.rumour:
            self._health = min(self.terms.health_max, self._health + 1)
            self._members.believe(row, probe.rumour._replace(state=State.SUSPECT), now_ms)

    def _catch_up(self, now_ms: float) -> None:
        """After a stop of this process, give those that it waits for the time that it missed."""
        late_ms = now_ms - self._period_ends_ms
        if late_ms > self.terms.probe_interval_ms:
            self._members.extend_suspicions(late_ms)
            self._probe = None
            self._period_ends_ms = now_ms

    def _send(self, to: int, kind: Kind, sequence: int, target: int, origin: int) -> Send:
        incarnation = self._members.me.rumour.incarnation
        rumours = self._members.rumours_for(to)
        datagram = Datagram(kind, sequence, self.broker_id, incarnation, target, origin, rumours)
        return Send(to, encode(self._cluster, datagram))

    def _drawn(self, broker_ids: list[int]) -> list[int]:
        """Shuffle: every order is as likely as any other."""
        for last in range(len(broker_ids) - 1, 0, -1):
            other = int(self._randomness.uniform() * (last + 1))
            broker_ids[last], broker_ids[other] = broker_ids[other], broker_ids[last]
        return broker_ids
