"""Mutations of good inputs: pieces are changed, repeated or dropped, or words inserted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol


class Mutable(Protocol):
    """Target of inputs (`targets.Target`)."""

    @property
    def seeds(self) -> Sequence[bytes]: ...
    @property
    def words(self) -> Sequence[bytes]: ...


def mutated(target: Mutable, dice: random.Random) -> bytes:
    """Return one input; the same random numbers give the same input."""
    data = bytearray(dice.choice(target.seeds))
    for _ in range(dice.choice((1, 1, 2, 4))):
        start = dice.randint(0, len(data))
        end = min(len(data), start + dice.choice((0, 1, 1, 2, 8, 64)))
        pieces = (
            b"",
            bytes(data[start:end]) * dice.choice((2, 100)),
            bytes([dice.randrange(256)]),
            dice.randbytes(dice.choice((1, 4, 16))),
            dice.choice(target.words or (b"\0",)),
            dice.choice((b"\0", b"\x7f", b"\x80", b"\xff")) * dice.choice((1, 4)),
        )
        data[start:end] = dice.choice(pieces)
    return bytes(data)
