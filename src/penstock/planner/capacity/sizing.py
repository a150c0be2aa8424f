"""Sizing of a cluster for a load: skew, rates, partitions, disks, network and brokers.

Rates are those at the end of the horizon. Peak rates determine partitions, brokers and networks.
Average rates determine storage and monthly volumes.

**Skew.** A key always hashes to the same partition. So the partition of the busiest key has at
least that key's share, whatever the number of partitions. The other keys spread evenly over all
partitions, including this one. In addition, several busy keys may hash to one partition. The load
of a partition varies around the average, and the variance is the sum of the keys' squared shares
divided by the number of partitions. The largest of P such loads is about sqrt(2 ln P) standard
deviations above the average.

**Partitions and brokers.** A consumer group has at most one consumer per partition, so there are at
least as many partitions as consumers that the peak needs. Each resource needs a number of brokers.
The plan takes the largest of these numbers plus one, because one broker may be down.

**Disks.** A partition is stored on one disk and is moved as a whole. So there are enough partitions
to keep each below its size limit, and at least one per broker. Partitions do not divide evenly over
brokers, so each disk has space for one partition more than the average.

Source: extreme values of normal variables; Zipf's law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt
from typing import Final

import numpy as np

from penstock.planner.capacity.inputs import CapacityInputs, Deployment
from penstock.planner.quantities import format_quantity
from penstock.planner.results import figure

_EXACT: Final = 10_000
"""Number of ranks that are summed exactly; an integral approximates the sum over further ranks."""
_EXPONENT_MAX: Final = 10.0
_HALVINGS: Final = 60
TOP: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Skew of keys: share of the busiest key, and sum of the squared shares of all other keys."""

    keys: int
    hottest_share: float
    others_squared: float

    def hottest_partition(self, partitions: int) -> float:
        if partitions <= 1:
            return 1.0
        if not self.keys:
            return 1.0 / partitions
        pinned = self.hottest_share + (1.0 - self.hottest_share) / partitions
        deviation = sqrt(self.others_squared / partitions * (1 - 1 / partitions))
        crowded = 1.0 / partitions + deviation * sqrt(2 * log(partitions))
        return min(1.0, max(pinned, crowded))


def skew_of(inputs: CapacityInputs) -> Skew:
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
    return max(1, round(TOP * keys))


def exponent_of(keys: int, share: float) -> float:
    """Return the exponent of Zipf's law at which the busiest 1 % of the keys have this share."""
    low, high, top = 0.0, _EXPONENT_MAX, top_keys(keys)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if harmonic(top, middle) < share * harmonic(keys, middle):
            low = middle
        else:
            high = middle
    return high


