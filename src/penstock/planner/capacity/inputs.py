"""Inputs of a capacity plan: the load, and the brokers with their ceilings.

A ceiling is the highest rate of one broker, one partition or one store. It was measured on the
brokers' host by `penstock bench`, or is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from statistics import NormalDist
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.base.settings import setting
from penstock.control.values.errors import TOPIC_PARTITIONS_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects.settings import FetchSettings
from penstock.planner.calibration import Calibration
from penstock.planner.quantities import ImpossiblePlan
from penstock.storage import LogConfig, StorageSettings

# Latency of a produce request to a diskless topic, as a distribution.
#
# The latency is the sum of consecutive parts:
#
#     request + wait for the object to close + PUT + wait for earlier commits + commit
#
# The plan needs medians and 99th percentiles of the sum. Neither is the sum of the parts'
# quantiles: two independent parts, each slow once in 100 times, are both slow once in 10,000 times,
# and at least one of them is slow about twice in 100. Therefore the parts are combined as
# independent random variables, and quantiles are read from the result.
#
# A `Distribution` stores quantiles at fixed shares, which are denser near 1. Combining two
# distributions takes all pairs of their values with their weights, and reads the quantiles of the
# pairs. The calculation uses no random numbers. It is monotonic: if a part is larger at every
# quantile, the sum is larger too.
#
# **Wait for the object to close.** An object closes one interval after its first request. The first
# request waits for the whole interval. Later requests arrive at random moments and wait for the
# rest of it.
#
# **Wait for earlier commits.** PUTs run in parallel, but objects are committed one at a time, in
# the order in which they closed. So each object waits until the previous one is committed. L is the
# time from an object's closing to its commit, D the time between two closings, P the PUT and C the
# commit:
#
#     L = max(P, previous L - D) + C        D = interval + time until the next request
#
# This is Lindley's recursion of a queue. Its fixed point is found by repetition.
#
# **Limits.** Parts are assumed to be independent. On one disk PUTs and commits are slow at the same
# times (correlations of 0.15 to 0.5 were measured). There the measured 99th percentile was 9 to 40
# % above the model's, in runs of ten seconds. With a store that takes 50 ms or more, it was within
# 1 %.
#
# Source: D. V. Lindley, "The theory of queues with a single server" (1952).


Floats = NDArray[np.float64]

_EDGES: Final[Floats] = np.concatenate(
    [
        np.linspace(0.0, 0.99, 133),
        np.linspace(0.99, 0.999, 31)[1:],
        np.linspace(0.999, 0.9999, 31)[1:],
        [1.0],
    ]
)
_SHARES: Final[Floats] = (_EDGES[1:] + _EDGES[:-1]) / 2
"""Shares at which a distribution stores its quantiles."""
_WEIGHTS: Final[Floats] = np.diff(_EDGES)
_PAIR_WEIGHTS: Final[Floats] = np.multiply.outer(_WEIGHTS, _WEIGHTS).ravel()
_DEVIATES: Final[Floats] = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_DEVIATE_99: Final = NormalDist().inv_cdf(0.99)

_TURNS_MAX: Final = 64
"""Maximum repetitions of the recursion; the last value is used if it has not converged."""
_CONVERGED: Final = 1e-3
"""Relative change below which the recursion has converged."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a duration in milliseconds: its quantiles at `_SHARES`, ascending."""

    values: Floats

    @classmethod
    def constant(cls, value_ms: float) -> Distribution:
        return cls(np.full(len(_SHARES), float(value_ms)))

    @classmethod
    def lognormal(cls, p50_ms: float, p99_ms: float) -> Distribution:
        """Return the lognormal distribution with this median and 99th percentile, in milliseconds.

        Raises:
            ImpossiblePlan: 0 < p50 <= p99 does not hold.
        """
        if not 0 < p50_ms <= p99_ms:
            raise ImpossiblePlan(
                "the 99th percentile must be at least the median, and both above 0",
                f"p50 = {p50_ms:g} ms, p99 = {p99_ms:g} ms",
                "give two figures of the same measurement",
            )
        sigma = log(p99_ms / p50_ms) / _DEVIATE_99
        return cls(p50_ms * np.exp(sigma * _DEVIATES))

    @classmethod
    def samples(cls, values_ms: Sequence[float]) -> Distribution:
        return cls(np.quantile(np.asarray(values_ms, dtype=np.float64), _SHARES))

    @classmethod
    def histogram(cls, bounds_ms: Sequence[float], counts: Sequence[float]) -> Distribution:
        """Return the distribution of a histogram.

        `counts` has the number of durations up to each bound, and last the number above all bounds.
        Values are spread evenly within a bucket. Values above the last bound count as that bound.
        At least one count must be above 0.
        """
        edges = np.concatenate([[0.0], np.asarray(bounds_ms, dtype=np.float64), [bounds_ms[-1]]])
        below = np.concatenate([[0.0], np.cumsum(np.asarray(counts, dtype=np.float64))])
        rising = np.concatenate([[True], np.diff(below) > 0])
        before = np.concatenate([rising[1:], [True]])
        kept = rising | before
        return cls(np.interp(_SHARES, below[kept] / below[-1], edges[kept]))

    @classmethod
    def exponential(cls, mean_ms: float) -> Distribution:
        """Return the distribution of the time until the next of events at random moments."""
        return cls(-mean_ms * np.log1p(-_SHARES))

    def quantile(self, share: float) -> float:
        return float(np.interp(share, _SHARES, self.values))

    @property
    def mean(self) -> float:
        return float(self.values @ _WEIGHTS)

    def plus(self, other: Distribution) -> Distribution:
        """Return the distribution of the sum of two independent durations."""
        return _combined(np.add.outer(self.values, other.values))

    def minus(self, other: Distribution) -> Distribution:
        """Return the distribution of the difference of two independent durations."""
        return _combined(np.subtract.outer(self.values, other.values))

    def later(self, other: Distribution) -> Distribution:
        """Return the distribution of the larger of two independent durations."""
        return _combined(np.maximum.outer(self.values, other.values))


