"""Decoder of PostgreSQL's plugin `pgoutput`, protocol version 2 without streaming, by columns.

A chunk is a list of messages in the order of the log. `decode` finds the transactions, relations,
rows and truncations in it. Rows of one relation in one version become one `Rows` with columns of
text; each row has its index in the chunk, so that the order of all rows is known.

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import CorruptError
from penstock.kernels.changes import NULL, UNCHANGED, copy_texts, read_changes

EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000-01-01, in microseconds since 1970."""
_ROWS: Final = np.frombuffer(b"IUD", np.uint8)
_RELATION_HEAD: Final = struct.Struct(">cI")
_RELATION_COLUMNS: Final = struct.Struct(">cH")
_COLUMN_TAIL: Final = struct.Struct(">Ii")
_BEGIN: Final = np.dtype([("letter", "u1"), ("lsn", ">u8"), ("time", ">i8"), ("xid", ">u4")])
_COMMIT: Final = np.dtype(
    [("letter", "u1"), ("flags", "u1"), ("lsn", ">u8"), ("end", ">u8"), ("time", ">i8")]
)
_SIZE_MIN: Final = np.ones(256, np.int64)
"""Least size of a message by its letter."""
_SIZE_MIN[_ROWS] = 5
_SIZE_MIN[np.frombuffer(b"BCT", np.uint8)] = (_BEGIN.itemsize, _COMMIT.itemsize, 6)


