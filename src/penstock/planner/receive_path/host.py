"""Hardware of the receiver: bandwidth, receive queues, RX rings, L3.

A ring counts packets, not bytes: it holds what arrives while its vCPU is stalled, so that its size
is a time, entries ÷ packet rate. Each receive queue has its own ring and interrupt; a flow
(addresses, ports, protocol) is hashed to one queue, so one stream uses one.

Source: ENA Linux driver best practices; EC2 instance network bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path.chain import power_of_two_from
from penstock.planner.receive_path.inputs import FAMILIES, Family, ReceivePathInputs, Size
from penstock.planner.receive_path.limits import (
    CROSS_REGION_BITS_SMALL,
    CROSS_REGION_VCPUS,
    QUEUES_USUAL,
    RING_ASSUMED_MAX_ENTRIES,
    RING_DEFAULT_ENTRIES,
    RING_MIN_ENTRIES,
)
from penstock.planner.results import Finding, fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Known or assumed hardware of the receiver; 0 bits and 0 bytes are unknown."""

    name: str
    vcpus: int
    baseline_bits: float
    burst_bits: float
    queues: int
    ring_entries: int
    ring_max_entries: int
    ring_max_known: bool
    l3_bytes: int
    l3_cores: int


def survival_s(entries: int, packets_per_second: float) -> float:
    """Return seconds until a ring of `entries` is full, when nothing empties it."""
    return entries / packets_per_second


def entries_for(packets_per_second: float, stall_s: float) -> int:
    """Return ring entries, a power of two, that hold the packets of a stall."""
    return max(RING_MIN_ENTRIES, power_of_two_from(packets_per_second * stall_s))


def plan_host(inputs: ReceivePathInputs, load_bits: float) -> Host:
    """Look up the family and choose a size for a load, in bit/s; given figures win."""
    family = FAMILIES.get(inputs.family)
    size = None if family is None else _size_of(family, inputs, load_bits)
    given = inputs.nic_bandwidth
    known_queues = QUEUES_USUAL
    if family is not None and size is not None:
        known_queues = min(family.queues_max, size.vcpus)
    ring_max = inputs.ring_max_entries or (
        RING_ASSUMED_MAX_ENTRIES if family is None else family.ring_max_entries
    )
    default = RING_DEFAULT_ENTRIES if family is None else family.ring_default_entries
    return Host(
        name=_name(family, size),
        vcpus=0 if size is None else size.vcpus,
        baseline_bits=given or (0.0 if size is None else _reach(size, size.baseline_gbit, inputs)),
        burst_bits=given or (0.0 if size is None else _reach(size, size.burst_gbit, inputs)),
        queues=inputs.rx_queues or known_queues,
        ring_entries=inputs.ring_entries or default,
        ring_max_entries=max(ring_max, inputs.ring_entries),
        ring_max_known=inputs.ring_max_entries > 0,
        l3_bytes=inputs.l3_bytes or (0 if family is None else family.l3_bytes),
        l3_cores=0 if family is None else family.l3_cores,
    )


def _size_of(family: Family, inputs: ReceivePathInputs, load_bits: float) -> Size:
    for size in family.sizes:
        if size.vcpus == inputs.vcpus:
            return size
    for size in family.sizes:
        if _reach(size, size.baseline_gbit, inputs) >= load_bits:
            return size
    return family.sizes[-1]


def _reach(size: Size, gbit: float, inputs: ReceivePathInputs) -> float:
    """Return bits per second of a size on this path: other regions get half, or 5 Gbit/s."""
    bits = gbit * 1e9
    if inputs.path != "cross-region":
        return bits
    return bits / 2 if size.vcpus >= CROSS_REGION_VCPUS else min(bits, CROSS_REGION_BITS_SMALL)


def _name(family: Family | None, size: Size | None) -> str:
    if family is None or size is None:
        return "this host"
    return f"{family.name} with {size.vcpus} vCPUs ({family.processor})"


def broken_host(inputs: ReceivePathInputs, host: Host, load_bits: float) -> Iterator[Finding]:
    family = FAMILIES.get(inputs.family)
    if family is not None and inputs.vcpus and host.vcpus != inputs.vcpus:
        sizes = ", ".join([str(size.vcpus) for size in family.sizes])
        yield fail(
            "Instance size",
            f"{family.name} has no size of {inputs.vcpus} vCPUs; this is planned for {host.vcpus}",
            f"set vcpus to one of {sizes}, or to 0",
        )
    if host.burst_bits and load_bits > host.burst_bits:
        yield fail(
            "Bandwidth of the network interface",
            f"{format_quantity(load_bits, 'bit/s')} with all headers are above the"
            f" {format_quantity(host.burst_bits, 'bit/s')} of {host.name}",
            "lower rate, message-bytes or streams, take a larger instance or family, or spread"
            " streams over hosts",
        )
