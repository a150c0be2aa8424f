"""What must hold, after every event and in the end.

1. A rumour about a member only rises, by (incarnation, state), within one registration.
2. Nobody tells of an incarnation that its member has not taken.
3. Nobody is dead who was not suspected for the time of a suspicion, or left by its own word.
4. Without loss, or with some link cut and the others whole, nobody who runs is suspected.
5. Who dies is dead for every member that runs, within `death_bound_ms` of its last sign of life.
6. Nobody sends more than the protocol does: an own ping in a period, a bounded number of requests
   for it, one answer to a datagram, each rumour in a bounded number of datagrams of at most 1,400
   bytes; and when all is known, no rumour at all.
7. After healing all who run are alive for each other, and all who do not are dead, within a bound;
   and it stays so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.replication.gossip_format import (
    DATAGRAM_BYTES_MAX,
    Datagram,
    Kind,
    Rumour,
    State,
    cluster_key,
    decode,
)
from penstock.replication.members import REFUTATIONS, View
from penstock.replication.membership import Send
from sim.host.scheduler import Violation
from sim.membership.network import LATEST_MS
from sim.membership.process import CLUSTER, Process

if TYPE_CHECKING:
    from sim.membership.world import World

LAST_SIGN_MS: Final = 4 * LATEST_MS
"""An acknowledgement passes four links at most, when others are asked to ping."""
_ROUNDING_MS: Final = 0.001


class Watch:
    """The judge of one story."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: Counter[str] = Counter()
        self.quiet = False
        """All is known to all: nothing new may be told."""
        self.strict = False
        """Nothing is lost that somebody else could not make up for."""
        self.highest: dict[int, int] = {}
        """By broker: the highest incarnation that it has taken."""
        self._suspected_ms: dict[tuple[int, int], float] = {}
        self._own_words: set[tuple[int, int]] = set()
        self._carried: Counter[tuple[int, int, Rumour]] = Counter()
        self._pinged_ms: dict[tuple[int, int], float] = {}
        self._requests: Counter[tuple[int, int, int]] = Counter()
        self._cluster = cluster_key(CLUSTER)

    # -- after every event -----------------------------------------------------------------------

    def looked_at(self, process: Process, sends: list[Send], *, answers: bool) -> None:
        own = process.incarnation
        self.highest[process.broker_id] = max(own, self.highest.get(process.broker_id, 0))
        if process.left:
            self._own_words.add((process.broker_id, own))
        before, after = process.views, process.core.views()
        if before != after:
            process.views = after
            for broker_id, view in after.items():
                if broker_id != process.broker_id and before.get(broker_id) != view:
                    self._changed(process, broker_id, before.get(broker_id), view)
        if answers and len(sends) > 1:
            raise Violation(f"broker {process.broker_id} answers {len(sends)} to one datagram")
        for send in sends:
            self._sent(process, send, decode(self._cluster, send.data))

    def _changed(self, process: Process, subject: int, old: View | None, new: View) -> None:
        now_ms, key = self.world.now_ms, (subject, new.incarnation)
        who = f"broker {process.broker_id}: {subject} is {new.state.name} in {new.incarnation:x}"
        self.world.note(process.broker_id, subject, new.state.name, f"{new.incarnation:x}")
        self.seen[new.state.name] += 1
        if (
            old is not None
            and old.incarnation // REFUTATIONS == new.incarnation // REFUTATIONS
            and (new.incarnation, new.state) < (old.incarnation, old.state)
        ):
            raise Violation(f"{who} after {old.state.name} in {old.incarnation:x}")
        if new.incarnation > self.highest.get(subject, 0):
            raise Violation(f"{who}, which it has not taken")
        if new.state is State.SUSPECT:
            self._suspected_ms.setdefault(key, now_ms)
        elif new.state is State.DEAD and key not in self._own_words:
            terms = self.world.terms
            least_ms = terms.suspicion_multiplier * terms.probe_interval_ms - _ROUNDING_MS
            if now_ms - self._suspected_ms.get(key, now_ms) < least_ms:
                raise Violation(f"{who}, and was not suspected for {least_ms:.0f} ms")
        there = self.world.running.get(subject)
        runs = there is not None and there.runs and there.epoch == new.incarnation // REFUTATIONS
        if self.strict and runs and new.state is not State.ALIVE:
            raise Violation(f"{who}, and runs")
        if old is not None and old.state is State.DEAD and new.state is State.ALIVE:
            self.seen["came back"] += 1

    def _sent(self, process: Process, send: Send, datagram: Datagram) -> None:
        world, sender = self.world, process.broker_id
        me = (sender, process.epoch)
        if len(send.data) > DATAGRAM_BYTES_MAX:
            raise Violation(f"broker {sender} sends {len(send.data)} bytes")
        if datagram.kind is Kind.PING and datagram.origin == sender and not process.left:
            passed_ms = world.now_ms - self._pinged_ms.get(me, float("-inf"))
            if passed_ms < world.terms.probe_interval_ms - _ROUNDING_MS:
                raise Violation(f"broker {sender} pings again after {passed_ms:.1f} ms")
            self._pinged_ms[me] = world.now_ms
        elif datagram.kind is Kind.PING_REQUEST:
            self.seen["asked others"] += 1
            self._requests[*me, datagram.sequence] += 1
            if self._requests[*me, datagram.sequence] > world.terms.indirect_probes:
                raise Violation(f"broker {sender} asks more than {world.terms.indirect_probes}")
        most = world.terms.retransmit_multiplier * world.members_max.bit_length()
        for rumour in datagram.rumours:
            if rumour.broker_id != send.broker_id:
                self._carried[*me, rumour] += 1
                if self.quiet or self._carried[*me, rumour] > most:
                    raise Violation(f"broker {sender} still tells {rumour}")

    # -- deaths ----------------------------------------------------------------------------------

    def died(self, broker_id: int) -> None:
        """Expect that everybody who runs knows in time."""
        for process in self.world.running.values():
            if process.broker_id != broker_id and process.runs:
                self._expect(process, broker_id, self._incarnation(process, broker_id))

    @staticmethod
    def _incarnation(process: Process, broker_id: int) -> int:
        view = process.views.get(broker_id)
        return -1 if view is None else view.incarnation

    def _expect(self, process: Process, broker_id: int, known: int) -> None:
        since_ms = self.world.now_ms
        bound_ms = LAST_SIGN_MS + process.core.death_bound_ms

        def look() -> None:
            stopped = not process.runs or process.resumed_ms >= since_ms
            view = process.views.get(broker_id)
            if stopped or broker_id in self.world.running or view is None:
                return
            if view.state is State.DEAD:
                self.seen["death known"] += 1
            elif view.incarnation > known:  # last words came later
                self._expect(process, broker_id, view.incarnation)
            elif process.core.death_bound_ms + LAST_SIGN_MS > bound_ms:  # more members
                self._expect(process, broker_id, known)
            else:
                who = f"broker {process.broker_id}: {broker_id} is {view.state.name}"
                raise Violation(f"{who} {bound_ms:.0f} ms after its death")

        self.world.after(bound_ms, look)

    # -- the end ---------------------------------------------------------------------------------

    def wrong_views(self) -> list[str]:
        """What somebody who runs thinks wrongly."""
        running = self.world.running
        wrong = []
        for process in running.values():
            views = process.core.views()
            for broker_id in self.world.registry:
                view = views.get(broker_id)
                right = State.ALIVE if broker_id in running else State.DEAD
                if view is None or view.state is not right:
                    state = "unknown" if view is None else view.state.name
                    wrong.append(f"broker {process.broker_id}: {broker_id} is {state}")
        return wrong
