"""Inputs of a capacity plan: the load, its storage, and the brokers' resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import setting
from penstock.planner.errors import ImpossiblePlan

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

    messages_per_second: float = setting(
        10_000.0, name="messages-per-second", doc="Messages a second, in the mean.",
        unit="messages/s", minimum=0.001, maximum=_RATE_MAX,
    )  # fmt: skip
    peak_factor: float = setting(
        1.0, name="peak-factor", doc="The busiest seconds, as a multiple of the mean.",
        unit="times", minimum=1, maximum=10_000,
    )  # fmt: skip
    message_bytes: float = setting(
        500.0, name="message-bytes", doc="A message before compression: key, value, headers.",
        unit="bytes", minimum=1, maximum=1 << 30,
    )  # fmt: skip
    compression_ratio: float = setting(
        1.0, name="compression-ratio", doc="Bytes before compression per byte after it.",
        unit="times", minimum=1, maximum=1_000,
    )  # fmt: skip
    growth_per_year: float = setting(
        1.0, name="growth-per-year", doc="The rate of a year's end, as a multiple of its start's.",
        unit="times", minimum=1, maximum=1_000,
    )  # fmt: skip
    horizon: float = setting(
        365.0, name="horizon", doc="Time that the plan has to last.", unit="d", minimum=0,
        maximum=_DAYS_MAX,
    )  # fmt: skip
    keys: int = setting(
        0, name="keys", doc="Different keys; 0 is a load without keys, which spreads evenly.",
        minimum=0, maximum=1_000_000_000,
    )  # fmt: skip
    zipf_exponent: float = setting(
        0.0, name="zipf-exponent", doc="Skew: the key of rank n has a share as 1/n to this power.",
        minimum=0, maximum=10,
    )  # fmt: skip
    top_percent_share: float = setting(
        0.0, name="top-percent-share",
        doc="Skew instead: the share of all messages that the busiest 1 % of the keys have.",
        minimum=0, maximum=1,
    )  # fmt: skip
    hottest_key_share: float = setting(
        0.0, name="hottest-key-share",
        doc="Skew instead: the share of all messages that the busiest key has.",
        minimum=0, maximum=1,
    )  # fmt: skip
    partitions: int = setting(
        0, name="partitions", doc="Partitions there are already; 0 plans them.", minimum=0,
        maximum=10_000_000,
    )  # fmt: skip
    over_provision: float = setting(
        4.0, name="over-provision",
        doc="Partitions to create, as a multiple of those needed; keyed topics cannot get more.",
        unit="times", minimum=1, maximum=100,
    )  # fmt: skip
    partition_bytes: float = setting(
        500e9, name="partition-bytes",
        doc="Largest size of a partition on a disk, since it is moved and recovered whole;"
        " never more than a tenth of a disk's capacity.",
        unit="bytes", minimum=1, maximum=_BYTES_MAX,
    )  # fmt: skip
    retention: float = setting(
        7.0, name="retention", doc="Retention of messages.", unit="d", minimum=0.001,
        maximum=_DAYS_MAX,
    )  # fmt: skip
    storage: str = setting(
        "local", name="storage", doc="Storage of messages.", choices=STORAGE_KINDS
    )
    local_retention: float = setting(
        1.0, name="local-retention", doc="Retention of tiered topics on local disks.",
        unit="d", minimum=0, maximum=_DAYS_MAX,
    )  # fmt: skip
    replication: int = setting(
        1, name="replication",
        doc="Replicas on brokers, with the leader's; diskless topics have none of their own.",
        minimum=1, maximum=32,
    )  # fmt: skip
    groups: int = setting(
        1, name="groups", doc="Consumer groups that read everything.", minimum=0, maximum=100_000
    )
    message_work: float = setting(
        0.0, name="message-work", doc="Time of a consumer per message; 0 is no limit.",
        unit="ms", minimum=0, maximum=_MS_MAX,
    )  # fmt: skip
    consumer_rate: float = setting(
        50_000.0, name="consumer-rate", doc="Messages a second that one consumer can take at all.",
        unit="messages/s", minimum=0.001, maximum=_RATE_MAX,
    )  # fmt: skip
    consumer_bytes: float = setting(
        0.0, name="consumer-bytes", doc="Bytes a second that one consumer can take; 0 is no limit.",
        unit="bytes/s", minimum=0, maximum=_BYTES_MAX,
    )  # fmt: skip
    producers: int = setting(
        8, name="producers", doc="Producer processes.", minimum=1, maximum=10_000_000
    )
    linger: float = setting(
        5.0, name="linger", doc="linger.ms of the producers.", unit="ms", minimum=0,
        maximum=_MS_MAX,
    )  # fmt: skip
    batch_bytes: int = setting(
        16_384, name="batch-bytes", doc="batch.size of the producers.", unit="bytes", minimum=1,
        maximum=1 << 30,
    )  # fmt: skip
    buffer_bytes: int = setting(
        32 << 20, name="buffer-bytes", doc="buffer.memory of the producers.", unit="bytes",
        minimum=1, maximum=1 << 50,
    )  # fmt: skip
    zones: int = setting(
        1, name="zones", doc="Zones that brokers and clients are spread over.", minimum=1,
        maximum=100,
    )  # fmt: skip
    zone_aware: bool = setting(
        False, name="zone-aware",
        doc="Clients set their rack: they read from, and write diskless topics to, near brokers.",
    )  # fmt: skip
    regions: int = setting(
        1, name="regions", doc="Regions that need the data.", minimum=1, maximum=100
    )
    headroom: float = setting(
        0.4, name="headroom", doc="Share of every ceiling that stays free at the peak.",
        minimum=0, maximum=0.95,
    )  # fmt: skip
    broker_network: float = setting(
        1.25e9, name="broker-network", doc="Bandwidth of a broker's network in each direction.",
        unit="bytes/s", minimum=1, maximum=_BYTES_MAX,
    )  # fmt: skip
    broker_disk: float = setting(
        4e12, name="broker-disk", doc="A broker's disk.", unit="bytes", minimum=1,
        maximum=_BYTES_MAX,
    )  # fmt: skip
    broker_cores: float = setting(
        1.0, name="broker-cores",
        doc="Cores that a broker can keep busy: one per process of Penstock.",
        unit="cores", minimum=0.1, maximum=1_024,
    )  # fmt: skip
    broker_partitions: int = setting(
        4_000, name="broker-partitions", doc="Replicas that one broker should have at most.",
        minimum=1, maximum=10_000_000,
    )  # fmt: skip
    store: str = setting(
        "remote", name="store", doc="The object store of diskless topics.", choices=STORES
    )
    lagging_groups: int = setting(
        0, name="lagging-groups", doc="Consumer groups, of all, that replay old data at a time.",
        minimum=0, maximum=100_000,
    )  # fmt: skip
    round_trip: float = setting(
        0.5, name="round-trip", doc="Network round trip between clients and brokers.", unit="ms",
        minimum=0, maximum=_MS_MAX,
    )  # fmt: skip
    put_p50: float = setting(
        0.0, name="put-p50", doc="Median of a PUT; 0 takes what was measured or is assumed.",
        unit="ms", minimum=0, maximum=_MS_MAX,
    )  # fmt: skip
    put_p99: float = setting(
        0.0, name="put-p99", doc="99th percentile of a PUT; 0 as for its median.", unit="ms",
        minimum=0, maximum=_MS_MAX,
    )  # fmt: skip
    commit_p50: float = setting(
        0.0, name="commit-p50", doc="Median of a commit in the control plane; 0 as for PUTs.",
        unit="ms", minimum=0, maximum=_MS_MAX,
    )  # fmt: skip
    commit_p99: float = setting(
        0.0, name="commit-p99", doc="99th percentile of a commit; 0 as for PUTs.", unit="ms",
        minimum=0, maximum=_MS_MAX,
    )  # fmt: skip

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
