"""`penstock plan capacity`: partitions, brokers, disks, networks, latency and requests of a load.

    CapacityInputs ─┐
                    ├─> size() ──> Sizing ──> figures, findings, charts ──> Plan
    Deployment ─────┘              latency model, requests to the store ─┘

A `Deployment` is the settings of real brokers and what was measured on their host; ceilings that
nobody measured are assumed, and each formula says which of the two it was.
"""

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.plan import capacity_plan

__all__ = ["CapacityInputs", "Deployment", "capacity_plan"]
