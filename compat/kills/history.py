"""What the producers of one transactional id were told, and what must be true of what is read.

Transactions have rising numbers. Each writes its number to two partitions, twice to the first, and
commits it as a group's offset. So readers of committed records see a number everywhere or nowhere,
in order, and never before its producer has asked for the commit; and the group stands at the
highest number that they see.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum

COPIES: Mapping[int, int] = {0: 2, 1: 1}
"""How many records a transaction writes to the far and to the own partition."""


class Told(Enum):
    """What is known of a transaction's end."""

    OPEN = "open"
    ASKED = "asked to commit"
    COMMITTED = "committed"
    DROPPED = "dropped"


class History:
    """Transactions by their numbers."""

    def __init__(self) -> None:
        self.told: dict[int, Told] = {}
        self._asked: dict[int, float] = {}

    def begin(self) -> int:
        """The number of a new transaction."""
        number = len(self.told) + 1
        self.told[number] = Told.OPEN
        return number

    def ask(self, number: int) -> None:
        """Its producer is about to ask for the commit."""
        self.told[number] = Told.ASKED
        self._asked[number] = time.monotonic()

    def end(self, number: int, *, committed: bool) -> None:
        """It has ended as its producer wanted; or its producer never asked for the commit."""
        self.told[number] = Told.COMMITTED if committed else Told.DROPPED

    def violations(
        self, seen: Mapping[int, Sequence[int]], offset: int | None, times: Mapping[int, float]
    ) -> list[str]:
        """What cannot be.

        `seen` has the numbers that a reader of committed records got, by partition (0: far, 1:
        own); `offset` is the group's; `times` says when a reader first saw each number.
        """
        found = [f"{number} is seen, and was {told.value}" for number, told in self._unwanted(seen)]
        found += self._lost(seen)
        for partition, numbers in seen.items():
            if list(numbers) != sorted(numbers):
                found.append(f"partition {partition} is out of order: {numbers}")
        visible = {number for numbers in seen.values() for number in numbers}
        for number in visible:
            counts = {partition: seen[partition].count(number) for partition in COPIES}
            if counts != COPIES:
                found.append(f"{number} is not seen as a whole, and once: {counts}")
        if offset != max(visible, default=None):
            found.append(f"the group stands at {offset}, seen are {sorted(visible)}")
        for number, at in times.items():
            if number not in self._asked or at < self._asked[number]:
                found.append(f"{number} was seen before its commit was asked for")
        return found

    def _unwanted(self, seen: Mapping[int, Sequence[int]]) -> list[tuple[int, Told]]:
        may = (Told.COMMITTED, Told.ASKED)
        visible = sorted({number for numbers in seen.values() for number in numbers})
        return [(number, self.told[number]) for number in visible if self.told[number] not in may]

    def _lost(self, seen: Mapping[int, Sequence[int]]) -> list[str]:
        return [
            f"{number} is committed, and not seen in partition {partition}"
            for number, told in self.told.items()
            if told is Told.COMMITTED
            for partition in COPIES
            if number not in seen[partition]
        ]
