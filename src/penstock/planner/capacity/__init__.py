"""Capacity plan: partitions, brokers, disks, networks, latency and requests that a load needs.

    CapacityInputs ─┐
                    ├─> size() ──> Sizing ──> figures, findings, charts ──> Plan
    Deployment ─────┘              latency model, requests to the store ─┘

A `Deployment` holds the brokers' settings and the measurements of their host. A ceiling is the
highest rate of a broker, a partition or a store. Ceilings without a measurement are assumed; each
formula says whether its ceiling is measured or assumed.
"""

from penstock.planner.capacity.inputs import CapacityInputs, Deployment
from penstock.planner.capacity.plan import capacity_plan

__all__ = ["CapacityInputs", "Deployment", "capacity_plan"]
