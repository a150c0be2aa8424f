"""Inputs of a cost plan in their units, and the rates and volumes computed from them.

For some inputs 0 or -1 means "computed"; their documentation says from what. An input that is a
capacity (`kinesis-shards`, `fsx-throughput`) replaces the capacity that the plan would compute from
the workload.

A month has 30 days, a GB 10^9 bytes and an MB 10^6, as in the sources. Bytes are compressed unless
stated otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from math import ceil, isfinite
from typing import ClassVar, Final, Literal

from penstock.base.settings import setting
from penstock.diskless.settings import DisklessSettings
from penstock.planner.quantities import ImpossiblePlan, InvalidPlanFile, read_table, significant
from penstock.planner.results import Figure
from penstock.storage import LogConfig

DISKLESS: Final = DisklessSettings()
SEGMENT_BYTES: Final = LogConfig().segment_bytes
BYTES_PER_DAY: Final = 10**12
OWN: Final = -1.0
"""Value of an input that means "computed from the other inputs"."""
OPTIONS: Final = (
    "local", "tiered", "diskless", "outbox-efs-elastic", "outbox-efs-provisioned",
    "outbox-fsx-ssd", "outbox-fsx-tiering", "s3-direct", "kinesis-provisioned",
    "kinesis-on-demand", "msk-provisioned", "msk-express", "msk-serverless",
)  # fmt: skip
CARRIERS: Final = ("penstock", "kinesis", "existing")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    SEPARATOR: ClassVar = "-"

    bytes_per_day: float = setting(
        BYTES_PER_DAY, "Bytes produced per day, before compression.", 1, 1e21, unit="bytes/day"
    )
    rate: float = setting(
        0.0, "Bytes produced per second before compression, in place of bytes-per-day. 0 uses"
        " bytes-per-day.", 0, 1e16,
        unit="bytes/s",
    )  # fmt: skip
    message_bytes: int = setting(
        1000, "Size of a message before compression.", 1, 1 << 30, unit="bytes"
    )
    compression: float = setting(
        3.0, "Produced bytes per compressed byte. 1 means no compression.", 1, 1000
    )
    retention: float = setting(7.0, "Retention of data.", 0.001, 36_500, unit="d")
    replication_factor: int = setting(
        3, "Replicas of a partition on local disks, including the leader's.", 1, 20
    )
    zones: int = setting(
        3, "Number of availability zones over which brokers and clients are spread.", 1, 10
    )
    consumer_groups: int = setting(2, "Number of consumer groups; each reads all data.", 0, 10_000)
    reads_cross_zone: float = setting(
        OWN,
        "Share of reads from a broker in another zone. -1 computes it from zones and rack-aware.",
        OWN,
        1,
    )
    writes_cross_zone: float = setting(
        0.0, "Share of produced bytes that are sent to a leader in another zone.", 0, 1
    )
    rack_aware: bool = setting(False, "Whether consumers read from a replica in their own zone.")
    peak_factor: float = setting(
        1.5, "Rate at the peak, as a multiple of the average rate.", 1, 1000
    )
    headroom: float = setting(
        0.3, "Capacity to provide above the peak, as a share of the peak.", 0, 10
    )
    disk_free: float = setting(0.2, "Share of a provisioned disk to keep free.", 0, 0.9)
    partitions: int = setting(24, "Number of partitions of all topics.", 1, 10_000_000)
    operations_share: float = setting(
        0.05,
        "Share of operations and control plane in the total cost of a self-managed cluster.",
        0,
        0.9,
    )
    latency_p99: float = setting(
        0.0, "Maximum produce latency at the 99th percentile; slower options do not fit. 0 sets"
        " no limit.",
        0, 86_400_000, unit="ms",
    )  # fmt: skip
    per_record: bool = setting(
        False,
        "Whether consumers must receive single records. Options that deliver files then do"
        " not fit.",
    )
    option: str = setting(
        "cheapest", "Option for the chart of ±50 % changes of each input.",
        choices=("cheapest", *OPTIONS),
    )  # fmt: skip
    broker_rate: float = setting(
        50e6, "Compressed bytes per second that a self-managed broker accepts from producers,"
        " without the bytes from other replicas.", 1,
        1e12, unit="bytes/s",
    )  # fmt: skip
    broker_vcpus: int = setting(16, "Number of vCPUs of a self-managed broker.", 1, 1024)
    local_retention: float = setting(
        1.0, "Retention of tiered topics on the brokers' disks.", 0.001, 36_500, unit="d"
    )
    diskless_broker_rate: float = setting(
        50e6, "Compressed bytes per second that a diskless broker accepts from producers.", 1, 1e12,
        unit="bytes/s",
    )  # fmt: skip
    diskless_broker_vcpus: int = setting(16, "Number of vCPUs of a diskless broker.", 1, 1024)
    commit_interval: float = setting(
        float(DISKLESS.interval_ms(local=False)), "Time for which a diskless broker collects"
        " data for an object: diskless.commit.interval.ms.", 1, 60_000, unit="ms",
    )  # fmt: skip
    object_bytes: int = setting(
        DISKLESS.buffer_bytes_max, "Size at which an object is closed early:"
        " diskless.buffer.max.bytes.",
        1 << 10, 1 << 30, unit="bytes",
    )  # fmt: skip
    sealed_bytes: int = setting(
        DISKLESS.consolidation_segment_bytes, "Size of a consolidated segment:"
        " diskless.consolidation.segment.bytes.", 1 << 20, 1 << 30, unit="bytes",
    )  # fmt: skip
    consolidation: bool = setting(
        True, "Whether objects are merged into segments of one partition each."
    )
    cache_time: float = setting(
        0.0, "Maximum age of data in the cache disks that a diskless cluster has in each zone. 0"
        " means no cache disks.", 0,
        10_000, unit="h",
    )  # fmt: skip
    database_vcpus: int = setting(
        4, "Number of vCPUs of the PostgreSQL of a diskless cluster.", 0, 1024
    )
    file_bytes: int = setting(
        1_000_000, "Compressed size of an outbox file, or of an object that producers write"
        " themselves.", 1, 1 << 40, unit="bytes",
    )  # fmt: skip
    pointer_bytes: int = setting(
        200, "Size of a pointer: the record that names a file.", 1, 1 << 20, unit="bytes"
    )
    pointer_carrier: str = setting(
        "penstock",
        "Log that carries the pointers. `existing` is a log that costs nothing more.",
        choices=CARRIERS,
    )
    pointer_broker_vcpus: int = setting(
        2, "Number of vCPUs of a broker that only carries pointers.", 1, 1024
    )
    outbox_same_zone: bool = setting(
        True, "Whether all clients are in the zone of an FSx file system's primary."
    )
    efs_throughput: float = setting(
        0.0,
        "Provisioned throughput of EFS. 0 computes it from writes and reads at the peak.",
        0,
        1e12,
        unit="bytes/s",
    )
    fsx_throughput: float = setting(
        0.0, "Provisioned throughput of FSx with SSD. 0 computes it from writes and reads at the"
        " peak.", 0, 1e12,
        unit="bytes/s",
    )  # fmt: skip
    fsx_tiering_throughput: float = setting(
        0.0, "Provisioned throughput of FSx Intelligent-Tiering. 0 computes it from writes and"
        " reads at the peak.", 0,
        1e12, unit="bytes/s",
    )  # fmt: skip
    infrequent_share: float = setting(
        OWN,
        "Share of data in Infrequent Access. -1 takes the share of data that is 30 to 90 days old.",
        OWN,
        1,
    )
    archive_share: float = setting(
        OWN,
        "Share of data in Archive Instant Access. -1 takes the share of data older than 90 days.",
        OWN,
        1,
    )
    tiering_requests_per_file: float = setting(
        1.0, "Number of requests that Intelligent-Tiering charges per file.", 0, 1e6
    )
    kinesis_record_bytes: int = setting(
        0,
        "Size of a record on Kinesis. 0 makes one record of each compressed message.",
        0,
        10 << 20,
        unit="bytes",
    )
    kinesis_shards: int = setting(
        0,
        "Number of shards for the payload. 0 computes it from bytes, records and readers.",
        0,
        10_000_000,
    )
    pointer_shards: int = setting(
        0,
        "Number of shards for the pointers. 0 computes it from bytes, records and readers.",
        0,
        10_000_000,
    )
    enhanced_fan_out: bool = setting(
        False, "Whether each Kinesis consumer has its own throughput (enhanced fan-out)."
    )
    msk_broker_rate: float = setting(
        60e6,
        "Compressed bytes per second that an MSK broker accepts from producers.",
        1,
        1e12,
        unit="bytes/s",
    )
    msk_broker_vcpus: int = setting(8, "Number of vCPUs of an MSK broker.", 1, 1024)
    msk_storage: float = setting(
        0.0, "Size of the volumes of all MSK brokers together. 0 computes it from retention and"
        " replication.", 0, 1e21,
        unit="bytes",
    )  # fmt: skip
    managed_replication_free: bool = setting(
        True, "Whether traffic of replication between zones is free within a managed service."
    )

    def __post_init__(self) -> None:
        if self.rate > 0 and self.bytes_per_day not in (BYTES_PER_DAY, self.rate * 86_400):
            raise ImpossiblePlan(
                "rate and bytes-per-day state the same quantity",
                f"rate = {self.rate:g} bytes/s and bytes-per-day = {self.bytes_per_day:g}",
                "set only one of them",
            )
        if self.zones == 1 and max(self.reads_cross_zone, self.writes_cross_zone) > 0:
            raise ImpossiblePlan(
                "with one zone, no bytes can cross zones",
                f"zones = 1, reads-cross-zone = {self.reads_cross_zone:g},"
                f" writes-cross-zone = {self.writes_cross_zone:g}",
                "set both shares to 0, or zones to 2 or more",
            )
        for name, share in (
            ("reads-cross-zone", self.reads_cross_zone),
            ("infrequent-share", self.infrequent_share),
            ("archive-share", self.archive_share),
        ):
            if OWN < share < 0:
                raise ImpossiblePlan(
                    "a share must be from 0 to 1, or -1 to be computed",
                    f"{name} = {share:g}",
                    "set a share from 0 to 1, or -1",
                )
        if max(self.infrequent_share, 0) + max(self.archive_share, 0) > 1:
            raise ImpossiblePlan(
                "the sum of infrequent-share and archive-share must be at most 1",
                f"infrequent-share = {self.infrequent_share:g}, archive-share ="
                f" {self.archive_share:g}",
                "lower one of them",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Inputs of one named scenario.

    `assumed` explains the inputs that the scenario's source does not state.
    """

    doc: str
    inputs: Mapping[str, object]
    assumed: Mapping[str, str]


