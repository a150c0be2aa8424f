"""The numbers of a capacity plan, computed once: rates, partitions, disks, network, brokers.

Rates are those at the end of the horizon. Peaks decide partitions, brokers and networks; means
decide what is stored and what a month adds up to.

A consumer group has at most one consumer per partition, so partitions must be as many as the
consumers that the peak takes. What a broker lacks is a maximum over its resources, so brokers are
the largest of what each of them asks for, and one more for the time when one is down.

A partition lies on one disk and is moved whole. So there are as many partitions as keep each below
its bound, and at least one for each broker to lead; a disk is sized with room for one partition
more than the mean, since partitions do not divide evenly over brokers.

**Skew.** A key always hashes to one partition, so that partition has at least the key's share,
however many partitions there are. The other keys fall on it as on all others. Beside that, keys of
any skew collide: the load of a partition varies around the mean with the sum of the squared
shares, and the largest of P such loads lies about sqrt(2 ln P) deviations above it.

Source: extreme values of normal variables; Zipf's law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import Final

import numpy as np

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs

_EXACT: Final = 10_000
"""Ranks that are summed one by one; the rest is an integral with its first correction."""
_EXPONENT_MAX: Final = 10.0
_HALVINGS: Final = 60
TOP: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Shares of keys: of the busiest, and the sum of the squares of all others'."""

    keys: int
    hottest_share: float
    others_squared: float

    def hottest_partition(self, partitions: int) -> float:
        """The share of all messages that the busiest of so many partitions has."""
        if partitions <= 1:
            return 1.0
        if not self.keys:
            return 1.0 / partitions
        pinned = self.hottest_share + (1.0 - self.hottest_share) / partitions
        deviation = sqrt(self.others_squared / partitions * (1 - 1 / partitions))
        crowded = 1.0 / partitions + deviation * sqrt(2 * log(partitions))
        return min(1.0, max(pinned, crowded))


def skew_of(inputs: CapacityInputs) -> Skew:
    """The skew that inputs describe."""
    keys = inputs.keys
    if not keys:
        return Skew(keys=0, hottest_share=0.0, others_squared=0.0)
    if inputs.hottest_key_share:
        share = inputs.hottest_key_share
        others = (1.0 - share) ** 2 / max(1, keys - 1)
        return Skew(keys=keys, hottest_share=share, others_squared=others)
    exponent = inputs.zipf_exponent
    if inputs.top_percent_share:
        exponent = exponent_of(keys, inputs.top_percent_share)
    total = harmonic(keys, exponent)
    squares = harmonic(keys, 2 * exponent)
    return Skew(
        keys=keys,
        hottest_share=1.0 / total,
        others_squared=max(0.0, (squares - 1.0) / total**2),
    )


def top_keys(keys: int) -> int:
    """How many keys the busiest 1 % are, at least one."""
    return max(1, round(TOP * keys))


def exponent_of(keys: int, share: float) -> float:
    """The exponent of Zipf's law at which the busiest 1 % of the keys have this share."""
    low, high, top = 0.0, _EXPONENT_MAX, top_keys(keys)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if harmonic(top, middle) < share * harmonic(keys, middle):
            low = middle
        else:
            high = middle
    return high


def harmonic(count: int, exponent: float) -> float:
    """The sum of 1/n to a power, over n from 1 to `count`."""
    exact = min(count, _EXACT)
    ranks = np.arange(1, exact + 1, dtype=np.float64)
    found = float(np.sum(ranks**-exponent))
    if count == exact:
        return found
    first, last = exact + 0.5, count + 0.5
    if abs(exponent - 1.0) < 1e-9:
        return found + log(last / first)
    power = 1.0 - exponent
    return found + (exp(power * log(last)) - exp(power * log(first))) / power