ZERO: Final = Distribution.constant(0.0)


def _combined(pairs: Floats) -> Distribution:
    flat = pairs.ravel()
    order = np.argsort(flat)
    below = np.cumsum(_PAIR_WEIGHTS[order])
    indexes = np.minimum(np.searchsorted(below, _SHARES), len(flat) - 1)
    return Distribution(flat[order[indexes]])


def waiting(interval_ms: float, arrivals_per_interval: float) -> Distribution:
    """Return how long produce requests wait until the broker closes the object with their records.

    An object has one first request, and `arrivals_per_interval` later ones on average. The first
    waits for the whole interval, each later one for a random part of it.
    """
    later = arrivals_per_interval / (1.0 + arrivals_per_interval)
    if later == 0.0:
        return Distribution.constant(interval_ms)
    return Distribution(interval_ms * np.minimum(1.0, _SHARES / later))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessLatency:
    """Parts of a produce latency in milliseconds, and their sum."""

    interval_ms: float
    """Time in milliseconds that an object stays open for requests."""
    objects_per_second: float
    wait: Distribution
    write: Distribution
    """Time from an object's closing until it is committed."""
    produce: Distribution
    """Time from the request until its response."""
    saturated: bool
    """Whether objects stay open longer than planned, because earlier ones are not committed yet."""


