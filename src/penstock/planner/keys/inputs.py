"""Inputs of a key plan, and the numbers of partitions that it computes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Final

from penstock.base.settings import setting
from penstock.planner.quantities import ImpossiblePlan

PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions for which loads are computed."""
OVER_PROVISION: Final = (4, 10)
"""Factors for the smallest and largest recommended number of partitions, relative to the needed
one.
"""
_MULTIPLES: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysInputs:
    SEPARATOR: ClassVar = "-"

    partitions: int = setting(
        0, "Number of partitions for which hot keys and salting are computed. 0 takes the topic's.",
        0,
        10_000,
    )  # fmt: skip
    rate: float = setting(
        0.0, "Message rate of the whole topic. 0 computes it from the records' timestamps, if"
        " they span at least a minute.", 0,
        1e12, unit="messages/s",
    )  # fmt: skip
    partition_rate: float = setting(
        50_000.0,
        "Message rate that the consumer of one partition can read.",
        0.001,
        1e9,
        unit="messages/s",
    )
    skew_max: float = setting(
        2.0, "Maximum load of the hottest partition, as a multiple of the mean.", 1.0, 1e6
    )
    shown_keys: int = setting(10, "Number of hottest keys to show.", 1, 100)
    salts_max: int = setting(
        16, "Maximum number of salts to try. The numbers tried are powers of 2.", 2, 256
    )
    tracked_keys: int = setting(
        1_000_000, "Maximum number of distinct keys that are counted exactly. Beyond it counts"
        " are estimates.", 1,
        10_000_000,
    )  # fmt: skip

    def salts(self) -> tuple[int, ...]:
        return tuple([1 << power for power in range(self.salts_max.bit_length())])


def partition_counts(inputs: KeysInputs, partitions: int) -> tuple[int, ...]:
    """Return the numbers of partitions for which loads are computed, ascending.

    They are the topic's number with its multiples by 2, 4 and 8, and the requested number. With a
    given rate, they include the needed number, and 4 and 10 times as many.

    Raises:
        ImpossiblePlan: the rate needs more than `PARTITIONS_MAX` partitions.
    """
    counts = {partitions * times for times in _MULTIPLES}
    counts.add(planned_partitions(inputs, partitions))
    if inputs.rate:
        needed = needed_partitions(inputs, inputs.rate)
        if needed > PARTITIONS_MAX:
            raise ImpossiblePlan(
                f"at most {PARTITIONS_MAX:,} partitions",
                f"rate {inputs.rate:,.0f} / partition-rate {inputs.partition_rate:,.0f} messages/s"
                f" = {needed:,}",
                "raise partition-rate, or split the topic",
            )
        counts.update((needed, *[needed * times for times in OVER_PROVISION]))
    return tuple(sorted([count for count in counts if count <= max(PARTITIONS_MAX, partitions)]))


def planned_partitions(inputs: KeysInputs, partitions: int) -> int:
    return inputs.partitions or partitions


def needed_partitions(inputs: KeysInputs, rate: float) -> int:
    return max(1, ceil(rate / inputs.partition_rate))
