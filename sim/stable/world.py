"""One partition's log with transactions, and a reader of committed records.

The product's `ProducerStates`, `OpenTransactions` and `ReplicaState` say how far it may read. What
happens is drawn from a seed: data of several producers' transactions and of none, markers, a commit
mark that moves on in steps, appends that are taken back because their sync failed, restarts that
find some of what was not committed. After each step the log itself, looked at in the plainest way,
says what is right: nothing below the last stable offset is undecided or decided by a marker that
may be lost, and it is no smaller than that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.partitions.local import ReplicaState
from penstock.records import BatchHeader
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, Marker
from penstock.storage.files.producers import OpenTransactions, ProducerStates, Undo

PRODUCERS: Final = 3
STEPS: Final = 120
_EVENTS: Final = ["data"] * 6 + ["marker"] * 4 + ["mark moves"] * 5 + ["plain", "fails", "restart"]


class Violation(Exception):
    """A reader would see what it must not, or not what it must."""


class Entry(NamedTuple):
    """A record; `producer_id` is −1 outside of transactions, `commit` None but of a marker."""

    producer_id: int
    commit: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The classes that are tried: those of the product, or with a bug."""

    transactions: type[OpenTransactions] = OpenTransactions
    replica: type[ReplicaState] = ReplicaState


class World:
    """See the module's text. An offset is a place in `log`."""

    def __init__(self, kinds: Kinds, seed: int) -> None:
        self._kinds = kinds
        self._dice = random.Random(seed)
        self.log: list[Entry] = []
        self.mark = 0
        self._undos: list[Undo | None] = []
        self._seen: dict[int, bool] = {}
        self._restart()

    def run(self) -> None:
        """Raises Violation."""
        for _ in range(STEPS):
            self._step(self._dice.choice(_EVENTS))
            self._check()

    def _step(self, event: str) -> None:
        producer_id = self._dice.randrange(PRODUCERS)
        match event:
            case "data":
                self._append(Entry(producer_id))
            case "plain":
                self._append(Entry(-1))
            case "marker":
                self._append(Entry(producer_id, self._dice.random() < 0.5))
            case "mark moves":
                self.mark = self._dice.randint(self.mark, len(self.log))
                self._undos = self._undos[-(len(self.log) - self.mark) :]
                self.replica.committed_to(self.mark)
            case "fails":
                while len(self.log) > self.mark and self._dice.random() < 0.7:
                    self._take_back()
            case _:
                del self.log[self._dice.randint(self.mark, len(self.log)) :]
                self._restart()

    def _append(self, entry: Entry) -> None:
        self._undos.append(self._remember(entry, len(self.log)))
        self.log.append(entry)

    def _remember(self, entry: Entry, offset: int) -> Undo | None:
        if entry.producer_id < 0:
            return None
        if entry.commit is not None:
            marker = Marker(entry.producer_id, 0, 0, entry.commit)
            return self.states.decide(marker, offset, 0)[0]
        last = self.states.last_sequence(entry.producer_id)
        header = _header(entry.producer_id, 0 if last is None else last + 1)
        self.states.check(header, UNGUARDED)
        return self.states.append(header, offset, 0)

    def _take_back(self) -> None:
        self.log.pop()
        undo = self._undos.pop()
        if undo is not None:
            self.states.undo(undo)

    def _restart(self) -> None:
        """What is found is remembered from a snapshot of somewhere, and what lies behind it."""
        self.states = ProducerStates()
        point = self._dice.randint(0, len(self.log))
        for offset, entry in enumerate(self.log[:point]):
            self._remember(entry, offset)
        entries = self.states.snapshot()[1]
        self.states = ProducerStates()
        self.states.load(entries)
        self.states.transactions = self._kinds.transactions(open_in(self.log[:point]).values())
        for offset, entry in enumerate(self.log[point:], point):
            self._remember(entry, offset)
        self._undos = []
        self.replica = self._kinds.replica(self.mark, self.states.transactions)
        self.replica.holds(self.states.transactions, 0)
        self.mark = len(self.log)
        self.replica.committed_to(self.mark)

    def _check(self) -> None:
        stable, expected = self.replica.last_stable_offset, stable_in(self.log, self.mark)
        if stable > expected:
            raise Violation(f"{stable} is stable, and what is at {expected} is not decided")
        if stable < expected:
            raise Violation(f"{stable} is stable, and all below {expected} is decided")
        found = outcomes(self.log, self.mark)
        for offset in range(stable):
            if found.get(offset, True) is not self._seen.setdefault(
                offset, found.get(offset, True)
            ):
                raise Violation(f"what became of {offset} is another than was seen")


def open_in(log: list[Entry]) -> dict[int, int]:
    """First offsets of the transactions that are open at the end of a log, by producer."""
    first: dict[int, int] = {}
    for offset, entry in enumerate(log):
        if entry.commit is not None:
            first.pop(entry.producer_id, None)
        elif entry.producer_id >= 0:
            first.setdefault(entry.producer_id, offset)
    return first


def stable_in(log: list[Entry], mark: int) -> int:
    """Where the first transaction begins whose marker is not below a mark, or the mark."""
    return min([*open_in(log[:mark]).values(), mark])


def outcomes(log: list[Entry], mark: int) -> dict[int, bool]:
    """By offset of data, whether a marker below the mark commits them."""
    found: dict[int, bool] = {}
    waiting: dict[int, list[int]] = {}
    for offset, entry in enumerate(log[:mark]):
        if entry.commit is None:
            waiting.setdefault(entry.producer_id, []).append(offset)
        else:
            found.update(dict.fromkeys(waiting.pop(entry.producer_id, []), entry.commit))
    return found


def _header(producer_id: int, sequence: int) -> BatchHeader:
    known = dict.fromkeys(BatchHeader._fields, 0) | {
        "producer_id": producer_id,
        "base_sequence": sequence,
        "record_count": 1,
        "attributes": TRANSACTIONAL_FLAG,
    }
    return BatchHeader(**known)
