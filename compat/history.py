"""What clients of one topic were told, and what cannot be true of it.

Producers send records whose numbers rise by one and go to the partitions in turn; every client says
here what it was told: a producer what was acknowledged and where, a reader what it received, in its
order, whoever asks for a partition's end what that was. At last the whole log is read. Nothing is
deleted and there are no transactions, so a partition's offsets have no holes. What is found then,
or as soon as it is said:

| kind            | what was seen                                                             |
|-----------------|---------------------------------------------------------------------------|
| lost write      | a record that was acknowledged, or sent and not refused, is not stored    |
| other record    | two clients were told of two records at one offset, or one client twice   |
| uncommitted read| a reader received what is not stored: it lay beyond the commit mark       |
| doubled         | a record is stored at two offsets                                         |
| order           | a producer's records do not follow each other as they were sent           |
| went back       | a reader received an offset again, without having been assigned anew      |
| skipped         | a reader was not given an offset                                          |
| end went back   | an end was told below what its leader had told in the same epoch, or below |
|                 | what had been acknowledged, read or told before, by no deposed leader     |

A leader that was paused or cut off, and does not know yet that another one leads, may tell an older
end: an answer below the others is forgiven if one of a later epoch comes within `STALE_SECONDS`.

A record takes nine bytes for each offset, so that hours of them fit into memory. Safe to use from
threads. Source: the checker of Jepsen's Kafka workload (`jepsen.tests.kafka`).
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NUMBERS_PER_PRODUCER: Final = 1 << 40
VIOLATIONS_KEPT: Final = 50
STALE_SECONDS: Final = 60.0
_NOTHING: Final = -1


class Violation(NamedTuple):
    """What cannot be; `offset` is −1 where it has none."""

    kind: str
    partition: int
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: partition {self.partition}, offset {self.offset}: {self.text}"


class _LowEnd(NamedTuple):
    partition: int
    end: int
    floor: int
    epoch: int
    at: float


def shown(record: int) -> str:
    """A record as people read it: its producer and number."""
    return f"record {record % NUMBERS_PER_PRODUCER} of producer {record // NUMBERS_PER_PRODUCER}"


class History:
    """See the module's text."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.violations: list[Violation] = []
        """The first of them."""
        self.acknowledged = [0] * partitions
        """How many records were, by partition."""
        self.read_counts: Counter[str] = Counter()
        """How many offsets each reader has received."""
        self._held = [array("q") for _ in range(partitions)]
        self._sayers = [bytearray() for _ in range(partitions)]
        self._names = ["nobody"]
        self._floors = [0] * partitions
        self._next: dict[tuple[str, int], int] = {}
        self._furthest: Counter[tuple[str, int]] = Counter()
        self._ends: dict[tuple[int, int], int] = {}
        self._newest = [0] * partitions
        self._low: list[_LowEnd] = []
        self._lock = threading.Lock()

    # -- what clients say

    def acks(self, partition: int, offset: int, record: int) -> None:
        """A producer was told where a record is."""
        with self._lock:
            self._says("ack", partition, offset, record)
            self.acknowledged[partition] += 1
            self._floors[partition] = max(self._floors[partition], offset + 1)

    def assigned(self, reader: str, partition: int) -> None:
        """A reader begins anew where its group has committed, or at the beginning."""
        with self._lock:
            self._next.pop((reader, partition), None)

    def reads(self, reader: str, partition: int, offset: int, record: int) -> None:
        """A reader has received a record."""
        place = reader, partition
        with self._lock:
            furthest = self._furthest[place]
            expected = self._next.get(place, min(offset, furthest))
            if offset < expected:
                self._found("went back", partition, offset, f"{reader} was to read {expected}")
            elif offset > expected:
                self._found("skipped", partition, expected, f"{reader} was given {offset}")
            self._says(reader, partition, offset, record)
            self._next[place] = offset + 1
            if offset >= furthest:
                self._furthest[place] = offset + 1
                self.read_counts[reader] += 1
            self._floors[partition] = max(self._floors[partition], offset + 1)

    def floor(self, partition: int) -> int:
        """Below which no end may be told to whoever asks from now on."""
        return self._floors[partition]

    def ends(self, partition: int, floor: int, end: int, *, epoch: int, now: float) -> None:
        """A leader told an end to a client that asked when `floor` was the floor."""
        place = partition, epoch
        with self._lock:
            before = self._ends.get(place, 0)
            if end < before:
                self._found("end went back", partition, end, f"{before} was told in epoch {epoch}")
            self._ends[place] = max(before, end)
            if epoch > self._newest[partition]:
                self._newest[partition] = epoch
                self._forgive(partition, now)
            if end < floor and epoch == self._newest[partition]:
                self._low.append(_LowEnd(partition, end, floor, epoch, now))
            self._floors[partition] = max(self._floors[partition], end)

    def _forgive(self, partition: int, now: float) -> None:
        """Another one leads: what came of late was told by one that did not know it yet."""
        self._low = [
            seen
            for seen in self._low
            if seen.partition != partition or now - seen.at > STALE_SECONDS
        ]

    # -- the end

    def check(
        self,
        log: Mapping[int, Iterable[tuple[int, int]]],
        sent: Mapping[int, int],
        *,
        refused: frozenset[int] = frozenset(),
    ) -> dict[int, int]:
        """Compare with what is stored: offset and record of each, in order; where partitions end.

        `sent` says how many records each producer sent. Of those that have refused one, which may
        or may not be stored, no record is missed that was not acknowledged.
        """
        stored: dict[int, bytearray] = {
            partition: bytearray(count) for partition, count in sent.items()
        }
        for low in self._low:
            text = f"{low.floor} was known to be committed, told in epoch {low.epoch}"
            self._found("end went back", low.partition, low.end, text)
        every = range(self.partitions)
        ends = {part: self._compare(part, log.get(part, ()), stored) for part in every}
        for producer, found in stored.items():
            if producer in refused:
                continue
            missing = [number for number, there in enumerate(found) if not there]
            for number in missing[:VIOLATIONS_KEPT]:
                record = producer * NUMBERS_PER_PRODUCER + number
                self._found("lost write", number % self.partitions, -1, f"no {shown(record)}")
        return ends

    def _compare(
        self, partition: int, log: Iterable[tuple[int, int]], stored: dict[int, bytearray]
    ) -> int:
        end = 0
        last: dict[int, int] = {}
        for offset, record in log:
            if offset != end:
                self._found("skipped", partition, end, f"the log goes on at {offset}")
            end = offset + 1
            self._says("log", partition, offset, record)
            producer, number = divmod(record, NUMBERS_PER_PRODUCER)
            found = stored.get(producer, bytearray())
            if number >= len(found) or number % self.partitions != partition:
                self._found("other record", partition, offset, f"nobody sent {shown(record)} here")
                continue
            if found[number]:
                self._found("doubled", partition, offset, f"{shown(record)} is stored twice")
            elif number <= last.get(producer, _NOTHING):
                before = last[producer]
                self._found("order", partition, offset, f"{shown(record)} follows {before}")
            found[number] = 1
            last[producer] = max(number, last.get(producer, _NOTHING))
        held, sayers = self._held[partition], self._sayers[partition]
        for offset in range(end, len(held)):
            sayer = self._names[sayers[offset]]
            kind = "lost write" if sayer == "ack" else "uncommitted read"
            if held[offset] != _NOTHING:
                self._found(kind, partition, offset, f"{sayer} told of {shown(held[offset])}")
        return end

    def _says(self, sayer: str, partition: int, offset: int, record: int) -> None:
        held, sayers = self._held[partition], self._sayers[partition]
        if sayer not in self._names:
            self._names.append(sayer)
        if offset >= len(held):
            more = offset + 1 - len(held)
            held.extend([_NOTHING] * more)
            sayers.extend(bytes(more))
        if held[offset] == _NOTHING:
            held[offset] = record
            sayers[offset] = self._names.index(sayer)
        elif held[offset] != record:
            first = self._names[sayers[offset]]
            told = f"{first} told of {shown(held[offset])}, {sayer} of {shown(record)}"
            self._found("other record", partition, offset, told)
        elif sayer == "ack":
            sayers[offset] = self._names.index(sayer)

    def _found(self, kind: str, partition: int, offset: int, text: str) -> None:
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(Violation(kind, partition, offset, text))
