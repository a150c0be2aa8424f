"""Share partition in memory, with its stored row.

One save stores all decisions of an event-loop turn; decisions that are made while a save is under
way share the next save. A response waits for its save. If a save fails, or is rejected because
another broker has changed the row, the object is closed, because its state may be wrong. The next
request reads the row again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from struct import Struct, error
from typing import ClassVar, Final

import msgspec

from penstock.base.errors import CorruptError, RetriableError
from penstock.broker.groups.runtime.core import Save, Saved, Timer
from penstock.broker.groups.runtime.saving import KeyRows, Lost, Outcome, Pending, Saver
from penstock.broker.share.partition import SharePartition
from penstock.broker.share.values import Cause, RecordState, Run
from penstock.control import KEY_ROW

# Stored row of a share partition.
#
#     version u8 (2), state epoch i32, leader epoch i32, start offset i64, first deadline i64,
#     members varint, each: size varint, UTF-8
#     runs varint, each: records and state varint (records << 2 | state), then
#         available: deliveries varint
#         acquired:  deliveries varint, member varint, deadline varint (ms from the first deadline)
#         archiving: deliveries varint, cause varint
#
# Integers are big-endian. Varints have seven bits a byte, least significant first. The runs follow
# each other from the start offset on. A run of acquired records takes about six bytes, a member
# about
# 23. Version 1 has no archiving runs.
#
# The leader epoch is that of the broker which stored the row. The state epoch rises with each reset
# of the group's offsets.


VERSION: Final = 2
_READABLE: Final = (1, VERSION)
_HEAD: Final = Struct(">Biiqq")
_VARINT_BITS_MAX: Final = 63


class CorruptShareState(CorruptError):
    code: ClassVar[str] = "unknown_server_error"


class ShareState(msgspec.Struct, frozen=True, kw_only=True):
    state_epoch: int
    leader_epoch: int
    start: int
    runs: tuple[Run, ...] = ()


def encode_state(state_epoch: int, leader_epoch: int, start: int, runs: Iterable[Run]) -> bytes:
    runs = list(runs)
    acquired = [run for run in runs if run.state == RecordState.ACQUIRED]
    first = min((run.deadline_ms for run in acquired), default=0)
    members = {name: number for number, name in enumerate({run.member: None for run in acquired})}
    row = bytearray(_HEAD.pack(VERSION, state_epoch, leader_epoch, start, first))
    _write(row, len(members))
    for name in members:
        encoded = name.encode()
        _write(row, len(encoded))
        row += encoded
    _write(row, len(runs))
    for run in runs:
        _write(row, run.last - run.first + 1 << 2 | run.state)
        if run.state != RecordState.RESOLVED:
            _write(row, run.deliveries)
        if run.state == RecordState.ACQUIRED:
            _write(row, members[run.member])
            _write(row, run.deadline_ms - first)
        if run.state == RecordState.ARCHIVING:
            _write(row, run.cause)
    return bytes(row)


def decode_state(key: str, row: bytes) -> ShareState:
    """Return the state in a stored row.

    Raises:
        CorruptShareState: the row does not have the format above.
    """
    try:
        version, state_epoch, leader_epoch, start, deadline_ms = _HEAD.unpack_from(row)
        if version not in _READABLE:
            raise ValueError(f"version {version} is not one of {_READABLE}")
        members, at = _members(row, _HEAD.size)
        runs, at = _runs(row, at, start, members, deadline_ms)
    except (ValueError, IndexError, error) as reason:
        raise CorruptShareState(f"share partition {key!r} cannot be read: {reason}") from None
    if at != len(row):
        raise CorruptShareState(f"share partition {key!r} has {len(row) - at} bytes too many")
    return ShareState(
        state_epoch=state_epoch, leader_epoch=leader_epoch, start=start, runs=tuple(runs)
    )


def _members(row: bytes, at: int) -> tuple[list[str], int]:
    members = []
    count, at = _read(row, at)
    for _ in range(count):
        size, at = _read(row, at)
        if at + size > len(row):
            raise ValueError("the row ends within a member's name")
        members.append(row[at : at + size].decode())
        at += size
    return members, at


def _runs(
    row: bytes, at: int, start: int, members: list[str], deadline_ms: int
) -> tuple[list[Run], int]:
    runs: list[Run] = []
    count, at = _read(row, at)
    for _ in range(count):
        word, at = _read(row, at)
        state, first, start = RecordState(word & 3), start, start + (word >> 2)
        deliveries = member = later = 0
        if state != RecordState.RESOLVED:
            deliveries, at = _read(row, at)
        if state == RecordState.ARCHIVING:
            cause, at = _read(row, at)
            runs.append(Run(first, start - 1, state, deliveries, cause=Cause(cause)))
            continue
        if state != RecordState.ACQUIRED:
            runs.append(Run(first, start - 1, state, deliveries))
            continue
        member, at = _read(row, at)
        later, at = _read(row, at)
        runs.append(Run(first, start - 1, state, deliveries, members[member], deadline_ms + later))
    return runs, at


def _write(row: bytearray, value: int) -> None:
    while value > 127:
        row.append(value & 127 | 128)
        value >>= 7
    row.append(value)


def _read(row: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        byte = row[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a varint is longer than nine bytes")


KIND: Final = "share"


class ShareStateLost(RetriableError):
    """Changes of a share partition were not stored, or the outcome is unknown."""

    code: ClassVar[str] = "coordinator_not_available"


class StoredShare:
    """Share partition in memory, and its saves. Belongs to the event loop."""

    __slots__ = (
        "_current", "_next", "_on_lost", "_rows", "_saver", "key", "leader_epoch", "lost",
        "record_bytes", "share", "state_epoch", "timer",
    )  # fmt: skip

    def __init__(
        self,
        share: SharePartition,
        rows: KeyRows,
        *,
        state_epoch: int,
        leader_epoch: int,
        saver: Saver,
        expired: Callable[[StoredShare], None],
        on_lost: Callable[[StoredShare], None],
    ) -> None:
        self.share = share
        self.key = rows.key
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.lost = False
        self.record_bytes = 0.0
        """Bytes per record in the last read; 0 before any."""
        self.timer = Timer(lambda: expired(self))
        self._rows = rows
        self._saver = saver
        self._on_lost = on_lost
        self._current: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    @property
    def saving(self) -> bool:
        return self._current is not None or self._next is not None

    def store(self) -> asyncio.Future[None]:
        """Save all changes so far; return a future that ends with the save or its error.

        The future may be shared, so wrap it in `asyncio.shield`. Errors are PenstockErrors.
        """
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            self._next.add_done_callback(_retrieve_error)
            if self.lost:
                loop.call_soon(self._fail, ShareStateLost(f"share partition {self.key} is closed"))
            elif self._current is None:
                loop.call_soon(self._send)
        return self._next

    async def all_stored(self) -> None:
        """Wait until all changes so far are durable.

        Raises:
            ShareStateLost: a save failed, or this object is closed.
        """
        waiting = self._next or self._current
        if waiting is not None:
            await asyncio.shield(waiting)
        if self.lost:
            raise ShareStateLost(f"share partition {self.key} is closed")

    def _send(self) -> None:
        if self._next is None or self._current is not None or self.lost:
            return
        self._current, self._next = self._next, None
        row = encode_state(self.state_epoch, self.leader_epoch, self.share.start, self.share.runs)
        save = Save(key=self.key, rows={KEY_ROW: row})
        self._saver.put(Pending(KIND, self._rows, save, self._reported))

    def _reported(self, outcome: Outcome) -> None:
        done, self._current = self._current, None
        if isinstance(outcome, Saved):
            if done is not None and not done.done():
                done.set_result(None)
            self._send()
            return
        reason = "another broker changed it" if isinstance(outcome, Lost) else outcome.reason
        error = ShareStateLost(f"share partition {self.key} was not saved: {reason}")
        if done is not None and not done.done():
            done.set_exception(error)
        self.close(error)

    def close(self, error: ShareStateLost) -> None:
        if not self.lost:
            self.lost = True
            self._on_lost(self)
        self._fail(error)

    def _fail(self, error: ShareStateLost) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


def _retrieve_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
