"""How much may happen in an exploration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. `claims` come on top of the first epoch; `crashes` are unbounded.

    `deletes`: how often a leader or a copy may delete what is below some commit mark. `compacts`:
    each may compact what is committed, of which all has one key, whenever it likes.

    `refusals`: leaders may hear that they are fenced; else every such answer is lost.
    `placement`: the replicas of the first epoch, if not all; `target`: those that moves go to,
    and back from. `acks` are those of each placement. So many `moves` are ordered, and cancelled.
    """

    replicas: int = 3
    acks: int = 2
    entries: int = 2
    claims: int = 2
    wipes: int = 0
    deletes: int = 0
    compacts: bool = False
    syncs: Literal["folded", "separate", "begun"] = "folded"
    refusals: bool = False
    placement: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    moves: int = 1
    span: int = 3

    @property
    def placements(self) -> tuple[tuple[int, ...], ...]:
        """Those that epochs may have, the first epoch's first."""
        first = self.placement or tuple(range(self.replicas))
        return (first, self.target) if self.target else (first,)

    @property
    def folded(self) -> bool:
        return self.syncs == "folded"

    def __str__(self) -> str:
        heard = " refusals heard" if self.refusals else ""
        heard += " compacted" if self.compacts else ""
        if self.target:
            heard += f" moves={self.moves} {self.placements[0]}{self.target}".replace(", ", ",")
        return (
            f"n={self.replicas} a={self.acks} entries={self.entries} claims={self.claims}"
            f" wipes={self.wipes} deletes={self.deletes} syncs={self.syncs}{heard}"
        )


QUICK = (
    Bounds(claims=1),
    Bounds(claims=1, entries=1, refusals=True),
    Bounds(claims=1, entries=1, wipes=1),
    Bounds(claims=2, entries=1, replicas=2),
    Bounds(claims=1, entries=1, placement=(0, 1), target=(0, 1, 2)),
    Bounds(claims=1, entries=1, deletes=1),
    Bounds(claims=1, entries=1, compacts=True),
)
"""Some seconds together."""

FULL = (
    Bounds(claims=2, entries=1),
    Bounds(claims=1, entries=1, placement=(0, 1), target=(0, 2)),
    Bounds(claims=1, deletes=1),
    Bounds(claims=1, compacts=True),
    Bounds(claims=1, entries=1, syncs="separate"),
    Bounds(claims=1, entries=1, syncs="separate", refusals=True),
    Bounds(claims=1, entries=1, syncs="begun"),
    Bounds(claims=1, entries=1, wipes=1, syncs="separate"),
    Bounds(claims=1, entries=2, wipes=1),
    Bounds(),
    Bounds(acks=3),
    Bounds(replicas=2),
    Bounds(replicas=4, acks=3, entries=1),
    Bounds(replicas=5, acks=3, claims=1),
    Bounds(entries=1, wipes=1),
    Bounds(entries=3),
    Bounds(claims=1, entries=1, placement=(0, 1), target=(0, 2), moves=2),
    Bounds(claims=1, entries=1, placement=(0, 1, 2), target=(0, 1)),
    Bounds(claims=1, entries=1, deletes=1, syncs="separate"),
    Bounds(claims=1, deletes=2),
    Bounds(claims=1, entries=1, wipes=1, deletes=1),
    Bounds(entries=1, deletes=1),
    Bounds(claims=1, entries=3, compacts=True),
    Bounds(claims=1, syncs="separate", compacts=True),
    Bounds(claims=1, wipes=1, compacts=True),
    Bounds(compacts=True),
)
"""Minutes each."""
