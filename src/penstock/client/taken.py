"""Records that a member of a share group has, as columns, and what it says of them, by masks.

A mask becomes runs of offsets by partition (`runs_of`), so that saying the same of neighbours takes
few bytes. Offsets that were acquired and have no record (compacted away) are told as gaps with the
first acknowledgement of their partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.errors import BrokerRefused, InvalidArgument
from penstock.client.share_member import Acquired, Place, Said
from penstock.records import columnar

Flags = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        *columnar.RECORD_SCHEMA,
        ("deliveries", pa.int16()),
    ]
)
"""The columns of what is taken."""


class Kind(IntEnum):
    """What is said of a record; a gap is an offset without one."""

    GAP = 0
    ACK = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class LocksLost(BrokerRefused):
    """What was said of some records was not taken: their locks have ended, or others have them.

    `rows` marks them; of the others it was taken. After a broken connection some of `rows` may have
    been taken too: the group delivers those again that were not.
    """

    code: ClassVar[str] = "invalid_record_state"

    def __init__(self, message: str, rows: Flags) -> None:
        super().__init__(message)
        self.rows = rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What was acquired of one partition: its records, and offsets that have none."""

    place: Place
    batch: Any
    gaps: tuple[Said, ...] = ()


def piece_of(place: Place, data: Any, acquired: Sequence[Acquired]) -> Piece:
    """The acquired records among batches, which may hold others.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: the batches cannot be opened.
    """
    first, end = acquired[0].first, acquired[-1].last + 1
    batch = columnar.decode_batches(data, start_offset=first, end_offset=end)
    offsets = batch.column("offset").to_numpy()
    firsts = np.array([one.first for one in acquired], np.int64)
    lasts = np.array([one.last for one in acquired], np.int64)
    counts = np.array([one.deliveries for one in acquired], np.int16)
    run_of = np.searchsorted(firsts, offsets, side="right") - 1
    keep = (run_of >= 0) & (offsets <= lasts[run_of])
    batch, offsets = batch.filter(pa.array(keep)), offsets[keep]
    size = len(offsets)
    columns = [
        pa.repeat(pa.scalar(place[0]), size),
        pa.repeat(pa.scalar(place[1], pa.int32()), size),
        *batch.columns,
        pa.array(counts[run_of[keep]]),
    ]
    whole = int((lasts - firsts + 1).sum()) == size
    return Piece(
        place=place,
        batch=pa.RecordBatch.from_arrays(columns, schema=SCHEMA),
        gaps=() if whole else tuple(_gaps(offsets, acquired)),
    )


def _gaps(offsets: Offsets, acquired: Sequence[Acquired]) -> Iterator[Said]:
    """The offsets of ranges that are none of these."""
    for one in acquired:
        low, high = np.searchsorted(offsets, (one.first, one.last + 1))
        there = np.concatenate(([one.first - 1], offsets[low:high], [one.last + 1]))
        for at in np.flatnonzero(np.diff(there) > 1).tolist():
            yield Said(int(there[at]) + 1, int(there[at + 1]) - 1, Kind.GAP)


def runs_of(places: Any, offsets: Offsets, rows: Flags, kind: Kind) -> dict[int, list[Said]]:
    """Marked rows as runs of offsets, by their place's number; rows are by place and offset."""
    at = np.flatnonzero(rows)
    if not at.size:
        return {}
    cut = (np.diff(places[at]) != 0) | (np.diff(offsets[at]) != 1)
    begins = at[np.concatenate(([0], np.flatnonzero(cut) + 1))]
    ends = at[np.concatenate((np.flatnonzero(cut), [at.size - 1]))]
    found: dict[int, list[Said]] = {}
    for place, first, last in zip(
        places[begins].tolist(), offsets[begins].tolist(), offsets[ends].tolist(), strict=True
    ):
        found.setdefault(place, []).append(Said(first, last, kind))
    return found


Say = Callable[[Mapping[Place, Sequence[Said]]], Mapping[Place, str]]
"""Tells brokers what was done with records; returns why not, for partitions that refused."""

Marks = Any
"""Rows: flags, one each (NumPy, Arrow, a list), or numbers of rows; None for all that are open."""


