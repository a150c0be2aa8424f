"""A shell for the cores over lists in memory: batches of any number of offsets, with CRCs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.replication.chain import Link
from penstock.replication.epoch import Claim, Epoch, Terms, ToSend
from penstock.replication.epoch import Effects as EpochEffects
from penstock.replication.messages import (
    Ack,
    Append,
    Committed,
    Compare,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    MoveStart,
    PersistLimbo,
    PersistPromise,
    Position,
    SealAndOpen,
    StartAt,
    TruncateTo,
    Write,
)
from penstock.replication.replica import Disk, Effect, Replica
from penstock.replication.replica import Effects as ReplicaEffects


class Batch(NamedTuple):
    epoch: int
    base: int
    next: int
    crc: int


class Files(NamedTuple):
    batches: tuple[Batch, ...] = ()
    promised: int = 0
    limbo: int = 0
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else self.start

    def deleted(self, start: int) -> Files:
        kept = tuple(batch for batch in self.batches if batch.next > start)
        return self._replace(batches=kept, start=max(start, self.start))

    def written(self, effect: Effect, content: Sequence[Batch]) -> Files:
        match effect:
            case PersistPromise(promised):
                return self._replace(promised=promised)
            case PersistLimbo(limbo):
                return self._replace(limbo=limbo)
            case TruncateTo(end):
                kept = tuple(batch for batch in self.batches if batch.next <= end)
                files = self._replace(batches=kept)
                assert files.end == end, "a cut within a batch"
                return files
            case StartAt(base):
                return self._replace(batches=(), start=base)
            case Write(base, next_offset):
                assert base == self.end
                more = tuple(b for b in content if base <= b.base < next_offset)
                files = self._replace(batches=self.batches + more)
                assert files.end == next_offset
                return files
        return self

    def disk(self, mark: int = 0) -> Disk:
        runs: list[Link] = []
        for batch in self.batches:
            if not runs or runs[-1].epoch != batch.epoch:
                runs.append(Link(batch.epoch, batch.base))
        return Disk(self.promised, self.start, self.end, tuple(runs), mark, self.limbo)


Told = Position | JoinFirst | Fenced | FenceAnswer | Ack


class Node:
    """A replica and its files; `sync` makes durable what was written."""

    def __init__(self, incarnation: int = 1) -> None:
        self.files = self.durable = Files()
        self.core = Replica(incarnation, Disk())
        self.outbox: list[Told] = []
        self.halted = False

    def perform(self, effects: ReplicaEffects, content: Sequence[Batch] = ()) -> None:
        for effect in effects:
            match effect:
                case MoveStart(base):
                    self.files = self.files.deleted(base)
                    self.durable = self.durable.deleted(base)
                case Compare(base, next_offset):
                    base = max(base, self.files.start)
                    sent = {b for b in content if base <= b.base < next_offset}
                    held = {b for b in self.files.batches if base <= b.base < next_offset}
                    if sent != held:
                        self.core.differs()
                        self.halted = True
                        break
                case Position() | JoinFirst() | Fenced() | FenceAnswer() | Ack():
                    self.outbox.append(effect)
                case _:
                    self.files = self.files.written(effect, content)

    def receive(self, message: ToSend, content: Sequence[Batch] = ()) -> None:
        match message:
            case Fence():
                self.perform(self.core.fence(message))
            case Join():
                self.perform(self.core.join(message))
            case Append():
                self.perform(self.core.append(message), content)
            case LogStart():
                self.perform(self.core.log_start(message))
            case LogEnd():
                self.perform(self.core.log_end(message))

    def sync(self) -> None:
        token = self.core.begin_sync()
        self.durable = self.files
        self.perform(self.core.synced(token))

    def restart(self) -> None:
        self.files = self.durable
        self.outbox.clear()
        self.core = Replica(self.core.incarnation + 1, self.files.disk(self.core.kept_mark))

    def wipe(self, *, reserved: int, opened: int) -> None:
        self.files = self.durable = Files()
        self.outbox.clear()
        self.core = Replica(self.core.incarnation + 1, Disk())
        self.perform(self.core.lose(reserved=reserved, opened=opened))

    def take_outbox(self) -> list[Told]:
        told, self.outbox = self.outbox, []
        return told


class Leader:
    """A claimant and its batches; `nodes` are the replicas that it may reach."""

    def __init__(self, claim: Claim, nodes: dict[int, Node]) -> None:
        self.core = Epoch(claim)
        self.nodes = nodes
        self.batches: list[Batch] = []
        self.committed = 0
        self.effects: list[object] = []
        self.perform(self.core.begin())

    def perform(self, effects: EpochEffects) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, SealAndOpen):
                self.fill()
                self.perform(self.core.opened())
            if isinstance(effect, Committed):
                assert effect.mark >= self.committed
                self.committed = effect.mark

    def fill(self) -> None:
        """Have what was found: from the replica that holds it, by the chain."""
        found: dict[int, Batch] = {}
        for node in self.nodes.values():
            end = min(node.core._confirmed(self.core.chain), self.core.end)
            found |= {b.base: b for b in node.durable.batches if b.next <= end}
        self.batches = []
        start = self.core.end
        while (batch := next((b for b in found.values() if b.next == start), None)) is not None:
            self.batches.insert(0, batch)
            start = batch.base
        self.core.base = self.core.floor = start

    def delete(self, before: int) -> None:
        """Delete what is below an offset, where a batch begins."""
        assert before <= self.committed
        self.batches = [batch for batch in self.batches if batch.base >= before]
        self.core.base = self.core.floor = before

    def append(self, offsets: int, crc: int = 0) -> None:
        base = self.core.append(offsets)
        self.batches.append(Batch(self.core.epoch, base, base + offsets, crc or base + 1))

    def send(self, name: int, *, lost: bool = False) -> bool:
        """Send what a replica needs next, if it needs anything."""
        message = self.core.to_send(name)
        if message is None:
            return False
        content = self.batches
        if isinstance(message, Append) and (not content or self.core.end != content[-1].next):
            self.fill()
            content = self.batches
        self.core.sent(name, message)
        if not lost:
            self.nodes[name].receive(message, content)
        return True

    def hear(self, name: int) -> None:
        for told in self.nodes[name].take_outbox():
            match told:
                case Ack():
                    self.perform(self.core.acknowledged(name, told))
                case Position():
                    self.perform(self.core.positioned(name, told))
                case JoinFirst():
                    self.perform(self.core.not_joined(name, told))
                case Fenced():
                    self.perform(self.core.fenced(name, told))
                case FenceAnswer():
                    self.perform(self.core.fence_answered(name, told))

    def talk(self, names: Iterable[int], rounds: int = 12) -> None:
        """Everything arrives and is synced."""
        names = list(names)
        for _ in range(rounds):
            for name in names:
                if name in self.core.streams:
                    self.send(name)
                    self.nodes[name].sync()
                    self.hear(name)


def first_leader(nodes: dict[int, Node], acks: int, placement: tuple[int, ...] = ()) -> Leader:
    return Leader(Claim(1, (), None, Terms(placement or tuple(nodes), acks)), nodes)


def next_leader(former: Leader, epoch: int, terms: Terms | None = None) -> Leader:
    before = former.core.terms
    return Leader(Claim(epoch, former.core.chain, before, terms or before), former.nodes)