PRESETS: Final[Mapping[str, Preset]] = {
    name: Preset(**row) for name, row in read_table(__package__, "presets.toml").items()
}
"""Scenarios of the sources, by name."""


DAYS: Final = 30
HOURS: Final = 24 * DAYS
SECONDS: Final = 86_400 * DAYS
GB: Final = 1e9
MB: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Rates and volumes of the data to carry.

    `bytes_s` are compressed bytes per second, `records_s` are messages per second. `peak` is the
    multiple of the average rate for which capacity is provided.
    """

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
        """Bytes per second for which capacity is provided: the peak with its headroom."""
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
        """Average number of followers outside their leader's zone.

        With 3 replicas in 3 zones it is 2. Replicas are spread evenly, and each is the leader
        equally often.
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

    Without rack awareness, a consumer reads from the leader, which is in its zone with a
    probability of 1 / zones. With rack awareness it crosses zones only if its zone has no replica.
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
    """Return the inputs with the produced volume multiplied by `factor`; given capacities are
    multiplied too.
    """
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
    """Return the inputs with another retention; a given MSK storage changes in proportion."""
    factor = retention_days / inputs.retention
    return replace(inputs, retention=retention_days, msk_storage=inputs.msk_storage * factor)


# Prices, and the lines of a bill: a quantity times a price, with the origin of the quantity.
#
# Each price has a unit, a date and a source. `prices.toml` beside this module has the default
# prices, and declares which prices exist. A user's file may hold only some prices, and only the
# fields to change. Its names and units must match the declared ones. A new price without a date
# gets today's date and the file as its source.