def salt_ways(share: float, allowed: float) -> int:
    """Into how many keys one of this share must be split so that each has at most `allowed`."""
    if share <= allowed or allowed <= 0:
        return 1
    ways = share / allowed
    return int(-(-ways // 1)) if ways < 1e9 else 1_000_000_000


DAY_SECONDS: Final = 86_400
MONTH_DAYS: Final = 30
MEGABYTE: Final = 1e6
PROCESS_CORES: Final = 1.0
PARTITIONS_PER_DISK: Final = 10
"""A disk has room for so many partitions at least; with fewer, one more weighs too much."""
SPREADINGS_MAX: Final = 128
"""Rounds until each broker leads a partition; a round adds a third of the partitions at least."""
REQUEST_BYTES: Final = 1 << 20
"""A produce request has at most this much: max.request.size of the producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """All numbers that figures, findings and charts show. Bytes are those after compression."""

    mean_messages: float
    peak_messages: float
    mean_bytes: float
    peak_bytes: float
    read_mean_bytes: float
    read_peak_bytes: float
    skew: Skew
    usable: float
    """Share of a ceiling that the peak may take."""
    consumer_messages: float
    consumers: int
    partitions_by_produce: int
    partitions_by_disk: int
    partitions_needed: int
    partitions: int
    hottest_share: float
    disk_days: float
    disk_bytes: float
    """On all brokers, by the formula of ingest, retention and replicas."""
    slack_bytes: float
    store_bytes: float
    network_in: float
    network_out: float
    brokers_by: Mapping[str, int]
    brokers_needed: int
    brokers: int
    replicas: int

    @property
    def replica_bytes(self) -> float:
        """Bytes of one replica on a disk, in the mean."""
        return (self.disk_bytes + self.slack_bytes) / self.replicas

    @property
    def busiest_replica_bytes(self) -> float:
        """Bytes of a replica of the busiest partition."""
        return self.replica_bytes * max(1.0, self.hottest_share * self.partitions)

    @property
    def fullest_disk_bytes(self) -> float:
        """Bytes on the disk that has the most replicas, the busiest among them."""
        most = ceil(self.replicas / self.brokers)
        return self.replica_bytes * (most - 1) + self.busiest_replica_bytes

    @property
    def idle_brokers(self) -> int:
        """Brokers that have no replica to work on."""
        return max(0, self.brokers - self.replicas)

    @property
    def hottest_messages(self) -> float:
        """Messages a second of the busiest partition at the peak."""
        return self.hottest_share * self.peak_messages

    @property
    def hottest_bytes(self) -> float:
        """Bytes a second of the busiest partition at the peak."""
        return self.hottest_share * self.peak_bytes


def size(inputs: CapacityInputs, deployment: Deployment) -> Sizing:
    """Compute them."""
    usable = 1.0 - inputs.headroom
    mean_messages = inputs.messages_per_second * inputs.growth
    peak_messages = mean_messages * inputs.peak_factor
    wire_bytes = inputs.message_bytes / inputs.compression_ratio
    mean_bytes, peak_bytes = mean_messages * wire_bytes, peak_messages * wire_bytes
    consumer_messages = consumer_rate(inputs)
    consumers = 0 if not inputs.groups else ceil(peak_messages / (consumer_messages * usable))
    ceiling = deployment.ceiling("partition_produce_mb_per_s") * MEGABYTE
    by_produce = ceil(peak_bytes / (ceiling * usable))
    needed = max(1, by_produce, consumers)
    skew = skew_of(inputs)
    days = disk_days(inputs)
    disk = mean_bytes * DAY_SECONDS * days * inputs.copies
    by_disk = _partitions_by_disk(inputs, deployment, disk / inputs.copies)
    read_peak = peak_bytes * inputs.groups
    network_in, network_out = _network(inputs, peak_bytes)

    def brokers_by(partitions: int) -> tuple[float, dict[str, int]]:
        """What is not deleted yet, and the brokers that each resource asks for."""
        slack = _slack_bytes(inputs, deployment, mean_bytes, partitions)
        return slack, _brokers_by(
            inputs, deployment, (peak_bytes, read_peak), (network_in, network_out),
            disk + slack, partitions,
        )  # fmt: skip

    partitions = inputs.partitions or _spread(
        max(ceil(needed * inputs.over_provision - 1e-9), by_disk),
        lambda count: brokers_by(count)[1],
    )
    slack, by = brokers_by(partitions)
    brokers_needed = max(by.values())
    return Sizing(
        mean_messages=mean_messages,
        peak_messages=peak_messages,
        mean_bytes=mean_bytes,
        peak_bytes=peak_bytes,
        read_mean_bytes=mean_bytes * inputs.groups,
        read_peak_bytes=read_peak,
        skew=skew,
        usable=usable,
        consumer_messages=consumer_messages,
        consumers=consumers,
        partitions_by_produce=by_produce,
        partitions_by_disk=by_disk,
        partitions_needed=needed,
        partitions=partitions,
        hottest_share=skew.hottest_partition(partitions),
        disk_days=days,
        disk_bytes=disk,
        slack_bytes=slack,
        store_bytes=_store_bytes(inputs, mean_bytes),
        network_in=network_in,
        network_out=network_out,
        brokers_by=by,
        brokers_needed=brokers_needed,
        brokers=brokers_needed + 1,
        replicas=partitions * inputs.copies,
    )


def _spread(wanted: int, brokers_by: Callable[[int], Mapping[str, int]]) -> int:
    """The number of partitions, rounded up, at which each broker leads one.

    Brokers that are there for the number of partitions have them already.
    """
    partitions = rounded_up(wanted)
    for _ in range(SPREADINGS_MAX):
        others = {name: count for name, count in brokers_by(partitions).items()
                  if name != "partitions"}  # fmt: skip
        brokers = max(others.values()) + 1
        if partitions >= brokers:
            break
        partitions = rounded_up(brokers)
    return partitions


def disk_room(inputs: CapacityInputs, deployment: Deployment) -> float:
    """Bytes of a broker's disk without its journal."""
    journal = deployment.storage.journal_files_max * deployment.storage.journal_file_bytes
    return max(1.0, inputs.broker_disk - journal)


def partition_bytes_max(inputs: CapacityInputs, deployment: Deployment) -> float:
    """What a partition should hold on a disk at most."""
    usable = disk_room(inputs, deployment) * (1.0 - inputs.headroom)
    return min(inputs.partition_bytes, usable / PARTITIONS_PER_DISK)


def _partitions_by_disk(inputs: CapacityInputs, deployment: Deployment, kept_bytes: float) -> int:
    """Partitions that keep each below its bound, with a segment that is not deleted yet."""
    most = partition_bytes_max(inputs, deployment)
    return ceil(kept_bytes / max(most - deployment.log.segment_bytes, most / 2))


def consumer_rate(inputs: CapacityInputs) -> float:
    """Messages a second that one consumer takes."""
    rates = [inputs.consumer_rate]
    if inputs.message_work:
        rates.append(1000 / inputs.message_work)
    if inputs.consumer_bytes:
        rates.append(inputs.consumer_bytes * inputs.compression_ratio / inputs.message_bytes)
    return min(rates)


def rounded_up(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 …: numbers that many group sizes divide."""
    power = 1
    while power < count:
        if power >= 2 and power // 2 * 3 >= count:
            return power // 2 * 3
        power *= 2
    return power


def disk_days(inputs: CapacityInputs) -> float:
    """Days of data on brokers' disks."""
    days = {"local": inputs.retention, "tiered": inputs.local_retention, "diskless": 0.0}
    return days[inputs.storage]


def _slack_bytes(
    inputs: CapacityInputs, deployment: Deployment, mean_bytes: float, partitions: int
) -> float:
    """Retention deletes whole segments, so that each replica has up to one more."""
    if inputs.storage == "diskless":
        return 0.0
    grown = mean_bytes * DAY_SECONDS * max(1.0, disk_days(inputs))
    return min(float(deployment.log.segment_bytes) * partitions, grown) * inputs.copies


def _store_bytes(inputs: CapacityInputs, mean_bytes: float) -> float:
    """Bytes in the object store: all that is kept, or what local disks have let go."""
    days = {
        "local": 0.0,
        "tiered": inputs.retention - inputs.local_retention,
        "diskless": inputs.retention,
    }
    return mean_bytes * DAY_SECONDS * days[inputs.storage]


def _network(inputs: CapacityInputs, peak_bytes: float) -> tuple[float, float]:
    """Bytes a second into and out of all brokers at the peak."""
    fetched = peak_bytes * inputs.groups
    if inputs.storage == "diskless":
        old = peak_bytes * inputs.lagging_groups
        near = peak_bytes * (inputs.zones - 1) if inputs.zone_aware else 0.0
        return peak_bytes + old + near, fetched + peak_bytes
    uploaded = peak_bytes if inputs.storage == "tiered" else 0.0
    old = peak_bytes * inputs.lagging_groups if inputs.storage == "tiered" else 0.0
    followers = peak_bytes * (inputs.copies - 1)
    return peak_bytes + followers + old, fetched + followers + uploaded


def _brokers_by(
    inputs: CapacityInputs,
    deployment: Deployment,
    peaks: tuple[float, float],
    network: tuple[float, float],
    disk_bytes: float,
    partitions: int,
) -> dict[str, int]:
    usable = 1.0 - inputs.headroom
    shares = broker_shares(inputs, deployment, peaks, network, disk_bytes)
    by = {name: max(1, ceil(share / usable - 1e-9)) for name, share in shares.items()}
    if disk_bytes:
        room = disk_room(inputs, deployment) * usable - partition_bytes_max(inputs, deployment)
        by["disk"] = max(1, ceil(disk_bytes / room - 1e-9))
    by["partitions"] = ceil(partitions * inputs.copies / inputs.broker_partitions)
    by["replicas and zones"] = max(inputs.copies, inputs.zones)
    return by


def broker_shares(
    inputs: CapacityInputs,
    deployment: Deployment,
    peaks: tuple[float, float],
    network: tuple[float, float],
    disk_bytes: float,
) -> dict[str, float]:
    """Of each resource, how many brokers' worth the load takes, without headroom."""
    written, read = peaks[0] * inputs.copies, peaks[1]
    processes = max(PROCESS_CORES, inputs.broker_cores)
    produce = deployment.ceiling(deployment.produce_name(inputs)) * MEGABYTE * processes
    consume = deployment.ceiling("consume_mb_per_s") * MEGABYTE * processes
    core_seconds = (
        written / 1e9 * deployment.ceiling(deployment.produce_name(inputs, "cpu_s_per_gb"))
        + read / 1e9 * deployment.ceiling("consume_cpu_s_per_gb")
    )  # fmt: skip
    return {
        "throughput": written / produce + read / consume,
        "cores": core_seconds / inputs.broker_cores,
        "network": max(network) / inputs.broker_network,
        "disk": disk_bytes / disk_room(inputs, deployment),
    }


def crossing(inputs: CapacityInputs) -> tuple[float, float, float]:
    """Shares of produced, of replicated, and of fetched bytes that go between zones.

    Replicas are spread evenly over zones. Of replication it is a multiple of produced bytes: how
    many followers are elsewhere than their leader, in the mean.
    """
    zones, copies = inputs.zones, inputs.copies
    elsewhere = (zones - 1) / zones
    if inputs.storage == "diskless":
        return (0.0, 0.0, 0.0) if inputs.zone_aware else (elsewhere, 0.0, elsewhere)
    whole, rest = divmod(copies, zones)
    squares = rest * (whole + 1) ** 2 + (zones - rest) * whole**2
    replicated = copies - squares / copies
    if not inputs.zone_aware:
        return elsewhere, replicated, elsewhere
    return elsewhere, replicated, max(0.0, 1.0 - min(copies, zones) / zones)