def diskless_latency(
    *,
    interval_ms: float,
    requests_per_second: float,
    put: Distribution,
    commit: Distribution,
    request: Distribution = ZERO,
    objects_in_flight_max: int = 8,
    fill_ms: float = inf,
) -> DisklessLatency:
    """Return the latency of produce requests that reach one broker at random moments.

    `request` is the time of a request without wait and write: a network round trip. `fill_ms` is
    the time after which an object is full. An object stays open beyond its interval while
    `objects_in_flight_max` earlier objects are being written, or while a commit takes longer than
    the interval.
    """
    planned_ms = min(interval_ms, fill_ms)
    gathers_ms = gathering_ms(
        interval_ms, put, commit, objects_in_flight_max=objects_in_flight_max, fill_ms=fill_ms
    )
    per_ms = requests_per_second / 1000
    gap_ms = 1 / per_ms if per_ms > 0 else inf
    wait = waiting(gathers_ms, gathers_ms * per_ms)
    write = _in_turn(put, commit, gathers_ms, gap_ms)
    return DisklessLatency(
        interval_ms=gathers_ms,
        objects_per_second=objects_per_second(gathers_ms, requests_per_second),
        wait=wait,
        write=write,
        produce=request.plus(wait).plus(write),
        saturated=planned_ms < gathers_ms,
    )


def gathering_ms(
    interval_ms: float,
    put: Distribution,
    commit: Distribution,
    *,
    objects_in_flight_max: int = 8,
    fill_ms: float = inf,
) -> float:
    """Return how long a broker gathers records before it closes an object, in milliseconds.

    This is the commit interval, or less if the object is full earlier, or more if writes are slow.
    """
    written_ms = (put.mean + commit.mean) / objects_in_flight_max
    return max(min(interval_ms, fill_ms), written_ms, commit.mean)


def objects_per_second(gathers_ms: float, requests_per_second: float) -> float:
    """Return the number of objects that one broker writes per second.

    An object opens with the first request after the last one closed, and is open for `gathers_ms`.
    """
    if requests_per_second <= 0:
        return 0.0
    return 1000 / (gathers_ms + 1000 / requests_per_second)


def _in_turn(
    put: Distribution, commit: Distribution, interval_ms: float, gap_ms: float
) -> Distribution:
    write = put.plus(commit)
    if gap_ms == inf:
        return write
    between = Distribution(interval_ms + Distribution.exponential(gap_ms).values)
    for _ in range(_TURNS_MAX):
        if write.values[-1] - between.values[0] <= put.values[0]:
            return write
        following = put.later(write.minus(between)).plus(commit)
        change = np.max(np.abs(following.values - write.values) / np.maximum(write.values, 1e-9))
        write = following
        if change < _CONVERGED:
            return write
    return write