OLD_DAYS: Final = 365
"""Age of a price in days above which a finding asks for a check."""
_FIELDS: Final = frozenset({"usd", "unit", "date", "source"})
_TEXT_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one unit in USD; `key` names its table in the file."""

    key: str
    usd: float
    unit: str
    date: date
    source: str


class Prices(dict[str, Price]):
    """Prices by key."""

    def scaled(self, key: str, factor: float) -> Prices:
        return Prices({**self, key: replace(self[key], usd=self[key].usd * factor)})

    def older_than_a_year(self, today: date) -> list[Price]:
        return [price for price in self.values() if (today - price.date).days > OLD_DAYS]


def read_prices(
    document: object, where: str, known: Prices | None = None, today: date | None = None
) -> Prices:
    """Decode a price file; missing prices are those of `known`.

    Without `known`, the file declares all prices, as the default file does. With `today`, a new
    price needs no date. `where` names the file in messages.

    Raises:
        InvalidPlanFile: a table or key is unknown, or a price is missing, negative or no number.
    """
    rows = dict(_rows(document, where))
    if known is None:
        return Prices({key: _price(key, row, f"{where}: {key}") for key, row in rows.items()})
    found = Prices(known)
    for key, row in rows.items():
        if key not in known:
            raise InvalidPlanFile(f"{where}: {key}: unknown price{_near(key, known)}")
        place = f"{where}: {key}"
        found[key] = _price(key, _merged(row, known[key], where, today), place, known[key].unit)
    return found


def _merged(row: object, known: Price, where: str, today: date | None) -> object:
    """Complete a user's table of a price with the default price.

    A table with a price gets `where` as its source and `today` as its date unless it has its own;
    one without a price gets the default's price, date and source.
    """
    if not isinstance(row, dict):
        return row
    if "usd" in row:
        ours: dict[str, object] = {"source": where} | ({} if today is None else {"date": today})
    else:
        ours = {"usd": known.usd, "date": known.date, "source": known.source}
    return ours | row


def _near(key: str, known: Prices) -> str:
    close = get_close_matches(key, list(known), n=1)
    if close:
        return f"; did you mean {close[0]}?"
    group = key.partition(".")[0]
    near = [name for name in known if name.partition(".")[0] == group] or list(known)
    return f"; known prices are {', '.join(near)}"


def _rows(document: object, where: str) -> Iterator[tuple[str, object]]:
    if not isinstance(document, dict):
        raise InvalidPlanFile(f"{where} must hold tables")
    for group, rows in document.items():
        if not isinstance(rows, dict):
            raise InvalidPlanFile(f"{where}: {group} must be a table of prices")
        for name, row in rows.items():
            yield f"{group}.{name}", row


def _price(key: str, row: object, where: str, unit: str | None = None) -> Price:
    if not isinstance(row, dict):
        raise InvalidPlanFile(f"{where} must be a table with usd, unit, date and source")
    unknown = sorted(row.keys() - _FIELDS)
    if unknown:
        near = get_close_matches(unknown[0], sorted(_FIELDS), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InvalidPlanFile(
            f"{where}.{unknown[0]} is unknown; a price has usd, unit, date and source{meant}"
        )
    dated = row.get("date")
    if type(dated) is not date:
        raise InvalidPlanFile(f"{where}.date = {dated!r}: must be a date such as 2026-05-01")
    given = _text(row.get("unit", unit), f"{where}.unit")
    if unit is not None and given != unit:
        raise InvalidPlanFile(
            f"{where}.unit = {given!r}: must be {unit!r}. Convert the price to this unit"
        )
    return Price(
        key=key,
        usd=_usd(row.get("usd"), f"{where}.usd"),
        unit=given,
        date=dated,
        source=_text(row.get("source"), f"{where}.source"),
    )


def _usd(value: object, where: str) -> float:
    if value is None:
        raise InvalidPlanFile(f"{where} is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise InvalidPlanFile(f"{where} = {value!r}: must be a number")
    if value < 0:
        raise InvalidPlanFile(f"{where} = {value!r}: must not be negative")
    return float(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidPlanFile(f"{where} is missing, must be a text")
    if len(value) > _TEXT_CHARS_MAX:
        raise InvalidPlanFile(
            f"{where} has {len(value)} characters; at most {_TEXT_CHARS_MAX} are allowed"
        )
    return value.strip()


Kind = Literal[
    "compute", "storage", "requests", "cross-zone", "throughput", "shards", "ingest", "retrieval",
    "database", "cache", "operations",
]  # fmt: skip
MODEL: Final = "Penstock: the model of this plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a bill.

    `name` is unique within an option. `price_key` is empty for a line without a price of its own.
    """

    name: str
    label: str
    kind: Kind
    usd: float
    formula: str
    source: str
    price_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """Monthly cost of one option.

    `unfit` holds the reasons why the option cannot carry the workload. `latency_p99_ms` is its
    produce latency, None if no source states it. `batched` is whether consumers get files instead
    of records.
    """

    key: str
    label: str
    lines: tuple[Line, ...]
    sizes: tuple[Figure, ...] = ()
    unfit: tuple[str, ...] = ()
    latency_p99_ms: float | None = None
    batched: bool = False

    @property
    def total_usd(self) -> float:
        return sum([line.usd for line in self.lines])

    def kind_usd(self, *kinds: Kind) -> float:
        return sum([line.usd for line in self.lines if line.kind in kinds])

    def line(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def size(self, name: str) -> float:
        """Return the value of a size by its name, without the option's prefix; raises KeyError."""
        for figure in self.sizes:
            if figure.name == f"{identifier(self.key)}_{name}":
                return float(figure.value or 0)
        raise KeyError(name)


def priced(
    name: str, label: str, kind: Kind, quantity: float, price: Price, how: str, source: str = MODEL
) -> Line:
    """Return a line of `quantity` units at a price.

    `how` explains the quantity, `source` names the rule that computes it.
    """
    unit = price.unit.removeprefix("USD per ")
    return Line(
        name=name,
        label=label,
        kind=kind,
        usd=quantity * price.usd,
        formula=f"{significant(quantity)} × ${price.usd:g} per {unit}; {how}",
        source=f"{price.source} ({price.date}); {source}",
        price_key=price.key,
    )


def operations(lines: Sequence[Line], share: float) -> Line:
    others = sum([line.usd for line in lines])
    return Line(
        name="operations",
        label="operations and control plane",
        kind="operations",
        usd=others * share / (1 - share),
        formula=f"${others:,.0f} × {share:g} / (1 - {share:g}), which is {share:.0%} of the total",
        source="log and queue article, section 12c: 5 % in either split",
    )


def size(option: str, name: str, label: str, value: float, unit: str, formula: str,
         source: str = MODEL) -> Figure:  # fmt: skip
    return Figure(f"{identifier(option)}_{name}", label, value, unit, formula, source)


def identifier(key: str) -> str:
    return key.replace("-", "_")
