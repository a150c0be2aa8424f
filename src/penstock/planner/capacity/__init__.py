"""Capacity plan: partitions, brokers, disks, networks, latency and requests of a load.

    CapacityInputs ─┐
                    ├─> size() ──> Sizing ──> figures, findings, charts ──> Plan
    Deployment ─────┘              latency model, requests to the store ─┘

A `Deployment` is the settings of real brokers with the measurements of their host. Ceilings without
a measurement are assumed, and each formula names the kind.
"""

from penstock.planner.capacity.inputs import CapacityInputs, Deployment
from penstock.planner.capacity.plan import capacity_plan

__all__ = ["CapacityInputs", "Deployment", "capacity_plan"]
