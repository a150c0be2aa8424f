"""Which limit comes first as a load grows on the brokers and partitions that were planned.

Each limit has a room: how many times as much of the planned peak it takes, its ceiling used to the
full. The smallest room is the next bottleneck. It moves with scale: networks at small scale,
partition metadata in the middle, the volume of storage at large scale, PUTs on object stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.planner.capacity.ceilings import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.figures import allowed_messages
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import Requests
from penstock.planner.capacity.sizing import Sizing, broker_shares
from penstock.planner.results import Figure

SOURCE: Final = "the envelope of scales: network, partition metadata, storage volume, PUT rate"


def rooms(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, asked: Requests | None
) -> Mapping[str, float]:
    """Of each limit, how many times the planned load it takes; limits without load are left out."""
    shares = broker_shares(
        inputs,
        deployment,
        (sizing.peak_bytes, sizing.read_peak_bytes),
        (sizing.network_in, sizing.network_out),
        sizing.disk_bytes + sizing.slack_bytes,
    )
    found = {name: sizing.brokers_needed / share for name, share in shares.items() if share > 0}
    replicas = sizing.partitions * inputs.copies
    found["partition metadata"] = min(
        inputs.broker_partitions * sizing.brokers_needed / replicas,
        deployment.topic_partitions_max / sizing.partitions,
    )
    allowed = allowed_messages(deployment, sizing) / sizing.usable
    found["busiest partition"] = allowed / sizing.hottest_messages
    if asked is not None and asked.puts:
        found["PUT rate"] = STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES / asked.puts
    return found


def room_figures(found: Mapping[str, float]) -> list[Figure]:
    """The rooms, the smallest first."""
    ordered = sorted(found.items(), key=lambda item: item[1])
    first = ordered[0][0]
    rows = [
        Figure(name="first_bottleneck", label="the first bottleneck", value=first,
               group="room to grow", source=SOURCE,
               formula="the smallest room below, one broker down, ceilings used to the full")
    ]  # fmt: skip
    for name, room in ordered:
        slug = name.replace(" ", "_").lower()
        rows.append(
            Figure(name=f"room_{slug}_times", label=name, value=room, unit="times",
                   group="room to grow", source=SOURCE,
                   formula="what the planned brokers and partitions take / the planned load")
        )  # fmt: skip
    return rows
