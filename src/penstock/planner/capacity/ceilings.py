"""Ceilings of one broker, partition or store: measured on this host, or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.control.limits import TOPIC_PARTITIONS_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects.settings import FetchSettings
from penstock.planner.calibration import Calibration
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.latency import Distribution
from penstock.storage import LogConfig, StorageSettings

STORE_PREFIX_PUTS_PER_SECOND: Final = 3_500
STORE_PREFIX_GETS_PER_SECOND: Final = 5_500
WAL_PREFIXES: Final = 256
"""Key prefixes of write-ahead objects, since stores limit the requests per prefix."""
CLUSTER_PARTITIONS_ZOOKEEPER: Final = 200_000
OWN_BENCHMARKS: Final = "Penstock's benchmarks on 2 cores"


class Assumed(NamedTuple):
    value: float
    origin: str


ASSUMED: Final[Mapping[str, Assumed]] = {
    "produce_mb_per_s": Assumed(261, f"{OWN_BENCHMARKS}: local topic, 1 KiB, 4 partitions"),
    "diskless_produce_mb_per_s": Assumed(157, f"{OWN_BENCHMARKS}: diskless topic, S3 and 50 ms"),
    "consume_mb_per_s": Assumed(615, f"{OWN_BENCHMARKS}: fetches of 1 KiB, 12 partitions"),
    "produce_cpu_s_per_gb": Assumed(4.25, f"{OWN_BENCHMARKS}: local topic, 1 KiB, 4 partitions"),
    "replicated_produce_cpu_s_per_gb": Assumed(
        2.43, f"{OWN_BENCHMARKS}: 1 KiB, large batches; 7.3 on 3 brokers with 3 replicas"
    ),
    "diskless_produce_cpu_s_per_gb": Assumed(4.4, f"{OWN_BENCHMARKS}: diskless, on a directory"),
    "consume_cpu_s_per_gb": Assumed(0.9, f"{OWN_BENCHMARKS}: fetches of 1 KiB, 12 partitions"),
    "partition_produce_mb_per_s": Assumed(
        100, "Kafka's rule of thumb for one partition; Penstock's benchmarks: 77 to 517"
    ),
    "requests_per_s": Assumed(33_000, "`penstock bench` on 2 cores: 64 connections"),
    "produce_p50_ms": Assumed(0.9, f"{OWN_BENCHMARKS}: 200 requests/s on a local topic"),
    "produce_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: 200 requests/s on a local topic"),
    "commit_p50_ms": Assumed(1.0, f"{OWN_BENCHMARKS}: commit in SQLite with a sync"),
    "commit_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: commit in SQLite with a sync"),
    "put_p50_ms": Assumed(1.5, f"{OWN_BENCHMARKS}: a file, its sync and its directory's"),
    "put_p99_ms": Assumed(4.0, f"{OWN_BENCHMARKS}: a file, its sync and its directory's"),
    "remote_put_p50_ms": Assumed(50, "a small PUT to an object store of the same region"),
    "remote_put_p99_ms": Assumed(200, "S3: a PUT takes 150 to 300 ms at the 99th percentile"),
    "delivery_p50_ms": Assumed(0.3, f"{OWN_BENCHMARKS}: acknowledged to consumed"),
    "delivery_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: acknowledged to consumed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Settings of the planned brokers, and the measurements of their host."""

    diskless: DisklessSettings = field(default_factory=DisklessSettings)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    log: LogConfig = field(default_factory=LogConfig)
    calibration: Calibration | None = None
    topic_partitions_max: int = TOPIC_PARTITIONS_MAX

    def ceiling(self, name: str) -> float:
        assumed = ASSUMED[name].value
        return assumed if self.calibration is None else self.calibration.value(name, assumed)

    def text(self, name: str) -> str:
        """Return the value with its origin, for formulas."""
        if self.calibration is not None and name in self.calibration.measured:
            return f"{self.ceiling(name):g} (measured on this host: {name})"
        return f"{self.ceiling(name):g} (assumed: {ASSUMED[name].origin})"

    def produce_name(self, inputs: CapacityInputs) -> str:
        return f"{'diskless_' if inputs.storage == 'diskless' else ''}produce_mb_per_s"

    def produce_cpu_name(self, inputs: CapacityInputs) -> str:
        """Return the name of the processor time per GB on one replica; small batches cost more."""
        if inputs.storage == "diskless":
            return "diskless_produce_cpu_s_per_gb"
        return f"{'replicated_' if inputs.copies > 1 else ''}produce_cpu_s_per_gb"

    def put_names(self, inputs: CapacityInputs) -> tuple[str, str]:
        """Return the names of the PUT latencies, to a directory or to a remote store."""
        stem = "put" if inputs.store == "directory" else "remote_put"
        return f"{stem}_p50_ms", f"{stem}_p99_ms"

    def interval_ms(self, inputs: CapacityInputs) -> int:
        return self.diskless.interval_ms(local=inputs.store == "directory")

    def latency(self, p50_name: str, p99_name: str, p50: float = 0, p99: float = 0) -> Distribution:
        """Return a latency from inputs if given, else from measurements or assumptions.

        If only one of the two is given, the other keeps its usual ratio to it.
        """
        usual_p50, usual_p99 = self.ceiling(p50_name), self.ceiling(p99_name)
        stretch = max(1.0, usual_p99 / max(usual_p50, 1e-6))
        if not p50 and not p99:
            p50, p99 = usual_p50, usual_p50 * stretch
        elif not p50:
            p50 = p99 / stretch
        elif not p99:
            p99 = p50 * stretch
        if p50 <= 0:
            return Distribution.constant(0.0)
        return Distribution.lognormal(p50, p99)
