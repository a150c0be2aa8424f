"""Inputs of a cost plan, with the units that people use.

The documentation of an input with 0 or -1 for "derived" names its source. Inputs that are a
capacity (`kinesis-shards`, `fsx-throughput`) replace the needs of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.settings import setting
from penstock.diskless.settings import DisklessSettings
from penstock.planner.errors import ImpossiblePlan
from penstock.planner.tables import read_table
from penstock.storage import LogConfig

DISKLESS: Final = DisklessSettings()
SEGMENT_BYTES: Final = LogConfig().segment_bytes
BYTES_PER_DAY: Final = 10**12
OWN: Final = -1.0
"""Value that means "derived from the other inputs"."""
OPTIONS: Final = (
    "local", "tiered", "diskless", "outbox-efs-elastic", "outbox-efs-provisioned",
    "outbox-fsx-ssd", "outbox-fsx-tiering", "s3-direct", "kinesis-provisioned",
    "kinesis-on-demand", "msk-provisioned", "msk-express", "msk-serverless",
)  # fmt: skip
CARRIERS: Final = ("penstock", "kinesis", "existing")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    bytes_per_day: float = setting(
        BYTES_PER_DAY, name="bytes-per-day", doc="Bytes produced in a day, before compression.",
        unit="bytes/day", minimum=1, maximum=1e21,
    )  # fmt: skip
    rate: float = setting(
        0.0, name="rate", doc="Bytes produced in a second instead of a day; 0 takes bytes-per-day.",
        unit="bytes/s", minimum=0, maximum=1e16,
    )  # fmt: skip
    message_bytes: int = setting(
        1000, name="message-bytes", doc="Size of a message before compression.",
        unit="bytes", minimum=1, maximum=1 << 30,
    )  # fmt: skip
    compression: float = setting(
        3.0, name="compression", doc="Produced bytes per compressed byte; 1 is none.",
        minimum=1, maximum=1000,
    )  # fmt: skip
    retention: float = setting(
        7.0, name="retention", doc="Retention of data.", unit="d", minimum=0.001, maximum=36_500
    )
    replication_factor: int = setting(
        3, name="replication-factor", doc="Copies of a partition on local disks.",
        minimum=1, maximum=20,
    )  # fmt: skip
    zones: int = setting(
        3, name="zones", doc="Availability zones that brokers and clients are in.",
        minimum=1, maximum=10,
    )  # fmt: skip
    consumer_groups: int = setting(
        2, name="consumer-groups", doc="Number of reads of all data.", minimum=0, maximum=10_000
    )
    reads_cross_zone: float = setting(
        OWN, name="reads-cross-zone", minimum=OWN, maximum=1,
        doc="Share of reads from a broker of another zone; -1: by zones and rack-aware.",
    )  # fmt: skip
    writes_cross_zone: float = setting(
        0.0, name="writes-cross-zone", minimum=0, maximum=1,
        doc="Share of produced bytes that go to a leader of another zone.",
    )  # fmt: skip
    rack_aware: bool = setting(
        False, name="rack-aware", doc="Whether consumers read from a replica of their own zone."
    )
    peak_factor: float = setting(
        1.5, name="peak-factor", doc="Rate at the peak per average rate.", minimum=1, maximum=1000
    )
    headroom: float = setting(
        0.3, name="headroom", doc="Capacity above the peak, as a share of it.",
        minimum=0, maximum=10,
    )  # fmt: skip
    disk_free: float = setting(
        0.2, name="disk-free", doc="Share of a provisioned disk that stays free.",
        minimum=0, maximum=0.9,
    )  # fmt: skip
    partitions: int = setting(
        24, name="partitions", doc="Partitions of all topics.", minimum=1, maximum=10_000_000
    )
    operations_share: float = setting(
        0.05, name="operations-share", minimum=0, maximum=0.9,
        doc="Share of an own cluster's cost that is operations and its control plane.",
    )  # fmt: skip
    latency_p99: float = setting(
        0.0, name="latency-p99", unit="ms", minimum=0, maximum=86_400_000,
        doc="Allowed produce latency at the 99th percentile; slower options do not fit. 0: any.",
    )  # fmt: skip
    per_record: bool = setting(
        False, name="per-record",
        doc="Whether consumers react to each record; ways that deliver files do not fit then.",
    )  # fmt: skip
    option: str = setting(
        "cheapest", name="option", doc="Option of the chart of the sensitivity to inputs.",
        choices=("cheapest", *OPTIONS),
    )  # fmt: skip
    broker_rate: float = setting(
        50e6, name="broker-rate", unit="bytes/s", minimum=1, maximum=1e12,
        doc="Compressed bytes that an own broker takes from producers, its copies besides.",
    )  # fmt: skip
    broker_vcpus: int = setting(
        16, name="broker-vcpus", doc="Processors of an own broker.", minimum=1, maximum=1024
    )
    local_retention: float = setting(
        1.0, name="local-retention", unit="d", minimum=0.001, maximum=36_500,
        doc="Retention of a tiered topic on local disks.",
    )  # fmt: skip
    diskless_broker_rate: float = setting(
        50e6, name="diskless-broker-rate", unit="bytes/s", minimum=1, maximum=1e12,
        doc="Compressed bytes that a diskless broker takes from producers.",
    )  # fmt: skip
    diskless_broker_vcpus: int = setting(
        16, name="diskless-broker-vcpus", doc="Processors of a diskless broker.",
        minimum=1, maximum=1024,
    )  # fmt: skip
    commit_interval: float = setting(
        float(DISKLESS.interval_ms(local=False)), name="commit-interval", unit="ms",
        doc="Gathering time of an object: diskless.commit.interval.ms.", minimum=1, maximum=60_000,
    )  # fmt: skip
    object_bytes: int = setting(
        DISKLESS.buffer_bytes_max, name="object-bytes", unit="bytes",
        doc="Size at which an object is full: diskless.buffer.max.bytes.",
        minimum=1 << 10, maximum=1 << 30,
    )  # fmt: skip
    sealed_bytes: int = setting(
        DISKLESS.consolidation_segment_bytes, name="sealed-bytes", unit="bytes",
        doc="Size of a consolidated segment: diskless.consolidation.segment.bytes.",
        minimum=1 << 20, maximum=1 << 30,
    )  # fmt: skip
    consolidation: bool = setting(
        True, name="consolidation", doc="Whether objects are made into segments of one partition."
    )
    cache_time: float = setting(
        0.0, name="cache-time", unit="h", minimum=0, maximum=10_000,
        doc="Age of the newest data that each zone of a diskless cluster keeps on a disk.",
    )  # fmt: skip
    database_vcpus: int = setting(
        4, name="database-vcpus", doc="Processors of the PostgreSQL of a diskless cluster.",
        minimum=0, maximum=1024,
    )  # fmt: skip
    file_bytes: int = setting(
        1_000_000, name="file-bytes", unit="bytes", minimum=1, maximum=1 << 40,
        doc="Compressed size of an outbox file, or of an object that producers write themselves.",
    )  # fmt: skip
    pointer_bytes: int = setting(
        200, name="pointer-bytes", unit="bytes", minimum=1, maximum=1 << 20,
        doc="Size of the record with the location of a file.",
    )  # fmt: skip
    pointer_carrier: str = setting(
        "penstock", name="pointer-carrier", choices=CARRIERS,
        doc="Carrier of pointers; existing is paid for already.",
    )  # fmt: skip
    pointer_broker_vcpus: int = setting(
        2, name="pointer-broker-vcpus", doc="Processors of a broker for pointers alone.",
        minimum=1, maximum=1024,
    )  # fmt: skip
    outbox_same_zone: bool = setting(
        True, name="outbox-same-zone",
        doc="Whether clients are in the zone of an FSx file system's primary.",
    )  # fmt: skip
    efs_throughput: float = setting(
        0.0, name="efs-throughput", unit="bytes/s", minimum=0, maximum=1e12,
        doc="Provisioned throughput of EFS; 0: peak of writes and reads.",
    )  # fmt: skip
    fsx_throughput: float = setting(
        0.0, name="fsx-throughput", unit="bytes/s", minimum=0, maximum=1e12,
        doc="Provisioned throughput of FSx with SSD; 0: peak of writes and reads.",
    )  # fmt: skip
    fsx_tiering_throughput: float = setting(
        0.0, name="fsx-tiering-throughput", unit="bytes/s", minimum=0, maximum=1e12,
        doc="Provisioned throughput of FSx Intelligent-Tiering; 0: peak of writes and reads.",
    )  # fmt: skip
    infrequent_share: float = setting(
        OWN, name="infrequent-share", minimum=OWN, maximum=1,
        doc="Share of data in Infrequent Access; -1: what is between 30 and 90 days old.",
    )  # fmt: skip
    archive_share: float = setting(
        OWN, name="archive-share", minimum=OWN, maximum=1,
        doc="Share of data in Archive Instant Access; -1: what is over 90 days old.",
    )  # fmt: skip
    tiering_requests_per_file: float = setting(
        1.0, name="tiering-requests-per-file", minimum=0, maximum=1e6,
        doc="Requests to Intelligent-Tiering that are charged for a file.",
    )  # fmt: skip
    kinesis_record_bytes: int = setting(
        0, name="kinesis-record-bytes", unit="bytes", minimum=0, maximum=10 << 20,
        doc="Size of a record on Kinesis; 0: a compressed message each.",
    )  # fmt: skip
    kinesis_shards: int = setting(
        0, name="kinesis-shards", minimum=0, maximum=10_000_000,
        doc="Shards that carry the payload; 0: what bytes, records and readers need.",
    )  # fmt: skip
    pointer_shards: int = setting(
        0, name="pointer-shards", minimum=0, maximum=10_000_000,
        doc="Shards that carry pointers; 0: what bytes, records and readers need.",
    )  # fmt: skip
    enhanced_fan_out: bool = setting(
        False, name="enhanced-fan-out", doc="Whether each Kinesis consumer has its own throughput."
    )
    msk_broker_rate: float = setting(
        60e6, name="msk-broker-rate", unit="bytes/s", minimum=1, maximum=1e12,
        doc="Compressed bytes that an MSK broker takes from producers.",
    )  # fmt: skip
    msk_broker_vcpus: int = setting(
        8, name="msk-broker-vcpus", doc="Processors of an MSK broker.", minimum=1, maximum=1024
    )
    msk_storage: float = setting(
        0.0, name="msk-storage", unit="bytes", minimum=0, maximum=1e21,
        doc="Volumes of all MSK brokers; 0: what retention and replication need.",
    )  # fmt: skip
    managed_replication_free: bool = setting(
        True, name="managed-replication-free",
        doc="Whether replication between zones is free within the managed service.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.rate > 0 and self.bytes_per_day not in (BYTES_PER_DAY, self.rate * 86_400):
            raise ImpossiblePlan(
                "rate and bytes-per-day are the same quantity",
                f"rate = {self.rate:g} bytes/s and bytes-per-day = {self.bytes_per_day:g}",
                "give one of them",
            )
        if self.zones == 1 and max(self.reads_cross_zone, self.writes_cross_zone) > 0:
            raise ImpossiblePlan(
                "in one zone nothing crosses zones",
                f"zones = 1, reads-cross-zone = {self.reads_cross_zone:g},"
                f" writes-cross-zone = {self.writes_cross_zone:g}",
                "set both shares to 0, or zones above 1",
            )
        for name, share in (
            ("reads-cross-zone", self.reads_cross_zone),
            ("infrequent-share", self.infrequent_share),
            ("archive-share", self.archive_share),
        ):
            if OWN < share < 0:
                raise ImpossiblePlan(
                    "a share is from 0 to 1", f"{name} = {share:g}", "or -1: worked out"
                )
        if max(self.infrequent_share, 0) + max(self.archive_share, 0) > 1:
            raise ImpossiblePlan(
                "the sum of both shares is at most 1",
                f"infrequent-share = {self.infrequent_share:g} and archive-share ="
                f" {self.archive_share:g} are more",
                "lower one of them",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Inputs of one scenario. `assumed` explains inputs that its source lacks."""

    doc: str
    inputs: Mapping[str, object]
    assumed: Mapping[str, str]


PRESETS: Final[Mapping[str, Preset]] = {
    name: Preset(**row) for name, row in read_table(__package__, "presets.toml").items()
}
"""Workloads of the sources, ready to compute."""
