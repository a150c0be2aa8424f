"""Key plan: how a topic's keys load its partitions, and what salting or more partitions change.

    batches (Arrow) ──> Census ──> KeyCounts ──> skew, hot keys ──┐
                          ├── loads by partition count ───────────┼──> Plan
                          └── salted loads ───────────────────────┘

`census.py` counts the records of Arrow batches with bounded memory. Counts are exact up to a number
of distinct keys. Beyond it they come from a Misra-Gries summary and HyperLogLog. `plan.py` computes
the skew and the effect of salting, and makes the plan. There is no Python loop over records.

Source: the log and queue article (hot partition, scaling axes); Kafka: the default partitioner.
"""

from penstock.planner.keys.census import (
    Census,
    CensusResult,
    DistinctEstimate,
    KeysInputs,
    KeySummary,
    partition_counts,
)
from penstock.planner.keys.plan import (
    SaltEffect,
    Scope,
    gini,
    hot_keys,
    plan_keys,
    salt_effects,
    salted_keys,
    top_share,
    zipf_exponent,
)

__all__ = [
    "Census", "CensusResult", "DistinctEstimate", "KeySummary", "KeysInputs", "SaltEffect", "Scope",
    "gini", "hot_keys", "partition_counts", "plan_keys", "salt_effects", "salted_keys", "top_share",
    "zipf_exponent",
]  # fmt: skip
