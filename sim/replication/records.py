"""States of the cores as values: frozen, numbered, and made live again for one event.

The cores hold plain values in slots, so one tuple of them is a state. Each value is kept once
under a number; a state of the model is made of these numbers, and what an event does to a core
that was in the same state before is looked up.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from penstock.replication.chain import Link
from penstock.replication.epoch import Epoch
from penstock.replication.messages import FenceAnswer
from penstock.replication.replica import Disk, Replica, Sync

Entry = tuple[int, int] | None
"""The epoch that a batch was written in, and the process that wrote it; None: not here. Of one that
compaction has taken, a hole, the process is inverted."""
Log = tuple[Entry, ...]
"""Batches by their place; each has as many offsets as the model's `span` says."""

T = TypeVar("T", bound=Hashable)


def is_hole(entry: Entry) -> bool:
    """Whether compaction has taken a batch."""
    return entry is not None and entry[1] < 0


def original(entry: Entry) -> Entry:
    """What a hole was."""
    return (entry[0], ~entry[1]) if entry is not None and entry[1] < 0 else entry


def compacted(log: Log, end: int) -> Log:
    """All batches have one key: of those below a place the newest stays."""
    less = [
        (entry[0], ~entry[1]) if entry is not None and entry[1] >= 0 else entry
        for entry in log[: max(0, end - 1)]
    ]
    return (*less, *log[len(less) :])


class Numbered(Generic[T]):
    """Values by number, each once."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class Stored(NamedTuple):
    """What a copy's files say. `before`: what a planted bug brings back that had been forgotten."""

    log: Log = ()
    promised: int = 0
    limbo: int = 0
    mark: int = 0
    before: Log = ()

    def deleted(self, place: int) -> Stored:
        """Without the batches below a place."""
        gone = min(place, len(self.log))
        return self._replace(log=(None,) * gone + self.log[gone:])

    def compacted(self, end: int) -> Stored:
        """With holes below a place, but for the newest batch there."""
        return self._replace(log=compacted(self.log, end))


class Copy(NamedTuple):
    """A replica: its core, its files as written, as a crash leaves them, and a sync under way.

    `home`: it is the first leader's own; told apart only where a planted bug does so.
    """

    core: tuple[object, ...]
    files: Stored
    disk: Stored
    sync: tuple[Sync, Stored] | None = None
    home: bool = False

    @property
    def mark(self) -> int:
        return self.core[_MARK]  # type: ignore[return-value]

    @property
    def base(self) -> int:
        return self.core[_BASE]  # type: ignore[return-value]

    @property
    def durable(self) -> int:
        return self.core[_DURABLE]  # type: ignore[return-value]

    @property
    def incarnation(self) -> int:
        return self.core[_INCARNATION]  # type: ignore[return-value]

    @property
    def halted(self) -> bool:
        return self.core[_HALTED]  # type: ignore[return-value]


class Fact(NamedTuple):
    """A fence's answer, and what the replica held durably then."""

    answer: FenceAnswer
    log: Log


class View(NamedTuple):
    """A replica as one process has it: answers to its fences, and what it has acknowledged."""

    facts: tuple[Fact, ...] = ()
    incarnation: int = 0
    durable: int = 0


class Process(NamedTuple):
    """A claimant or leader but for its followers. `log`: what it recovered and appended.

    `before`: the placement of the epoch that it seals.
    """

    core: tuple[object, ...]
    log: Log = ()
    before: tuple[int, ...] = ()


REPLICA_SLOTS = Replica.__slots__
_MARK, _INCARNATION, _HALTED, _BASE, _DURABLE = map(
    REPLICA_SLOTS.index, ("mark", "incarnation", "halted", "base", "durable")
)
replica_values = attrgetter(*REPLICA_SLOTS)
EPOCH_SLOTS = tuple(name for name in Epoch.__slots__ if name not in ("followers", "streams"))
epoch_values = attrgetter(*EPOCH_SLOTS)


def freeze_replica(core: Replica, sync: Sync | None) -> tuple[tuple[object, ...], Sync | None]:
    """A core's state, with counters that only count renumbered: their order alone matters."""
    after = [core.asked_after, core.owed_after, core.joined_after]
    done = core.synced_writes
    marks = {done, core.writes, *(value for value in after if value > done)}
    if sync is not None:
        marks.add(max(sync.writes, done))
    ranks = {value: rank for rank, value in enumerate(sorted(marks))}

    def rank(value: int) -> int:
        return ranks[max(value, done)]

    if sync is not None:
        sync = sync._replace(writes=rank(sync.writes), cuts=min(sync.cuts - core.cuts, 0) and -1)
    core.asked_after = rank(core.asked_after) if core.asked else 0
    core.owed_after = rank(core.owed_after) if core.owed else 0
    core.joined_after = rank(core.joined_after) if core.authority else 0
    if not core.authority:
        core.acked = 0
        core.chain = ()
    core.writes, core.synced_writes, core.cuts = rank(core.writes), 0, 0
    return replica_values(core), sync


def thaw_replica(kind: type[Replica], values: tuple[object, ...]) -> Replica:
    core = kind.__new__(kind)
    for name, value in zip(REPLICA_SLOTS, values, strict=True):
        setattr(core, name, value)
    return core


def disk_of(stored: Stored, span: int) -> Disk:
    """What a replica finds when it starts over these files."""
    held = [place for place, entry in enumerate(stored.log) if entry is not None]
    runs: list[Link] = []
    for place in held:
        entry = stored.log[place]
        if entry is not None and (not runs or runs[-1].epoch != entry[0]):
            runs.append(Link(entry[0], place * span))
    return Disk(
        promised=stored.promised,
        base=(held[0] if held else len(stored.log)) * span,
        end=len(stored.log) * span,
        history=tuple(runs),
        mark=stored.mark,
        limbo=stored.limbo,
    )