class MalformedChange(CorruptError):
    """Message of the replication stream that does not have the documented form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a relation; `identity` is true for columns of the replica identity."""

    name: str
    type_id: int
    modifier: int
    identity: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Table in one version. `identity` is d (primary key), n (nothing), f (full) or i (index)."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Transactions of rows: parallel arrays.

    Attributes:
        index: index of the message in the chunk.
        lsn: position of the message in the log.
        commit_lsn: position of the transaction's commit; `before` is the end of the transaction
            before it, 0 if it is not known.
        commit_us: time of the commit in microseconds since 1970.
        xid: transaction id, 32 bits.
        number: number of the row in its transaction, from 0.
    """

    index: Any
    lsn: Any
    commit_lsn: Any
    before: Any
    commit_us: Any
    xid: Any
    number: Any

    def take(self, rows: Any) -> Moments:
        """Return the entries at the given indexes, or where a mask is true."""
        return Moments(
            index=self.index[rows],
            lsn=self.lsn[rows],
            commit_lsn=self.commit_lsn[rows],
            before=self.before[rows],
            commit_us=self.commit_us[rows],
            xid=self.xid[rows],
            number=self.number[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Changes of one relation: columns of text, null where the tuple has none.

    Attributes:
        letters: I, U or D of each row.
        olds: K or O if the row has an old key or an old row; else 0.
        old: columns of the old tuple; `new` those of the new one.
        unchanged: for each column, a mask of rows whose value was not sent; None if there are none.
    """

    relation: Relation
    moments: Moments
    letters: Any
    olds: Any
    old: tuple[Any, ...]
    new: tuple[Any, ...]
    unchanged: tuple[Any | None, ...]

    def where(self, mask: Any) -> Rows:
        """Return the rows where a mask is true."""
        chosen = pa.array(mask)
        return Rows(
            relation=self.relation,
            moments=self.moments.take(mask),
            letters=self.letters[mask],
            olds=self.olds[mask],
            old=tuple(column.filter(chosen) for column in self.old),
            new=tuple(column.filter(chosen) for column in self.new),
            unchanged=tuple(None if column is None else column[mask] for column in self.unchanged),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Truncation of a relation; `moments` has one entry."""

    relation: Relation
    moments: Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Decoded messages.

    Attributes:
        end_lsn: end of the last commit; 0 if the chunk has none. `commit_lsn` is its position.
        open_commit_lsn: commit position of the transaction that continues after the chunk; 0 if
            there is none. `open_rows` is the number of its rows up to here.
    """

    changes: tuple[Rows | Truncation, ...]
    end_lsn: int
    commit_lsn: int
    open_commit_lsn: int
    open_rows: int


class Decoder:
    """Decoder of a stream; it keeps the relations, and the transaction that is open."""

    def __init__(self) -> None:
        self.relations: dict[int, Relation] = {}
        self._begin: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Commit position, time and xid of the open transaction, and its rows up to here."""
        self._before = 0
        """End of the last transaction before the open one; 0 if it is not known."""

    @property
    def open(self) -> bool:
        """Whether a transaction continues in the next chunk."""
        return self._begin[0] != 0

    def decode(self, messages: Sequence[bytes], lsns: Sequence[int]) -> Chunk:
        """Decode messages and their positions in the log.

        Raises:
            MalformedChange: a message does not have the documented form.
        """
        data = np.frombuffer(b"".join(messages), np.uint8)
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        letters = data[starts] if sizes.all() else np.zeros(len(sizes), np.uint8)
        if (sizes < _SIZE_MIN[letters]).any():
            raise MalformedChange("a message of the replication stream ends early")
        moments, truncates = self._moments(data, starts, letters, lsns)
        commits = _records(data, starts[letters == ord("C")], _COMMIT)
        changes = list(self._changes(data, starts, ends, letters, messages, moments, truncates))
        return Chunk(
            changes=tuple(changes),
            end_lsn=int(commits["end"][-1]) if len(commits) else 0,
            commit_lsn=int(commits["lsn"][-1]) if len(commits) else 0,
            open_commit_lsn=self._begin[0],
            open_rows=self._begin[3],
        )

    def _moments(
        self, data: Any, starts: Any, letters: Any, lsns: Sequence[int]
    ) -> tuple[Moments, Any]:
        """Return the moments of rows and truncations, and a mask of truncations."""
        begins = np.flatnonzero(letters == ord("B"))
        commits = np.flatnonzero(letters == ord("C"))
        begun = _records(data, starts[begins], _BEGIN)
        lsn, time, xid, rows = self._begin
        commit_lsn = np.concatenate(([lsn], begun["lsn"].astype(np.int64)))
        times = np.concatenate(([time], begun["time"].astype(np.int64) + EPOCH_US))
        xids = np.concatenate(([xid], begun["xid"].astype(np.int64)))
        ended = _records(data, starts[commits], _COMMIT)["end"].astype(np.int64)
        ends = np.concatenate(([self._before], ended))
        before = np.concatenate(([self._before], ends[np.searchsorted(commits, begins)]))
        wanted = np.isin(letters, _ROWS) | (letters == ord("T"))
        index = np.flatnonzero(wanted)
        owner = np.searchsorted(begins, index)
        number = np.arange(len(index))
        firsts = np.searchsorted(owner, owner)
        number = number - firsts + np.where(owner == 0, rows, 0)
        moments = Moments(
            index=index,
            lsn=np.asarray(lsns, np.int64)[index],
            commit_lsn=commit_lsn[owner],
            before=before[owner],
            commit_us=times[owner],
            xid=xids[owner],
            number=number,
        )
        self._remember(begins, commits, commit_lsn, times, xids, owner, rows)
        self._before = int(before[-1] if self.open else ends[-1])
        return moments, letters[index] == ord("T")

    def _remember(
        self, begins: Any, commits: Any, lsns: Any, times: Any, xids: Any, owner: Any, rows: int
    ) -> None:
        """Keep the transaction that is open at the end of the chunk."""
        last_commit = int(commits[-1]) if len(commits) else -1
        last_begin = int(begins[-1]) if len(begins) else -1
        continues = last_begin > last_commit or (last_commit < 0 and bool(lsns[0]))
        if not continues:
            self._begin = (0, 0, 0, 0)
            return
        last = len(lsns) - 1
        count = int(np.count_nonzero(owner == last)) + (rows if last == 0 else 0)
        self._begin = (int(lsns[last]), int(times[last]), int(xids[last]), count)

    def _changes(
        self,
        data: Any,
        starts: Any,
        ends: Any,
        letters: Any,
        messages: Sequence[bytes],
        moments: Moments,
        truncates: Any,
    ) -> Iterator[Rows | Truncation]:
        """Yield the rows of each relation in each version, and truncations."""
        described = np.flatnonzero(letters == ord("R"))
        bounds = [0, *described.tolist(), len(starts)]
        for begin, end in pairwise(bounds):
            if begin < len(starts) and letters[begin] == ord("R"):
                relation = read_relation(messages[begin])
                self.relations[relation.id] = relation
            low, high = np.searchsorted(moments.index, (begin, end))
            part = slice(int(low), int(high))
            if low == high:
                continue
            inside, cuts = moments.take(part), truncates[part]
            for at in np.flatnonzero(cuts):
                for identity in _truncated(messages[int(inside.index[at])]):
                    one = inside.take(slice(int(at), int(at) + 1))
                    yield Truncation(relation=self._relation(identity), moments=one)
            yield from self._rows(data, starts, ends, letters, inside.take(~cuts))

    def _rows(
        self, data: Any, starts: Any, ends: Any, letters: Any, moments: Moments
    ) -> Iterator[Rows]:
        index = moments.index
        ids = _records(data, starts[index], np.dtype([("letter", "u1"), ("id", ">u4")]))["id"]
        for identity in np.unique(ids):
            chosen = np.flatnonzero(ids == identity)
            at = index[chosen]
            yield rows_of(
                self._relation(int(identity)), data, starts[at], ends[at], letters[at],
                moments.take(chosen),
            )  # fmt: skip

    def _relation(self, identity: int) -> Relation:
        if identity not in self.relations:
            raise MalformedChange(f"a change names relation {identity}, which was not described")
        return self.relations[identity]


def rows_of(
    relation: Relation, data: Any, starts: Any, ends: Any, letters: Any, moments: Moments
) -> Rows:
    """Return the row messages at the given positions as columns.

    Raises:
        MalformedChange: a message is damaged.
    """
    count = len(relation.columns)
    places = np.empty((2 * count, len(starts)), np.int64)
    sizes = np.empty_like(places)
    olds = np.empty(len(starts), np.uint8)
    bad = read_changes(
        data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), count, places, sizes, olds
    )
    if bad >= 0:
        raise MalformedChange(
            f"a change of table {relation.schema}.{relation.name} at position"
            f" {lsn_text(int(moments.lsn[bad]))} does not have its {count} columns"
        )
    texts = [_column(data, places[column], sizes[column]) for column in range(2 * count)]
    unchanged = []
    for column in range(count, 2 * count):
        mask = sizes[column] == UNCHANGED
        unchanged.append(mask if mask.any() else None)
    return Rows(
        relation=relation,
        moments=moments,
        letters=letters,
        olds=olds,
        old=tuple(texts[:count]),
        new=tuple(texts[count:]),
        unchanged=tuple(unchanged),
    )


def _column(data: Any, places: Any, sizes: Any) -> Any:
    """Return texts as a column; sizes below 0 are null."""
    lengths = np.maximum(sizes, 0)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    copy_texts(data, places, sizes, target)
    present = sizes > NULL
    nulls = None if present.all() else pa.array(present).buffers()[1]
    return pa.LargeStringArray.from_buffers(
        len(sizes), pa.py_buffer(offsets), pa.py_buffer(target), nulls
    )


def _records(data: Any, starts: Any, kind: Any) -> Any:
    """Return fixed parts of messages as a structured array."""
    if not len(starts):
        return np.empty(0, kind)
    return data[starts[:, None] + np.arange(kind.itemsize)].view(kind)[:, 0]


def read_relation(message: bytes) -> Relation:
    """Return the relation that a message describes.

    Raises:
        MalformedChange: the message ends early.
    """
    try:
        _, identity = _RELATION_HEAD.unpack_from(message)
        schema, at = _text(message, _RELATION_HEAD.size)
        name, at = _text(message, at)
        replica, count = _RELATION_COLUMNS.unpack_from(message, at)
        at += _RELATION_COLUMNS.size
        columns = []
        for _ in range(count):
            flags = message[at]
            column, at = _text(message, at + 1)
            type_id, modifier = _COLUMN_TAIL.unpack_from(message, at)
            at += _COLUMN_TAIL.size
            columns.append(
                Column(name=column, type_id=type_id, modifier=modifier, identity=bool(flags & 1))
            )
    except (IndexError, ValueError, struct.error) as error:
        raise MalformedChange(f"a description of a relation is damaged: {error}") from error
    return Relation(
        id=identity, schema=schema or "pg_catalog", name=name, identity=replica.decode("latin-1"),
        columns=tuple(columns),
    )  # fmt: skip


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


def _truncated(message: bytes) -> Iterable[int]:
    count = int.from_bytes(message[1:5])
    if len(message) < 6 + 4 * count:
        raise MalformedChange("a truncation ends early")
    return struct.unpack_from(f">{count}I", message, 6)


def lsn_text(lsn: int) -> str:
    """Return a position as PostgreSQL writes it, such as `0/16B3748`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the number of a position such as `0/16B3748`."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
