"""Steps of one replica: an event for its core, and its effects on files that may lose some."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.replication.messages import (
    Ack,
    Append,
    Compare,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    LogEnd,
    LogStart,
    MoveStart,
    PersistLimbo,
    PersistPromise,
    Position,
    StartAt,
    TruncateTo,
    Write,
)
from penstock.replication.replica import Disk, Effect, Effects, Replica
from sim.replication.records import (
    Copy,
    Fact,
    Log,
    Numbered,
    Stored,
    disk_of,
    freeze_replica,
    original,
    thaw_replica,
)

Output = Ack | Position | Fact | Fenced
Outputs = tuple[Output, ...]
"""What a replica has told, in order."""
Event = Callable[["Live"], None]


class Contradiction(Exception):
    """A core asked for what its files cannot do, or knows something else than they hold."""


class Live:
    """A replica for the time of one step."""

    def __init__(self, kind: type[Replica], copy: Copy, span: int, *, remembers: bool) -> None:
        self.kind = kind
        self.remembers = remembers
        self.core = thaw_replica(kind, copy.core)
        self.files, self.disk, self.sync = copy.files, copy.disk, copy.sync
        self.span = span
        self.outputs: list[Output] = []

    def perform(self, effects: Effects, content: Log = ()) -> None:
        """Do what the core says; `content` is the log of who sent the message."""
        for effect in effects:
            if isinstance(effect, Compare):
                if self._differs(effect, content):
                    self.core.differs()
                    break
            elif isinstance(effect, MoveStart):
                self.files = self.files.deleted(effect.base // self.span)
            elif isinstance(effect, FenceAnswer):
                self.outputs.append(Fact(effect, self.disk.log))
            elif isinstance(effect, (Ack, Position, Fenced)):
                self.outputs.append(effect)
            else:
                self.files = self._written(effect, content)

    def _differs(self, compare: Compare, content: Log) -> bool:
        places = slice(compare.base // self.span, compare.next // self.span)
        pairs = zip(self.files.log[places], content[places], strict=True)
        return any(original(held) != original(sent) for held, sent in pairs if held is not None)

    def _written(self, effect: Effect, content: Log) -> Stored:
        files, span = self.files, self.span
        match effect:
            case PersistPromise(promised):
                return files._replace(promised=promised)
            case PersistLimbo(limbo):
                return files._replace(limbo=limbo)
            case StartAt(base):
                before = files.log if self.remembers else ()
                return files._replace(log=(None,) * (base // span), before=before)
            case TruncateTo(end):
                return files._replace(log=files.log[: end // span])
            case Write(base, next_offset):
                if base != len(files.log) * span:
                    raise Contradiction(f"a write at {base} leaves a hole, or covers something")
                return files._replace(log=files.log + content[base // span : next_offset // span])
        return files

    def delete(self, base: int) -> None:
        """What is below an offset goes, at once and for good."""
        self.core.started(base)
        self.files = self.files.deleted(base // self.span)
        self.disk = self.disk.deleted(base // self.span)
        if self.sync is not None:
            self.sync = self.sync[0], self.sync[1].deleted(base // self.span)

    def compact(self, end: int) -> None:
        """Of what is below a place holes are left, at once and for good, but for the newest."""
        self.files, self.disk = self.files.compacted(end), self.disk.compacted(end)
        if self.sync is not None:
            self.sync = self.sync[0], self.sync[1].compacted(end)

    def begin_sync(self) -> None:
        self.sync = self.core.begin_sync(), self.files

    def complete_sync(self) -> None:
        if self.sync is not None:
            token, files = self.sync
            self.sync = None
            effects = self.core.synced(token)
            self.disk = files._replace(mark=self.core.kept_mark)
            self.perform(effects)

    def restart(self, disk: Stored, incarnation: int) -> None:
        self.files, self.disk = disk._replace(mark=0), disk
        self.sync = None
        self.core = self.kind(incarnation, disk_of(disk, self.span))

    def settle(self) -> None:
        """Sync until nothing waits for it, and leave the stream: the next message joins it anew."""
        self.begin_sync()
        self.complete_sync()
        while self.core.synced_writes < self.core.writes and not self.core.halted:
            self.begin_sync()
            self.complete_sync()
        self.core.authority = self.core.epoch = 0

    def check(self) -> None:
        """What the core knows of its files is so."""
        core, span = self.core, self.span
        found = disk_of(self.files, span)
        if None in self.files.log[found.base // span :]:
            raise Contradiction("the files have a hole")
        known = Disk(core.promised, core.base, core.end, core.history, found.mark, core.limbo)
        if not core.halted and known != found:
            raise Contradiction(f"the core knows {known}, its files have {found}")


class Copies:
    """All states of a replica that were reached, and what each event made of each.

    `folded`: a message, the join of its stream and the sync after it are one step. `remembers`:
    files keep for a planted bug what was forgotten.
    """

    def __init__(
        self,
        kind: type[Replica],
        home_kind: type[Replica],
        *,
        span: int,
        folded: bool,
        remembers: bool,
    ) -> None:
        self._remembers = remembers
        self._kinds = (kind, home_kind)
        self._span = span
        self._folded = folded
        self._steps: dict[Hashable, tuple[int, Outputs]] = {}
        self._readable: dict[int, int] = {}
        self.records: Numbered[Copy] = Numbered()

    def empty(self, *, home: bool) -> int:
        core = self._kinds[home](0, Disk())
        values, _ = freeze_replica(core, None)
        return self.records.number(Copy(values, Stored(), Stored(), home=home))

    def step(self, number: int, key: Hashable, event: Event) -> tuple[int, Outputs]:
        """The state after an event, and what was told; `key` says what the event is."""
        found = self._steps.get((number, key))
        if found is None:
            found = self._steps[number, key] = self._step(number, event)
        return found

    def _step(self, number: int, event: Event) -> tuple[int, Outputs]:
        copy = self.records.values[number]
        live = Live(self._kinds[copy.home], copy, self._span, remembers=self._remembers)
        event(live)
        if self._folded:
            live.settle()
        live.check()
        sync = live.sync
        values, token = freeze_replica(live.core, sync[0] if sync else None)
        after = Copy(
            values,
            live.files,
            live.disk,
            (token, sync[1]) if token is not None and sync is not None else None,
            copy.home,
        )
        return self.records.number(after), tuple(live.outputs)

    def readable(self, number: int) -> int:
        """How many batches consumers may read here."""
        found = self._readable.get(number)
        if found is None:
            copy = self.records.values[number]
            core = thaw_replica(self._kinds[copy.home], copy.core)
            found = self._readable[number] = core.readable // self._span
        return found


# -- events


def fence(message: Fence) -> Event:
    return lambda live: live.perform(live.core.fence(message))


def join(message: Join) -> Event:
    return lambda live: live.perform(live.core.join(message))


def append(first: Join | None, message: Append, content: Log) -> Event:
    """A range of a stream; `first` where the join arrives just before it."""

    def event(live: Live) -> None:
        if first is not None:
            live.perform(live.core.join(first))
        live.perform(live.core.append(message), content)

    return event


def log_start(first: Join | None, message: LogStart) -> Event:
    def event(live: Live) -> None:
        if first is not None:
            live.perform(live.core.join(first))
        live.perform(live.core.log_start(message))

    return event


def log_end(first: Join, message: LogEnd) -> Event:
    def event(live: Live) -> None:
        live.perform(live.core.join(first))
        live.perform(live.core.log_end(message))

    return event


def begin_sync(live: Live) -> None:
    live.begin_sync()


def complete_sync(live: Live) -> None:
    live.complete_sync()


def sync(live: Live) -> None:
    live.begin_sync()
    live.complete_sync()


def delete(base: int) -> Event:
    return lambda live: live.delete(base)


def compact(end: int) -> Event:
    return lambda live: live.compact(end)


def crash(live: Live) -> None:
    live.restart(live.disk, live.core.incarnation)


def wipe(reserved: int, opened: int) -> Event:
    """Nothing is left, and nobody is answered before the promise and limbo are durable."""

    def event(live: Live) -> None:
        live.restart(Stored(), live.core.incarnation + 1)
        live.perform(live.core.lose(reserved=reserved, opened=opened))
        sync(live)

    return event
