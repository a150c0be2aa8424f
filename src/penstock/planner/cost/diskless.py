"""Diskless brokers: an object store for the bytes, PostgreSQL for their order.

See `own` for the theory of the request counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.planner.cost.inputs import DISKLESS, CostInputs
from penstock.planner.cost.lines import Line, OptionCost, operations, priced, size
from penstock.planner.cost.own import DISKLESS_P99_MS, broker_count, brokers_figure, compute
from penstock.planner.cost.prices import Prices
from penstock.planner.cost.workload import HOURS, MB, SECONDS, Workload, workload_of
from penstock.planner.quantities import significant

_SPLIT = "log and queue article, section 12c"
_SETTINGS = "Penstock: DisklessSettings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests a second to the object store. `readers` and `extents` are per object."""

    brokers: int
    objects_s: float
    readers: float
    extents: float
    consolidated: bool
    sealed_s: float

    @property
    def puts_s(self) -> float:
        return self.objects_s + self.sealed_s

    @property
    def fetch_gets_s(self) -> float:
        return self.objects_s * self.readers

    @property
    def consolidation_gets_s(self) -> float:
        return self.objects_s * self.extents if self.consolidated else 0.0


def requests_of(inputs: CostInputs, load: Workload) -> Requests:
    """How many objects are written, and how often they are read."""
    count = broker_count(load, inputs.diskless_broker_rate, copies=1)
    ticks_s = count * 1000 / inputs.commit_interval
    objects_s = max(load.bytes_s / inputs.object_bytes, min(ticks_s, load.records_s))
    served = max(1.0, inputs.partitions * load.zones / count)
    extents = max(1.0, min(served, load.records_s / objects_s))
    readers = (load.zones - 1) * min(count / load.zones, extents) if load.groups else 0.0
    by_bytes = load.bytes_s / inputs.sealed_bytes
    by_extents = objects_s * extents / DISKLESS.consolidation_min_extents
    return Requests(
        brokers=count,
        objects_s=objects_s,
        readers=readers,
        extents=extents,
        consolidated=inputs.consolidation,
        sealed_s=max(by_bytes, by_extents) if inputs.consolidation else 0.0,
    )


def diskless(inputs: CostInputs, prices: Prices) -> OptionCost:
    """Penstock's diskless topics."""
    load = workload_of(inputs)
    asked = requests_of(inputs, load)
    lines = [
        compute(asked.brokers, inputs.diskless_broker_vcpus, prices),
        priced(
            "objects", "object store", "storage", load.stored_gb, prices["object.gb-month"],
            f"{significant(load.gb_day)} GB a day × {load.retention_days:g} d, one copy", _SPLIT,
        ),
        *_requests(inputs, asked, prices),
        priced(
            "database", "PostgreSQL", "database", inputs.database_vcpus * HOURS,
            prices["database.vcpu-hour"], f"{inputs.database_vcpus} vCPU × {HOURS} h",
        ),
        priced(
            "cache", "cache disks", "cache", load.gb_day / 24 * inputs.cache_time * load.zones,
            prices["disk.gb-month"],
            f"{significant(load.gb_day / 24)} GB an hour × {inputs.cache_time:g} h"
            f" × {load.zones} zones", _SPLIT,
        ),
    ]  # fmt: skip
    return OptionCost(
        key="diskless",
        label="diskless",
        lines=(*lines, operations(lines, inputs.operations_share)),
        sizes=(
            brokers_figure("diskless", asked.brokers, load, inputs.diskless_broker_rate),
            size(
                "diskless", "object_bytes", "size of an object", load.bytes_s / asked.objects_s,
                "bytes",
                f"{significant(load.bytes_s / MB)} MB/s / {significant(asked.objects_s)} objects/s",
            ),
            size(
                "diskless", "puts_per_second", "PUTs", asked.puts_s, "requests/s",
                f"objects: the larger of bytes / {inputs.object_bytes} and {asked.brokers} brokers"
                f" / {inputs.commit_interval:g} ms; segments: of {inputs.sealed_bytes} bytes or"
                f" {DISKLESS.consolidation_min_extents} extents",
                _SETTINGS,
            ),
            size(
                "diskless", "extents_per_object", "extents in an object", asked.extents, "",
                f"the smaller of {inputs.partitions} partitions × {load.zones} zones /"
                f" {asked.brokers} brokers and of the object's messages",
            ),
            size(
                "diskless", "gets_per_second", "GETs",
                asked.fetch_gets_s + asked.consolidation_gets_s, "requests/s",
                f"{significant(asked.fetch_gets_s)} of consumers +"
                f" {significant(asked.consolidation_gets_s)} of consolidation",
            ),
        ),
        latency_p99_ms=DISKLESS_P99_MS,
    )  # fmt: skip


def _requests(inputs: CostInputs, asked: Requests, prices: Prices) -> list[Line]:
    month = SECONDS / 1000
    return [
        priced(
            "puts", "PUTs", "requests", asked.puts_s * month, prices["object.put-thousand"],
            f"({significant(asked.objects_s)} objects/s + {significant(asked.sealed_s)} segments/s)"
            f" × {SECONDS:,} s", _SETTINGS,
        ),
        priced(
            "fetch_gets", "GETs of consumers", "requests",
            asked.fetch_gets_s * month, prices["object.get-thousand"],
            f"{significant(asked.objects_s)} objects/s × {significant(asked.readers)} brokers of"
            f" other zones × {SECONDS:,} s",
        ),
        priced(
            "consolidation_gets", "GETs of consolidation", "requests",
            asked.consolidation_gets_s * month, prices["object.get-thousand"],
            f"{significant(asked.objects_s)} objects/s × {significant(asked.extents)} extents ×"
            f" {SECONDS:,} s" if asked.consolidated else "consolidation is off",
        ),
    ]  # fmt: skip
