"""The steps of a transaction as brokers see them: every point at which somebody can be killed.

A transaction here writes to two partitions, one after the other, and brings offsets of a group.
`{far}` and `{own}` are the partitions: of several brokers another one than the transaction's
coordinator leads the far one, and the coordinator the other. A run without kills must reach these
points and no others (`test_transaction_kills`), so a new step of the product has to be put here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final


class End(Enum):
    """How the transaction ends: as its producer wants it, or at its timeout."""

    COMMIT = "Commit"
    ABORT = "Abort"
    TIMEOUT = "timeout"

    @property
    def state(self) -> str:
        """The names of the coordinator's states end so."""
        return "Commit" if self is End.COMMIT else "Abort"


class Phase(Enum):
    """What the producer is doing."""

    BEGIN = "begins"
    WRITE = "writes"
    END = "ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The `count`th time that one broker comes to a point, in a phase.

    That is the `first` one to come there, or the transaction's coordinator.
    """

    phase: Phase
    point: str
    count: int = 1
    first: bool = True

    def __str__(self) -> str:
        count = f" {self.count}" if self.count > 1 else ""
        return f"{self.point}{count}{'' if self.first else ' by the coordinator'}"


_ADDING: Final = ("saving Ongoing", "saved Ongoing")


def steps(end: End, *, version: int, copied: bool, apart: bool) -> list[Step]:
    """All steps of a transaction of a version, on partitions with copies or without.

    `apart`: there are several brokers.
    """
    begin = ("saving Empty", "saved Empty", "answered InitProducerId")
    found = [Step(phase=Phase.BEGIN, point=point) for point in begin]
    found += list(_writing(version=version, copied=copied, apart=apart))
    found += [Step(phase=Phase.END, point=point) for point in _ending(end, copied=copied)]
    return found


def _writing(*, version: int, copied: bool, apart: bool) -> Iterator[Step]:
    write = partial(Step, phase=Phase.WRITE)
    for count, where in enumerate(("{far}", "{own}"), 1):
        yield from (write(point=point, count=count) for point in _ADDING)
        if version == 1:
            yield write(point="answered AddPartitionsToTxn", count=count)
        if apart and where == "{far}":
            yield write(point="answered a broker's AddPartitionsToTxn")
        yield write(point=f"appending data {where}")
        yield write(point=f"appended data {where}")
        if copied:
            yield write(point=f"copied data {where}")
        yield write(point=f"stored data {where}")
        if apart:
            yield write(point="answered Produce", first=where == "{far}")
        else:
            yield write(point="answered Produce", count=count)
    yield from (write(point=point, count=3) for point in _ADDING)
    if version == 1 or apart:
        yield write(point="answered AddOffsetsToTxn")
    yield write(point="staging offsets")
    yield write(point="staged offsets")
    yield write(point="answered TxnOffsetCommit")


def _ending(end: End, *, copied: bool) -> Iterator[str]:
    yield f"saving Prepare{end.state}"
    yield f"saved Prepare{end.state}"
    if end is not End.TIMEOUT:
        yield "answered EndTxn"
    for where in ("{far}", "{own}"):
        yield f"appending marker {where}"
        yield f"appended marker {where}"
        if copied:
            yield f"copied marker {where}"
        yield f"stored marker {where}"
    if copied:
        yield "answered WriteTxnMarkers"
    yield "told of markers"
    yield f"saving Complete{end.state}"
    yield f"saved Complete{end.state}"
