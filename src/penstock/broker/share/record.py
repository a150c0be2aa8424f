"""Stored row of a share partition.

    version u8 (2), state epoch i32, leader epoch i32, start offset i64, first deadline i64,
    members varint, each: size varint, UTF-8
    runs varint, each: records and state varint (records << 2 | state), then
        available: deliveries varint
        acquired:  deliveries varint, member varint, deadline varint (ms from the first deadline)
        archiving: deliveries varint, cause varint

Integers are big-endian. Varints have seven bits a byte, least significant first. The runs follow
each other from the start offset on. A run of acquired records takes about six bytes, a member about
23. Version 1 has no archiving runs.

The leader epoch is that of the broker which stored the row. The state epoch rises with each reset
of the group's offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import ClassVar, Final

import msgspec

from penstock.base.errors import CorruptError
from penstock.broker.share.values import Cause, RecordState, Run

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
