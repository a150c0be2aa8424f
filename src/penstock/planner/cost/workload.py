"""Rates and volumes of a workload that are multiplied with prices.

A month has 30 days, a GB 10^9 bytes and an MB 10^6, as in the sources. Bytes are compressed unless
stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from penstock.planner.cost.inputs import OWN, CostInputs

DAYS: Final = 30
HOURS: Final = 24 * DAYS
SECONDS: Final = 86_400 * DAYS
GB: Final = 1e9
MB: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Stream of data. `records_s` are messages; `bytes_s` are compressed."""

    bytes_s: float
    records_s: float
    retention_days: float
    replication_factor: int
    zones: int
    groups: int
    peak: float
    reads_cross_zone: float
    writes_cross_zone: float

    @property
    def peak_bytes_s(self) -> float:
        """Capacity to be provided: the peak with its headroom."""
        return self.bytes_s * self.peak

    @property
    def gb_month(self) -> float:
        return self.bytes_s * SECONDS / GB

    @property
    def gb_day(self) -> float:
        return self.bytes_s * 86_400 / GB

    @property
    def read_gb_month(self) -> float:
        return self.gb_month * self.groups

    @property
    def stored_gb(self) -> float:
        return self.gb_day * self.retention_days

    @property
    def copies_across_zones(self) -> float:
        """Mean number of followers outside the zone of their leader: RF 3 in 3 zones has 2.

        Replicas are spread evenly; each is equally often the leader.
        """
        whole, rest = divmod(self.replication_factor, self.zones)
        pairs = rest * (whole + 1) ** 2 + (self.zones - rest) * whole**2
        return self.replication_factor - pairs / self.replication_factor

    @property
    def replicated_gb_month(self) -> float:
        return self.gb_month * self.copies_across_zones

    @property
    def fetched_gb_month(self) -> float:
        return self.read_gb_month * self.reads_cross_zone

    @property
    def sent_gb_month(self) -> float:
        return self.gb_month * self.writes_cross_zone


def produced_bytes_s(inputs: CostInputs) -> float:
    return inputs.rate or inputs.bytes_per_day / 86_400


def reads_cross_zone(inputs: CostInputs) -> float:
    """Return the share of reads that cross zones.

    Without racks a reader finds the leader in its own zone once in `zones`. With them it crosses
    only where its zone has no replica.
    """
    if inputs.reads_cross_zone != OWN:
        return inputs.reads_cross_zone
    if inputs.rack_aware:
        return max(0.0, (inputs.zones - inputs.replication_factor) / inputs.zones)
    return (inputs.zones - 1) / inputs.zones


def workload_of(inputs: CostInputs) -> Workload:
    produced = produced_bytes_s(inputs)
    return Workload(
        bytes_s=produced / inputs.compression,
        records_s=produced / inputs.message_bytes,
        retention_days=inputs.retention,
        replication_factor=inputs.replication_factor,
        zones=inputs.zones,
        groups=inputs.consumer_groups,
        peak=inputs.peak_factor * (1 + inputs.headroom),
        reads_cross_zone=reads_cross_zone(inputs),
        writes_cross_zone=inputs.writes_cross_zone,
    )


def pointers_of(inputs: CostInputs) -> Workload:
    files_s = files_per_second(inputs)
    payload = workload_of(inputs)
    return replace(payload, bytes_s=files_s * inputs.pointer_bytes, records_s=files_s)


def files_per_second(inputs: CostInputs) -> float:
    return workload_of(inputs).bytes_s / inputs.file_bytes


def scaled(inputs: CostInputs, factor: float) -> CostInputs:
    """Return the inputs at another volume; given capacities grow with it."""
    return replace(
        inputs,
        rate=0.0,
        bytes_per_day=produced_bytes_s(inputs) * 86_400 * factor,
        efs_throughput=inputs.efs_throughput * factor,
        fsx_throughput=inputs.fsx_throughput * factor,
        fsx_tiering_throughput=inputs.fsx_tiering_throughput * factor,
        msk_storage=inputs.msk_storage * factor,
        kinesis_shards=ceil(inputs.kinesis_shards * factor),
        pointer_shards=ceil(inputs.pointer_shards * factor),
    )


def kept(inputs: CostInputs, retention_days: float) -> CostInputs:
    """Return the inputs with another retention; given volumes grow with it."""
    factor = retention_days / inputs.retention
    return replace(inputs, retention=retention_days, msk_storage=inputs.msk_storage * factor)
