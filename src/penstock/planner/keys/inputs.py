"""Inputs of a key plan, and the bounds of its census."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.base.settings import setting
from penstock.planner.errors import ImpossiblePlan

PARTITIONS_MAX: Final = 100_000
"""Largest number of partitions with computed loads."""
PENDING_ROWS_MAX: Final = 1 << 20
"""Rows gathered before they are counted."""
PENDING_BYTES_MAX: Final = 64 << 20
"""Key bytes gathered before they are counted."""
SUMMARY_BYTES_MAX: Final = 256 << 20
"""Key bytes of a summary; beyond it the rarest keys are dropped."""
RATE_SPAN_MS_MIN: Final = 60_000
"""Shortest time between the first and last record that gives a rate: less is one burst."""
OVER_PROVISION: Final = (4, 10)
"""Lowest and highest factor from needed to created partitions."""
_MULTIPLES: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysInputs:
    partitions: int = setting(
        0, name="partitions",
        doc="Partitions to compute hot keys and salting for; 0 is as many as the topic has.",
        minimum=0, maximum=10_000,
    )  # fmt: skip
    rate: float = setting(
        0.0, name="rate",
        doc="Messages a second of the whole topic; 0 takes timestamps of at least a minute.",
        unit="messages/s", minimum=0, maximum=1e12,
    )  # fmt: skip
    partition_rate: float = setting(
        50_000.0, name="partition-rate", doc="Throughput of the consumer of one partition.",
        unit="messages/s", minimum=0.001, maximum=1e9,
    )  # fmt: skip
    skew_max: float = setting(
        2.0, name="skew-max", doc="Allowed load of the hottest partition, by the mean.",
        minimum=1.0, maximum=1e6,
    )  # fmt: skip
    shown_keys: int = setting(
        10, name="shown-keys", doc="Number of the hottest keys to show.", minimum=1, maximum=100
    )
    salts_max: int = setting(
        16, name="salts-max", doc="Most salts that are tried, by doubling.", minimum=2, maximum=256
    )
    tracked_keys: int = setting(
        1_000_000, name="tracked-keys",
        doc="Distinct keys that are counted exactly; beyond it counts are estimates.", minimum=1,
        maximum=10_000_000,
    )  # fmt: skip

    def salts(self) -> tuple[int, ...]:
        return tuple([1 << power for power in range(self.salts_max.bit_length())])


def partition_counts(inputs: KeysInputs, partitions: int) -> tuple[int, ...]:
    """Return the partition counts with computed loads, ascending.

    They are the topic's and its doublings, the requested one, and, for a given rate, the needed
    number, and 4 and 10 times as many.

    Raises:
        ImpossiblePlan: the rate needs more partitions than are computed.
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
