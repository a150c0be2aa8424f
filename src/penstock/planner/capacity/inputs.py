"""Inputs of a capacity plan: the load, and the brokers with their ceilings.

Ceilings of one broker, partition or store are measured on this host, or assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from penstock.base.settings import setting
from penstock.control.limits import TOPIC_PARTITIONS_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects.settings import FetchSettings
from penstock.planner.calibration import Calibration
from penstock.planner.inputs import ImpossiblePlan
from penstock.planner.latency import Distribution
from penstock.storage import LogConfig, StorageSettings

STORAGE_KINDS: Final = ("local", "tiered", "diskless")
STORES: Final = ("remote", "directory")
_RATE_MAX: Final = 1e12
_BYTES_MAX: Final = 1e18
_MS_MAX: Final = 1e7
_DAYS_MAX: Final = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityInputs:
    """Load of one cluster.

    Raises:
        ImpossiblePlan: two inputs contradict each other.
    """

    SEPARATOR: ClassVar = "-"

    messages_per_second: float = setting(
        10_000.0, "Messages a second, in the mean.", 0.001, _RATE_MAX, unit="messages/s"
    )
    peak_factor: float = setting(
        1.0, "The busiest seconds, as a multiple of the mean.", 1, 10_000, unit="times"
    )
    message_bytes: float = setting(
        500.0, "A message before compression: key, value, headers.", 1, 1 << 30, unit="bytes"
    )
    compression_ratio: float = setting(
        1.0, "Bytes before compression per byte after it.", 1, 1_000, unit="times"
    )
    growth_per_year: float = setting(
        1.0, "The rate of a year's end, as a multiple of its start's.", 1, 1_000, unit="times"
    )
    horizon: float = setting(365.0, "Time that the plan has to last.", 0, _DAYS_MAX, unit="d")
    keys: int = setting(
        0, "Different keys; 0 is a load without keys, which spreads evenly.", 0, 1_000_000_000
    )
    zipf_exponent: float = setting(
        0.0, "Skew: the key of rank n has a share as 1/n to this power.", 0, 10
    )
    top_percent_share: float = setting(
        0.0, "Skew instead: the share of all messages that the busiest 1 % of the keys have.", 0, 1
    )
    hottest_key_share: float = setting(
        0.0, "Skew instead: the share of all messages that the busiest key has.", 0, 1
    )
    partitions: int = setting(0, "Partitions there are already; 0 plans them.", 0, 10_000_000)
    over_provision: float = setting(
        4.0, "Partitions to create, as a multiple of those needed; keyed topics cannot get more.",
        1, 100, unit="times",
    )  # fmt: skip
    partition_bytes: float = setting(
        500e9, "Largest size of a partition on a disk, since it is moved and recovered whole; never"
        " more than a tenth of a disk's capacity.", 1, _BYTES_MAX, unit="bytes",
    )  # fmt: skip
    retention: float = setting(7.0, "Retention of messages.", 0.001, _DAYS_MAX, unit="d")
    storage: str = setting("local", "Storage of messages.", choices=STORAGE_KINDS)
    local_retention: float = setting(
        1.0, "Retention of tiered topics on local disks.", 0, _DAYS_MAX, unit="d"
    )
    replication: int = setting(
        1, "Replicas on brokers, with the leader's; diskless topics have none of their own.", 1, 32
    )
    groups: int = setting(1, "Consumer groups that read everything.", 0, 100_000)
    message_work: float = setting(
        0.0, "Time of a consumer per message; 0 is no limit.", 0, _MS_MAX, unit="ms"
    )
    consumer_rate: float = setting(
        50_000.0, "Messages a second that one consumer can take at all.", 0.001, _RATE_MAX,
        unit="messages/s",
    )  # fmt: skip
    consumer_bytes: float = setting(
        0.0, "Bytes a second that one consumer can take; 0 is no limit.", 0, _BYTES_MAX,
        unit="bytes/s",
    )  # fmt: skip
    producers: int = setting(8, "Producer processes.", 1, 10_000_000)
    linger: float = setting(5.0, "linger.ms of the producers.", 0, _MS_MAX, unit="ms")
    batch_bytes: int = setting(16_384, "batch.size of the producers.", 1, 1 << 30, unit="bytes")
    buffer_bytes: int = setting(
        32 << 20, "buffer.memory of the producers.", 1, 1 << 50, unit="bytes"
    )
    zones: int = setting(1, "Zones that brokers and clients are spread over.", 1, 100)
    zone_aware: bool = setting(
        False, "Clients set their rack: they read from, and write diskless topics to, near brokers."
    )
    regions: int = setting(1, "Regions that need the data.", 1, 100)
    headroom: float = setting(0.4, "Share of every ceiling that stays free at the peak.", 0, 0.95)
    broker_network: float = setting(
        1.25e9, "Bandwidth of a broker's network in each direction.", 1, _BYTES_MAX, unit="bytes/s"
    )
    broker_disk: float = setting(4e12, "A broker's disk.", 1, _BYTES_MAX, unit="bytes")
    broker_cores: float = setting(
        1.0, "Cores that a broker can keep busy: one per process of Penstock.", 0.1, 1_024,
        unit="cores",
    )  # fmt: skip
    broker_partitions: int = setting(
        4_000, "Replicas that one broker should have at most.", 1, 10_000_000
    )
    store: str = setting("remote", "The object store of diskless topics.", choices=STORES)
    lagging_groups: int = setting(
        0, "Consumer groups, of all, that replay old data at a time.", 0, 100_000
    )
    round_trip: float = setting(
        0.5, "Network round trip between clients and brokers.", 0, _MS_MAX, unit="ms"
    )
    put_p50: float = setting(
        0.0, "Median of a PUT; 0 takes what was measured or is assumed.", 0, _MS_MAX, unit="ms"
    )
    put_p99: float = setting(
        0.0, "99th percentile of a PUT; 0 as for its median.", 0, _MS_MAX, unit="ms"
    )
    commit_p50: float = setting(
        0.0, "Median of a commit in the control plane; 0 as for PUTs.", 0, _MS_MAX, unit="ms"
    )
    commit_p99: float = setting(
        0.0, "99th percentile of a commit; 0 as for PUTs.", 0, _MS_MAX, unit="ms"
    )

    def __post_init__(self) -> None:
        skews = {
            "zipf-exponent": self.zipf_exponent,
            "top-percent-share": self.top_percent_share,
            "hottest-key-share": self.hottest_key_share,
        }
        given = [f"{name} = {value:g}" for name, value in skews.items() if value]
        if len(given) > 1:
            raise ImpossiblePlan(
                "skew has more than one input", ", ".join(given), "leave all but one of them at 0"
            )
        if given and not self.keys:
            raise ImpossiblePlan(
                "skew needs keys", f"{given[0]}, keys = 0", "give the number of keys"
            )
        if self.hottest_key_share and self.hottest_key_share * self.keys < 1:
            raise ImpossiblePlan(
                "the busiest key has at least the mean share",
                f"hottest-key-share = {self.hottest_key_share:g} of {self.keys} keys",
                f"give at least 1/{self.keys} = {1 / self.keys:g}",
            )
        self._check_storage()

    def _check_storage(self) -> None:
        if self.storage == "tiered" and self.local_retention > self.retention:
            raise ImpossiblePlan(
                "local-retention is at most retention",
                f"local-retention = {self.local_retention:g} d, retention = {self.retention:g} d",
                "keep less on local disks, or use --storage local",
            )
        if self.lagging_groups > self.groups:
            raise ImpossiblePlan(
                "lagging-groups exceeds groups",
                f"lagging-groups = {self.lagging_groups}, groups = {self.groups}",
                "count them among the groups too",
            )
        for name, p50, p99 in (
            ("put", self.put_p50, self.put_p99),
            ("commit", self.commit_p50, self.commit_p99),
        ):
            if p50 and p99 and p99 < p50:
                raise ImpossiblePlan(
                    f"{name}-p99 is at least {name}-p50",
                    f"{name}-p99 = {p99:g} ms, {name}-p50 = {p50:g} ms",
                    "give the two figures of the same measurement",
                )

    @property
    def growth(self) -> float:
        """Rate at the end of the horizon, as a multiple of today's."""
        return float(self.growth_per_year ** (self.horizon / 365.0))

    @property
    def copies(self) -> int:
        """Replicas on brokers' disks; a diskless topic counts as one."""
        return 1 if self.storage == "diskless" else self.replication


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

    def put_stem(self, inputs: CapacityInputs) -> str:
        return "put" if inputs.store == "directory" else "remote_put"

    def put_names(self, inputs: CapacityInputs) -> tuple[str, str]:
        """Return the names of the PUT latencies, to a directory or to a remote store."""
        stem = self.put_stem(inputs)
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
