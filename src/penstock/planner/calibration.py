"""Calibration: figures measured on a host, which a plan uses in place of its assumptions.

`penstock bench` writes a calibration, `penstock plan capacity` reads it. It is a JSON document:

    {"version": 1, "taken_at": "…", "host": {"cores": 2, …}, "measured": {"<name>": {
        "value": 285.0, "unit": "MB/s", "how": "…", "runs": 3}, …}}

Latencies are stored as quantiles, under names that end in `_p50_ms` and `_p99_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.planner.quantities import InvalidPlanFile

CALIBRATION_VERSION: Final = 1
MEASURED_MAX: Final = 1_000
"""Maximum number of figures in a calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured figure of a host: the median of `runs` runs."""

    value: float
    unit: str
    how: str
    runs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    taken_at: str
    host: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)

    def value(self, name: str, otherwise: float) -> float:
        found = self.measured.get(name)
        return otherwise if found is None else found.value


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    return {
        "version": CALIBRATION_VERSION,
        "taken_at": calibration.taken_at,
        "host": dict(calibration.host),
        "measured": {
            name: {"value": one.value, "unit": one.unit, "how": one.how, "runs": one.runs}
            for name, one in calibration.measured.items()
        },
    }


def read_calibration(document: object, where: str) -> Calibration:
    """Decode the document of a calibration file; `where` names the file in messages.

    Raises:
        InvalidPlanFile: the document is not a calibration of this version, or a row is invalid.
    """
    if not isinstance(document, dict) or document.get("version") != CALIBRATION_VERSION:
        raise InvalidPlanFile(
            f"{where} is not a calibration of version {CALIBRATION_VERSION}. Write one with"
            " `penstock bench`."
        )
    rows = document.get("measured")
    if not isinstance(rows, dict) or len(rows) > MEASURED_MAX:
        raise InvalidPlanFile(f"{where}: measured must be a table of at most {MEASURED_MAX} rows")
    measured = {
        str(name): _measured(row, f"{where}: measured.{name}") for name, row in rows.items()
    }
    host = document.get("host")
    return Calibration(
        taken_at=str(document.get("taken_at", "")),
        host=host if isinstance(host, dict) else {},
        measured=measured,
    )


def _measured(row: object, where: str) -> Measured:
    if not isinstance(row, dict):
        raise InvalidPlanFile(f"{where} must be a table")
    value, runs = row.get("value"), row.get("runs", 1)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise InvalidPlanFile(
            f"{where}.value = {value!r}: must be a number of at least 0 and below 1e18"
        )
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise InvalidPlanFile(f"{where}.runs = {runs!r}: must be a whole number of at least 1")
    return Measured(
        value=float(value), unit=str(row.get("unit", "")), how=str(row.get("how", "")), runs=runs
    )