STORAGE_KINDS: Final = ("local", "tiered", "diskless")
STORES: Final = ("remote", "directory")
_RATE_MAX: Final = 1e12
_BYTES_MAX: Final = 1e18
_MS_MAX: Final = 1e7
_DAYS_MAX: Final = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityInputs:
    """Load of one cluster, and the size of its brokers.

    Raises:
        ImpossiblePlan: two inputs contradict each other.
    """

    SEPARATOR: ClassVar = "-"

    messages_per_second: float = setting(
        10_000.0, "Average number of messages per second.", 0.001, _RATE_MAX, unit="messages/s"
    )
    peak_factor: float = setting(
        1.0,
        "Rate of the busiest seconds, as a multiple of the average rate.",
        1,
        10_000,
        unit="times",
    )
    message_bytes: float = setting(
        500.0,
        "Size of a message before compression: key, value and headers.",
        1,
        1 << 30,
        unit="bytes",
    )
    compression_ratio: float = setting(
        1.0, "Bytes before compression for each byte after compression.", 1, 1_000, unit="times"
    )
    growth_per_year: float = setting(
        1.0,
        "Rate at the end of a year, as a multiple of the rate at its start.",
        1,
        1_000,
        unit="times",
    )
    horizon: float = setting(365.0, "Time for which the plan must suffice.", 0, _DAYS_MAX, unit="d")
    keys: int = setting(
        0,
        "Number of distinct keys. 0 means messages without keys, which spread evenly.",
        0,
        1_000_000_000,
    )
    zipf_exponent: float = setting(
        0.0,
        "Skew of keys by Zipf's law: the share of the key of rank n is proportional to 1/n"
        " to this power.",
        0,
        10,
    )
    top_percent_share: float = setting(
        0.0,
        "Skew of keys by another input: the share of all messages that the busiest 1 % of"
        " keys have.",
        0,
        1,
    )
    hottest_key_share: float = setting(
        0.0,
        "Skew of keys by another input: the share of all messages that the busiest key has.",
        0,
        1,
    )
    partitions: int = setting(
        0, "Existing number of partitions. 0 lets the plan compute it.", 0, 10_000_000
    )
    over_provision: float = setting(
        4.0, "Partitions to create, as a multiple of the needed ones. More partitions later"
        " would move the keys of a keyed topic.",
        1, 100, unit="times",
    )  # fmt: skip
    partition_bytes: float = setting(
        500e9, "Maximum size of a partition on a disk, because a partition is moved and"
        " recovered as a whole. The plan also limits it to a tenth of a disk's usable"
        " capacity.", 1, _BYTES_MAX, unit="bytes",
    )  # fmt: skip
    retention: float = setting(7.0, "Retention of messages.", 0.001, _DAYS_MAX, unit="d")
    storage: str = setting("local", "Storage of messages.", choices=STORAGE_KINDS)
    local_retention: float = setting(
        1.0, "Retention of tiered topics on the brokers' disks.", 0, _DAYS_MAX, unit="d"
    )
    replication: int = setting(
        1,
        "Replicas on brokers, including the leader's. Ignored for diskless topics, which"
        " have none.",
        1,
        32,
    )
    groups: int = setting(1, "Number of consumer groups that read all messages.", 0, 100_000)
    message_work: float = setting(
        0.0, "Processing time of a consumer per message. 0 sets no limit.", 0, _MS_MAX, unit="ms"
    )
    consumer_rate: float = setting(
        50_000.0, "Maximum number of messages that one consumer can read per second.",
        0.001, _RATE_MAX,
        unit="messages/s",
    )  # fmt: skip
    consumer_bytes: float = setting(
        0.0, "Maximum bytes that one consumer can read per second. 0 sets no limit.", 0, _BYTES_MAX,
        unit="bytes/s",
    )  # fmt: skip
    producers: int = setting(8, "Producer processes.", 1, 10_000_000)
    linger: float = setting(5.0, "linger.ms of the producers.", 0, _MS_MAX, unit="ms")
    batch_bytes: int = setting(16_384, "batch.size of the producers.", 1, 1 << 30, unit="bytes")
    buffer_bytes: int = setting(
        32 << 20, "buffer.memory of the producers.", 1, 1 << 50, unit="bytes"
    )
    zones: int = setting(1, "Number of zones over which brokers and clients are spread.", 1, 100)
    zone_aware: bool = setting(
        False,
        "Whether clients set their rack. They then read from brokers of their own zone,"
        " and also write diskless topics to them.",
    )
    regions: int = setting(1, "Number of regions that need the data.", 1, 100)
    headroom: float = setting(0.4, "Share of each ceiling to keep free at the peak.", 0, 0.95)
    broker_network: float = setting(
        1.25e9, "Bandwidth of a broker's network in each direction.", 1, _BYTES_MAX, unit="bytes/s"
    )
    broker_disk: float = setting(4e12, "Disk capacity of a broker.", 1, _BYTES_MAX, unit="bytes")
    broker_cores: float = setting(
        1.0, "Cores that one broker can use. A process of Penstock uses one.", 0.1, 1_024,
        unit="cores",
    )  # fmt: skip
    broker_partitions: int = setting(
        4_000, "Maximum number of replicas that one broker should have.", 1, 10_000_000
    )
    store: str = setting("remote", "Type of the object store of diskless topics.", choices=STORES)
    lagging_groups: int = setting(
        0,
        "Number of consumer groups, out of `groups`, that read old data at the same time.",
        0,
        100_000,
    )
    round_trip: float = setting(
        0.5, "Network round-trip time between clients and brokers.", 0, _MS_MAX, unit="ms"
    )
    put_p50: float = setting(
        0.0, "Median time of a PUT. 0 takes the measured or assumed value.", 0, _MS_MAX, unit="ms"
    )
    put_p99: float = setting(
        0.0,
        "99th percentile of the time of a PUT. 0 takes the measured or assumed value.",
        0,
        _MS_MAX,
        unit="ms",
    )
    commit_p50: float = setting(
        0.0,
        "Median time of a commit in the control plane. 0 takes the measured or assumed value.",
        0,
        _MS_MAX,
        unit="ms",
    )
    commit_p99: float = setting(
        0.0,
        "99th percentile of the time of a commit. 0 takes the measured or assumed value.",
        0,
        _MS_MAX,
        unit="ms",
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
                "the skew of keys must have at most one input",
                ", ".join(given),
                "leave all but one of them at 0",
            )
        if given and not self.keys:
            raise ImpossiblePlan(
                "the skew of keys needs the number of keys",
                f"{given[0]}, keys = 0",
                "set keys",
            )
        if self.hottest_key_share and self.hottest_key_share * self.keys < 1:
            raise ImpossiblePlan(
                "the busiest key must have at least the average share of a key",
                f"hottest-key-share = {self.hottest_key_share:g} of {self.keys} keys",
                f"set hottest-key-share to 1/{self.keys} = {1 / self.keys:g} or more",
            )
        self._check_storage()

    def _check_storage(self) -> None:
        if self.storage == "tiered" and self.local_retention > self.retention:
            raise ImpossiblePlan(
                "local-retention must not exceed retention",
                f"local-retention = {self.local_retention:g} d, retention = {self.retention:g} d",
                "lower local-retention, or use --storage local",
            )
        if self.lagging_groups > self.groups:
            raise ImpossiblePlan(
                "lagging-groups must not exceed groups",
                f"lagging-groups = {self.lagging_groups}, groups = {self.groups}",
                "raise groups, which includes the lagging groups",
            )
        for name, p50, p99 in (
            ("put", self.put_p50, self.put_p99),
            ("commit", self.commit_p50, self.commit_p99),
        ):
            if p50 and p99 and p99 < p50:
                raise ImpossiblePlan(
                    f"{name}-p99 must be at least {name}-p50",
                    f"{name}-p99 = {p99:g} ms, {name}-p50 = {p50:g} ms",
                    "give two figures of the same measurement",
                )

    @property
    def growth(self) -> float:
        """Rate at the end of the horizon, as a multiple of today's."""
        return float(self.growth_per_year ** (self.horizon / 365.0))

    @property
    def copies(self) -> int:
        """Number of replicas on brokers' disks; 1 for diskless topics."""
        return 1 if self.storage == "diskless" else self.replication