class Taken:
    """Records that this member has, until it says what it did with them or their locks end.

    `table` has the columns `topic`, `partition`, `offset`, `timestamp` (ms), `key`, `value`,
    `headers` and `deliveries` (1 for the first time), by partition and offset. `lock_ms` is how
    long the locks last from the acquisition on.
    """

    def __init__(self, pieces: Sequence[Piece], say: Say, *, lock_ms: int) -> None:
        self.table = pa.Table.from_batches([piece.batch for piece in pieces], schema=SCHEMA)
        self.lock_ms = lock_ms
        self._say = say
        self._pieces = pieces
        self._gaps = {piece.place: piece.gaps for piece in pieces if piece.gaps}
        sizes = [piece.batch.num_rows for piece in pieces]
        self._place_of = np.repeat(np.arange(len(pieces)), sizes)
        self._offsets: Offsets = self.table.column("offset").to_numpy()
        self.open: Flags = np.ones(len(self._offsets), np.bool_)
        """The rows of which nothing final was said yet."""

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Record]:
        for row, values in enumerate(self.table.to_pylist()):
            yield Record(self, row, **values)

    def ack(self, rows: Marks = None) -> None:
        """They are done. Returns when that is stored.

        Raises:
            InvalidArgument: rows that there are not, or of which this was said before.
            LocksLost: of some it was not taken.
            PenstockError: no broker takes it; whether it is stored is not known.
        """
        self._tell(rows, Kind.ACK)

    def release(self, rows: Marks = None) -> None:
        """Have them delivered again, to anybody; the delivery counts. Raises as `ack`."""
        self._tell(rows, Kind.RELEASE)

    def reject(self, rows: Marks = None) -> None:
        """Give them up: they become dead letters, if the group has a topic. Raises as `ack`."""
        self._tell(rows, Kind.REJECT)

    def renew(self, rows: Marks = None) -> None:
        """Keep them for another lock; raises as `ack`."""
        self._tell(rows, Kind.RENEW)

    def _tell(self, rows: Marks, kind: Kind) -> None:
        marked = self._marked(rows)
        found = runs_of(self._place_of, self._offsets, marked, kind)
        said = {self._pieces[number].place: runs for number, runs in found.items()}
        if kind != Kind.RENEW:
            for place in said:
                said[place] = sorted([*said[place], *self._gaps.pop(place, ())])
            self.open &= ~marked
        refused = self._say(said) if said else {}
        if refused:
            numbers = [at for at, one in enumerate(self._pieces) if one.place in refused]
            lost = marked & np.isin(self._place_of, numbers)
            self.open &= ~lost
            reasons = "; ".join(f"{topic}-{at}: {why}" for (topic, at), why in refused.items())
            raise LocksLost(f"{int(lost.sum())} records are not this member's: {reasons}", lost)

    def _marked(self, rows: Marks) -> Flags:
        if rows is None:
            return self.open.copy()
        given = np.asarray(rows)
        marked = np.zeros(len(self), np.bool_)
        if given.dtype == np.bool_:
            if given.shape != marked.shape:
                raise InvalidArgument(f"rows: {len(given)} flags for {len(self)} records")
            marked |= given
        elif given.size:
            if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= len(self):
                raise InvalidArgument(f"rows: must be flags, or numbers from 0 to {len(self) - 1}")
            marked[given] = True
        closed = int((marked & ~self.open).sum())
        if closed:
            raise InvalidArgument(f"rows: {closed} of them were acknowledged before, or are lost")
        return marked


@dataclass(frozen=True, slots=True)
class Record:
    """One of the records taken; what it says is told at once, so masks are cheaper for many."""

    _taken: Taken
    _row: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]]
    deliveries: int

    def ack(self) -> None:
        """As `Taken.ack`."""
        self._taken.ack([self._row])

    def release(self) -> None:
        """As `Taken.release`."""
        self._taken.release([self._row])

    def reject(self) -> None:
        """As `Taken.reject`."""
        self._taken.reject([self._row])

    def renew(self) -> None:
        """As `Taken.renew`."""
        self._taken.renew([self._row])
