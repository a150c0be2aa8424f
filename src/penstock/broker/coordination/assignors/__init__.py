"""Assignors: functions that assign partitions to the members of a group."""

from typing import Final

from penstock.broker.coordination.assignors.partitions import (
    NOTHING,
    Partitions,
    both,
    fewer,
    merged,
    overlap,
    within,
)
from penstock.broker.coordination.assignors.range import assign_ranges
from penstock.broker.coordination.assignors.simple import assign_simply
from penstock.broker.coordination.assignors.spec import Assignor, GroupSpec, MemberSpec
from penstock.broker.coordination.assignors.uniform import assign_uniformly

SIMPLE: Final = "simple"
"""Name of the assignor of share groups."""

ASSIGNORS: dict[str, Assignor] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
    SIMPLE: assign_simply,
}
"""Assignors by the names that clients and settings use."""

__all__ = [
    "ASSIGNORS",
    "NOTHING",
    "SIMPLE",
    "Assignor",
    "GroupSpec",
    "MemberSpec",
    "Partitions",
    "assign_ranges",
    "assign_simply",
    "assign_uniformly",
    "both",
    "fewer",
    "merged",
    "overlap",
    "within",
]
