"""What a process may have sent to a replica, and what each message would do there now.

All of it depends on the two of them alone, so it is worked out once for every pair of states.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import product
from typing import NamedTuple

from penstock.replication.chain import Chain, parts_at
from penstock.replication.epoch import Phase
from penstock.replication.messages import Ack, Append, Fenced, Join, LogEnd, LogStart, Position
from sim.replication import copies
from sim.replication.copies import Copies, Event, Output
from sim.replication.processes import Processes, Said
from sim.replication.records import Copy, disk_of

Label = tuple[object, ...]
"""A text with places for what follows it; first a replica's place, or -1 where it names none."""


class Arrival(NamedTuple):
    """A message's effect: the copy after it, and what is told that may matter."""

    label: Label
    after: int
    outputs: tuple[Output, ...]


class Sending(NamedTuple):
    """A message as a step of a copy; `key` names it."""

    label: Label
    key: Hashable
    event: Event


class Traffic:
    """`folded`: a join arrives together with what follows it. `refusals`: leaders hear them."""

    def __init__(
        self, copies: Copies, processes: Processes, *, span: int, folded: bool, refusals: bool
    ) -> None:
        self._copies = copies
        self._processes = processes
        self._span = span
        self._folded = folded
        self._refusals = refusals
        self._known: dict[tuple[int, int], tuple[Arrival, ...]] = {}

    def arrivals(self, copy: int, process: int) -> tuple[Arrival, ...]:
        """What changes the copy or tells the process something, whichever message does."""
        found = self._known.get((copy, process))
        if found is None:
            found = self._known[copy, process] = tuple(self._arrivals(copy, process))
        return found

    def _arrivals(self, copy: int, process: int) -> Iterator[Arrival]:
        done: set[tuple[int, tuple[Output, ...]]] = {(copy, ())}
        for label, key, event in self._sendings(
            self._copies.records.values[copy], self._processes.said(process)
        ):
            arrival = self.arrives(copy, label, key, event)
            if (arrival.after, arrival.outputs) not in done:
                done.add((arrival.after, arrival.outputs))
                yield arrival

    def arrives(self, copy: int, label: Label, key: Hashable, event: Event) -> Arrival:
        after, outputs = self._copies.step(copy, key, event)
        return Arrival(label, after, tuple(filter(self._matters, outputs)))

    def _matters(self, output: Output) -> bool:
        """Whether a process may learn something; a first life's position is of no interest."""
        if isinstance(output, Position):
            return output.incarnation > 0
        if isinstance(output, Ack):
            return output.incarnation + output.durable > 0
        return self._refusals or not isinstance(output, Fenced)

    def log_end(self, copy: int, said: Said, incarnation: int) -> Arrival | None:
        """The answer to a replica in limbo whose life the leader knows."""
        if said.log_end is None or said.join is None:
            return None
        told: LogEnd = said.log_end._replace(incarnation=incarnation)
        label = ("{}, in limbo, hears from its leader that its log ends at {}", told.end)
        return self.arrives(copy, label, (said.join, told), copies.log_end(said.join, told))

    def _sendings(self, copy: Copy, said: Said) -> Iterator[Sending]:
        if said.fence is not None:
            label = ("{} is asked to promise epoch {}", said.epoch)
            yield Sending(label, said.fence, copies.fence(said.fence))
        if said.join is None or said.append is None:
            return
        yield from self._stream(copy, said.join, said.append, said)
        yield from self._starts(said.join, said.log_start)
        if said.phase is not Phase.LEADING:
            return
        yield from self._marks(copy, said.join, said.append)
        former = said.chain[:-1]
        if former:  # what was sent before the epoch was open, arriving after
            whole = Append(said.epoch, former[-1].epoch, 0, said.start, 0)
            yield from self._stream(copy, Join(said.epoch, former), whole, said)

    def _starts(self, join: Join, told: LogStart | None) -> Iterator[Sending]:
        if told is not None:
            first = join if self._folded else None
            label = ("{} is told by epoch {} that the log begins at {}", told.authority, told.base)
            yield Sending(label, (first, told), copies.log_start(first, told))

    def _stream(self, copy: Copy, join: Join, whole: Append, said: Said) -> Iterator[Sending]:
        """A join; and a range up to the next batch that the log lacks, before or after its cut."""
        label: Label = ("{} joins the stream of epoch {}, by {}", join.epoch, join.authority)
        yield Sending(label, join, copies.join(join))
        first = join if self._folded else None
        verb = "appended to" if join.epoch == join.authority else "written back to"
        log, base = said.log[: whole.next // self._span], said.base // self._span
        for begin, end in product(
            {0, base, join.chain[-1].start // self._span},
            {len(copy.files.log), self._joined_end(copy, join.chain)},
        ):
            stop = min(max(begin, end) + 1, len(log))
            if stop <= begin or (end and begin and begin != base) or None in log[begin:stop]:
                continue
            message = whole._replace(base=begin * self._span, next=stop * self._span, mark=0)
            label = (
                "{} is " + verb + " up to offset {}, by epoch {}",
                message.next,
                join.authority,
            )
            event = copies.append(first, message, log)
            yield Sending(label, (first, message, log), event)

    def _joined_end(self, copy: Copy, chain: Chain) -> int:
        """Where a log ends, in batches, once it was cut."""
        disk = disk_of(copy.files, self._span)
        return max(disk.base, parts_at(disk.history, disk.end, chain)) // self._span

    def _marks(self, copy: Copy, join: Join, whole: Append) -> Iterator[Sending]:
        first = join if self._folded else None
        for mark in range(self._span, whole.mark + 1, self._span):
            if mark > copy.mark:
                message = whole._replace(base=0, next=0, mark=mark)
                label = ("{} is told commit mark {} by epoch {}", mark, whole.epoch)
                yield Sending(label, (first, message), copies.append(first, message, ()))
