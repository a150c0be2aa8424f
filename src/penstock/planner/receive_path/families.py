"""Instance families: what is publicly known of their caches, queues and bandwidth.

Bandwidth is per instance size (by vCPUs): what is always there, and for how much a burst goes. An
L3 sharing domain is a set of cores with one L3: a socket of Intel and Graviton, a core complex of
AMD. No document gives the largest RX ring of a family, only that it lies between 256 and 16,384
entries, so that `ring_max_entries` is an assumption until `ethtool -g` has been read.

Source: the EC2 instance type specifications (network: baseline and burst bandwidth), the ENA Linux
driver best practices (rings, queues), and the data sheets of the processors, as of 2025-06.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.planner.receive_path.limits import (
    QUEUES_ACCELERATED,
    QUEUES_USUAL,
    RING_ASSUMED_MAX_ENTRIES,
    RING_DEFAULT_ENTRIES,
)

AS_OF: Final = "2025-06"
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


def _sizes(*rows: tuple[int, float, float]) -> tuple[Size, ...]:
    return tuple(Size(vcpus=vcpus, baseline_gbit=low, burst_gbit=high) for vcpus, low, high in rows)


_UP_TO_32: Final = (
    (2, 0.781, 12.5),
    (4, 1.562, 12.5),
    (8, 3.125, 12.5),
    (16, 6.25, 12.5),
    (32, 12.5, 12.5),
    (48, 18.75, 18.75),
    (64, 25.0, 25.0),
    (96, 37.5, 37.5),
)
_SIXTH: Final = _sizes(*_UP_TO_32, (128, 50.0, 50.0))
_SIXTH_AMD: Final = _sizes(*_UP_TO_32, (128, 50.0, 50.0), (192, 50.0, 50.0))
_SEVENTH: Final = _sizes(*_UP_TO_32, (192, 50.0, 50.0))
_SEVENTH_AMD: Final = _sizes((1, 0.39, 12.5), *_UP_TO_32, (128, 50.0, 50.0), (192, 50.0, 50.0))
_GRAVITON: Final = (
    (1, 0.52, 12.5),
    (2, 0.937, 12.5),
    (4, 1.876, 12.5),
    (8, 3.75, 15.0),
    (16, 7.5, 15.0),
    (32, 15.0, 15.0),
    (48, 22.5, 22.5),
    (64, 30.0, 30.0),
)
_GRAVITON4: Final = (*_GRAVITON[:2], (4, 1.875, 12.5), *_GRAVITON[3:])
_C5N: Final = _sizes(
    (2, 3.0, 25.0),
    (4, 5.0, 25.0),
    (8, 10.0, 25.0),
    (16, 15.0, 25.0),
    (36, 50.0, 50.0),
    (72, 100.0, 100.0),
)
_C6IN: Final = _sizes(
    (2, 3.125, 25.0),
    (4, 6.25, 30.0),
    (8, 12.5, 40.0),
    (16, 25.0, 50.0),
    (32, 50.0, 50.0),
    (48, 75.0, 75.0),
    (64, 100.0, 100.0),
    (96, 150.0, 150.0),
    (128, 200.0, 200.0),
)
_C7GN: Final = _sizes(
    (1, 3.125, 25.0),
    (2, 6.25, 30.0),
    (4, 12.5, 40.0),
    (8, 25.0, 50.0),
    (16, 50.0, 50.0),
    (32, 100.0, 100.0),
    (48, 150.0, 150.0),
    (64, 200.0, 200.0),
)


def _family(
    name: str,
    processor: str,
    l3_mib: float,
    l3_cores: int,
    sizes: tuple[Size, ...],
    queues_max: int = QUEUES_USUAL,
) -> Family:
    return Family(
        name=name,
        processor=processor,
        l3_bytes=int(l3_mib * (1 << 20)),
        l3_cores=l3_cores,
        sizes=sizes,
        queues_max=queues_max,
    )


_ICE_LAKE: Final = "Intel Xeon, Ice Lake"
_SAPPHIRE: Final = "Intel Xeon, Sapphire Rapids"
_ROWS: Final = (
    _family("c5n", "Intel Xeon, Skylake", 24.75, 18, _C5N, QUEUES_ACCELERATED),
    *[_family(name, _ICE_LAKE, 54, 32, _SIXTH) for name in ("c6i", "m6i", "r6i")],
    *[
        _family(name, _ICE_LAKE, 54, 32, _C6IN, QUEUES_ACCELERATED)
        for name in ("c6in", "m6in", "r6in")
    ],
    *[_family(name, "AMD EPYC, Milan", 32, 8, _SIXTH_AMD) for name in ("c6a", "m6a", "r6a")],
    *[_family(name, _SAPPHIRE, 105, 48, _SEVENTH) for name in ("c7i", "m7i", "r7i")],
    *[_family(name, "AMD EPYC, Genoa", 32, 8, _SEVENTH_AMD) for name in ("c7a", "m7a", "r7a")],
    *[_family(name, "Graviton3", 32, 64, _sizes(*_GRAVITON)) for name in ("c7g", "m7g", "r7g")],
    _family("c7gn", "Graviton3E", 32, 64, _C7GN, QUEUES_ACCELERATED),
    *[
        _family(name, "Graviton4", 36, 96, _sizes(*_GRAVITON4, (96, 40.0, 40.0), (192, 50.0, 50.0)))
        for name in ("c8g", "m8g", "r8g")
    ],
)

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType({row.name: row for row in _ROWS})
