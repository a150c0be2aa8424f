"""Steps of one claimant or leader: an event for its core, and what it may have sent."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from penstock.replication.chain import Chain
from penstock.replication.epoch import Claim, Effects, Epoch, Follower, Phase, Terms
from penstock.replication.messages import Append, Fence, Join, LogEnd, LogStart
from sim.replication.records import EPOCH_SLOTS, Log, Numbered, Process, epoch_values

Held = tuple[tuple[int, int], ...]
"""Of each replica: the incarnation that the process knows, and where it is durable there."""


class Said(NamedTuple):
    """What a process in some state is, and says, whichever replica it speaks to."""

    epoch: int
    phase: Phase
    chain: Chain
    base: int
    start: int
    end: int
    mark: int
    log: Log
    fence: Fence | None
    join: Join | None
    append: Append | None
    log_start: LogStart | None
    log_end: LogEnd | None
    terms: Terms
    voters: tuple[int, ...]
    """The replicas that count now."""
    move: int


class Processes:
    """All states of a process that were reached, and what each event made of each."""

    def __init__(self, kind: type[Epoch], replicas: int) -> None:
        self._kind = kind
        self._replicas = range(replicas)
        self._steps: dict[Hashable, tuple[int, Held, Effects]] = {}
        self._said: dict[int, Said] = {}
        self.records: Numbered[Process] = Numbered()

    def claimed(self, epoch: int, chain: Chain, before: Terms, terms: Terms, move: int = 0) -> int:
        core = self._kind(Claim(epoch, chain, before if chain else None, terms, move))
        return self.records.number(Process(epoch_values(core), (), tuple(core.followers)))

    def thaw(self, number: int, held: Held) -> Epoch:
        core = self._kind.__new__(self._kind)
        for name, value in zip(EPOCH_SLOTS, self.records.values[number].core, strict=True):
            setattr(core, name, value)
        streams: dict[int, Follower] = {}
        for replica, (incarnation, durable) in enumerate(held):
            follower = streams[replica] = Follower()
            follower.incarnation, follower.durable = incarnation, durable
        leads = core.phase in (Phase.LEADING, Phase.STOPPED)
        voters = core.terms.placement if leads else self.records.values[number].before
        core.followers = {replica: streams[replica] for replica in voters}
        core.streams = core.followers if core.phase is Phase.CLAIMED else streams
        return core

    def step(
        self,
        number: int,
        held: Held,
        key: Hashable,
        event: Callable[[Epoch], Effects],
        log: Callable[[Epoch, Log], Log] | None = None,
    ) -> tuple[int, Held, Effects]:
        """The state after an event, and its effects; `log` says what becomes of the log."""
        whole = (number, held, key)
        found = self._steps.get(whole)
        if found is None:
            core = self.thaw(number, held)
            effects = event(core)
            _, content, before = self.records.values[number]
            content = log(core, content) if log else content
            after = Process(epoch_values(core), content, before)
            streams = [core.streams.get(replica) for replica in self._replicas]
            kept = tuple((f.incarnation, f.durable) if f else (0, 0) for f in streams)
            found = self._steps[whole] = self.records.number(after), kept, effects
        return found

    def said(self, number: int) -> Said:
        found = self._said.get(number)
        if found is None:
            found = self._said[number] = self._says(number)
        return found

    def _says(self, number: int) -> Said:
        core = self.thaw(number, ((0, 0),) * len(self._replicas))
        one, follower = next(iter(core.followers.items()))
        fence = core.to_send(one) if core.phase is Phase.CLAIMED else None
        join = append = log_start = log_end = None
        if core.phase not in (Phase.CLAIMED, Phase.STOPPED):
            join = core.to_send(one)
            follower.joined, follower.mark = True, -1
            log_start = core.to_send(one)
            follower.start = core.base
            append = core.to_send(one)
            follower.asks_end = True
            log_end = core.to_send(one)
        return Said(
            core.epoch, core.phase, core.chain, core.base, core.start, core.end, core.mark,
            self.records.values[number].log,
            _only(fence, Fence), _only(join, Join), _only(append, Append),
            _only(log_start, LogStart), _only(log_end, LogEnd),
            core.terms, tuple(core.followers), core.move,
        )  # fmt: skip


T = TypeVar("T")


def _only(message: object, kind: type[T]) -> T | None:
    return message if isinstance(message, kind) else None
