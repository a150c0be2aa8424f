"""Instance families: the data of `families.toml`, which says where it comes from, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.planner.receive_path.limits import (
    QUEUES_USUAL,
    RING_ASSUMED_MAX_ENTRIES,
    RING_DEFAULT_ENTRIES,
)
from penstock.planner.tables import read_table

OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a family; bandwidths in Gbit/s."""

    vcpus: int
    baseline_gbit: float
    burst_gbit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family: `l3_bytes` are shared by `l3_cores` cores; `queues_max` per interface."""

    name: str
    processor: str
    l3_bytes: int
    l3_cores: int
    sizes: tuple[Size, ...]
    queues_max: int = QUEUES_USUAL
    ring_default_entries: int = RING_DEFAULT_ENTRIES
    ring_max_entries: int = RING_ASSUMED_MAX_ENTRIES


def _family(name: str, row: Mapping[str, Any]) -> Family:
    sizes = [
        Size(vcpus=vcpus, baseline_gbit=float(low), burst_gbit=float(high))
        for vcpus, low, high in row["sizes"]
    ]
    return Family(
        name=name,
        processor=row["processor"],
        l3_bytes=int(row["l3_mib"] * (1 << 20)),
        l3_cores=row["l3_cores"],
        sizes=tuple(sizes),
        queues_max=row.get("queues_max", QUEUES_USUAL),
    )


_DATA: Final = read_table(__package__, "families.toml")
AS_OF: Final[str] = _DATA["as_of"]
FAMILIES: Final[Mapping[str, Family]] = {
    name: _family(name, row) for row in _DATA["family"] for name in row["names"]
}