def harmonic(count: int, exponent: float) -> float:
    """Return the sum of 1/n^exponent for n from 1 to `count`."""
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
    if share <= allowed or allowed <= 0:
        return 1
    ways = share / allowed
    return int(-(-ways // 1)) if ways < 1e9 else 1_000_000_000


DAY_SECONDS: Final = 86_400
MONTH_DAYS: Final = 30
MONTH_SECONDS: Final = DAY_SECONDS * MONTH_DAYS
MEGABYTE: Final = 1e6
PROCESS_CORES: Final = 1.0
PARTITIONS_PER_DISK: Final = 10
"""Minimum number of partitions that a disk must have space for.

A disk has space for one partition more than the average. With fewer, larger partitions that space
would be too large a share of the disk.
"""
SPREADINGS_MAX: Final = 128
"""Maximum rounds until each broker leads a partition; a round adds a third or more of them."""
REQUEST_BYTES: Final = 1 << 20
"""Size of the largest produce request: default of max.request.size of Kafka's producer."""
ARITHMETIC: Final = "capacity arithmetic of partitioned logs"
_WIRE: Final = "message {inputs.message_bytes:g} bytes / compression {inputs.compression_ratio:g}"
_CONSUMERS: Final = "partitions and consumers"


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Figures that follow from the inputs and a number of partitions.

    Byte rates and sizes are after compression.
    """

    inputs: CapacityInputs
    deployment: Deployment
    skew: Skew
    partition_count: int

    @property
    def usable(self) -> float:
        return 1.0 - self.inputs.headroom

    @property
    def wire_bytes(self) -> float:
        return self.inputs.message_bytes / self.inputs.compression_ratio

    @figure("messages", "messages/s", group="load", source=ARITHMETIC,
            formula=lambda s: f"{s.inputs.messages_per_second:g} messages/s"
            + (f" × growth {s.inputs.growth:.3g}" if s.inputs.growth != 1 else ""))
    def messages_per_second(self) -> float:
        return self.inputs.messages_per_second * self.inputs.growth

    @figure("messages at the peak", "messages/s", group="load", source=ARITHMETIC,
            formula="messages × peak factor {inputs.peak_factor:g}")
    def peak_messages_per_second(self) -> float:
        return self.messages_per_second * self.inputs.peak_factor

    @figure("bytes written", "bytes/s", group="load", source=ARITHMETIC,
            formula=f"messages × {_WIRE}")
    def write_bytes_per_second(self) -> float:
        return self.messages_per_second * self.wire_bytes

    @figure("bytes written at the peak", "bytes/s", group="load", source=ARITHMETIC,
            formula=f"messages at the peak × {_WIRE}")
    def peak_write_bytes_per_second(self) -> float:
        return self.peak_messages_per_second * self.wire_bytes

    @figure("bytes written with replicas", "bytes/s", group="load", source=ARITHMETIC,
            formula="bytes written × {inputs.copies} replicas")
    def replicated_bytes_per_second(self) -> float:
        return self.write_bytes_per_second * self.inputs.copies

    @figure("bytes read", "bytes/s", group="load", source=ARITHMETIC,
            formula="bytes written × {inputs.groups} groups")
    def read_bytes_per_second(self) -> float:
        return self.write_bytes_per_second * self.inputs.groups

    @figure("bytes read at the peak", "bytes/s", group="load", source=ARITHMETIC,
            formula="bytes written at the peak × {inputs.groups} groups")
    def peak_read_bytes_per_second(self) -> float:
        return self.peak_write_bytes_per_second * self.inputs.groups

    @figure("partitions", "partitions", group=_CONSUMERS, setting="num.partitions",
            minimum=lambda s: s.partitions_needed,
            source="plan 4 to 10 times the need: a keyed topic's count is fixed",
            formula=lambda s: f"as given; the peak needs {s.partitions_needed}"
            if s.inputs.partitions
            else f"the largest of: {s.partitions_needed} needed × over-provision"
            f" {s.inputs.over_provision:g}; partitions for the stored bytes; one per broker."
            " Rounded up to 2^n or 3 × 2^n, because more partitions later would move the keys of a"
            " keyed topic")
    def partitions(self) -> int:
        return self.partition_count

    @figure("partitions for the write rate", "partitions", group=_CONSUMERS, source=ARITHMETIC,
            formula=lambda s: "bytes written at the peak /"
            f" ({s.deployment.text('partition_produce_mb_per_s')} MB/s × {s.free})")
    def partitions_by_produce(self) -> int:
        ceiling = self.deployment.ceiling("partition_produce_mb_per_s") * MEGABYTE
        return ceil(self.peak_write_bytes_per_second / (ceiling * self.usable))

    @property
    def free(self) -> str:
        return f"(1 - headroom {self.inputs.headroom:g})"

    @figure("partitions for the stored bytes", "partitions", group=_CONSUMERS,
            formula="stored on disks / replicas / (the smaller of partition-bytes"
            f" {{inputs.partition_bytes:bytes}} and 1/{PARTITIONS_PER_DISK} of a disk's"
            f" {{disk_room:bytes}} × {{free}} - one segment that is not deleted yet)",
            source="a partition is on one disk, and is moved and recovered as a whole")
    def partitions_by_disk(self) -> int:
        most = self.partition_bytes_max
        kept = self.disk_bytes / self.inputs.copies
        return ceil(kept / max(most - self.deployment.log.segment_bytes, most / 2))

    @property
    def partitions_needed(self) -> int:
        return max(1, self.partitions_by_produce, self.consumers_per_group)

    @property
    def consumer_rates(self) -> list[tuple[float, str]]:
        """Limits of one consumer in messages per second, each with its text for a formula."""
        inputs = self.inputs
        rates = [(inputs.consumer_rate, f"{inputs.consumer_rate:g} messages/s")]
        if inputs.message_work:
            rates.append((1000 / inputs.message_work, f"1 / {inputs.message_work:g} ms"))
        if inputs.consumer_bytes:
            by_bytes = inputs.consumer_bytes * inputs.compression_ratio / inputs.message_bytes
            shown = format_quantity(inputs.consumer_bytes, "bytes/s")
            rates.append((by_bytes, f"{shown} / message"))
        return rates

    @property
    def consumer_limits(self) -> str:
        limits = [limit for _, limit in self.consumer_rates]
        return limits[0] if len(limits) == 1 else f"the smallest of {', '.join(limits)}"

    @property
    def consumer_messages(self) -> float:
        return min([rate for rate, _ in self.consumer_rates])

    @figure("consumers per group", "consumers", group=_CONSUMERS,
            formula="messages at the peak / ({consumer_limits} × {free}); needs as many partitions",
            source="Kafka: one consumer of a group reads a partition")
    def consumers_per_group(self) -> int:
        if not self.inputs.groups:
            return 0
        return ceil(self.peak_messages_per_second / (self.consumer_messages * self.usable))

    @figure("mean load of a partition", "messages/s", group=_CONSUMERS, source=ARITHMETIC,
            formula="messages at the peak / {partitions} partitions")
    def mean_partition_messages_per_second(self) -> float:
        return self.peak_messages_per_second / self.partitions

    @figure("the busiest key", "messages/s", group=_CONSUMERS, source=ARITHMETIC,
            formula="its share {skew.hottest_share:.3g} of messages × messages at the peak")
    def hottest_key_messages_per_second(self) -> float:
        return self.skew.hottest_share * self.peak_messages_per_second

    @property
    def hottest_share(self) -> float:
        return self.skew.hottest_partition(self.partitions)

    @figure("the busiest partition", "messages/s", group=_CONSUMERS,
            formula="messages at the peak × the larger of two shares: busiest key"
            " {skew.hottest_share:.3g} + other keys / {partitions}; 1 / {partitions} +"
            " standard deviation × sqrt(2 ln {partitions})",
            source="Kafka: a key hashes to one partition; extreme values of normal variables")
    def hottest_partition_messages_per_second(self) -> float:
        return self.hottest_share * self.peak_messages_per_second

    @figure("the busiest partition, bytes", "bytes/s", group=_CONSUMERS, source=ARITHMETIC,
            formula="its share {hottest_share:.3g} of messages × bytes written at the peak")
    def hottest_partition_bytes_per_second(self) -> float:
        return self.hottest_share * self.peak_write_bytes_per_second

    @property
    def allowed_messages(self) -> float:
        each = self.peak_write_bytes_per_second / self.peak_messages_per_second
        produced = self.deployment.ceiling("partition_produce_mb_per_s") * MEGABYTE / each
        consumed = self.consumer_messages if self.consumers_per_group else produced
        return self.usable * min(produced, consumed)

    @figure("salted keys that replace the busiest key", "ways", group=_CONSUMERS,
            formula="the busiest key / the load that a consumer and a partition allow with"
            " headroom: {allowed_messages:messages/s}",
            source="salting a key ends its strict order")
    def salt_ways(self) -> int:
        return salt_ways(self.hottest_key_messages_per_second, self.allowed_messages)

    @property
    def brokers_by(self) -> Mapping[str, int]:
        inputs, shares = self.inputs, self.broker_shares
        by = {name: max(1, ceil(share / self.usable - 1e-9)) for name, share in shares.items()}
        filled = self.disk_bytes + self.disk_slack_bytes
        if filled:
            room = self.disk_room * self.usable - self.partition_bytes_max
            by["disk"] = max(1, ceil(filled / room - 1e-9))
        by["partitions"] = ceil(self.replicas / inputs.broker_partitions)
        by["replicas and zones"] = max(inputs.copies, inputs.zones)
        return by

    @property
    def broker_shares(self) -> Mapping[str, float]:
        inputs, deployment = self.inputs, self.deployment
        written = self.peak_write_bytes_per_second * inputs.copies
        read = self.peak_read_bytes_per_second
        processes = max(PROCESS_CORES, inputs.broker_cores)
        produce = deployment.ceiling(deployment.produce_name(inputs)) * MEGABYTE * processes
        consume = deployment.ceiling("consume_mb_per_s") * MEGABYTE * processes
        core_seconds = (
            written / 1e9 * deployment.ceiling(deployment.produce_cpu_name(inputs))
            + read / 1e9 * deployment.ceiling("consume_cpu_s_per_gb")
        )
        network = max(self.network_in_bytes_per_second, self.network_out_bytes_per_second)
        return {
            "throughput": written / produce + read / consume,
            "cores": core_seconds / inputs.broker_cores,
            "network": network / inputs.broker_network,
            "disk": (self.disk_bytes + self.disk_slack_bytes) / self.disk_room,
        }

    @property
    def brokers_needed(self) -> int:
        return max(self.brokers_by.values())

    @figure("brokers", "brokers", group="brokers", source=ARITHMETIC,
            minimum=lambda s: s.brokers_needed,
            formula="the largest number below + 1, because one broker may be down")
    def brokers(self) -> int:
        return self.brokers_needed + 1

    @property
    def replicas(self) -> int:
        return self.partitions * self.inputs.copies

    @figure("replicas per broker", "partitions", group="brokers", source=ARITHMETIC,
            formula="partitions × replicas / brokers")
    def partitions_per_broker(self) -> int:
        return ceil(self.replicas / self.brokers)

    @figure("brokers without a partition", "brokers", group="brokers", source=ARITHMETIC,
            formula="brokers - partitions × replicas, at least 0")
    def idle_brokers(self) -> int:
        return max(0, self.brokers - self.replicas)

    @figure("written per day", "bytes", group="storage", source=ARITHMETIC,
            formula="bytes written × 86,400 s")
    def daily_bytes(self) -> float:
        return self.write_bytes_per_second * DAY_SECONDS

    @property
    def disk_days(self) -> float:
        inputs = self.inputs
        days = {"local": inputs.retention, "tiered": inputs.local_retention, "diskless": 0.0}
        return days[inputs.storage]

    @figure("stored on disks", "bytes", group="storage",
            formula="written per day × {disk_days:g} days × {inputs.copies} replicas",
            source="daily ingest × retention × replication / compression")
    def disk_bytes(self) -> float:
        return self.daily_bytes * self.disk_days * self.inputs.copies

    @figure("segments not deleted yet", "bytes", group="storage",
            formula="up to one segment of {deployment.log.segment_bytes:bytes} per replica, but"
            " at most one retention of data", source="Kafka: retention deletes whole segments")
    def disk_slack_bytes(self) -> float:
        if self.inputs.storage == "diskless":
            return 0.0
        grown = self.daily_bytes * max(1.0, self.disk_days)
        segments = float(self.deployment.log.segment_bytes) * self.partitions
        return min(segments, grown) * self.inputs.copies

    @property
    def journal_bytes(self) -> int:
        storage = self.deployment.storage
        return storage.journal_files_max * storage.journal_file_bytes

    @property
    def disk_journal_bytes(self) -> int:
        """Bytes of the journal on a broker's disk; 0 for diskless topics, which write none."""
        return 0 if self.inputs.storage == "diskless" else self.journal_bytes

    @property
    def disk_room(self) -> float:
        return max(1.0, self.inputs.broker_disk - self.journal_bytes)

    @property
    def partition_bytes_max(self) -> float:
        usable = self.disk_room * self.usable
        return min(self.inputs.partition_bytes, usable / PARTITIONS_PER_DISK)

    @figure("used disk space per broker", "bytes", group="storage",
            formula="(stored on disks + segments not deleted yet) / {brokers_needed} brokers +"
            " journal {disk_journal_bytes:bytes}", source="journal.files.max × journal.file.bytes")
    def disk_bytes_per_broker(self) -> float:
        filled = self.disk_bytes + self.disk_slack_bytes
        return filled / self.brokers_needed + self.disk_journal_bytes

    @figure("mean partition on a disk", "bytes", group="storage", source=ARITHMETIC,
            formula="(stored on disks + segments not deleted yet) / {replicas:,} replicas; the"
            " busiest has {busiest_replica_bytes:bytes}")
    def partition_disk_bytes(self) -> float:
        return (self.disk_bytes + self.disk_slack_bytes) / self.replicas

    @property
    def busiest_replica_bytes(self) -> float:
        return self.partition_disk_bytes * max(1.0, self.hottest_share * self.partitions)

    @property
    def fullest_replicas_bytes(self) -> float:
        others = self.partition_disk_bytes * (self.partitions_per_broker - 1)
        return others + self.busiest_replica_bytes

    @figure("the fullest disk", "bytes", group="storage", source=ARITHMETIC,
            formula="{partitions_per_broker} partitions, including the busiest, on one of"
            " {brokers} brokers + journal")
    def fullest_disk_bytes(self) -> float:
        return self.fullest_replicas_bytes + self.disk_journal_bytes

    @property
    def store_days(self) -> float:
        """Days of data that only the object store holds.

        These are all days for diskless topics, and for tiered topics those after the local
        retention.
        """
        return self.inputs.retention - self.disk_days

    @figure("stored in the object store", "bytes", group="storage",
            formula="written per day × {store_days:g} days, one copy",
            source="KIP-405; the store replicates by itself")
    def store_bytes(self) -> float:
        return self.daily_bytes * self.store_days

    @figure("share of days only in the store", group="storage", source=ARITHMETIC,
            formula="1 - {disk_days:g} d / {inputs.retention:g} d")
    def store_share(self) -> float:
        return 1 - self.disk_days / self.inputs.retention

    @property
    def through_store(self) -> bool:
        return self.inputs.storage != "local"

    @figure("received by all brokers, peak", "bytes/s", group="network", source=ARITHMETIC,
            formula=lambda s: "bytes written at the peak × replicas"
            + (" + bytes read from the store" if s.through_store else ""))
    def network_in_bytes_per_second(self) -> float:
        inputs, peak = self.inputs, self.peak_write_bytes_per_second
        old = peak * inputs.lagging_groups if self.through_store else 0.0
        if inputs.storage == "diskless":
            return peak + old + (peak * (inputs.zones - 1) if inputs.zone_aware else 0.0)
        return peak + peak * (inputs.copies - 1) + old

    @figure("sent by all brokers, peak", "bytes/s", group="network", source=ARITHMETIC,
            formula=lambda s: f"bytes written at the peak × ({s.inputs.copies - 1} followers +"
            f" {s.inputs.groups} groups" + (" + 1 to the store)" if s.through_store else ")"))
    def network_out_bytes_per_second(self) -> float:
        peak = self.peak_write_bytes_per_second
        followers = peak * (self.inputs.copies - 1)
        return peak * self.inputs.groups + followers + (peak if self.through_store else 0.0)

    @figure("received by a broker, one down", "bytes/s", group="network", source=ARITHMETIC,
            formula="received by all brokers / {brokers_needed} brokers")
    def broker_network_in_bytes_per_second(self) -> float:
        return self.network_in_bytes_per_second / self.brokers_needed

    @figure("sent by a broker, one down", "bytes/s", group="network", source=ARITHMETIC,
            formula="sent by all brokers / {brokers_needed} brokers")
    def broker_network_out_bytes_per_second(self) -> float:
        return self.network_out_bytes_per_second / self.brokers_needed

    @property
    def crossing(self) -> Crossing:
        return crossing(self.inputs)

    @figure("between zones: produced", "bytes/s", group="network", source=ARITHMETIC,
            formula="bytes written × share between zones {crossing.produced:.3g}")
    def cross_zone_produce_bytes_per_second(self) -> float:
        return self.write_bytes_per_second * self.crossing.produced

    @figure("between zones: replicated", "bytes/s", group="network", source=ARITHMETIC,
            formula="bytes written × {crossing.replicated:.3g} followers outside their leader's"
            " zone: {inputs.copies} replicas over {inputs.zones} zones")
    def cross_zone_replication_bytes_per_second(self) -> float:
        return self.write_bytes_per_second * self.crossing.replicated

    @figure("between zones: fetched", "bytes/s", group="network", source="KIP-392",
            formula=lambda s: f"bytes read × share between zones {s.crossing.fetched:.3g}"
            + ("; clients read in their zone if it has a replica" if s.inputs.zone_aware else ""))
    def cross_zone_fetch_bytes_per_second(self) -> float:
        return self.read_bytes_per_second * self.crossing.fetched

    @figure("between zones per month: replicated", "bytes/month", group="network",
            formula=f"between zones: replicated × 86,400 s × {MONTH_DAYS}", source=ARITHMETIC)
    def cross_zone_replication_bytes_per_month(self) -> float:
        return self.cross_zone_replication_bytes_per_second * MONTH_SECONDS

    @figure("between zones per month: all", "bytes/month", group="network", source=ARITHMETIC,
            formula=f"(produced + replicated + fetched between zones) × 86,400 s × {MONTH_DAYS}")
    def cross_zone_bytes_per_month(self) -> float:
        share = self.crossing
        crossed = share.produced + share.replicated + share.fetched * self.inputs.groups
        return self.write_bytes_per_second * crossed * MONTH_SECONDS
# fmt: on


def size(inputs: CapacityInputs, deployment: Deployment) -> Sizing:
    """Return the sizing of a cluster, with the given partitions or a planned number.

    The planned number covers the load with over-provision, the size limit of partitions, and one
    partition per broker.
    """
    sizing = Sizing(
        inputs=inputs,
        deployment=deployment,
        skew=skew_of(inputs),
        partition_count=inputs.partitions or 1,
    )
    if inputs.partitions:
        return sizing
    target = ceil(sizing.partitions_needed * inputs.over_provision - 1e-9)
    sizing = replace(sizing, partition_count=rounded_up(max(target, sizing.partitions_by_disk)))
    for _ in range(SPREADINGS_MAX):
        others = [count for name, count in sizing.brokers_by.items() if name != "partitions"]
        brokers = max(others) + 1
        if sizing.partitions >= brokers:
            break
        sizing = replace(sizing, partition_count=rounded_up(brokers))
    return sizing


def rounded_up(count: int) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 … that is not below `count`.

    Many sizes of consumer groups divide these numbers.
    """
    power = 1
    while power < count:
        if power >= 2 and power // 2 * 3 >= count:
            return power // 2 * 3
        power *= 2
    return power


@dataclass(frozen=True, slots=True)
class Crossing:
    """Shares of the written or read bytes that cross zones.

    `replicated` is the average number of followers outside their leader's zone.
    """

    produced: float
    replicated: float
    fetched: float


def crossing(inputs: CapacityInputs) -> Crossing:
    zones, copies = inputs.zones, inputs.copies
    elsewhere = (zones - 1) / zones
    if inputs.storage == "diskless":
        far = 0.0 if inputs.zone_aware else elsewhere
        return Crossing(far, 0.0, far)
    whole, rest = divmod(copies, zones)
    squares = rest * (whole + 1) ** 2 + (zones - rest) * whole**2
    replicated = copies - squares / copies
    near = max(0.0, 1.0 - min(copies, zones) / zones)
    return Crossing(elsewhere, replicated, near if inputs.zone_aware else elsewhere)