STORE_PREFIX_PUTS_PER_SECOND: Final = 3_500
STORE_PREFIX_GETS_PER_SECOND: Final = 5_500
WAL_PREFIXES: Final = 256
"""Number of key prefixes of write-ahead objects. Stores limit the requests per prefix."""
CLUSTER_PARTITIONS_ZOOKEEPER: Final = 200_000
OWN_BENCHMARKS: Final = "Penstock's benchmarks on 2 cores"


class Assumed(NamedTuple):
    value: float
    origin: str


ASSUMED: Final[Mapping[str, Assumed]] = {
    "produce_mb_per_s": Assumed(261, f"{OWN_BENCHMARKS}: local topic, 1 KiB, 4 partitions"),
    "diskless_produce_mb_per_s": Assumed(
        157, f"{OWN_BENCHMARKS}: diskless topic, S3 store with 50 ms per PUT"
    ),
    "consume_mb_per_s": Assumed(615, f"{OWN_BENCHMARKS}: fetches of 1 KiB, 12 partitions"),
    "produce_cpu_s_per_gb": Assumed(4.25, f"{OWN_BENCHMARKS}: local topic, 1 KiB, 4 partitions"),
    "replicated_produce_cpu_s_per_gb": Assumed(
        2.43, f"{OWN_BENCHMARKS}: 1 KiB, large batches; 7.3 in total on 3 brokers with 3 replicas"
    ),
    "diskless_produce_cpu_s_per_gb": Assumed(4.4, f"{OWN_BENCHMARKS}: diskless, on a directory"),
    "consume_cpu_s_per_gb": Assumed(0.9, f"{OWN_BENCHMARKS}: fetches of 1 KiB, 12 partitions"),
    "partition_produce_mb_per_s": Assumed(
        100, "Kafka's rule of thumb for one partition; Penstock's benchmarks measured 77 to 517"
    ),
    "requests_per_s": Assumed(33_000, "`penstock bench` on 2 cores with 64 connections"),
    "produce_p50_ms": Assumed(0.9, f"{OWN_BENCHMARKS}: 200 requests/s on a local topic"),
    "produce_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: 200 requests/s on a local topic"),
    "commit_p50_ms": Assumed(1.0, f"{OWN_BENCHMARKS}: commit in SQLite with a sync"),
    "commit_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: commit in SQLite with a sync"),
    "put_p50_ms": Assumed(1.5, f"{OWN_BENCHMARKS}: write a file, sync it and its directory"),
    "put_p99_ms": Assumed(4.0, f"{OWN_BENCHMARKS}: write a file, sync it and its directory"),
    "remote_put_p50_ms": Assumed(50, "a small PUT to an object store in the same region"),
    "remote_put_p99_ms": Assumed(200, "S3: a PUT takes 150 to 300 ms at the 99th percentile"),
    "delivery_p50_ms": Assumed(0.3, f"{OWN_BENCHMARKS}: from acknowledged to consumed"),
    "delivery_p99_ms": Assumed(3.0, f"{OWN_BENCHMARKS}: from acknowledged to consumed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Settings of the planned brokers, and the measurements of their host if there are any."""

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
        """Return a ceiling with its origin, measured or assumed, as text for formulas."""
        if self.calibration is not None and name in self.calibration.measured:
            return f"{self.ceiling(name):g} (measured on this host: {name})"
        return f"{self.ceiling(name):g} (assumed: {ASSUMED[name].origin})"

    def produce_name(self, inputs: CapacityInputs) -> str:
        return f"{'diskless_' if inputs.storage == 'diskless' else ''}produce_mb_per_s"

    def produce_cpu_name(self, inputs: CapacityInputs) -> str:
        """Return the name of the ceiling for the CPU seconds per produced GB on one replica.

        Small batches cost more than this.
        """
        if inputs.storage == "diskless":
            return "diskless_produce_cpu_s_per_gb"
        return f"{'replicated_' if inputs.copies > 1 else ''}produce_cpu_s_per_gb"

    def put_stem(self, inputs: CapacityInputs) -> str:
        return "put" if inputs.store == "directory" else "remote_put"

    def put_names(self, inputs: CapacityInputs) -> tuple[str, str]:
        """Return the names of the figures for the median and 99th percentile of a PUT.

        They depend on the store in `inputs`.
        """
        stem = self.put_stem(inputs)
        return f"{stem}_p50_ms", f"{stem}_p99_ms"

    def interval_ms(self, inputs: CapacityInputs) -> int:
        return self.diskless.interval_ms(local=inputs.store == "directory")

    def latency(self, p50_name: str, p99_name: str, p50: float = 0, p99: float = 0) -> Distribution:
        """Return the distribution of a latency: as given, else as measured, else as assumed.

        `p50` and `p99` are inputs in milliseconds; 0 means not given. If only one is given, the
        other is derived by the usual ratio between both.
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
