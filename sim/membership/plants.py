"""Bugs to be found: each breaks one rule, and the checks have to notice within some seeds."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from penstock.replication import membership
from penstock.replication.gossip_format import Rumour, State
from penstock.replication.members import Member, Members
from penstock.replication.membership import Membership, Send


class _NeverRefutes(Members):
    """Takes what others say of itself in silence."""

    def refute(self, rumour: Rumour, now_ms: float) -> bool:
        return False


class _RefutesWithoutRaising(Members):
    """Says that it is alive, in the incarnation that is suspected."""

    def refute(self, rumour: Rumour, now_ms: float) -> bool:
        self.me.sends_left = self.sends
        return rumour.state is not State.ALIVE


class _IgnoresIncarnations(Members):
    """Believes whoever spoke last."""

    def hear(self, rumour: Rumour, now_ms: float) -> bool:
        row = self.rows.get(rumour.broker_id)
        if row is not None and row is not self.me and row.rumour[1:] > rumour[1:]:
            self.believe(row, rumour, now_ms)
            return False
        return super().hear(rumour, now_ms)


class _DeathIsFinal(Members):
    """Keeps who was dead dead, whatever incarnation speaks."""

    def hear(self, rumour: Rumour, now_ms: float) -> bool:
        row = self.rows.get(rumour.broker_id)
        if row is not None and row is not self.me and row.rumour.state is State.DEAD:
            return False
        return super().hear(rumour, now_ms)


class _TellsForEver(Members):
    """Carries all that it knows in every datagram."""

    def rumours_for(self, receiver: int) -> tuple[Rumour, ...]:
        rumours = super().rumours_for(receiver)
        for row in self.rows.values():
            row.sends_left = max(row.sends_left, 1) if row.rumour[1:] != (0, 0) else 0
        return rumours


class _TellsNothing(Members):
    """Keeps to itself what it finds, also from the one whom it concerns."""

    def rumours_for(self, receiver: int) -> tuple[Rumour, ...]:
        return ()


class _SuspectsForEver(Members):
    """Never gives up whom it suspects."""

    def end_suspicions(self, now_ms: float) -> None:
        for row in self.rows.values():
            row.dead_at_ms = inf


class _CondemnsAtOnce(Members):
    """Takes a suspicion for a death."""

    def believe(self, row: Member, rumour: Rumour, now_ms: float) -> None:
        if rumour.state is State.SUSPECT:
            rumour = rumour._replace(state=State.DEAD)
        super().believe(row, rumour, now_ms)


class _RaisesOthers(Members):
    """Suspects the next incarnation, so as to be believed."""

    def believe(self, row: Member, rumour: Rumour, now_ms: float) -> None:
        if rumour.state is State.SUSPECT and row.rumour.state is State.ALIVE:
            rumour = rumour._replace(incarnation=rumour.incarnation + 1)
        super().believe(row, rumour, now_ms)


class _MixesRegistrations(Members):
    """Takes what was said of an earlier process of a broker for the present one's."""

    def hear(self, rumour: Rumour, now_ms: float) -> bool:
        row = self.rows.get(rumour.broker_id)
        if row is not None and rumour.incarnation < row.rumour.incarnation:
            rumour = rumour._replace(incarnation=row.rumour.incarnation)
        return super().hear(rumour, now_ms)


class _KeepsItsRegistration(Members):
    """Goes on in the registration that it began with, when it has another."""

    def registered(self, epochs: Mapping[int, int], now_ms: float) -> None:
        others = {one: epoch for one, epoch in epochs.items() if one != self.me.rumour.broker_id}
        super().registered(others, now_ms)


class _AsksNobody(Membership):
    """Suspects who does not answer it."""

    def _ask_others(self, probe: membership._Probe) -> list[Send]:
        return []


class _AsksEverybody(Membership):
    """Asks all others to ping, however many there are."""

    def _ask_others(self, probe: membership._Probe) -> list[Send]:
        return [*super()._ask_others(probe), *super()._ask_others(probe)]


class _SparesTheDead(Membership):
    """Never pings again who was dead once."""

    def _next_target(self) -> int | None:
        for _ in self._members.rows:
            target = super()._next_target()
            if target is not None and self._members.rows[target].rumour.state is not State.DEAD:
                return target
        return None


class _PingsOneAlone(Membership):
    """Begins every round with the same member, and never comes to the others."""

    def _next_target(self) -> int | None:
        self._round = []
        return min(self._members.others(), default=None)


class _TakesAnyCluster(Membership):
    """Does not look whose datagram it is."""

    def receive(self, data: bytes, now_ms: float) -> list[Send]:
        known, self._cluster = self._cluster, data[4:20]
        try:
            return super().receive(data, now_ms)
        finally:
            self._cluster = known


def _with(members: type[Members]) -> type[Membership]:
    return type(members.__name__, (Membership,), {"members_type": members})


PLANTS: Final[dict[str, type[Membership]]] = {
    "never refutes": _with(_NeverRefutes),
    "refutes without raising": _with(_RefutesWithoutRaising),
    "ignores incarnations": _with(_IgnoresIncarnations),
    "death is final": _with(_DeathIsFinal),
    "tells for ever": _with(_TellsForEver),
    "tells nothing": _with(_TellsNothing),
    "suspects for ever": _with(_SuspectsForEver),
    "condemns at once": _with(_CondemnsAtOnce),
    "raises others": _with(_RaisesOthers),
    "mixes registrations": _with(_MixesRegistrations),
    "keeps its registration": _with(_KeepsItsRegistration),
    "asks nobody": _AsksNobody,
    "asks everybody": _AsksEverybody,
    "spares the dead": _SparesTheDead,
    "pings one alone": _PingsOneAlone,
    "takes any cluster": _TakesAnyCluster,
}
